//! A virtqueue, split or packed: how it is set up, read ahead and published. `dequeue.rs` receives
//! packets from it, `enqueue.rs` sends packets to it. Checksums and segments that guests leave to
//! the device are in `unfinished.rs`, merged segments for guests in `merging.rs`.

mod dequeue;
mod enqueue;
mod merging;
mod unfinished;

pub(crate) use dequeue::make_room;

use crate::ahead::{Ahead, BUFFERS_AHEAD_MAX, PREFETCH_BUFFERS, Reader};
use crate::batch::{Batch, Direction};
use crate::dirty::DirtyLog;
use crate::feature;
use crate::memory::{Memory, Region};
use crate::packed::{self, Packed};
use crate::ring_error::{RingError, RingErrors};
use crate::slots::Slots;
use crate::split::{self, Split};
use std::sync::Arc;
use unfinished::Unfinished;

/// How many packets ahead the memory of the switch's own packets is prefetched.
pub(crate) const PREFETCH_PACKETS: usize = 4;
/// A ring is given up when the guest's malformed buffers outnumber its others by this: as many as
/// QEMU's longest ring has entries. A driver with an occasional bad buffer never gets there; one
/// that makes only bad buffers does after one lap.
const MALFORMED_MAX: usize = 1024;
/// Features that a guest must have negotiated to be sent merged segments.
const MERGES: u64 =
    feature::GUEST_CSUM | feature::GUEST_TSO4 | feature::GUEST_TSO6 | feature::MRG_RXBUF;
/// Bytes of the longest virtio-net header.
const HEADER: usize = 12;

/// Where a virtqueue is, and what was negotiated for it.
#[derive(Clone, Copy, Debug)]
pub struct RingSetup {
    /// Negotiated features; see [`feature`].
    pub features: u64,
    /// Number of entries.
    pub size: u16,
    /// Addresses of the three areas: descriptors, driver's area (available ring), device's area
    /// (used ring).
    pub areas: [*mut u8; 3],
    /// Index of the next buffer to be used; for a packed ring with the wrap counter in bit 15.
    pub base: u16,
}

/// Why a virtqueue cannot be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetupError {
    /// The layout does not allow this size.
    Size,
    /// An area is not in the guest's memory, or not aligned.
    Areas,
    /// The base is beyond the ring.
    Base,
    /// The addresses need an IOMMU.
    Iommu,
}

/// What calls on a ring did; each call adds to it. The caller passes it in: a returned copy would
/// be read by loads that are wider than the stores that wrote it, and such a load waits until every
/// earlier store is in the cache, including those to the guest's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Packets received from the guest, or taken to be sent to it: those that were sent and those
    /// that were dropped.
    pub packets: usize,
    /// Bytes of the packets that went through.
    pub bytes: u64,
    /// Packets dropped, each for a counted [`RingError`].
    pub dropped: usize,
    /// True: the guest had packets, and the pool had no buffers for them.
    pub starved: bool,
    /// True: there were ring errors, see [`Ring::ring_errors`].
    pub has_errors: bool,
    /// True: a call ended because it had read as many descriptors as it may ([`crate::steps_max`]).
    pub exhausted: bool,
}

/// The layout of a virtqueue.
pub(crate) enum Layout {
    Split(Split),
    Packed(Packed),
}

/// A virtqueue, as the device serves it.
pub struct Ring {
    pub(crate) layout: Layout,
    memory: Arc<Memory>,
    /// The region of the last address that was translated.
    last: Region,
    /// The plain buffers that were read ahead.
    pub(crate) ahead: Ahead,
    /// Bytes of the virtio-net header in front of each packet.
    pub(crate) header: usize,
    /// True: a packet may take several buffers (VIRTIO_NET_F_MRG_RXBUF).
    mergeable: bool,
    /// True: the guest takes segments of TCP merged.
    merges: bool,
    /// Some: the guest may leave checksums and segments to the device; has the frame that is being
    /// cut.
    unfinished: Option<Box<Unfinished>>,
    /// True: the ring was given up.
    pub(crate) broken: bool,
    ring_errors: Box<RingErrors>,
    /// True: ring errors were counted since the last call.
    has_errors: bool,
    /// The log of dirty pages, while the guest is migrated.
    pub(crate) log: Option<Arc<DirtyLog>>,
    /// Number of malformed buffers, minus that of other buffers since.
    malformed: usize,
    /// Number of descriptors read by all calls.
    steps: u64,
    /// Buffers that were taken and are not published. None until copies are listed.
    pub(crate) slots: Option<Box<Slots>>,
}

// SAFETY: its pointers lead to memory that is shared with another process anyway; one thread at a
// time holds it.
unsafe impl Send for Ring {}

macro_rules! each {
    ($layout:expr, $ring:ident => $what:expr) => {
        match $layout {
            Layout::Split($ring) => $what,
            Layout::Packed($ring) => $what,
        }
    };
}

impl Layout {
    /// Writes the used entry of the next buffer, which has `descs` entries of a packed ring.
    #[inline(always)]
    pub fn write_used(&mut self, id: u16, descs: u16, len: u32) {
        match self {
            Layout::Split(ring) => ring.write_used(id, len),
            Layout::Packed(ring) => ring.write_used(id, descs, len),
        }
    }

    /// Writes the used entries of these buffers of one descriptor: id and bytes written.
    #[inline]
    pub fn write_used_all(&mut self, buffers: impl Iterator<Item = (u16, u32)>) {
        match self {
            Layout::Split(ring) => ring.write_used_all(buffers),
            Layout::Packed(ring) => buffers.for_each(|(id, len)| ring.write_used(id, 1, len)),
        }
    }

    /// Takes the next buffer, of `descs` entries of a packed ring; it is given back later.
    #[inline]
    pub fn take_avail(&mut self, descs: u16) {
        match self {
            Layout::Split(ring) => ring.take_avail(),
            Layout::Packed(ring) => ring.take_avail(descs),
        }
    }

    /// Gives the oldest taken buffer back.
    #[inline]
    pub fn write_used_taken(&mut self, id: u16, descs: u16, len: u32) {
        match self {
            Layout::Split(ring) => ring.write_used_taken(id, len),
            Layout::Packed(ring) => ring.write_used_taken(id, descs, len),
        }
    }
}

impl Ring {
    /// Makes a ring as it was negotiated.
    ///
    /// # Safety
    ///
    /// Each region of `memory` is mapped where it says, for reading and writing, as long as the
    /// ring is used.
    ///
    /// # Errors
    ///
    /// The setup does not describe a ring inside that memory.
    pub unsafe fn new(setup: &RingSetup, memory: Arc<Memory>) -> Result<Ring, SetupError> {
        let RingSetup { features, size, areas, base } = *setup;
        let has = |bits: u64| features & bits != 0;
        let (is_packed, event_idx) = (has(feature::RING_PACKED), has(feature::EVENT_IDX));
        if has(feature::IOMMU_PLATFORM) {
            return Err(SetupError::Iommu);
        }
        if size == 0 || size > 32_768 || !is_packed && !size.is_power_of_two() {
            return Err(SetupError::Size);
        }
        if is_packed && base & 0x7fff >= size {
            return Err(SetupError::Base);
        }
        let (lengths, align) = match is_packed {
            true => (packed::areas(size), packed::ALIGN),
            false => (split::areas(size, event_idx), split::ALIGN),
        };
        for ((area, len), align) in areas.iter().zip(lengths).zip(align) {
            if !memory.holds(*area, len) || !area.addr().is_multiple_of(align) {
                return Err(SetupError::Areas);
            }
        }
        let layout = match is_packed {
            true => Layout::Packed(Packed::new(areas, size, event_idx, base)),
            false => Layout::Split(Split::new(areas, size, event_idx, base)),
        };
        let long = has(feature::MRG_RXBUF | feature::VERSION_1 | feature::RING_PACKED);
        Ok(Ring {
            layout,
            memory,
            last: Region::NONE,
            ahead: Ahead::default(),
            header: if long { HEADER } else { 10 },
            mergeable: has(feature::MRG_RXBUF),
            merges: features & MERGES == MERGES,
            unfinished: has(feature::CSUM).then(Box::default),
            broken: false,
            ring_errors: Box::default(),
            has_errors: false,
            log: None,
            malformed: 0,
            steps: 0,
            slots: None,
        })
    }

    /// Sets the log in which every page that is written is marked; None: there is none.
    pub fn set_log(&mut self, log: Option<Arc<DirtyLog>>) {
        self.log = log;
    }

    /// Suppresses notifications by the guest, as the ring is polled. A split ring with
    /// [`feature::EVENT_IDX`] has no flag for it: there the guest notifies once per 65,536 buffers.
    pub fn silence(&mut self) {
        let written = each!(&self.layout, ring => ring.silence());
        if let Some(host) = written {
            self.mark(host, 2);
        }
    }

    /// Marks `len` bytes at `host` as written.
    #[cold]
    fn mark(&self, host: *const u8, len: usize) {
        if let (Some(log), Some(guest)) = (&self.log, self.memory.guest(host)) {
            log.mark(guest, len as u64);
        }
    }

    /// Marks the memory that was written to give back buffers from `before` on.
    #[cold]
    fn mark_used(&self, before: u16) {
        each!(&self.layout, ring => ring.written(before, |host, len| self.mark(host, len)));
    }

    /// The ring's present base, in the form of [`RingSetup::base`].
    pub fn base(&self) -> u16 {
        each!(&self.layout, ring => ring.base())
    }

    /// True if the ring was given up.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// True if the guest may leave checksums and segments to the device, or takes segments merged:
    /// then copies are not listed.
    #[inline]
    pub fn has_offloads(&self) -> bool {
        self.merges || self.unfinished.is_some()
    }

    /// The guest's errors on this ring.
    pub fn ring_errors(&self) -> &RingErrors {
        &self.ring_errors
    }

    /// Counts an error of the guest; gives the ring up if malformed buffers are too many.
    #[cold]
    pub(crate) fn count_error(&mut self, error: RingError) {
        self.ring_errors.count(error);
        self.has_errors = true;
        self.malformed += usize::from(error.is_malformed());
        if self.malformed > MALFORMED_MAX && !self.broken {
            self.broken = true;
            self.ring_errors.count(RingError::GivenUp);
        }
    }

    /// Number of descriptors read since the ring was set up: the cost of serving it, whatever the
    /// guest gets for it.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Ends a call that began when the ring's base was `before` and `packets` had moved: publishes
    /// used buffers.
    #[inline]
    pub(crate) fn end(&mut self, before: u16, packets: usize, moved: &mut Moved) {
        self.publish_used(before);
        moved.has_errors |= std::mem::take(&mut self.has_errors);
        if self.malformed > 0 {
            self.malformed = self.malformed.saturating_sub(moved.packets - packets);
        }
    }

    /// Publishes the buffers that were used since the ring's base was `before`.
    #[inline]
    pub(crate) fn publish_used(&mut self, before: u16) {
        if self.base() != before {
            each!(&mut self.layout, ring => ring.publish_used());
            if self.log.is_some() {
                self.mark_used(before);
            }
        }
    }

    /// Number of entries.
    pub(crate) fn size(&self) -> u16 {
        each!(&self.layout, ring => ring.size())
    }

    /// Reads up to `max` buffers of any kind into the batch; a ring error gives the ring up.
    #[inline]
    pub(crate) fn gather(&mut self, direction: Direction, max: usize, batch: &mut Batch) {
        let (memory, last) = (&*self.memory, &mut self.last);
        let read =
            each!(&mut self.layout, ring => ring.gather(memory, last, direction, max, batch));
        if let Err(error) = read {
            self.count_error(error);
            self.broken = true;
            batch.clear();
        }
    }

    /// Begins to read buffers of any kind; forgets buffers that were read ahead.
    #[inline]
    pub(crate) fn begin(&mut self, batch: &mut Batch) {
        batch.clear();
        self.ahead.clear();
        each!(&mut self.layout, ring => ring.rewind());
    }

    /// True if the guest suppressed notifications when the ring was last read. Then it is no loss
    /// to ask it a little later.
    #[inline]
    pub fn notifications_suppressed(&self) -> bool {
        each!(&self.layout, ring => ring.notifications_suppressed())
    }

    /// True if the guest wants to be notified of what was published since the last call. The caller
    /// executes a full fence between the last call that moved packets and this one; one fence
    /// serves any number of rings.
    #[inline]
    pub fn needs_notification(&mut self) -> bool {
        each!(&mut self.layout, ring => ring.needs_notification())
    }

    /// Number of buffers for `n` packets, at most: a packet may take several buffers.
    #[inline]
    pub fn room(&mut self, n: usize) -> usize {
        let asked = n.min(usize::from(self.size())) as u32;
        match self.broken {
            true => n,
            false => each!(&mut self.layout, ring => ring.room(asked)) as usize,
        }
    }

    /// Prefetches what the next call of [`Ring::dequeue`] (if `sends`) or [`Ring::enqueue`] reads:
    /// in phase 0 the ring itself, in phase 1 the ring's next `n` buffers, of which the first are
    /// fetched at once and the others while those are used.
    #[inline]
    pub fn prepare(&mut self, phase: usize, n: u16, sends: bool) {
        let n = BUFFERS_AHEAD_MAX.min(n.into());
        if phase == 0 {
            let held = self.ahead.len() as u32;
            return each!(&self.layout, ring => ring.fetch(held, n as u32));
        }
        self.read_ahead(if sends { Direction::FromGuest } else { Direction::ToGuest }, n);
        self.ahead.stale();
        self.fetch(n, PREFETCH_BUFFERS);
    }

    /// Reads ahead until there are `n` plain buffers, or all that are available. True: the next
    /// buffer is not plain.
    #[inline]
    pub(crate) fn read_ahead(&mut self, direction: Direction, n: usize) -> bool {
        self.ahead.set_direction(direction);
        let (memory, last) = (&*self.memory, &mut self.last);
        let mut reader = Reader { memory, last, direction, header: self.header as u32 };
        let held = self.ahead.len();
        if held >= n {
            return false;
        }
        let ahead = &mut self.ahead;
        let other = each!(&mut self.layout, ring => ring.read_ahead(&mut reader, n, ahead));
        self.steps += (ahead.len() - held + usize::from(other)) as u64;
        other
    }

    /// Prefetches, for the first `n` buffers that were read ahead, the entries by which they are
    /// given back, and the memory of the first `buffers` of them.
    #[inline]
    pub(crate) fn fetch(&mut self, n: usize, buffers: usize) {
        let n = self.ahead.len().min(n);
        if n > 0 {
            each!(&self.layout, ring => ring.fetch_used(n as u32));
            self.ahead.fetch(n.min(buffers), self.header);
        }
    }

    /// Counts the descriptors that were read for a batch.
    pub(crate) fn count_steps(&mut self, batch: &Batch, moved: &mut Moved) {
        self.steps += u64::from(batch.steps);
        moved.exhausted |= batch.is_exhausted();
    }
}
