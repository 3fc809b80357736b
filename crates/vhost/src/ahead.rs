//! Plain buffers: those of one descriptor whose memory is contiguous. They are read from a ring
//! before they are used.
//!
//! Most buffers are plain. They are read, checked and translated once, as soon as packets for them
//! are announced, and kept until they are used, so prefetching their memory reads no memory of the
//! guest. Reading ahead stops at the first buffer that is not plain: [`crate::batch`] reads that
//! one again and checks everything about it.

use crate::batch::{Desc, Direction, flag};
use crate::memory::{Memory, Region};

/// Buffers of one ring that are read ahead, at most.
pub(crate) const BUFFERS_AHEAD_MAX: usize = 64;
/// How many buffers ahead the memory of buffers is prefetched.
pub(crate) const PREFETCH_BUFFERS: usize = 16;

/// A plain buffer, mapped at `host`, with room for more than a header.
#[derive(Clone, Copy)]
pub(crate) struct Plain {
    pub host: *mut u8,
    pub len: u32,
    /// The guest's identifier of the buffer.
    pub id: u16,
}

/// Reads descriptors and finds out which are plain buffers.
pub(crate) struct Reader<'a> {
    pub memory: &'a Memory,
    /// The region of the last address that was translated.
    pub last: &'a mut Region,
    pub direction: Direction,
    pub header: u32,
}

impl Reader<'_> {
    /// The buffer of a descriptor with these flags; None: it is not plain.
    #[inline]
    pub fn plain(&mut self, desc: Desc, flags: u16, id: u16) -> Option<Plain> {
        let write = if self.direction == Direction::ToGuest { flag::WRITE } else { 0 };
        if flags & (flag::NEXT | flag::INDIRECT | flag::WRITE) != write || desc.len <= self.header {
            return None;
        }
        let (host, n) = self.memory.translate(self.last, desc.addr, desc.len)?;
        (n == desc.len).then_some(Plain { host, len: n, id })
    }
}

/// The buffers that were read ahead and are not used yet.
pub(crate) struct Ahead {
    buffers: Box<[Plain; BUFFERS_AHEAD_MAX]>,
    direction: Direction,
    /// Number of the next buffer. Numbers only grow; the low bits are the index in `buffers`.
    next: u32,
    end: u32,
    /// Number of the first buffer whose memory was not prefetched.
    fetched: u32,
}

impl Default for Ahead {
    fn default() -> Self {
        let none = Plain { host: std::ptr::null_mut(), len: 0, id: 0 };
        let buffers = Box::new([none; BUFFERS_AHEAD_MAX]);
        Ahead { buffers, direction: Direction::FromGuest, next: 0, end: 0, fetched: 0 }
    }
}

impl Ahead {
    #[inline]
    pub fn len(&self) -> usize {
        self.end.wrapping_sub(self.next) as usize
    }

    /// Sets the direction for the calls that follow; if it was the other one, forgets all buffers.
    #[inline]
    pub fn set_direction(&mut self, direction: Direction) {
        if self.direction != direction {
            self.direction = direction;
            self.clear();
        }
    }

    /// Forgets all buffers.
    #[inline]
    pub fn clear(&mut self) {
        (self.end, self.fetched) = (self.next, self.next);
    }

    /// Appends a buffer. The caller makes sure that there are fewer than [`BUFFERS_AHEAD_MAX`].
    #[inline]
    pub fn push(&mut self, buffer: Plain) {
        self.buffers[self.end as usize % BUFFERS_AHEAD_MAX] = buffer;
        self.end = self.end.wrapping_add(1);
    }

    /// The `i`-th buffer that is not used.
    #[inline]
    pub fn get(&self, i: usize) -> Plain {
        self.buffers[self.next.wrapping_add(i as u32) as usize % BUFFERS_AHEAD_MAX]
    }

    /// Removes the first `n` buffers, which were used.
    #[inline]
    pub fn used(&mut self, n: usize) {
        self.next = self.next.wrapping_add(n as u32);
    }

    /// Records that prefetched memory may have left the cache, so it is prefetched again.
    #[inline]
    pub fn stale(&mut self) {
        self.fetched = self.next;
    }

    /// Prefetches the first bytes of the packet in the `i`-th buffer that is not used, if there is
    /// such a buffer.
    #[inline(always)]
    pub fn fetch_one(&self, i: usize, header: usize, fetch: fn(*const u8)) {
        if i < self.len() {
            lines(self.get(i).host, header, fetch);
        }
    }

    /// Records that the memory of the first `n` buffers (or of all, if there are fewer) was
    /// prefetched.
    #[inline]
    pub fn was_fetched(&mut self, n: usize) {
        let upto = self.next.wrapping_add(n.min(self.len()) as u32);
        if (upto.wrapping_sub(self.fetched) as i32) > 0 {
            self.fetched = upto;
        }
    }

    /// Prefetches the first bytes of packets in the first `n` buffers, except those that were
    /// prefetched.
    #[inline]
    pub fn fetch(&mut self, n: usize, header: usize) {
        let upto = self.next.wrapping_add(n.min(self.len()) as u32);
        while (upto.wrapping_sub(self.fetched) as i32) > 0 {
            let host = self.buffers[self.fetched as usize % BUFFERS_AHEAD_MAX].host;
            match self.direction {
                Direction::FromGuest => lines(host, header, sync::prefetch),
                Direction::ToGuest => lines(host, header, sync::prefetch_write),
            }
            self.fetched = self.fetched.wrapping_add(1);
        }
    }
}

/// Prefetches the header and the first bytes of a packet at `host`.
#[inline(always)]
pub(crate) fn lines(host: *const u8, header: usize, fetch: fn(*const u8)) {
    fetch(host);
    fetch(host.wrapping_add(header + 52));
}
