//! Split rings (virtio 1.1, section 2.6): a descriptor table, a ring of available and a ring of
//! used buffers. Buffers are used in the order in which they became available, so one index says
//! how far both rings are.

use crate::ahead::{Ahead, Reader};
use crate::batch::{BATCH, Batch, DESC, Desc, Direction, Walk, flag, table_entries};
use crate::memory::{Memory, Region};
use crate::raw;
use crate::ring_error::RingError;

/// Flag of either ring: do not notify me.
const NO_INTERRUPT: u16 = 1;

/// Indices count on in 32 bits, of which the ring has the low half: words that are stored and
/// loaded whole. (A load of more bytes than a store before it waits until the store is in the
/// cache, and with it all stores into the guest's memory before.)
pub(crate) struct Split {
    desc: *mut u8,
    avail: *mut u16,
    used: *mut u8,
    size: u32,
    event_idx: bool,
    /// Next buffer to be used.
    at: u32,
    /// Buffers from there on that were taken and are given back later.
    taken: u32,
    /// Next buffer to be read by `gather`.
    peek: u32,
    /// `at` when it was last shown to the guest.
    shown: u32,
    /// The guest's index of available buffers, as it was when it was read last.
    seen: u32,
    /// The guest wanted no notification when `seen` was read.
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
    /// The caller has checked that the areas are mapped and aligned, and that `size` is a power
    /// of two.
    pub fn new(areas: [*mut u8; 3], size: u16, event_idx: bool, at: u16) -> Split {
        let [desc, avail, used] = areas;
        let (at, size) = (u32::from(at), u32::from(size));
        Split {
            desc,
            avail: avail.cast(),
            used,
            size,
            event_idx,
            at,
            taken: 0,
            peek: at,
            shown: at,
            seen: at,
            quiet: false,
        }
    }

    pub fn base(&self) -> u16 {
        self.at as u16
    }

    pub fn size(&self) -> u16 {
        self.size as u16
    }

    /// Word `i` of the ring of available buffers: 0 flags, 1 index, 2.. heads, then the event.
    #[inline]
    fn avail(&self, i: usize) -> u16 {
        // SAFETY: i is at most 2 + size, which lies in the area if event_idx is on, and less
        // otherwise.
        unsafe { raw::load16(self.avail.add(i)) }
    }

    #[inline]
    fn slot(&self, at: u32) -> usize {
        (at & (self.size - 1)) as usize
    }

    /// Buffers from `at` on that were available when `seen` was read.
    #[inline]
    fn ready(&self, seen: u32) -> u32 {
        u32::from((seen as u16).wrapping_sub(self.at as u16))
    }

    /// Forgets buffers that were read and not used.
    #[inline]
    pub fn rewind(&mut self) {
        self.peek = self.at.wrapping_add(self.taken);
    }

    /// Fetches what tells where the next `n` buffers are, but for the `held` that are known:
    /// descriptors at a guess, as most guests use them in order.
    #[inline]
    pub fn fetch(&self, held: u32, n: u32) {
        let (held, n) = (held + self.taken, n + self.taken);
        sync::prefetch(self.avail);
        for i in (held..n).step_by(4) {
            let slot = self.slot(self.at.wrapping_add(i));
            sync::prefetch(self.desc.wrapping_add(slot * DESC));
        }
        // Heads of 32 buffers lie in a line.
        for i in (held..n + 31).step_by(32) {
            sync::prefetch(self.avail.wrapping_add(2 + self.slot(self.at.wrapping_add(i))));
        }
    }

    /// Fetches the used index and the next `n` entries of the used ring, to be written. Called only
    /// when `n` buffers are available: the driver polls these lines, so fetching them costs it.
    #[inline]
    pub fn fetch_used(&self, n: u32) {
        sync::prefetch_write(self.used);
        for i in (0..n + 7).step_by(8) {
            sync::prefetch_write(
                self.used.wrapping_add(4 + 8 * self.slot(self.at.wrapping_add(i))),
            );
        }
    }

    /// Fetches the descriptors of `n` buffers from the `from`-th on, as far as they are available.
    #[inline]
    fn fetch_behind(&self, from: u32, n: u32) {
        let mut line = u16::MAX;
        for i in from..self.ready(self.seen).min(from + n) {
            let head = self.avail(2 + self.slot(self.at.wrapping_add(i)));
            if head / 4 != line {
                line = head / 4;
                sync::prefetch(self.desc.wrapping_add(usize::from(head) * DESC));
            }
        }
    }

    /// Reads how many buffers are available, unless `want` are known to be.
    #[inline]
    fn look(&mut self, want: u32) -> u32 {
        if self.ready(self.seen) < want {
            self.seen = self.avail(1).into();
            // In the cache line that was just read.
            self.quiet = !self.event_idx && self.avail(0) & NO_INTERRUPT != 0;
        }
        self.ready(self.seen)
    }

    /// How many of the next `n` buffers are available. (An index that makes no sense is for whoever
    /// reads buffers.)
    #[inline]
    pub fn room(&mut self, n: u32) -> u32 {
        self.look(self.taken + n).saturating_sub(self.taken).min(n)
    }

    /// Reads plain buffers until there are `want` of them in `ahead`. True: what follows is
    /// something else.
    #[inline]
    pub fn read_ahead(&mut self, reader: &mut Reader, want: usize, ahead: &mut Ahead) -> bool {
        let (held, want) = (ahead.len() as u32 + self.taken, want as u32 + self.taken);
        let ready = self.look(want);
        if ready > self.size {
            return true;
        }
        for i in held..ready.min(want) {
            let head = self.avail(2 + self.slot(self.at.wrapping_add(i)));
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
        self.fetch_behind(want, want.saturating_sub(held));
        false
    }

    /// Reads up to `max` more buffers into `batch`. An error is the end of the ring.
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
        let held = self.peek.wrapping_sub(self.at);
        let ready = self.look(held + max);
        if ready > self.size {
            return Err(RingError::Index);
        }
        let n = ready.saturating_sub(held).min(max) as usize;
        let mut heads = [0u16; BATCH];
        for (i, head) in heads[..n].iter_mut().enumerate() {
            *head = self.avail(2 + self.slot(self.peek.wrapping_add(i as u32)));
            if u32::from(*head) >= self.size {
                return Err(RingError::Descriptor);
            }
            sync::prefetch(self.desc.wrapping_add(usize::from(*head) * DESC));
        }
        if n > 0 {
            self.fetch_used(held + n as u32);
        }
        for head in &heads[..n] {
            if !batch.has_room() {
                break;
            }
            let mut walk = Walk::new(memory, last, direction, batch);
            let bad = self.walk(*head, &mut walk).err();
            walk.end(*head, 1, bad);
            self.peek = self.peek.wrapping_add(1);
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

    /// Gives the next buffer back with `len` bytes written. The guest sees it at `publish_used`.
    #[inline(always)]
    pub fn write_used(&mut self, id: u16, len: u32) {
        let slot = self.slot(self.at);
        // SAFETY: the slot lies in the used ring, whose entries have 8 bytes.
        unsafe { raw::store64(self.used.add(4 + 8 * slot), u64::from(len) << 32 | u64::from(id)) };
        self.at = self.at.wrapping_add(1);
    }

    /// As [`Split::write_used`] for each of these: id and bytes written.
    #[inline]
    pub fn write_used_all(&mut self, buffers: impl Iterator<Item = (u16, u32)>) {
        // Copies: the compiler keeps no field in a register across stores into the guest's memory.
        let (used, mask, mut at) = (self.used, self.size - 1, self.at);
        for (id, len) in buffers {
            let slot = (at & mask) as usize;
            // SAFETY: as in `write_used`.
            unsafe { raw::store64(used.add(4 + 8 * slot), u64::from(len) << 32 | u64::from(id)) };
            at = at.wrapping_add(1);
        }
        self.at = at;
    }

    /// Takes the next buffer.
    #[inline]
    pub fn take_avail(&mut self) {
        self.taken += 1;
    }

    /// Gives the oldest buffer back that was taken, as `write_used`.
    #[inline]
    pub fn write_used_taken(&mut self, id: u16, len: u32) {
        self.taken -= 1;
        self.write_used(id, len);
    }

    /// Shows the guest the buffers that were given back.
    #[inline]
    pub fn publish_used(&mut self) {
        // SAFETY: the index is the second word of the used ring.
        unsafe { raw::store16(self.used.add(2).cast(), self.at as u16) };
    }

    /// Tells the guest not to notify us; returns where that is written, if it can be said.
    pub fn silence(&self) -> Option<*const u8> {
        if self.event_idx {
            return None;
        }
        // SAFETY: the flags are the first word of the used ring.
        unsafe { raw::store16(self.used.cast(), NO_INTERRUPT) };
        Some(self.used)
    }

    /// Where was written for the buffers from `before` on.
    pub fn written(&self, before: u16, mut mark: impl FnMut(*const u8, usize)) {
        mark(self.used, 4);
        let n = u32::from((self.at as u16).wrapping_sub(before)).min(self.size);
        let slot = self.slot(before.into());
        let first = (n as usize).min(self.size as usize - slot);
        mark(self.used.wrapping_add(4 + 8 * slot), 8 * first);
        mark(self.used.wrapping_add(4), 8 * (n as usize - first));
    }

    /// Did the guest want no notification when the available index was read last?
    #[inline]
    pub fn notifications_suppressed(&self) -> bool {
        self.quiet
    }

    /// Does the guest want to be notified of what was shown since the last call?
    #[inline]
    pub fn needs_notification(&mut self) -> bool {
        let old = std::mem::replace(&mut self.shown, self.at);
        if old == self.at {
            return false;
        }
        if self.event_idx {
            let event = self.avail(2 + self.size as usize);
            return passed(event, self.at as u16, old as u16);
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

/// Did an index that went from `old` to `new` pass `event` (virtio 1.1, section 2.6.7.1)?
#[inline]
pub(crate) fn passed(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}
