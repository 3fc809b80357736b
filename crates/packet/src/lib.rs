//! Packets in DPDK's mbuf layout, and the pool they come from, without DPDK itself.
//!
//! *Place*: ground row. *Knows*: the first two cache lines of `rte_mbuf` (DPDK 22.11; `dpdk`
//! asserts the offsets against the real header). *Does not know*: protocols, ports, drivers.
//!
//! Ownership: a [`Packet`] is a plain pointer without `Drop`. Its owner either passes it on
//! (transmit, ring) or gives it back to the [`Pool`]; tests count both.

mod heap;

pub use heap::HeapPool;

use std::ptr::NonNull;

/// Bytes in front of the data of an empty packet (`RTE_PKTMBUF_HEADROOM`).
pub const HEADROOM: usize = 128;
/// Packets that one call of a receive queue returns, at most.
pub const BURST: usize = 32;
/// Packets that are worked on together, at most: a vector.
pub const VECTOR: usize = 256;

/// `struct rte_mbuf`: the fields that are used, under DPDK's names. Packet code accesses line 0
/// only.
#[repr(C, align(64))]
pub struct Mbuf {
    /// Start of the buffer, which is not that of the data.
    pub buf_addr: *mut u8,
    /// Bus address of the buffer.
    pub buf_iova: u64,
    /// Offset of the first data byte from `buf_addr`.
    pub data_off: u16,
    /// References to this mbuf.
    pub refcnt: u16,
    /// Segments of the chain (1: contiguous).
    pub nb_segs: u16,
    /// Input port, as the driver set it.
    pub port: u16,
    /// `RTE_MBUF_F_*` flags.
    pub ol_flags: u64,
    /// `RTE_PTYPE_*`.
    pub packet_type: u32,
    /// Bytes over all segments.
    pub pkt_len: u32,
    /// Bytes in this segment.
    pub data_len: u16,
    /// Stripped VLAN tag, if the flags say so.
    pub vlan_tci: u16,
    /// RSS hash, if the flags say so.
    pub hash_rss: u32,
    /// Flow-director id or mark.
    pub hash_hi: u32,
    /// Outer stripped VLAN tag.
    pub vlan_tci_outer: u16,
    /// Bytes of the buffer, headroom included.
    pub buf_len: u16,
    /// The mempool.
    pub pool: *mut core::ffi::c_void,
    /// Line 1: next segment.
    pub next: *mut Mbuf,
    /// l2/l3/l4 lengths and TSO segment size for transmit offloads.
    pub tx_offload: u64,
    /// The rest of line 1, which is never accessed here.
    pub rest: [u64; 6],
}

/// Mbuf flags of a packet whose IP and L4 checksums are right (`RTE_MBUF_F_RX_IP_CKSUM_GOOD`,
/// `RTE_MBUF_F_RX_L4_CKSUM_GOOD`).
const SOUND: u64 = 1 << 7 | 1 << 8;
/// All mbuf flags about these checksums. With the other two bits as well they are right and not yet
/// in the packet (`RTE_MBUF_F_RX_IP_CKSUM_NONE`, `RTE_MBUF_F_RX_L4_CKSUM_NONE`).
const CHECKSUM_FLAGS: u64 = SOUND | 1 << 4 | 1 << 3;

/// A packet: the only pointer to its mbuf, so a mutable borrow of it is the only access to its
/// bytes. It has no `Drop`; see the crate's ownership rule.
///
/// ```compile_fail,E0382
/// fn twice(p: packet::Packet) -> [packet::Packet; 2] {
///     [p, p]
/// }
/// ```
#[derive(Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Packet(NonNull<Mbuf>);

// Columns of packets are columns of pointers, and forgetting a packet costs nothing.
const _: () = assert!(size_of::<Option<Packet>>() == size_of::<*mut Mbuf>());
const _: () = assert!(!std::mem::needs_drop::<Packet>());

// SAFETY: a packet is owned by exactly one thread at a time; handing the pointer over moves it.
unsafe impl Send for Packet {}

impl Packet {
    /// Wraps an mbuf pointer.
    ///
    /// # Safety
    /// `mbuf` points to a live mbuf with one valid segment, owned by the caller.
    #[inline]
    pub unsafe fn from_raw(mbuf: *mut Mbuf) -> Self {
        // SAFETY: the caller vouches for the pointer.
        Packet(unsafe { NonNull::new_unchecked(mbuf) })
    }

    /// The mbuf pointer.
    #[inline]
    pub fn as_raw(&self) -> *mut Mbuf {
        self.0.as_ptr()
    }

    /// A second handle of the packet, to take the packet out of an array whose entries are not
    /// removed.
    ///
    /// # Safety
    ///
    /// One of the two handles is not used any more, except to be overwritten or forgotten.
    #[inline]
    pub unsafe fn duplicate(&self) -> Packet {
        Packet(self.0)
    }

    #[inline]
    fn m(&self) -> &Mbuf {
        // SAFETY: live and owned (type invariant).
        unsafe { self.0.as_ref() }
    }

    /// The mbuf's fields.
    #[inline]
    pub fn mbuf(&mut self) -> &mut Mbuf {
        // SAFETY: live and owned (type invariant); `&mut self` keeps the borrow unique through
        // this handle.
        unsafe { self.0.as_mut() }
    }

    /// Bytes of data in the first segment.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.m().data_len as usize
    }

    /// The mark of the adapter's rule; 0: none. Without a branch: it would be mispredicted where
    /// some packets are marked.
    #[inline]
    pub fn mark(&self) -> u32 {
        const FDIR_ID: u64 = 1 << 13;
        let m = self.m();
        std::hint::select_unpredictable(m.ol_flags & FDIR_ID != 0, m.hash_hi, 0)
    }

    /// The 64 bytes from the data's start on, even if the data ends before; None: the buffer ends
    /// before.
    #[inline]
    pub fn first_64(&self) -> Option<&[u8; 64]> {
        let m = self.m();
        let fits = usize::from(m.data_off) + 64 <= usize::from(m.buf_len);
        // SAFETY: inside the mbuf's buffer, which is memory that was initialised by the system.
        fits.then(|| unsafe { &*m.buf_addr.add(m.data_off as usize).cast() })
    }

    /// Flags that the driver set (`RTE_MBUF_F_*`).
    #[inline]
    pub fn flags(&self) -> u64 {
        self.m().ol_flags
    }

    /// True if the IP and L4 checksums are known to be right: the driver checked them, or they were
    /// computed here.
    #[inline]
    pub fn has_sound_checksums(&self) -> bool {
        self.flags() & CHECKSUM_FLAGS == SOUND
    }

    /// Says that the IP and L4 checksums are right.
    #[inline]
    pub fn set_sound_checksums(&mut self) {
        let m = self.mbuf();
        m.ol_flags = m.ol_flags & !CHECKSUM_FLAGS | SOUND;
    }

    /// Says that nothing is known of the IP and L4 checksums.
    #[inline]
    pub fn forget_checksums(&mut self) {
        self.mbuf().ol_flags &= !CHECKSUM_FLAGS;
    }

    /// Number of segments.
    #[inline]
    pub fn segments(&self) -> u16 {
        self.m().nb_segs
    }

    /// The data of the first segment.
    #[inline]
    pub fn data(&self) -> &[u8] {
        let m = self.m();
        // SAFETY: buf_addr + data_off .. + data_len lies in the mbuf's buffer.
        unsafe {
            std::slice::from_raw_parts(m.buf_addr.add(m.data_off as usize), m.data_len as usize)
        }
    }

    /// The data of the first segment, to be written.
    #[inline]
    pub fn data_mut(&mut self) -> &mut [u8] {
        let m = self.m();
        // SAFETY: as in `data`; `&mut self`.
        unsafe {
            std::slice::from_raw_parts_mut(m.buf_addr.add(m.data_off as usize), m.data_len as usize)
        }
    }

    /// Free bytes in front of the data.
    #[inline]
    pub fn headroom(&self) -> usize {
        self.m().data_off as usize
    }

    /// The `n` bytes in front of the data: after [`Packet::pull_front`] these are the removed
    /// bytes, if nothing was pushed since. Empty if there are fewer.
    #[inline]
    pub fn before(&self, n: usize) -> &[u8] {
        let n = if n <= self.headroom() { n } else { 0 };
        let m = self.m();
        // SAFETY: buf_addr + data_off - n .. + data_off lies in the mbuf's buffer.
        unsafe { std::slice::from_raw_parts(m.buf_addr.add(m.data_off as usize - n), n) }
    }

    /// Free bytes behind the data.
    #[inline]
    pub fn tailroom(&self) -> usize {
        let m = self.m();
        m.buf_len as usize - m.data_off as usize - m.data_len as usize
    }

    /// Adds `n` bytes at the front of the data; false, and unchanged: there is less headroom.
    #[inline]
    #[must_use]
    pub fn push_front(&mut self, n: usize) -> bool {
        if n > self.headroom() {
            return false;
        }
        let m = self.mbuf();
        m.data_off -= n as u16;
        m.data_len += n as u16;
        m.pkt_len += n as u32;
        true
    }

    /// Removes `n` bytes at the front of the data; false, and unchanged: there are fewer.
    #[inline]
    #[must_use]
    pub fn pull_front(&mut self, n: usize) -> bool {
        if n > self.len() {
            return false;
        }
        let m = self.mbuf();
        m.data_off += n as u16;
        m.data_len -= n as u16;
        m.pkt_len -= n as u32;
        true
    }

    /// Removes all but these bytes of a single-segment packet, as far as it has them.
    #[inline]
    pub fn keep(&mut self, bytes: std::ops::Range<usize>) {
        let end = bytes.end.min(self.len());
        let start = bytes.start.min(end);
        let m = self.mbuf();
        m.data_off += start as u16;
        m.data_len = (end - start) as u16;
        m.pkt_len = (end - start) as u32;
    }

    /// Sets the length of a single-segment packet; false: it does not fit into the buffer.
    #[inline]
    #[must_use]
    pub fn set_len(&mut self, n: usize) -> bool {
        if n > self.len() + self.tailroom() {
            return false;
        }
        let m = self.mbuf();
        m.data_len = n as u16;
        m.pkt_len = n as u32;
        true
    }
}

/// Appends packets to a column.
///
/// # Safety
///
/// The caller does not use `from` any more, except to overwrite or forget it.
#[inline]
pub unsafe fn append(to: &mut Vec<Packet>, from: &[Packet]) {
    // SAFETY: the caller's promise.
    to.extend(from.iter().map(|p| unsafe { p.duplicate() }));
}

/// A pool of packets. One call per burst, from any thread.
pub trait Pool: Send + Sync {
    /// Appends `n` empty packets to `out`, or none (false).
    fn alloc(&self, out: &mut Vec<Packet>, n: usize) -> bool;
    /// Takes packets back (of this or any other pool of the same kind).
    fn free(&self, packets: &[Packet]);

    /// Bytes that the largest buffers hold.
    fn room(&self) -> usize;

    /// Makes sure that there are buffers for frames of a port with layer-3 `mtu`. For the control
    /// side: it may take long.
    ///
    /// # Errors
    /// When there is no memory for them, in words for the log.
    fn provide(&self, mtu: u32) -> Result<(), String> {
        let _ = mtu;
        Ok(())
    }

    /// One fresh empty packet with room for `bytes`; None when no buffer is as large
    /// ([`Pool::room`]) or none is free.
    fn sized(&self, bytes: usize) -> Option<Packet> {
        let mut one = Vec::with_capacity(1);
        if !self.alloc(&mut one, 1) {
            return None;
        }
        if one[0].tailroom() < bytes {
            self.free(&one);
            return None;
        }
        one.pop()
    }

    /// One fresh packet with `bytes` as its data; None without room or memory.
    fn packet(&self, bytes: &[u8]) -> Option<Packet> {
        let mut p = self.sized(bytes.len())?;
        let _ = p.set_len(bytes.len());
        p.data_mut().copy_from_slice(bytes);
        Some(p)
    }

    /// A copy of `packet` in a fresh buffer, data and mark flags.
    fn copy(&self, packet: &Packet) -> Option<Packet> {
        self.packet(packet.data())
    }
}
