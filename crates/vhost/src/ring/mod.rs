//! A virtqueue of either layout, and the two things one does with it.

use crate::ahead::{Ahead, BUFFERS_AHEAD_MAX, PREFETCH_BUFFERS, Plain, Reader};
use crate::batch::{BATCH, Batch, Chain, Direction, Piece};
use crate::dirty::DirtyLog;
use crate::listed::behind;
use crate::memory::{Memory, Region};
use crate::packed::{self, Packed};
use crate::ring_error::{RingError, RingErrors};
use crate::slots::Slots;
use crate::split::{self, Split};
use crate::way::{AtOnce, Way};
use crate::{feature, raw};
use packet::{Packet, Pool};
use std::ops::Range;
use std::sync::Arc;

/// How many packets ahead the memory of our own buffers is prefetched.
pub(crate) const PREFETCH_PACKETS: usize = 4;
/// Plain buffers that are used before more are read ahead.
const CHUNK: usize = 32;
/// A ring is given up when its guest has made so many more malformed buffers than others: as many
/// as QEMU's longest ring has. A driver with an occasional bad buffer never comes near, one that
/// makes nothing else is there after one lap.
const MALFORMED_MAX: usize = 1024;
/// Longest virtio-net header.
const HEADER: usize = 12;

/// Where a virtqueue is and how it was negotiated.
#[derive(Clone, Copy, Debug)]
pub struct RingSetup {
    /// Negotiated features; see [`feature`].
    pub features: u64,
    /// Entries.
    pub size: u16,
    /// Descriptors; the driver's area (available ring); the device's area (used ring).
    pub areas: [*mut u8; 3],
    /// Next buffer to be used: an index, for a packed ring with the wrap counter in bit 15.
    pub base: u16,
}

/// Why a virtqueue cannot be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetupError {
    /// Not a size that the layout allows.
    Size,
    /// A part of it is not in the guest's memory, or not aligned.
    Areas,
    /// The base is beyond the ring.
    Base,
    /// Addresses that only an IOMMU understands.
    Iommu,
}

/// What calls did; each adds to it. It is not returned: copied as a whole, by loads wider than the
/// stores that made it, it would wait until every store before is in the cache, those into the
/// guest's memory too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Packets received, or taken for sending: those sent, and those dropped.
    pub packets: usize,
    /// Bytes of the packets that went through.
    pub bytes: u64,
    /// Packets that ended here, each a counted [`RingError`].
    pub dropped: usize,
    /// Packets were there, and no buffer of ours to put them in.
    pub starved: bool,
    /// The guest did something wrong; see [`Ring::ring_errors`].
    pub has_errors: bool,
    /// A call ended because it had read as many descriptors as it may ([`crate::steps_max`]).
    pub exhausted: bool,
}

pub(crate) enum Layout {
    Split(Split),
    Packed(Packed),
}

/// One virtqueue, seen by the device.
pub struct Ring {
    pub(crate) layout: Layout,
    memory: Arc<Memory>,
    /// Region of the last address.
    last: Region,
    pub(crate) ahead: Ahead,
    pub(crate) header: usize,
    mergeable: bool,
    pub(crate) broken: bool,
    ring_errors: Box<RingErrors>,
    /// Ring errors were counted since the last call.
    has_errors: bool,
    /// Where pages that are written are marked, while the guest is migrated.
    pub(crate) log: Option<Arc<DirtyLog>>,
    /// Malformed buffers, less the others that came since.
    malformed: usize,
    /// Descriptors read, by all calls.
    steps: u64,
    /// What was taken and is not published; None until copies are listed.
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
    /// Gives the next buffer back, of `descs` entries of a packed ring.
    #[inline(always)]
    pub fn put(&mut self, id: u16, descs: u16, len: u32) {
        match self {
            Layout::Split(ring) => ring.put(id, len),
            Layout::Packed(ring) => ring.put(id, descs, len),
        }
    }

    /// As [`Layout::put`] for each of these buffers of one descriptor: id and bytes written.
    #[inline]
    pub fn put_all(&mut self, buffers: impl Iterator<Item = (u16, u32)>) {
        match self {
            Layout::Split(ring) => ring.put_all(buffers),
            Layout::Packed(ring) => buffers.for_each(|(id, len)| ring.put(id, 1, len)),
        }
    }

    /// Takes the next buffer, which is given back later.
    #[inline]
    pub fn take(&mut self, descs: u16) {
        match self {
            Layout::Split(ring) => ring.take(),
            Layout::Packed(ring) => ring.take(descs),
        }
    }

    /// Gives the oldest buffer back that was taken.
    #[inline]
    pub fn publish(&mut self, id: u16, descs: u16, len: u32) {
        match self {
            Layout::Split(ring) => ring.publish(id, len),
            Layout::Packed(ring) => ring.publish(id, descs, len),
        }
    }
}

impl Ring {
    /// A ring as it was negotiated.
    ///
    /// # Safety
    /// Each region of `memory` is mapped where it says, for reading and writing, and stays so while
    /// the ring is used.
    ///
    /// # Errors
    /// The setup does not make a ring inside that memory.
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
        for ((at, len), align) in areas.iter().zip(lengths).zip(align) {
            if !memory.holds(*at, len) || !at.addr().is_multiple_of(align) {
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
            broken: false,
            ring_errors: Box::default(),
            has_errors: false,
            log: None,
            malformed: 0,
            steps: 0,
            slots: None,
        })
    }

    /// Marks every page that is written from now on, or none.
    pub fn set_log(&mut self, log: Option<Arc<DirtyLog>>) {
        self.log = log;
    }

    /// Tells the guest not to notify us: the ring is polled. A guest that asked for notifications
    /// by index ([`feature::EVENT_IDX`]) on a split ring knows no such word, and notifies us once
    /// per 65536 buffers.
    pub fn silence(&mut self) {
        let at = each!(&self.layout, ring => ring.silence());
        if let Some(at) = at {
            self.mark(at, 2);
        }
    }

    /// Marks `len` bytes at `host` as written.
    #[cold]
    fn mark(&self, host: *const u8, len: usize) {
        if let (Some(log), Some(guest)) = (&self.log, self.memory.guest(host)) {
            log.mark(guest, len as u64);
        }
    }

    /// Marks what was used from `before` on.
    #[cold]
    fn mark_used(&self, before: u16) {
        each!(&self.layout, ring => ring.written(before, |at, len| self.mark(at, len)));
    }

    /// Where the ring is, in the form of [`RingSetup::base`].
    pub fn base(&self) -> u16 {
        each!(&self.layout, ring => ring.base())
    }

    /// Was the ring given up?
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// What the guest did wrong on this ring.
    pub fn ring_errors(&self) -> &RingErrors {
        &self.ring_errors
    }

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

    /// Descriptors read since the ring was set up: what serving it costs, whatever comes of it.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Ends a call that began when the ring's base was `before` and so many `packets` had moved:
    /// shows the guest what was used.
    #[inline]
    pub(crate) fn end(&mut self, before: u16, packets: usize, moved: &mut Moved) {
        self.show(before);
        moved.has_errors |= std::mem::take(&mut self.has_errors);
        if self.malformed > 0 {
            self.malformed = self.malformed.saturating_sub(moved.packets - packets);
        }
    }

    /// Shows the guest what was used since the ring's base was `before`.
    #[inline]
    pub(crate) fn show(&mut self, before: u16) {
        if self.base() != before {
            each!(&mut self.layout, ring => ring.show());
            if self.log.is_some() {
                self.mark_used(before);
            }
        }
    }

    /// Entries.
    pub(crate) fn size(&self) -> u16 {
        each!(&self.layout, ring => ring.size())
    }

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

    /// Nothing is read yet.
    #[inline]
    pub(crate) fn begin(&mut self, batch: &mut Batch) {
        batch.clear();
        self.ahead.clear();
        each!(&mut self.layout, ring => ring.rewind());
    }

    /// Did the guest seem to want no notification when the ring was last read? Then nothing is lost
    /// by asking a little later.
    #[inline]
    pub fn notifications_suppressed(&self) -> bool {
        each!(&self.layout, ring => ring.notifications_suppressed())
    }

    /// Does the guest want to be notified of what it was shown since this was asked last? A full
    /// fence has to lie between the last call that moved something and this: one serves any number
    /// of rings.
    #[inline]
    pub fn needs_notification(&mut self) -> bool {
        each!(&mut self.layout, ring => ring.needs_notification())
    }

    /// How many of `n` packets there are buffers for, at most: a packet may take several.
    #[inline]
    pub fn room(&mut self, n: usize) -> usize {
        let asked = n.min(usize::from(self.size())) as u32;
        match self.broken {
            true => n,
            false => each!(&mut self.layout, ring => ring.room(asked)) as usize,
        }
    }

    /// Starts to fetch what the next call of [`Ring::dequeue`] will read (`sends`), or else of
    /// [`Ring::enqueue`]: at step 0 of the ring itself, at step 1 of its next `n` buffers, the
    /// first of them at once: the others while those are used, so that neither waits for the other.
    #[inline]
    pub fn prepare(&mut self, step: usize, n: u16, sends: bool) {
        let n = BUFFERS_AHEAD_MAX.min(n.into());
        if step == 0 {
            let held = self.ahead.len() as u32;
            return each!(&self.layout, ring => ring.fetch(held, n as u32));
        }
        self.read_ahead(if sends { Direction::FromGuest } else { Direction::ToGuest }, n);
        self.ahead.stale();
        self.fetch(n, PREFETCH_BUFFERS);
    }

    /// Sees to it that `n` plain buffers are read, as far as there are. True: what follows is
    /// something else.
    #[inline]
    pub(crate) fn read_ahead(&mut self, direction: Direction, n: usize) -> bool {
        self.ahead.turn(direction);
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

    /// Fetches what tells that the first `n` buffers that were read are used, and the memory of
    /// `buffers`.
    #[inline]
    pub(crate) fn fetch(&mut self, n: usize, buffers: usize) {
        let n = self.ahead.len().min(n);
        if n > 0 {
            each!(&self.layout, ring => ring.fetch_used(n as u32));
            self.ahead.fetch(n.min(buffers), self.header);
        }
    }

    /// Takes up to `max` packets that the guest sends and appends them to `out`.
    pub fn dequeue(
        &mut self,
        batch: &mut Batch,
        pool: &dyn Pool,
        out: &mut Vec<Packet>,
        max: usize,
        moved: &mut Moved,
    ) {
        if self.broken {
            return;
        }
        let (max, began) = (max.min(BATCH), moved.packets);
        // If there are more they are fetched while these are worked on.
        let other =
            self.read_ahead(Direction::FromGuest, BUFFERS_AHEAD_MAX.min(max + PREFETCH_BUFFERS));
        let (before, n) = (self.base(), self.ahead.len().min(max));
        if n > 0 && !self.take_plain(pool, out, n, moved) {
            moved.starved = true;
        } else if other && n < max {
            self.take_chains(batch, pool, out, max - n, moved);
        }
        self.end(before, began, moved);
    }

    /// The first `n` plain buffers' packets. False: there is nothing to put them in.
    #[inline]
    pub(crate) fn take_plain(
        &mut self,
        pool: &dyn Pool,
        out: &mut Vec<Packet>,
        n: usize,
        moved: &mut Moved,
    ) -> bool {
        let start = out.len();
        self.fetch(n, PREFETCH_BUFFERS);
        if !pool.alloc(out, n) {
            return false;
        }
        let (mut packets, mut bytes, mut wrong) = (0, 0, None);
        let (ahead, header) = (&self.ahead, self.header);
        for i in 0..n {
            ahead.fetch_one(i + PREFETCH_BUFFERS, header, raw::prefetch);
            if let Some(soon) = out.get(start + i + PREFETCH_PACKETS) {
                let to = soon.data().as_ptr();
                raw::prefetch_write(to);
                // For the header of a tunnel.
                raw::prefetch_write(to.wrapping_sub(64));
            }
            match read_plain(&mut out[start + packets], ahead.get(i), header) {
                Ok(len) => {
                    packets += 1;
                    bytes += len as u64;
                }
                Err(error) => wrong = Some(error),
            }
        }
        if let Some(error) = wrong {
            // There is one kind only.
            (packets..n).for_each(|_| self.count_error(error));
        }
        self.layout.put_all((0..n).map(|i| (self.ahead.get(i).id, 0)));
        self.ahead.was_fetched(n + PREFETCH_BUFFERS);
        self.ahead.used(n);
        keep(pool, out, start + packets);
        moved.packets += packets;
        moved.bytes += bytes;
        moved.dropped += n - packets;
        true
    }

    /// As [`Ring::dequeue`], for buffers of any kind.
    fn take_chains(
        &mut self,
        batch: &mut Batch,
        pool: &dyn Pool,
        out: &mut Vec<Packet>,
        max: usize,
        moved: &mut Moved,
    ) {
        self.begin(batch);
        batch.begin(max);
        self.gather(Direction::FromGuest, max, batch);
        self.count_steps(batch, moved);
        let (n, start) = (batch.chains.len(), out.len());
        batch.fetch(self.header, raw::prefetch);
        if n == 0 {
            return;
        }
        if !pool.alloc(out, n) {
            moved.starved = true;
            return;
        }
        let (mut packets, mut bytes) = (0, 0);
        for chain in &batch.chains {
            match read(&mut out[start + packets], chain, batch.pieces(chain), self.header) {
                Ok(len) => {
                    packets += 1;
                    bytes += len as u64;
                }
                Err(error) => self.count_error(error),
            }
            self.layout.put(chain.id, chain.descs, 0);
        }
        keep(pool, out, start + packets);
        moved.packets += packets;
        moved.bytes += bytes;
        moved.dropped += n - packets;
    }

    /// Copies packets from the front of `packets` into the guest's buffers as far as there are
    /// any. The packets stay the caller's.
    pub fn enqueue(&mut self, batch: &mut Batch, packets: &[Packet], moved: &mut Moved) {
        self.enqueue_by(batch, packets, moved, &mut AtOnce);
    }

    #[inline]
    pub(crate) fn enqueue_by(
        &mut self,
        batch: &mut Batch,
        packets: &[Packet],
        moved: &mut Moved,
        way: &mut impl Way,
    ) {
        if self.broken || packets.is_empty() {
            return;
        }
        let (before, began) = (self.base(), moved.packets);
        let (taken, other) = match self.log {
            None => self.give_plain(packets, moved, way),
            // Buffers of any kind are marked where they are written.
            Some(_) => (0, true),
        };
        if other && taken < packets.len() {
            self.give_chains(batch, &packets[taken..], moved, way);
        }
        self.end(before, began, moved);
    }

    /// Packets into plain buffers: how many, and whether something else came next.
    #[inline]
    fn give_plain(
        &mut self,
        packets: &[Packet],
        moved: &mut Moved,
        way: &mut impl Way,
    ) -> (usize, bool) {
        let (mut taken, mut bytes, mut other) = (0, 0, false);
        while taken < packets.len() {
            let rest = &packets[taken..];
            other = self.read_ahead(Direction::ToGuest, rest.len().min(BUFFERS_AHEAD_MAX));
            let n = self.ahead.len().min(rest.len()).min(CHUNK);
            self.fetch(n, PREFETCH_BUFFERS);
            let (wanted, header) = (rest.len(), self.header);
            let done = self.write_headers(rest, n);
            let (ahead, layout) = (&self.ahead, &mut self.layout);
            for (i, packet) in rest[..done].iter().enumerate() {
                if let Some(soon) = rest.get(i + PREFETCH_PACKETS) {
                    let from = soon.data().as_ptr();
                    raw::prefetch(from);
                    raw::prefetch(from.wrapping_add(63));
                }
                let (buffer, data) = (ahead.get(i), packet.data());
                way.begin(data.len(), || 1);
                // SAFETY: the buffer is mapped and holds header and packet.
                unsafe { way.copy(data.as_ptr(), buffer.at.add(header), data.len()) };
                way.put_soon(layout, buffer.id, (header + data.len()) as u32);
                way.end(None);
                bytes += data.len() as u64;
            }
            let used =
                |(i, packet): (usize, &Packet)| (ahead.get(i).id, (header + packet.len()) as u32);
            way.put_plain(layout, rest[..done].iter().enumerate().map(used));
            self.ahead.was_fetched(wanted.min(done + PREFETCH_BUFFERS));
            self.ahead.used(done);
            taken += done;
            if done < n || n == 0 {
                other |= done < n;
                break;
            }
        }
        moved.packets += taken;
        moved.bytes += bytes;
        (taken, other)
    }

    /// Writes the headers of the first `n` packets of `rest`, as far as their buffers hold
    /// them; how many do. The guest has read that line of each buffer, so a store to it waits
    /// long, and stores become visible in order: without others between them these wait together.
    #[inline]
    fn write_headers(&self, rest: &[Packet], n: usize) -> usize {
        let (ahead, header) = (&self.ahead, self.header);
        for (i, packet) in rest[..n].iter().enumerate() {
            if i + PREFETCH_BUFFERS < rest.len() {
                ahead.fetch_one(i + PREFETCH_BUFFERS, header, raw::prefetch_write);
            }
            if let Some(later) = rest.get(i + 2 * PREFETCH_PACKETS) {
                raw::prefetch(later.as_raw());
            }
            let buffer = ahead.get(i);
            if (buffer.len as usize) < header + packet.len() {
                return i;
            }
            // SAFETY: the buffer is mapped and holds the header.
            unsafe { raw::header(buffer.at, header == HEADER, 1) };
        }
        n
    }

    /// As [`Ring::enqueue`], for buffers of any kind.
    fn give_chains(
        &mut self,
        batch: &mut Batch,
        packets: &[Packet],
        moved: &mut Moved,
        way: &mut impl Way,
    ) {
        self.begin(batch);
        batch.begin(packets.len());
        self.gather(Direction::ToGuest, packets.len(), batch);
        batch.fetch(self.header, raw::prefetch_write);
        let mut next = 0;
        let (mut taken, mut bytes, mut dropped) = (0, 0, 0);
        while let Some(packet) = packets.get(taken) {
            match self.choose(batch, next, self.header + packet.len()) {
                Choice::Buffers(range) => {
                    next = range.end;
                    taken += 1;
                    bytes += packet.len() as u64;
                    self.write(batch, range, packet, way);
                }
                Choice::Drop(error) => {
                    taken += 1;
                    dropped += 1;
                    way.begin(0, || 0);
                    way.end(None);
                    self.count_error(error);
                }
                Choice::Bad(range) => {
                    next = range.end;
                    self.give_back(batch, range, way);
                }
                Choice::More => {
                    let have = batch.chains.len() - next;
                    next = 0;
                    self.begin(batch);
                    let rest = packets.len() - taken;
                    // Twice as many: what is read again is little in sum. Without more, or when
                    // enough was read, the rest is for the next call.
                    self.gather(Direction::ToGuest, rest.max(2 * have + 1), batch);
                    if self.broken || batch.chains.len() <= have {
                        break;
                    }
                }
            }
        }
        self.count_steps(batch, moved);
        moved.packets += taken;
        moved.bytes += bytes;
        moved.dropped += dropped;
    }

    /// Counts the descriptors that a batch took.
    pub(crate) fn count_steps(&mut self, batch: &Batch, moved: &mut Moved) {
        self.steps += u64::from(batch.steps);
        moved.exhausted |= batch.is_exhausted();
    }

    /// Buffers for `need` bytes, from `batch.chains[from]` on.
    #[inline]
    fn choose(&self, batch: &Batch, from: usize, need: usize) -> Choice {
        let (mut end, mut bytes) = (from, 0);
        while bytes < need as u64 {
            let Some(chain) = batch.chains.get(end) else {
                // All that one batch holds is not enough.
                return match end - from {
                    BATCH => Choice::Drop(RingError::SmallBuffer),
                    _ => Choice::More,
                };
            };
            end += 1;
            let has_header = end - from > 1 || chain.bytes >= self.header as u64;
            if chain.bad.is_some() || chain.bytes == 0 || !has_header {
                return Choice::Bad(from..end);
            }
            bytes += chain.bytes;
            if !self.mergeable && bytes < need as u64 {
                return Choice::Drop(RingError::SmallBuffer);
            }
        }
        Choice::Buffers(from..end)
    }

    /// Gives buffers back unused, the last of which is bad.
    #[cold]
    fn give_back(&mut self, batch: &Batch, range: Range<usize>, way: &mut impl Way) {
        for chain in &batch.chains[range.clone()] {
            way.give_back(&mut self.layout, chain.id, chain.descs);
        }
        let last = &batch.chains[range.end - 1];
        self.count_error(last.bad.unwrap_or(RingError::SmallBuffer));
    }

    /// Writes header and packet into these buffers, which are large enough.
    #[inline]
    fn write(&mut self, batch: &Batch, range: Range<usize>, packet: &Packet, way: &mut impl Way) {
        let (chains, data) = (&batch.chains[range], packet.data());
        way.begin(data.len(), || chains.iter().map(|chain| batch.pieces(chain).len()).sum());
        let buffers = chains.len() as u16;
        let mut header = [0u8; HEADER];
        header[10..].copy_from_slice(&buffers.to_le_bytes());
        let mut source = Source { header: &header[..self.header], data };
        for chain in chains {
            let mut written = 0;
            for piece in batch.pieces(chain) {
                let n = source.fill(piece, way);
                written += n;
                if self.log.is_some() {
                    self.mark(piece.at, n);
                }
            }
            way.put(&mut self.layout, chain.id, chain.descs, written as u32);
        }
        way.end(None);
    }
}

enum Choice {
    /// The packet is in these buffers.
    Buffers(Range<usize>),
    /// The packet cannot be sent.
    Drop(RingError),
    /// The last of these is bad.
    Bad(Range<usize>),
    /// More buffers are needed than were read.
    More,
}

/// Header and data on their way into pieces.
struct Source<'a> {
    header: &'a [u8],
    data: &'a [u8],
}

impl Source<'_> {
    /// Writes as much as the piece holds; returns how much.
    fn fill(&mut self, piece: &Piece, way: &mut impl Way) -> usize {
        let room = piece.len as usize;
        let first = self.header.len().min(room);
        let second = self.data.len().min(room - first);
        // SAFETY: the piece is mapped; `first + second` bytes of it at most are written.
        unsafe {
            raw::copy(self.header.as_ptr(), piece.at, first);
            if second > 0 {
                way.copy(self.data.as_ptr(), piece.at.add(first), second);
            }
        }
        (self.header, self.data) = (&self.header[first..], &self.data[second..]);
        first + second
    }
}

/// Gives back the packets from `end` on.
#[inline]
fn keep(pool: &dyn Pool, out: &mut Vec<Packet>, end: usize) {
    if end < out.len() {
        pool.free(&out[end..]);
        out.truncate(end);
    }
}

/// Makes room in an empty packet for a frame of `len` bytes: where to put it.
#[inline]
pub(crate) fn make_room(packet: &mut Packet, len: u64) -> Result<*mut u8, RingError> {
    let mbuf = packet.mbuf();
    if len > u64::from(mbuf.buf_len.saturating_sub(mbuf.data_off)) {
        return Err(RingError::Long);
    }
    mbuf.data_len = len as u16;
    mbuf.pkt_len = len as u32;
    // SAFETY: the buffer is ours and holds len bytes from there on.
    Ok(unsafe { mbuf.buf_addr.add(usize::from(mbuf.data_off)) })
}

/// Copies the frame of a plain buffer into an empty packet; returns its length.
#[inline]
fn read_plain(packet: &mut Packet, buffer: Plain, header: usize) -> Result<usize, RingError> {
    let len = buffer.len as usize - header;
    let to = make_room(packet, len as u64)?;
    // SAFETY: the buffer is mapped and longer than the header; there is room for the rest.
    unsafe { raw::copy(buffer.at.add(header), to, len) };
    Ok(len)
}

/// Copies a frame behind its header from the guest into an empty packet; returns its length.
#[inline]
fn read(
    packet: &mut Packet,
    chain: &Chain,
    pieces: &[Piece],
    header: usize,
) -> Result<usize, RingError> {
    let len = chain.frame(header)?;
    let mut to = make_room(packet, len)?;
    for (from, n) in behind(pieces, header) {
        // SAFETY: the piece is mapped; the pieces without the header have len bytes together.
        unsafe {
            raw::copy(from, to, n);
            to = to.add(n);
        }
    }
    Ok(len as usize)
}
