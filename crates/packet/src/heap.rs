//! A pool on the heap, for tests and tools that run without DPDK.

use crate::{HEADROOM, Mbuf, Packet, Pool};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of data that packets hold, unless a larger MTU was asked for.
const ROOM_BYTES: usize = 2048;
/// Bytes of an Ethernet header, two VLAN tags and the FCS.
const FRAME_OVERHEAD_BYTES: usize = 14 + 8 + 4;

/// A [`Pool`] of heap mbufs that counts the packets in use, so that tests can see a leak.
#[derive(Default)]
pub struct HeapPool {
    out: AtomicUsize,
    /// The most packets that were in use at once.
    peak: AtomicUsize,
    /// Bytes of data that the largest packets hold beyond [`ROOM_BYTES`].
    extra: AtomicUsize,
}

/// The layout of an mbuf with a buffer of `buf` bytes.
fn layout(buf: usize) -> Layout {
    let (size, align) = (size_of::<Mbuf>() + buf, align_of::<Mbuf>());
    Layout::from_size_align(size, align).expect("a buffer of at most 64 kB")
}

/// An empty packet with room for `bytes` bytes.
fn make(bytes: usize) -> Packet {
    let buf = bytes + HEADROOM;
    // SAFETY: the layout is not empty.
    let mbuf = unsafe { alloc_zeroed(layout(buf)) }.cast::<Mbuf>();
    if mbuf.is_null() {
        handle_alloc_error(layout(buf));
    }
    // SAFETY: the piece is ours and aligned; an all-zero mbuf is valid. It lives until `free`.
    unsafe {
        (*mbuf).buf_addr = mbuf.add(1).cast();
        (*mbuf).buf_len = buf as u16;
        (*mbuf).data_off = HEADROOM as u16;
        (*mbuf).refcnt = 1;
        (*mbuf).nb_segs = 1;
        Packet::from_raw(mbuf)
    }
}

impl HeapPool {
    /// An unlimited pool.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of packets that were allocated and not freed.
    pub fn in_use(&self) -> usize {
        self.out.load(Ordering::Relaxed)
    }

    /// The most packets that were in use at once.
    pub fn peak(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }

    fn count(&self, n: usize) {
        let out = self.out.fetch_add(n, Ordering::Relaxed) + n;
        self.peak.fetch_max(out, Ordering::Relaxed);
    }
}

impl Pool for HeapPool {
    fn alloc(&self, out: &mut Vec<Packet>, n: usize) -> bool {
        out.extend((0..n).map(|_| make(ROOM_BYTES)));
        self.count(n);
        true
    }

    fn free(&self, packets: &[Packet]) {
        for p in packets {
            let mbuf = p.as_raw();
            // SAFETY: made by `make` with this layout, and owned by the caller.
            unsafe { dealloc(mbuf.cast(), layout((*mbuf).buf_len.into())) };
        }
        self.out.fetch_sub(packets.len(), Ordering::Relaxed);
    }

    fn room(&self) -> usize {
        ROOM_BYTES + self.extra.load(Ordering::Relaxed)
    }

    fn provide(&self, mtu: u32) -> Result<(), String> {
        let most = usize::from(u16::MAX) - HEADROOM;
        let room = (mtu as usize + FRAME_OVERHEAD_BYTES).min(most);
        self.extra.fetch_max(room.saturating_sub(ROOM_BYTES), Ordering::Relaxed);
        Ok(())
    }

    fn sized(&self, bytes: usize) -> Option<Packet> {
        if bytes > self.room() {
            return None;
        }
        self.count(1);
        Some(make(bytes.max(ROOM_BYTES)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn push_pull_and_count() {
        let pool = HeapPool::new();
        let mut p = pool.packet(&[7; 60]).unwrap();
        assert!(p.push_front(4) && p.len() == 64);
        assert!(p.pull_front(4) && p.data()[0] == 7);
        assert!(!p.push_front(HEADROOM + 1) && !p.pull_front(61) && !p.set_len(100_000));
        assert_eq!(pool.in_use(), 1);
        pool.free(&[p]);
        assert_eq!((pool.in_use(), pool.peak()), (0, 1));
    }

    #[test]
    fn large_packets_are_there_once_provided() {
        let pool = HeapPool::new();
        assert_eq!((pool.packet(&[1; 2049]), pool.room()), (None, 2048));
        pool.provide(9000).unwrap();
        let p = pool.packet(&[1; 9026]).unwrap();
        assert!(p.len() == 9026 && pool.packet(&[1; 9027]).is_none());
        pool.free(&[p]);
        pool.provide(1500).unwrap();
        assert_eq!((pool.in_use(), pool.room()), (0, 9026), "it never shrinks");
    }
}
