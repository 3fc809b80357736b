//! Split rings (virtio 1.1, section 2.6): a descriptor table, a ring of available and a ring of
//! used buffers. Buffers are used in the order in which they became available, so one index serves
//! both rings.

use crate::ahead::{Ahead, Reader};
use crate::batch::{BATCH, Batch, DESC, Desc, Direction, Walk, flag, table_entries};
use crate::memory::{Memory, Region};
use crate::raw;
use crate::ring_error::RingError;

/// Flag of either ring: do not notify.
const NO_INTERRUPT: u16 = 1;

/// A split ring. Indices count on in 32 bits, of which the ring has the low half: so they are
/// stored and loaded as whole words. (A load that is wider than the store before it waits until
/// that store, and with it all earlier stores to the guest's memory, are in the cache.)
pub(crate) struct Split {
    desc: *mut u8,
    avail: *mut u16,
    used: *mut u8,
    size: u32,
    event_idx: bool,
    /// Index of the next buffer to be used: the used index, before it is published.
    last_used_idx: u32,
    /// Number of buffers from `last_used_idx` on that were taken and will be given back later.
    taken: u32,
    /// Index of the next buffer to be read by `gather`.
    last_avail_idx: u32,
    /// Value of `last_used_idx` at the last call of [`Split::needs_notification`].
    signalled_used: u32,
    /// The guest's index of available buffers, as last read.
    avail_idx: u32,
    /// True if the guest suppressed notifications when `avail_idx` was read.
    quiet: bool,
}

/// Bytes of the three areas: descriptors, available ring, used ring.
pub(crate) fn areas(size: u16, event_idx: bool) -> [usize; 3] {
    let (n, event) = (usize::from(size), if event_idx { 2 } else { 0 });
    [n * DESC, 4 + 2 * n + event, 4 + 8 * n + event]
}

/// Alignment of the three areas, in bytes.
pub(crate) const ALIGN: [usize; 3] = [16, 2, 4];

impl Split {
    /// The caller has checked that the areas are mapped and aligned, and that `size` is a power of
    /// two.
    pub fn new(areas: [*mut u8; 3], size: u16, event_idx: bool, base: u16) -> Split {
        let [desc, avail, used] = areas;
        let (base, size) = (u32::from(base), u32::from(size));
        Split {
            desc,
            avail: avail.cast(),
            used,
            size,
            event_idx,
            last_used_idx: base,
            taken: 0,
            last_avail_idx: base,
            signalled_used: base,
            avail_idx: base,
            quiet: false,
        }
    }

    pub fn base(&self) -> u16 {
        self.last_used_idx as u16
    }

    pub fn size(&self) -> u16 {
        self.size as u16
    }

    /// Word `i` of the available ring: 0 is the flags, 1 the index, 2.. the heads, then the event
    /// index.
    #[inline]
    fn avail(&self, i: usize) -> u16 {
        // SAFETY: i is at most 2 + size, which lies in the area if event_idx is on, and less
        // otherwise.
        unsafe { raw::load16(self.avail.add(i)) }
    }

    #[inline]
    fn entry(&self, idx: u32) -> usize {
        (idx & (self.size - 1)) as usize
    }

    /// Number of buffers from `last_used_idx` on that were available when `avail_idx` was read.
    #[inline]
    fn ready(&self, avail_idx: u32) -> u32 {
        u32::from((avail_idx as u16).wrapping_sub(self.last_used_idx as u16))
    }

    /// Forgets buffers that were read and not used.
    #[inline]
    pub fn rewind(&mut self) {
        self.last_avail_idx = self.last_used_idx.wrapping_add(self.taken);
    }

    /// Prefetches the descriptors of the next `n` buffers, except those of the first `skip`, which
    /// are known. The descriptors' numbers are guessed: most guests use them in order.
    #[inline]
    pub fn fetch(&self, skip: u32, n: u32) {
        let (skip, n) = (skip + self.taken, n + self.taken);
        sync::prefetch(self.avail);
        for i in (skip..n).step_by(4) {
            let entry = self.entry(self.last_used_idx.wrapping_add(i));
            sync::prefetch(self.desc.wrapping_add(entry * DESC));
        }
        // The heads of 32 buffers are in one cache line.
        for i in (skip..n + 31).step_by(32) {
            sync::prefetch(
                self.avail.wrapping_add(2 + self.entry(self.last_used_idx.wrapping_add(i))),
            );
        }
    }

    /// Prefetches, for writing, the used index and the next `n` entries of the used ring. Called
    /// only when `n` buffers are available: the driver polls these lines, and prefetching takes
    /// them from it.
    #[inline]
    pub fn fetch_used(&self, n: u32) {
        sync::prefetch_write(self.used);
        for i in (0..n + 7).step_by(8) {
            sync::prefetch_write(
                self.used.wrapping_add(4 + 8 * self.entry(self.last_used_idx.wrapping_add(i))),
            );
        }
    }

    /// Prefetches the descriptors of `n` buffers from the `from`-th on, as far as they are
    /// available.
    #[inline]
    fn fetch_behind(&self, from: u32, n: u32) {
        let mut line = u16::MAX;
        for i in from..self.ready(self.avail_idx).min(from + n) {
            let head = self.avail(2 + self.entry(self.last_used_idx.wrapping_add(i)));
            if head / 4 != line {
                line = head / 4;
                sync::prefetch(self.desc.wrapping_add(usize::from(head) * DESC));
            }
        }
    }

    /// Reads how many buffers are available, unless `want` are known to be.
    #[inline]
    fn look(&mut self, want: u32) -> u32 {
        if self.ready(self.avail_idx) < want {
            self.avail_idx = self.avail(1).into();
            // The flags are in the cache line that was just read.
            self.quiet = !self.event_idx && self.avail(0) & NO_INTERRUPT != 0;
        }
        self.ready(self.avail_idx)
    }

    /// How many of the next `n` buffers are available. An invalid index is not checked here, but by
    /// the functions that read buffers.
    #[inline]
    pub fn room(&mut self, n: u32) -> u32 {
        self.look(self.taken + n).saturating_sub(self.taken).min(n)
    }

    /// Reads plain buffers until `ahead` has `want` of them. True: the next buffer is not plain.
    #[inline]
    pub fn read_ahead(&mut self, reader: &mut Reader, want: usize, ahead: &mut Ahead) -> bool {
        let (pending, want) = (ahead.len() as u32 + self.taken, want as u32 + self.taken);
        let ready = self.look(want);
        if ready > self.size {
            return true;
        }
        for i in pending..ready.min(want) {
            let head = self.avail(2 + self.entry(self.last_used_idx.wrapping_add(i)));
            if u32::from(head) >= self.size {
                return true;
            }
            // SAFETY: less than size; the table is aligned to 16.
            let desc = unsafe { Desc::read(self.desc.add(usize::from(head) * DESC)) };
            match reader.plain(desc, desc.a, head) {
                Some(buffer) => ahead.push(buffer),
                None => return true,
            }
        }
        self.fetch_behind(want, want.saturating_sub(pending));
        false
    }

    /// Reads up to `max` more buffers into `batch`. On an error the ring cannot be used any more.
    pub fn gather(
        &mut self,
        memory: &Memory,
        last: &mut Region,
        direction: Direction,
        max: usize,
        batch: &mut Batch,
    ) -> Result<(), RingError> {
        let max = max.min(BATCH - batch.chains.len()) as u32;
        // Buffers that were read and not used count as available.
        let pending = self.last_avail_idx.wrapping_sub(self.last_used_idx);
        let ready = self.look(pending + max);
        if ready > self.size {
            return Err(RingError::Index);
        }
        let n = ready.saturating_sub(pending).min(max) as usize;
        let mut heads = [0u16; BATCH];
        for (i, head) in heads[..n].iter_mut().enumerate() {
            *head = self.avail(2 + self.entry(self.last_avail_idx.wrapping_add(i as u32)));
            if u32::from(*head) >= self.size {
                return Err(RingError::Descriptor);
            }
            sync::prefetch(self.desc.wrapping_add(usize::from(*head) * DESC));
        }
        if n > 0 {
            self.fetch_used(pending + n as u32);
        }
        for head in &heads[..n] {
            if !batch.has_room() {
                break;
            }
            let mut walk = Walk::new(memory, last, direction, batch);
            let bad = self.walk(*head, &mut walk).err();
            walk.end(*head, 1, bad);
            self.last_avail_idx = self.last_avail_idx.wrapping_add(1);
        }
        Ok(())
    }

    #[inline]
    fn walk(&self, head: u16, walk: &mut Walk) -> Result<(), RingError> {
        let mut next = head;
        for _ in 0..self.size {
            if u32::from(next) >= self.size {
                return Err(RingError::Descriptor);
            }
            // SAFETY: less than size; the table is aligned to 16.
            let desc = unsafe { Desc::read(self.desc.add(usize::from(next) * DESC)) };
            let flags = desc.a;
            if flags & flag::INDIRECT != 0 {
                return if flags & flag::NEXT == 0 {
                    indirect(desc, self.size, walk)
                } else {
                    Err(RingError::Indirect)
                };
            }
            walk.piece(desc.addr, desc.len, flags)?;
            if flags & flag::NEXT == 0 {
                return Ok(());
            }
            next = desc.b;
        }
        Err(RingError::Loop)
    }

    /// Gives the next buffer back with `len` bytes written. The guest sees it after `publish_used`.
    #[inline(always)]
    pub fn write_used(&mut self, id: u16, len: u32) {
        let entry = self.entry(self.last_used_idx);
        // SAFETY: the entry lies in the used ring, whose entries have 8 bytes.
        unsafe { raw::store64(self.used.add(4 + 8 * entry), u64::from(len) << 32 | u64::from(id)) };
        self.last_used_idx = self.last_used_idx.wrapping_add(1);
    }

    /// Gives the next buffers back: id and bytes written. The guest sees them after `publish_used`.
    #[inline]
    pub fn write_used_all(&mut self, buffers: impl Iterator<Item = (u16, u32)>) {
        // Copies: the compiler keeps no field in a register across stores to the guest's memory.
        let (used, mask, mut idx) = (self.used, self.size - 1, self.last_used_idx);
        for (id, len) in buffers {
            let entry = (idx & mask) as usize;
            // SAFETY: as in `write_used`.
            unsafe { raw::store64(used.add(4 + 8 * entry), u64::from(len) << 32 | u64::from(id)) };
            idx = idx.wrapping_add(1);
        }
        self.last_used_idx = idx;
    }

    /// Takes the next buffer, which is given back later.
    #[inline]
    pub fn take_avail(&mut self) {
        self.taken += 1;
    }

    /// Gives the oldest taken buffer back with `len` bytes written. The guest sees it after
    /// `publish_used`.
    #[inline]
    pub fn write_used_taken(&mut self, id: u16, len: u32) {
        self.taken -= 1;
        self.write_used(id, len);
    }

    /// Publishes the buffers that were given back.
    #[inline]
    pub fn publish_used(&mut self) {
        // SAFETY: the index is the second word of the used ring.
        unsafe { raw::store16(self.used.add(2).cast(), self.last_used_idx as u16) };
    }

    /// Suppresses notifications by the guest; returns the address that was written, None if there
    /// is no flag for it.
    pub fn silence(&self) -> Option<*const u8> {
        if self.event_idx {
            return None;
        }
        // SAFETY: the flags are the first word of the used ring.
        unsafe { raw::store16(self.used.cast(), NO_INTERRUPT) };
        Some(self.used)
    }

    /// Calls `mark` with the memory that was written to give back the buffers from `before` on.
    pub fn written(&self, before: u16, mut mark: impl FnMut(*const u8, usize)) {
        mark(self.used, 4);
        let n = u32::from((self.last_used_idx as u16).wrapping_sub(before)).min(self.size);
        let entry = self.entry(before.into());
        let first = (n as usize).min(self.size as usize - entry);
        mark(self.used.wrapping_add(4 + 8 * entry), 8 * first);
        mark(self.used.wrapping_add(4), 8 * (n as usize - first));
    }

    /// True if the guest suppressed notifications when the available index was last read.
    #[inline]
    pub fn notifications_suppressed(&self) -> bool {
        self.quiet
    }

    /// True if the guest wants to be notified of what was published since the last call.
    #[inline]
    pub fn needs_notification(&mut self) -> bool {
        let old = std::mem::replace(&mut self.signalled_used, self.last_used_idx);
        if old == self.last_used_idx {
            return false;
        }
        if self.event_idx {
            let event = self.avail(2 + self.size as usize);
            return passed(event, self.last_used_idx as u16, old as u16);
        }
        self.avail(0) & NO_INTERRUPT == 0
    }
}

fn indirect(table: Desc, size: u32, walk: &mut Walk) -> Result<(), RingError> {
    let entries = table_entries(table.len, size)?;
    let mut next = 0;
    for _ in 0..entries {
        let desc = walk.entry(table.addr, next)?;
        if desc.a & flag::INDIRECT != 0 {
            return Err(RingError::Indirect);
        }
        walk.piece(desc.addr, desc.len, desc.a)?;
        if desc.a & flag::NEXT == 0 {
            return Ok(());
        }
        next = desc.b.into();
        if next >= entries {
            return Err(RingError::Descriptor);
        }
    }
    Err(RingError::Loop)
}

/// True if an index that went from `old` to `new` passed `event` (virtio 1.1, section 2.6.7.1).
#[inline]
pub(crate) fn passed(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}
