//! A virtqueue of either layout, and the two things one does with it.

use crate::ahead::{AHEAD, Ahead, DISTANCE, Plain, Reader};
use crate::batch::{BATCH, Batch, Chain, Direction, Piece};
use crate::memory::{Memory, Region};
use crate::misdeed::{Misdeed, Misdeeds};
use crate::packed::{self, Packed};
use crate::split::{self, Split};
use crate::{feature, raw};
use packet::{Packet, Pool};
use std::ops::Range;
use std::sync::Arc;

/// The same for packets, whose own memory is nearer.
const SOON: usize = 4;
/// Plain buffers used before more are read.
const CHUNK: usize = 32;
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

/// What calls did; each adds to it. It is not returned: copied as a whole, by loads wider than the stores
/// that made it, it would wait until every store before is in the cache, those into the guest's memory too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Packets received, or taken for sending: those sent, and those dropped.
    pub packets: usize,
    /// Bytes of the packets that went through.
    pub bytes: u64,
    /// Packets that ended here, each a counted [`Misdeed`].
    pub dropped: usize,
    /// Packets were there, and no buffer of ours to put them in.
    pub starved: bool,
    /// The guest did something wrong; see [`Ring::misdeeds`].
    pub blamed: bool,
}

enum Layout {
    Split(Split),
    Packed(Packed),
}

/// One virtqueue, seen by the device.
pub struct Ring {
    layout: Layout,
    memory: Arc<Memory>,
    /// Region of the last address.
    last: Region,
    ahead: Ahead,
    header: usize,
    mergeable: bool,
    broken: bool,
    misdeeds: Box<Misdeeds>,
    /// Misdeeds were counted since the last call.
    blamed: bool,
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
    #[inline]
    fn put(&mut self, id: u16, descs: u16, len: u32) {
        match self {
            Layout::Split(ring) => ring.put(id, len),
            Layout::Packed(ring) => ring.put(id, descs, len),
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
            misdeeds: Box::default(),
            blamed: false,
        })
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
    pub fn misdeeds(&self) -> &Misdeeds {
        &self.misdeeds
    }

    #[cold]
    fn blame(&mut self, misdeed: Misdeed) {
        self.misdeeds.count(misdeed);
        self.blamed = true;
    }

    #[inline]
    fn gather(&mut self, direction: Direction, max: usize, batch: &mut Batch) {
        let (memory, last) = (&*self.memory, &mut self.last);
        let read =
            each!(&mut self.layout, ring => ring.gather(memory, last, direction, max, batch));
        if let Err(misdeed) = read {
            self.blame(misdeed);
            self.broken = true;
            batch.clear();
        }
    }

    /// Nothing is read yet.
    #[inline]
    fn begin(&mut self, batch: &mut Batch) {
        batch.clear();
        self.ahead.clear();
        each!(&mut self.layout, ring => ring.rewind());
    }

    /// Ends a call: shows the guest what was used.
    #[inline]
    fn show(&mut self) {
        each!(&mut self.layout, ring => ring.show());
    }

    /// Did the guest seem to want no notification when the ring was last read? Then nothing is lost by
    /// asking a little later.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        each!(&self.layout, ring => ring.is_quiet())
    }

    /// Does the guest want to be notified of what it was shown since this was asked last? A full fence
    /// has to lie between the last call that moved something and this: one serves any number of rings.
    #[inline]
    pub fn wants_call(&mut self) -> bool {
        each!(&mut self.layout, ring => ring.wants_call())
    }

    /// Starts to fetch what the next call of [`Ring::dequeue`] will read (`sends`), or else of
    /// [`Ring::enqueue`]: at step 0 of the ring itself, at step 1 of its next `n` buffers, the
    /// first of them at once: the others while those are used, so that neither waits for the other.
    #[inline]
    pub fn prepare(&mut self, step: usize, n: u16, sends: bool) {
        let n = AHEAD.min(n.into());
        if step == 0 {
            let held = self.ahead.len() as u32;
            return each!(&self.layout, ring => ring.fetch(held, n as u32));
        }
        self.read_ahead(if sends { Direction::FromGuest } else { Direction::ToGuest }, n);
        self.ahead.stale();
        self.fetch(n, DISTANCE);
    }

    /// Sees to it that `n` plain buffers are read, as far as there are. True: what follows is something else.
    #[inline]
    fn read_ahead(&mut self, direction: Direction, n: usize) -> bool {
        self.ahead.turn(direction);
        let (memory, last) = (&*self.memory, &mut self.last);
        let mut reader = Reader { memory, last, direction, header: self.header as u32 };
        let ahead = &mut self.ahead;
        ahead.len() < n && each!(&mut self.layout, ring => ring.read_ahead(&mut reader, n, ahead))
    }

    /// Fetches what tells that the first `n` buffers that were read are used, and the memory of `buffers`.
    #[inline]
    fn fetch(&mut self, n: usize, buffers: usize) {
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
        let max = max.min(BATCH);
        // If there are more they are fetched while these are worked on.
        let other = self.read_ahead(Direction::FromGuest, AHEAD.min(max + DISTANCE));
        let (before, n) = (self.base(), self.ahead.len().min(max));
        if n > 0 && !self.take_plain(pool, out, n, moved) {
            moved.starved = true;
        } else if other && n < max {
            self.take_chains(batch, pool, out, max - n, moved);
        }
        if self.base() != before {
            self.show();
        }
        moved.blamed |= std::mem::take(&mut self.blamed);
    }

    /// The first `n` plain buffers' packets. False: there is nothing to put them in.
    #[inline]
    fn take_plain(
        &mut self,
        pool: &dyn Pool,
        out: &mut Vec<Packet>,
        n: usize,
        moved: &mut Moved,
    ) -> bool {
        let start = out.len();
        self.fetch(n, DISTANCE);
        if !pool.alloc(out, n) {
            return false;
        }
        let (mut packets, mut bytes) = (0, 0);
        for i in 0..n {
            self.ahead.fetch(i + DISTANCE, self.header);
            if let Some(soon) = out.get(start + i + SOON) {
                let to = soon.data().as_ptr();
                raw::prefetch_write(to);
                // For the header of a tunnel.
                raw::prefetch_write(to.wrapping_sub(64));
            }
            let buffer = self.ahead.get(i);
            match read_plain(&mut out[start + packets], buffer, self.header) {
                Ok(len) => {
                    packets += 1;
                    bytes += len as u64;
                }
                Err(misdeed) => self.blame(misdeed),
            }
            self.layout.put(buffer.id, 1, 0);
        }
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
        self.gather(Direction::FromGuest, max, batch);
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
                Err(misdeed) => self.blame(misdeed),
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
        if self.broken || packets.is_empty() {
            return;
        }
        let before = self.base();
        let (taken, other) = self.give_plain(packets, moved);
        if other && taken < packets.len() {
            self.give_chains(batch, &packets[taken..], moved);
        }
        if self.base() != before {
            self.show();
        }
        moved.blamed |= std::mem::take(&mut self.blamed);
    }

    /// Packets into plain buffers: how many, and whether something else came next.
    #[inline]
    fn give_plain(&mut self, packets: &[Packet], moved: &mut Moved) -> (usize, bool) {
        let (mut taken, mut bytes, mut other) = (0, 0, false);
        while taken < packets.len() {
            let rest = &packets[taken..];
            other = self.read_ahead(Direction::ToGuest, rest.len().min(AHEAD));
            let n = self.ahead.len().min(rest.len()).min(CHUNK);
            self.fetch(n, DISTANCE);
            let mut done = 0;
            for packet in &rest[..n] {
                self.ahead.fetch(rest.len().min(done + DISTANCE), self.header);
                if let Some(later) = rest.get(done + 2 * SOON) {
                    raw::prefetch(later.as_raw());
                }
                if let Some(soon) = rest.get(done + SOON) {
                    let from = soon.data().as_ptr();
                    raw::prefetch(from);
                    raw::prefetch(from.wrapping_add(63));
                }
                let (buffer, len) = (self.ahead.get(done), self.header + packet.len());
                if (buffer.len as usize) < len {
                    break;
                }
                // SAFETY: the buffer is mapped and holds header and packet.
                unsafe { write_plain(buffer.at, self.header, packet) };
                self.layout.put(buffer.id, 1, len as u32);
                bytes += packet.len() as u64;
                done += 1;
            }
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

    /// As [`Ring::enqueue`], for buffers of any kind.
    fn give_chains(&mut self, batch: &mut Batch, packets: &[Packet], moved: &mut Moved) {
        self.begin(batch);
        self.gather(Direction::ToGuest, packets.len(), batch);
        batch.fetch(self.header, raw::prefetch_write);
        let mut next = 0;
        let (mut taken, mut bytes, mut dropped) = (0, 0, 0);
        // A guest that makes bad buffers as fast as we drop them does not keep us here.
        let mut patience = 2 * BATCH;
        while let Some(packet) = packets.get(taken) {
            match self.choose(batch, next, self.header + packet.len()) {
                Choice::Buffers(range) => {
                    next = range.end;
                    taken += 1;
                    bytes += packet.len() as u64;
                    self.write(batch, range, packet);
                }
                Choice::Drop(misdeed) => {
                    taken += 1;
                    dropped += 1;
                    self.blame(misdeed);
                }
                Choice::Bad(range) => {
                    next = range.end;
                    self.give_back(batch, range);
                }
                Choice::More => {
                    let have = batch.chains.len() - next;
                    next = 0;
                    self.begin(batch);
                    let rest = packets.len() - taken;
                    self.gather(Direction::ToGuest, rest.max(have + 1), batch);
                    patience = patience.saturating_sub(1);
                    if batch.chains.len() <= have || patience == 0 {
                        break;
                    }
                }
            }
        }
        moved.packets += taken;
        moved.bytes += bytes;
        moved.dropped += dropped;
    }

    /// Buffers for `need` bytes, from `batch.chains[from]` on.
    #[inline]
    fn choose(&self, batch: &Batch, from: usize, need: usize) -> Choice {
        let (mut end, mut bytes) = (from, 0);
        while bytes < need as u64 {
            let Some(chain) = batch.chains.get(end) else {
                // All that one batch holds is not enough.
                return match end - from {
                    BATCH => Choice::Drop(Misdeed::SmallBuffer),
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
                return Choice::Drop(Misdeed::SmallBuffer);
            }
        }
        Choice::Buffers(from..end)
    }

    /// Gives buffers back unused, the last of which is bad.
    #[cold]
    fn give_back(&mut self, batch: &Batch, range: Range<usize>) {
        for chain in &batch.chains[range.clone()] {
            self.layout.put(chain.id, chain.descs, 0);
        }
        let last = &batch.chains[range.end - 1];
        self.blame(last.bad.unwrap_or(Misdeed::SmallBuffer));
    }

    /// Writes header and packet into these buffers, which are large enough.
    #[inline]
    fn write(&mut self, batch: &Batch, range: Range<usize>, packet: &Packet) {
        let (chains, data) = (&batch.chains[range], packet.data());
        let buffers = chains.len() as u16;
        let mut header = [0u8; HEADER];
        header[10..].copy_from_slice(&buffers.to_le_bytes());
        let mut source = Source { parts: [&header[..self.header], data] };
        for chain in chains {
            let written: usize = batch.pieces(chain).iter().map(|piece| source.fill(piece)).sum();
            self.layout.put(chain.id, chain.descs, written as u32);
        }
    }
}

enum Choice {
    /// These hold the packet.
    Buffers(Range<usize>),
    /// The packet cannot be sent.
    Drop(Misdeed),
    /// The last of these is bad.
    Bad(Range<usize>),
    /// More buffers are needed than were read.
    More,
}

/// Header and data on their way into pieces.
struct Source<'a> {
    parts: [&'a [u8]; 2],
}

impl Source<'_> {
    /// Writes as much as the piece holds; returns how much.
    fn fill(&mut self, piece: &Piece) -> usize {
        let mut done = 0;
        for part in &mut self.parts {
            let n = part.len().min(piece.len as usize - done);
            // SAFETY: the piece is mapped; done + n bytes of it at most are written.
            unsafe { raw::copy(part.as_ptr(), piece.at.add(done), n) };
            *part = &part[n..];
            done += n;
        }
        done
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

/// Writes header and packet to `at`.
///
/// # Safety
/// Both fit into memory that is mapped there.
#[inline]
unsafe fn write_plain(at: *mut u8, header: usize, packet: &Packet) {
    let data = packet.data();
    // SAFETY: the caller vouches.
    unsafe {
        raw::header(at, header == HEADER, 1);
        raw::copy(data.as_ptr(), at.add(header), data.len());
    }
}

/// Makes room in an empty packet for a frame of `len` bytes: where to put it.
#[inline]
fn make_room(packet: &mut Packet, len: u64) -> Result<*mut u8, Misdeed> {
    let mbuf = packet.mbuf();
    if len > u64::from(mbuf.buf_len.saturating_sub(mbuf.data_off)) {
        return Err(Misdeed::Long);
    }
    mbuf.data_len = len as u16;
    mbuf.pkt_len = len as u32;
    // SAFETY: the buffer is ours and holds len bytes from there on.
    Ok(unsafe { mbuf.buf_addr.add(usize::from(mbuf.data_off)) })
}

/// Copies the frame of a plain buffer into an empty packet; returns its length.
#[inline]
fn read_plain(packet: &mut Packet, buffer: Plain, header: usize) -> Result<usize, Misdeed> {
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
) -> Result<usize, Misdeed> {
    if let Some(misdeed) = chain.bad {
        return Err(misdeed);
    }
    let len = chain.bytes.checked_sub(header as u64).filter(|len| *len > 0);
    let len = len.ok_or(Misdeed::Short)?;
    let mut to = make_room(packet, len)?;
    let mut skip = header;
    for piece in pieces {
        let from = skip.min(piece.len as usize);
        let n = piece.len as usize - from;
        skip -= from;
        // SAFETY: the piece is mapped; the pieces without the header have len bytes together.
        unsafe {
            raw::copy(piece.at.add(from), to, n);
            to = to.add(n);
        }
    }
    Ok(len as usize)
}
