//! A ring in memory that is shared with a peer, which may write whatever it likes there, at any
//! time: every index and every descriptor is read once and checked before it is used (the memif
//! protocol's documentation in DPDK's guide to its memif driver).
//!
//! A ring is a header (cookie, flags, head, tail) and a power of two of descriptors; head and tail
//! count on without bound. The client owns all memory. Rings from client to server (C2S): the
//! client advances head over frames, the server advances tail over what it took. Rings from server
//! to client (S2C): the client advances head over empty buffers, the server advances tail over
//! those that it filled.

use super::memory::SharedMemory;
use super::message::{DESCRIPTOR_BYTES, RING_HEADER_BYTES};
use packet::{BURST, Packet, Pool};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering, fence};
use vhost_user::Counters;

/// What a ring begins with.
const COOKIE: u32 = 0x3E3_1F20;
/// Flag of a ring: its consumer polls, and wants no signals.
const MASK_INT: u16 = 1;
/// Flag of a descriptor: the frame goes on in the next one.
const NEXT: u16 = 1;
/// Descriptors that a frame may have: 9,728 bytes in buffers of 256 have 38.
const FRAME_DESCRIPTORS_MAX: u16 = 64;
/// Descriptors that a call receives from or sends to, give or take a frame. Any may be of a page
/// that the peer has given away, which costs the worker a page fault: some microseconds, where a
/// frame costs a tenth of one. Ordinary frames have one; those of 9,000 bytes have five.
const RECEIVE_DESCRIPTORS_MAX: u16 = 128;
const SEND_DESCRIPTORS_MAX: u16 = 512;
/// Shorter frames are errors: there is no whole Ethernet header.
const FRAME_BYTES_MIN: usize = 14;
/// Offsets in the header.
const AT_FLAGS: usize = 4;
const AT_HEAD: usize = 6;
const AT_TAIL: usize = 64;

/// What a peer did wrong in a ring. It ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RingError {
    /// An index is further from the other one than the ring has descriptors.
    Index,
    /// A buffer that is not inside of its region, or of no region.
    Buffer,
    /// A frame of more than [`FRAME_DESCRIPTORS_MAX`] descriptors, or one that does not end.
    Chain,
    /// Not a ring: the cookie is another one.
    Cookie,
}

impl RingError {
    pub fn text(self) -> &'static str {
        match self {
            RingError::Index => "a ring's index is out of range",
            RingError::Buffer => "a descriptor's buffer is not in its region",
            RingError::Chain => "a frame of too many descriptors or without an end",
            RingError::Cookie => "Wrong ring",
        }
    }
}

/// Whose buffers the descriptors of a ring are about.
#[derive(Clone, Copy)]
pub(crate) enum Buffers {
    /// The peer's, which says where each is: we are the server.
    Theirs,
    /// Ours, one for each descriptor: we are the client. They lie in region 0, from `first` on, and
    /// have `bytes` each.
    Own {
        /// Offset in the region, bytes.
        first: u32,
        /// Bytes.
        bytes: u32,
    },
}

/// A ring, for the thread that receives from it or sends to it.
pub(crate) struct Ring {
    memory: Arc<SharedMemory>,
    header: *mut u8,
    /// Descriptors, a power of two.
    size: u16,
    /// The index of the first descriptor that is still to be received from or filled. Never read
    /// from the shared memory.
    next: u16,
    buffers: Buffers,
    signal: OwnedFd,
    /// The peer did something wrong: nothing is received or sent any more.
    is_broken: bool,
}

// SAFETY: the pointer is into `memory`, which lives as long as the ring; all accesses of shared
// bytes are atomic or copies of plain bytes that may change meanwhile.
unsafe impl Send for Ring {}

/// A descriptor as it was read, its buffer checked.
struct Piece {
    at: *mut u8,
    bytes: usize,
    more: bool,
}

impl Ring {
    /// The ring of `1 << log2_size` descriptors at `offset` of `region`, which is empty from now
    /// on. `receives`: frames come from it.
    ///
    /// # Errors
    /// There is no ring.
    pub fn new(
        memory: &Arc<SharedMemory>,
        (region, offset, log2_size): (u16, u32, u8),
        buffers: Buffers,
        signal: OwnedFd,
        receives: bool,
    ) -> Result<Ring, RingError> {
        let bytes = RING_HEADER_BYTES + (DESCRIPTOR_BYTES << log2_size);
        let header = memory.at(region, offset, bytes).ok_or(RingError::Buffer)?;
        if !offset.is_multiple_of(4) {
            return Err(RingError::Buffer);
        }
        let (memory, size) = (memory.clone(), 1 << log2_size);
        let ring = Ring { memory, header, size, next: 0, buffers, signal, is_broken: false };
        if ring.word(0).load(Ordering::Acquire) != COOKIE {
            return Err(RingError::Cookie);
        }
        ring.half(AT_HEAD).store(0, Ordering::Relaxed);
        ring.half(AT_TAIL).store(0, Ordering::Relaxed);
        if receives {
            ring.half(AT_FLAGS).store(MASK_INT, Ordering::Relaxed);
            ring.give_back(0, if let Buffers::Own { .. } = buffers { size } else { 0 });
        }
        Ok(ring)
    }

    /// Writes the cookie of a ring to be, for the client that makes it.
    pub fn format(memory: &SharedMemory, offset: u32) {
        if let Some(at) = memory.at(0, offset, RING_HEADER_BYTES) {
            // SAFETY: four mapped bytes, aligned as rings are.
            unsafe { AtomicU32::from_ptr(at.cast()) }.store(COOKIE, Ordering::Release);
        }
    }

    fn half(&self, at: usize) -> &AtomicU16 {
        // SAFETY: inside of the ring, which is mapped (type invariant) and aligned to four bytes.
        unsafe { AtomicU16::from_ptr(self.header.add(at).cast()) }
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: as in `half`; `at` is a multiple of four.
        unsafe { AtomicU32::from_ptr(self.header.add(at).cast()) }
    }

    fn slot(&self, index: u16) -> usize {
        RING_HEADER_BYTES as usize
            + usize::from(index & (self.size - 1)) * DESCRIPTOR_BYTES as usize
    }

    /// The index that the peer advances, and the one that is ours.
    fn indices(&self) -> (&AtomicU16, &AtomicU16) {
        let (head, tail) = (self.half(AT_HEAD), self.half(AT_TAIL));
        match self.buffers {
            Buffers::Theirs => (head, tail),
            Buffers::Own { .. } => (tail, head),
        }
    }

    /// Descriptors from `next` on with frames to receive, or with buffers to fill.
    fn available(&mut self, receives: bool) -> Result<u16, RingError> {
        if self.is_broken {
            return Ok(0);
        }
        let theirs = self.indices().0.load(Ordering::Acquire);
        let n = match (self.buffers, receives) {
            // What is still to be taken must not be more than the ring has: else this wraps.
            (Buffers::Own { .. }, false) => self.size.wrapping_sub(self.next.wrapping_sub(theirs)),
            _ => theirs.wrapping_sub(self.next),
        };
        self.is_broken = n > self.size;
        if self.is_broken { Err(RingError::Index) } else { Ok(n) }
    }

    /// The buffer of a descriptor, and what is in it or how much fits.
    fn piece(&self, index: u16, receives: bool) -> Result<Piece, RingError> {
        let slot = self.slot(index);
        let words = [0, 4, 8].map(|i| self.word(slot + i).load(Ordering::Relaxed));
        let more = words[0] as u16 & NEXT != 0;
        let (region, offset, room) = match self.buffers {
            Buffers::Theirs => ((words[0] >> 16) as u16, words[2], words[1]),
            Buffers::Own { first, bytes } => {
                (0, first + u32::from(index & (self.size - 1)) * bytes, bytes)
            }
        };
        let at = self.memory.at(region, offset, room.into()).ok_or(RingError::Buffer)?;
        let bytes = if receives { words[1] } else { room };
        if bytes > room {
            return Err(RingError::Buffer);
        }
        Ok(Piece { at, bytes: bytes as usize, more })
    }

    /// Appends up to `max` frames to `out`, of about [`RECEIVE_DESCRIPTORS_MAX`] descriptors, in
    /// packets of `spare`, which `pool` refills. `moved` says how many; frames that are too short
    /// or too long are counted as dropped.
    ///
    /// # Errors
    /// The peer broke the ring, which moves nothing any more. What came before is in `out`.
    pub fn receive(
        &mut self,
        (pool, spare): (&dyn Pool, &mut Vec<Packet>),
        (out, max): (&mut Vec<Packet>, usize),
        moved: &mut Counters,
    ) -> Result<(), RingError> {
        let there = self.available(true)?;
        if there == 0 {
            return Ok(());
        }
        let (first, end) = (self.next, self.next.wrapping_add(there));
        let max = max.min(out.capacity() - out.len());
        let mut result = Ok(());
        for _ in 0..max {
            let is_over = self.next.wrapping_sub(first) >= RECEIVE_DESCRIPTORS_MAX;
            if self.next == end || is_over || (spare.is_empty() && !pool.alloc(spare, BURST)) {
                break;
            }
            let Some(mut packet) = spare.pop() else { break };
            match self.gather(&mut packet, end) {
                Ok(n) if n >= FRAME_BYTES_MIN => {
                    moved.packets += 1;
                    moved.bytes += n as u64;
                    out.push(packet);
                    continue;
                }
                Ok(_) => moved.dropped += 1,
                Err(error) => result = Err(error),
            }
            let _ = packet.set_len(0);
            spare.push(packet);
            if result.is_err() {
                self.is_broken = true;
                break;
            }
        }
        self.give_back(first, self.next.wrapping_sub(first));
        result
    }

    /// Puts the frame that begins at `next` into the packet, and passes it; its bytes, 0 when they
    /// do not fit.
    fn gather(&mut self, packet: &mut Packet, end: u16) -> Result<usize, RingError> {
        let (mut len, mut fits) = (0, true);
        for _ in 0..FRAME_DESCRIPTORS_MAX {
            if self.next == end {
                break;
            }
            let piece = self.piece(self.next, true)?;
            self.next = self.next.wrapping_add(1);
            fits = fits && packet.set_len(len + piece.bytes);
            if fits {
                let to = packet.data_mut()[len..].as_mut_ptr();
                // SAFETY: the piece is mapped memory of so many bytes, and the packet has grown by
                // as many; a packet's buffer is not shared.
                unsafe { std::ptr::copy_nonoverlapping(piece.at, to, piece.bytes) };
                len += piece.bytes;
            }
            if !piece.more {
                return Ok(if fits { len } else { 0 });
            }
        }
        Err(RingError::Chain)
    }

    /// Gives the peer `n` descriptors from `first` on, which were received from or never used; a
    /// client's have their empty buffers again.
    fn give_back(&self, first: u16, n: u16) {
        match self.buffers {
            Buffers::Theirs => self.half(AT_TAIL).store(self.next, Ordering::Release),
            Buffers::Own { .. } => {
                (0..n).for_each(|i| self.describe(first.wrapping_add(i), None, false));
                let head = self.next.wrapping_add(self.size);
                self.half(AT_HEAD).store(head, Ordering::Release);
            }
        }
    }

    /// Writes a descriptor: of a buffer with so many bytes in it, or of an empty one of ours.
    fn describe(&self, index: u16, bytes: Option<usize>, more: bool) {
        let slot = self.slot(index);
        let flags = u32::from(if more { NEXT } else { 0 });
        match self.buffers {
            Buffers::Theirs => self.half(slot).store(flags as u16, Ordering::Relaxed),
            Buffers::Own { first, bytes: room } => {
                let offset = first + u32::from(index & (self.size - 1)) * room;
                self.word(slot).store(flags, Ordering::Relaxed);
                self.word(slot + 4).store(room, Ordering::Relaxed);
                self.word(slot + 8).store(offset, Ordering::Relaxed);
            }
        }
        if let Some(bytes) = bytes {
            self.word(slot + 4).store(bytes as u32, Ordering::Relaxed);
        }
    }

    /// Copies packets from the front into the peer's buffers or ours, as long as there are any,
    /// about [`SEND_DESCRIPTORS_MAX`] of them; `moved` says how many.
    ///
    /// # Errors
    /// The peer broke the ring, which moves nothing any more.
    pub fn send(&mut self, packets: &[Packet], moved: &mut Counters) -> Result<(), RingError> {
        let (mut free, first) = (self.available(false)?, self.next);
        let mut result = Ok(());
        for packet in packets {
            if self.next.wrapping_sub(first) >= SEND_DESCRIPTORS_MAX {
                break;
            }
            match self.place(packet.data(), free) {
                Ok(Some(n)) => {
                    self.next = self.next.wrapping_add(n);
                    free -= n;
                    moved.packets += 1;
                    moved.bytes += packet.len() as u64;
                }
                Ok(None) => break,
                Err(error) => {
                    self.is_broken = true;
                    result = Err(error);
                    break;
                }
            }
        }
        if moved.packets > 0 {
            self.indices().1.store(self.next, Ordering::Release);
        }
        result
    }

    /// Copies one frame to where `next` says; the descriptors that it took, None if it takes more
    /// than `free`.
    fn place(&self, mut data: &[u8], free: u16) -> Result<Option<u16>, RingError> {
        for i in 0..FRAME_DESCRIPTORS_MAX {
            if i == free {
                return Ok(None);
            }
            let index = self.next.wrapping_add(i);
            let piece = self.piece(index, false)?;
            let (now, rest) = data.split_at(piece.bytes.min(data.len()));
            // SAFETY: the piece is mapped memory of at least so many bytes; a packet's buffer is
            // not shared.
            unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), piece.at, now.len()) };
            self.describe(index, Some(now.len()), !rest.is_empty());
            data = rest;
            if data.is_empty() {
                return Ok(Some(i + 1));
            }
        }
        Err(RingError::Chain)
    }

    /// Tells the peer that there is something in the ring, unless it polls.
    pub fn notify(&self) {
        // A peer that stops polling takes its flag away, then looks at the index once more: with
        // the fence it sees the index, or the flag is seen to be gone here.
        fence(Ordering::SeqCst);
        if self.half(AT_FLAGS).load(Ordering::Relaxed) & MASK_INT == 0 {
            // A peer that passed something else than an eventfd waits for itself.
            let _ = vhost_user::signal(self.signal.as_raw_fd());
        }
    }
}
