//! What copies the bytes of packets: the CPU at once, after which the buffer is given back, or an
//! engine, after whose copies the buffer is given back.

use crate::raw;
use crate::ring::Layout;
use crate::slots::{List, Slots};
use packet::Packet;

/// A piece of a packet is copied at once if it is shorter than the threshold divided by this.
const SMALL_PART: usize = 2;

/// Copies the bytes of packets: by the CPU or by an engine. Methods that do nothing are compiled to
/// nothing.
pub(crate) trait Copier {
    /// Begins a packet of `len` bytes. `pieces`: number of its pieces; only the engine's copier
    /// calls it.
    fn begin(&mut self, len: usize, pieces: impl FnOnce() -> usize);
    /// Copies a part of the packet.
    ///
    /// # Safety
    ///
    /// Both ranges are valid and do not overlap, until the copy was made.
    unsafe fn copy(&mut self, from: *const u8, to: *mut u8, len: usize);
    /// Gives the next buffer back with `len` bytes written.
    fn write_used(&mut self, layout: &mut Layout, id: u16, descs: u16, len: u32);
    /// Gives the next buffer, of one descriptor, back with `len` bytes written: now, or by the
    /// following [`Copier::write_used_plain`].
    fn write_used_soon(&mut self, layout: &mut Layout, id: u16, len: u32);
    /// Gives the next buffers back (id, bytes written); [`Copier::write_used_soon`] was called for
    /// each.
    fn write_used_plain(&mut self, layout: &mut Layout, buffers: impl Iterator<Item = (u16, u32)>);
    /// Ends the packet. `packet`: Some if it was received from the guest.
    fn end(&mut self, packet: Option<Packet>);
    /// Gives the next buffer back unused.
    fn return_unused(&mut self, layout: &mut Layout, id: u16, descs: u16);
}

/// Copies by the CPU, at once.
pub(crate) struct CpuCopier;

impl Copier for CpuCopier {
    #[inline(always)]
    fn begin(&mut self, _len: usize, _pieces: impl FnOnce() -> usize) {}

    #[inline(always)]
    unsafe fn copy(&mut self, from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: the caller vouches.
        unsafe { raw::copy(from, to, len) };
    }

    #[inline(always)]
    fn write_used(&mut self, layout: &mut Layout, id: u16, descs: u16, len: u32) {
        layout.write_used(id, descs, len);
    }

    #[inline(always)]
    fn write_used_soon(&mut self, _layout: &mut Layout, _id: u16, _len: u32) {}

    #[inline(always)]
    fn write_used_plain(&mut self, layout: &mut Layout, buffers: impl Iterator<Item = (u16, u32)>) {
        layout.write_used_all(buffers);
    }

    #[inline(always)]
    fn end(&mut self, _packet: Option<Packet>) {}

    #[inline(always)]
    fn return_unused(&mut self, layout: &mut Layout, id: u16, descs: u16) {
        layout.write_used(id, descs, 0);
    }
}

/// Lists copies above a threshold for an engine, as far as there is room in the list.
pub(crate) struct EngineCopier<'a> {
    pub slots: &'a mut Slots,
    pub list: &'a mut List,
    /// Number of packets of this call so far.
    packets: u32,
    /// The packet's first slot.
    first: u32,
    /// True: copies of the packet are listed.
    lists: bool,
    /// Number of the packet's copies that were listed.
    jobs: u16,
}

impl<'a> EngineCopier<'a> {
    pub fn new(slots: &'a mut Slots, list: &'a mut List) -> Self {
        EngineCopier { slots, list, packets: 0, first: 0, lists: false, jobs: 0 }
    }
}

impl Copier for EngineCopier<'_> {
    #[inline]
    fn begin(&mut self, len: usize, pieces: impl FnOnce() -> usize) {
        let is_long = len > self.list.threshold;
        self.lists = is_long && self.list.room > 0 && pieces() <= self.list.room;
        self.list.crowded += u64::from(is_long && !self.lists);
        (self.first, self.jobs) = (self.slots.tail(), 0);
    }

    #[inline]
    unsafe fn copy(&mut self, from: *const u8, to: *mut u8, len: usize) {
        if self.lists && len > self.list.threshold / SMALL_PART {
            let job = crate::Job { from, to, len: len as u32, slot: self.first };
            self.list.jobs.push(job);
            self.list.room -= 1;
            self.jobs += 1;
            return;
        }
        self.list.copied += len as u64;
        // SAFETY: the caller vouches.
        unsafe { raw::copy(from, to, len) };
    }

    #[inline]
    fn write_used(&mut self, layout: &mut Layout, id: u16, descs: u16, len: u32) {
        layout.take_avail(descs);
        self.slots.push(id, descs, len);
    }

    #[inline]
    fn write_used_soon(&mut self, layout: &mut Layout, id: u16, len: u32) {
        self.write_used(layout, id, 1, len);
    }

    #[inline]
    fn write_used_plain(
        &mut self,
        _layout: &mut Layout,
        _buffers: impl Iterator<Item = (u16, u32)>,
    ) {
    }

    #[inline]
    fn end(&mut self, packet: Option<Packet>) {
        if self.slots.tail() != self.first {
            self.slots.close(self.first, self.jobs, packet);
        }
        if self.jobs > 0 {
            self.list.kept.push(self.packets);
        }
        self.packets += 1;
    }

    #[inline]
    fn return_unused(&mut self, layout: &mut Layout, id: u16, descs: u16) {
        self.write_used(layout, id, descs, 0);
    }
}
