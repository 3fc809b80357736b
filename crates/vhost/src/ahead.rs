//! Plain buffers, read from a ring before they are used.
//!
//! Most buffers are one descriptor whose memory is one piece. These are read, checked and
//! translated once, as soon as packets for them are announced, and kept until they are used, so
//! that prefetching their memory reads nothing of the guest's. The first buffer that is not plain
//! ends the row: [`crate::batch`] reads it again and checks everything about it.

use crate::batch::{Desc, Direction, flag};
use crate::memory::{Memory, Region};

/// Buffers of one ring that are read ahead, at most.
pub(crate) const BUFFERS_AHEAD_MAX: usize = 64;
/// How many buffers before its use a buffer's memory is prefetched.
pub(crate) const PREFETCH_BUFFERS: usize = 16;

/// A buffer of one piece that is mapped at `at`, with room for more than a header.
#[derive(Clone, Copy)]
pub(crate) struct Plain {
    pub at: *mut u8,
    pub len: u32,
    /// What the guest calls it.
    pub id: u16,
}

/// Tells plain buffers from others.
pub(crate) struct Reader<'a> {
    pub memory: &'a Memory,
    /// The region of the last address.
    pub last: &'a mut Region,
    pub direction: Direction,
    pub header: u32,
}

impl Reader<'_> {
    /// The buffer of a descriptor with these flags, if it is plain.
    #[inline]
    pub fn plain(&mut self, desc: Desc, flags: u16, id: u16) -> Option<Plain> {
        let write = if self.direction == Direction::ToGuest { flag::WRITE } else { 0 };
        if flags & (flag::NEXT | flag::INDIRECT | flag::WRITE) != write || desc.len <= self.header {
            return None;
        }
        let (at, n) = self.memory.translate(self.last, desc.addr, desc.len)?;
        (n == desc.len).then_some(Plain { at, len: n, id })
    }
}

/// The buffers from a ring's place on that were read and not used.
pub(crate) struct Ahead {
    buffers: Box<[Plain; BUFFERS_AHEAD_MAX]>,
    direction: Direction,
    /// Numbers of buffers, which only grow; the low bits are the place in `buffers`.
    next: u32,
    end: u32,
    /// The memory of all buffers before this one was prefetched.
    fetched: u32,
}

impl Default for Ahead {
    fn default() -> Self {
        let none = Plain { at: std::ptr::null_mut(), len: 0, id: 0 };
        let buffers = Box::new([none; BUFFERS_AHEAD_MAX]);
        Ahead { buffers, direction: Direction::FromGuest, next: 0, end: 0, fetched: 0 }
    }
}

impl Ahead {
    #[inline]
    pub fn len(&self) -> usize {
        self.end.wrapping_sub(self.next) as usize
    }

    /// Sets the direction of the calls that follow; forgets buffers that were read for the other
    /// one.
    #[inline]
    pub fn turn(&mut self, direction: Direction) {
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

    /// Appends a buffer; there are fewer than [`BUFFERS_AHEAD_MAX`].
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

    /// Removes the first `n` buffers: they were used.
    #[inline]
    pub fn used(&mut self, n: usize) {
        self.next = self.next.wrapping_add(n as u32);
    }

    /// Has buffers prefetched again: what was prefetched may have left the cache.
    #[inline]
    pub fn stale(&mut self) {
        self.fetched = self.next;
    }

    /// Prefetches the first bytes of the packet in the `i`-th buffer that is not used, if there is
    /// one.
    #[inline(always)]
    pub fn fetch_one(&self, i: usize, header: usize, fetch: fn(*const u8)) {
        if i < self.len() {
            lines(self.get(i).at, header, fetch);
        }
    }

    /// Notes that the first `n` buffers, or all if they are fewer, were prefetched.
    #[inline]
    pub fn was_fetched(&mut self, n: usize) {
        let upto = self.next.wrapping_add(n.min(self.len()) as u32);
        if (upto.wrapping_sub(self.fetched) as i32) > 0 {
            self.fetched = upto;
        }
    }

    /// Fetches the first bytes of packets in the first `n` buffers, as far as that was not done.
    #[inline]
    pub fn fetch(&mut self, n: usize, header: usize) {
        let upto = self.next.wrapping_add(n.min(self.len()) as u32);
        while (upto.wrapping_sub(self.fetched) as i32) > 0 {
            let at = self.buffers[self.fetched as usize % BUFFERS_AHEAD_MAX].at;
            match self.direction {
                Direction::FromGuest => lines(at, header, sync::prefetch),
                Direction::ToGuest => lines(at, header, sync::prefetch_write),
            }
            self.fetched = self.fetched.wrapping_add(1);
        }
    }
}

/// Fetches header and first bytes of a packet at `at`.
#[inline(always)]
pub(crate) fn lines(at: *const u8, header: usize, fetch: fn(*const u8)) {
    fetch(at);
    fetch(at.wrapping_add(header + 52));
}
