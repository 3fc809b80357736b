//! Packed rings (virtio 1.1, section 2.7): one ring of descriptors that both sides write. Buffers
//! are used in the order in which they became available, so one index serves both purposes.

use crate::ahead::{Ahead, Reader};
use crate::batch::{Batch, CHAIN_MAX, DESC, Desc, Direction, Walk, flag, table_entries};
use crate::memory::{Memory, Region};
use crate::raw;
use crate::ring_error::RingError;

/// Event flags: never notify. (A value that is neither this nor the next one: always notify.)
const EVENT_OFF: u16 = 1;
/// Event flags: notify when the descriptor that the event word names is used.
const EVENT_DESC: u16 = 2;

/// A position in the ring, with the wrap counter in bit 15. One word, for the same reason as in
/// [`crate::split::Split`].
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place(u32);

impl Place {
    const WRAP: u32 = 1 << 15;

    #[inline]
    fn i(self) -> u32 {
        self.0 & !Place::WRAP
    }

    #[inline]
    fn wrap(self) -> bool {
        self.0 & Place::WRAP != 0
    }

    #[inline]
    fn forward(self, n: u32, size: u32) -> Place {
        let i = self.i() + n;
        match i.checked_sub(size) {
            Some(i) => Place(i | (self.0 ^ Place::WRAP) & Place::WRAP),
            None => Place(self.0 + n),
        }
    }
}

/// A packed ring.
pub(crate) struct Packed {
    desc: *mut u8,
    driver_event: *mut u16,
    device_event: *mut u16,
    size: u32,
    event_idx: bool,
    /// Position of the next buffer to be used.
    last_used_idx: Place,
    /// Number of entries from `last_used_idx` on that were taken and will be given back later.
    taken: u32,
    /// Position of the next buffer to be read from the ring.
    last_avail_idx: Place,
    /// Value of `last_used_idx` at the last call of [`Packed::needs_notification`].
    signalled_used: Place,
    /// The first buffer that was given back and not published: its flags are written last.
    first: Option<(u32, u16)>,
}

/// Bytes of the three areas: descriptors, driver's event suppression, device's event suppression.
pub(crate) fn areas(size: u16) -> [usize; 3] {
    [usize::from(size) * DESC, 4, 4]
}

/// Alignment of the three areas, in bytes.
pub(crate) const ALIGN: [usize; 3] = [16, 4, 4];

impl Packed {
    /// The caller has checked that the areas are mapped and aligned, and that the index in `base`
    /// is less than `size`.
    pub fn new(areas: [*mut u8; 3], size: u16, event_idx: bool, base: u16) -> Packed {
        let [desc, driver_event, device_event] = areas;
        let (base, size) = (Place(base.into()), u32::from(size));
        Packed {
            desc,
            driver_event: driver_event.cast(),
            device_event: device_event.cast(),
            size,
            event_idx,
            last_used_idx: base,
            taken: 0,
            last_avail_idx: base,
            signalled_used: base,
            first: None,
        }
    }

    pub fn base(&self) -> u16 {
        self.last_used_idx.0 as u16
    }

    pub fn size(&self) -> u16 {
        self.size as u16
    }

    /// Forgets buffers that were read and not used.
    #[inline]
    pub fn rewind(&mut self) {
        self.last_avail_idx = self.last_used_idx.forward(self.taken, self.size);
    }

    #[inline]
    fn desc_ptr(&self, i: u32) -> *mut u8 {
        // SAFETY: i is less than size.
        unsafe { self.desc.add(i as usize * DESC) }
    }

    #[inline]
    fn flags(&self, i: u32) -> *mut u16 {
        // SAFETY: within the descriptor.
        unsafe { self.desc_ptr(i).add(14).cast() }
    }

    #[inline]
    fn is_ready(&self, place: Place) -> bool {
        // SAFETY: flags of a descriptor of the ring; two bytes of an aligned 16.
        let flags = unsafe { raw::load16(self.flags(place.i())) };
        (flags & flag::AVAIL != 0) == place.wrap() && (flags & flag::USED != 0) != place.wrap()
    }

    /// Number of entries between `last_used_idx` and `last_avail_idx`.
    fn ahead(&self) -> u32 {
        let lap =
            if self.last_avail_idx.wrap() == self.last_used_idx.wrap() { 0 } else { self.size };
        self.last_avail_idx.i() + lap - self.last_used_idx.i()
    }

    /// Prefetches the descriptors of the next `n` buffers, except those of the first `skip`, which
    /// are known.
    #[inline]
    pub fn fetch(&self, skip: u32, n: u32) {
        let (skip, n) = (skip + self.taken, n + self.taken);
        for i in (skip..n.min(self.size)).step_by(4) {
            sync::prefetch(self.desc_ptr(self.last_used_idx.forward(i, self.size).i()));
        }
    }

    /// Prefetches, for writing, the descriptors by which the next `n` buffers are given back.
    #[inline]
    pub fn fetch_used(&self, n: u32) {
        for i in (0..n.min(self.size)).step_by(4) {
            sync::prefetch_write(self.desc_ptr(self.last_used_idx.forward(i, self.size).i()));
        }
    }

    /// How many of the next `n` entries are available; a buffer takes one or more. Entries become
    /// available in order.
    pub fn room(&mut self, n: u32) -> u32 {
        let n = n.min(self.size - self.taken);
        let is_ready =
            |k: u32| self.is_ready(self.last_used_idx.forward(self.taken + k, self.size));
        if n == 0 || is_ready(n - 1) {
            return n;
        }
        let (mut room, mut end) = (0, n - 1);
        while room < end {
            let middle = (room + end) / 2;
            match is_ready(middle) {
                true => room = middle + 1,
                false => end = middle,
            }
        }
        room
    }

    /// Reads plain buffers until `ahead` has `want` of them. True: the next buffer is not plain.
    #[inline]
    pub fn read_ahead(&mut self, reader: &mut Reader, want: usize, ahead: &mut Ahead) -> bool {
        let pending = ahead.len() as u32 + self.taken;
        let want = (want as u32 + self.taken).min(self.size);
        let mut place = self.last_used_idx.forward(pending, self.size);
        for _ in pending..want {
            if !self.is_ready(place) {
                return false;
            }
            // SAFETY: an entry of the ring, aligned to 16.
            let desc = unsafe { Desc::read(self.desc_ptr(place.i())) };
            match reader.plain(desc, desc.b, desc.a) {
                Some(buffer) => ahead.push(buffer),
                None => return true,
            }
            place = place.forward(1, self.size);
        }
        for i in (0..want.saturating_sub(pending)).step_by(4) {
            sync::prefetch(self.desc_ptr(place.forward(i, self.size).i()));
        }
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
        for _ in 0..max {
            if !batch.has_room() || self.ahead() >= self.size || !self.is_ready(self.last_avail_idx)
            {
                break;
            }
            sync::prefetch(
                self.desc_ptr(self.last_avail_idx.forward(8 % self.size, self.size).i()),
            );
            let mut walk = Walk::new(memory, last, direction, batch);
            let (id, descs, bad) = self.walk(&mut walk)?;
            if self.ahead() + u32::from(descs) > self.size {
                return Err(RingError::Loop);
            }
            walk.end(id, descs, bad);
            self.last_avail_idx = self.last_avail_idx.forward(descs.into(), self.size);
        }
        Ok(())
    }

    /// Reads one buffer: returns its id, its number of entries, and its error if it has one.
    #[inline]
    fn walk(&self, walk: &mut Walk) -> Result<(u16, u16, Option<RingError>), RingError> {
        let (mut place, mut bad) = (self.last_avail_idx, None);
        for descs in 1..=self.size.min(CHAIN_MAX) {
            // SAFETY: an entry of the ring, aligned to 16.
            let desc = unsafe { Desc::read(self.desc_ptr(place.i())) };
            let (id, flags) = (desc.a, desc.b);
            match bad {
                None => bad = self.read(desc, walk).err(),
                Some(_) => walk.skip(),
            }
            if flags & flag::NEXT == 0 {
                return Ok((id, descs as u16, bad));
            }
            place = place.forward(1, self.size);
        }
        Err(RingError::Loop)
    }

    #[inline]
    fn read(&self, desc: Desc, walk: &mut Walk) -> Result<(), RingError> {
        let flags = desc.b;
        if flags & flag::INDIRECT == 0 {
            return walk.piece(desc.addr, desc.len, flags);
        }
        if flags & flag::NEXT != 0 {
            return Err(RingError::Indirect);
        }
        for i in 0..table_entries(desc.len, self.size)? {
            let entry = walk.entry(desc.addr, i)?;
            if entry.b & flag::INDIRECT != 0 {
                return Err(RingError::Indirect);
            }
            walk.piece(entry.addr, entry.len, entry.b)?;
        }
        Ok(())
    }

    /// Gives the next buffer back with `len` bytes written. The guest sees it after `publish_used`.
    #[inline(always)]
    pub fn write_used(&mut self, id: u16, descs: u16, len: u32) {
        let i = self.last_used_idx.i();
        let mut flags = if self.last_used_idx.wrap() { flag::AVAIL | flag::USED } else { 0 };
        flags |= if len > 0 { flag::WRITE } else { 0 };
        // SAFETY: an entry of the ring; length and id lie at 8 and 12, aligned.
        unsafe {
            let desc = self.desc_ptr(i);
            raw::store32(desc.add(8).cast(), len);
            raw::store16(desc.add(12).cast(), id);
            match self.first {
                None => self.first = Some((i, flags)),
                Some(_) => raw::store16(self.flags(i), flags),
            }
        }
        self.last_used_idx = self.last_used_idx.forward(descs.into(), self.size);
    }

    /// Takes the next buffer, of `descs` entries, which is given back later.
    #[inline]
    pub fn take_avail(&mut self, descs: u16) {
        self.taken += u32::from(descs);
    }

    /// Gives the oldest taken buffer back with `len` bytes written. The guest sees it after
    /// `publish_used`.
    #[inline]
    pub fn write_used_taken(&mut self, id: u16, descs: u16, len: u32) {
        self.taken -= u32::from(descs);
        self.write_used(id, descs, len);
    }

    /// Publishes the buffers that were given back.
    #[inline]
    pub fn publish_used(&mut self) {
        if let Some((i, flags)) = self.first.take() {
            // SAFETY: flags of an entry of the ring.
            unsafe { raw::store16(self.flags(i), flags) };
        }
    }

    /// Suppresses notifications by the guest; returns the address that was written.
    pub fn silence(&self) -> Option<*const u8> {
        let flags = self.device_event.wrapping_add(1);
        // SAFETY: the second word of the device's area.
        unsafe { raw::store16(flags, EVENT_OFF) };
        Some(flags.cast())
    }

    /// Calls `mark` with the memory that was written to give back the buffers from `before` on, or
    /// with more.
    pub fn written(&self, before: u16, mut mark: impl FnMut(*const u8, usize)) {
        let before = Place(before.into());
        let lap = if before.wrap() == self.last_used_idx.wrap() { 0 } else { self.size };
        let n = (self.last_used_idx.i() + lap).wrapping_sub(before.i()).min(self.size) as usize;
        let first = n.min((self.size - before.i()) as usize);
        mark(self.desc_ptr(before.i()), first * DESC);
        mark(self.desc, (n - first) * DESC);
    }

    /// Always false: only [`Packed::needs_notification`] reads whether a guest suppresses
    /// notifications.
    #[inline]
    pub fn notifications_suppressed(&self) -> bool {
        false
    }

    /// True if the guest wants to be notified of what was published since the last call.
    #[inline]
    pub fn needs_notification(&mut self) -> bool {
        let old = std::mem::replace(&mut self.signalled_used, self.last_used_idx);
        if old == self.last_used_idx {
            return false;
        }
        // SAFETY: the second word of the driver's area.
        let flags = unsafe { raw::load16(self.driver_event.add(1)) };
        if flags != EVENT_DESC || !self.event_idx {
            return flags != EVENT_OFF;
        }
        // SAFETY: the first word of the driver's area.
        let event = unsafe { raw::load16(self.driver_event) };
        self.passed(event, old)
    }

    /// True if the ring's position passed `event` (position and wrap counter) on its way from
    /// `old`.
    fn passed(&self, event: u16, old: Place) -> bool {
        // Positions are counted from `old`, so that no wrap has to be considered.
        let from_old = |place: Place| {
            let lap = if place.wrap() == old.wrap() { 0 } else { self.size };
            (place.i() + lap).wrapping_sub(old.i())
        };
        let moved = from_old(self.last_used_idx);
        from_old(Place(event.into())) < moved
    }
}
