//! Packets that are sent to the guest: copied from our buffers into its buffers.

use super::{HEADER, Moved, PREFETCH_PACKETS, Ring};
use crate::ahead::{BUFFERS_AHEAD_MAX, PREFETCH_BUFFERS};
use crate::batch::{BATCH, Batch, Direction, Piece};
use crate::copier::{Copier, CpuCopier};
use crate::raw;
use crate::ring_error::RingError;
use packet::Packet;
use std::ops::Range;

/// Plain buffers that are filled before more are read ahead, at most.
const CHUNK_BUFFERS_MAX: usize = 32;

impl Ring {
    /// Copies packets from the front of `packets` into the guest's buffers, as far as it has
    /// buffers. The packets stay the caller's.
    pub fn enqueue(&mut self, batch: &mut Batch, packets: &[Packet], moved: &mut Moved) {
        match self.merges {
            false => self.enqueue_by(batch, packets, moved, &mut CpuCopier),
            true => self.enqueue_merging(batch, packets, moved),
        }
    }

    /// Does what [`Ring::enqueue`] does without merging; `copier` copies the bytes and gives the
    /// buffers back.
    #[inline]
    pub(crate) fn enqueue_by(
        &mut self,
        batch: &mut Batch,
        packets: &[Packet],
        moved: &mut Moved,
        copier: &mut impl Copier,
    ) {
        if self.broken || packets.is_empty() {
            return;
        }
        let (before, began) = (self.base(), moved.packets);
        let (taken, other) = match self.log {
            None => self.give_plain(packets, moved, copier),
            // The functions for buffers of any kind mark pages as they write them.
            Some(_) => (0, true),
        };
        if other && taken < packets.len() {
            self.give_chains(batch, &packets[taken..], moved, copier);
        }
        self.end(before, began, moved);
    }

    /// Copies packets into plain buffers. Returns how many, and whether the next buffer is not
    /// plain.
    #[inline]
    fn give_plain(
        &mut self,
        packets: &[Packet],
        moved: &mut Moved,
        copier: &mut impl Copier,
    ) -> (usize, bool) {
        let (mut taken, mut bytes, mut other) = (0, 0, false);
        while taken < packets.len() {
            let rest = &packets[taken..];
            other = self.read_ahead(Direction::ToGuest, rest.len().min(BUFFERS_AHEAD_MAX));
            let n = self.ahead.len().min(rest.len()).min(CHUNK_BUFFERS_MAX);
            self.fetch(n, PREFETCH_BUFFERS);
            let (wanted, header) = (rest.len(), self.header);
            let done = self.write_headers(rest, n);
            let (ahead, layout) = (&self.ahead, &mut self.layout);
            for (i, packet) in rest[..done].iter().enumerate() {
                if let Some(soon) = rest.get(i + PREFETCH_PACKETS) {
                    let from = soon.data().as_ptr();
                    sync::prefetch(from);
                    sync::prefetch(from.wrapping_add(63));
                }
                let (buffer, data) = (ahead.get(i), packet.data());
                copier.begin(data.len(), || 1);
                // SAFETY: the buffer is mapped and holds header and packet.
                unsafe { copier.copy(data.as_ptr(), buffer.host.add(header), data.len()) };
                copier.write_used_soon(layout, buffer.id, (header + data.len()) as u32);
                copier.end(None);
                bytes += data.len() as u64;
            }
            let used =
                |(i, packet): (usize, &Packet)| (ahead.get(i).id, (header + packet.len()) as u32);
            copier.write_used_plain(layout, rest[..done].iter().enumerate().map(used));
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

    /// Writes the headers of the first `n` packets of `rest`; stops at the first whose buffer is
    /// too small, and returns how many it wrote. The guest has read that cache line of each buffer,
    /// so a store to it waits long, and stores become visible in order: written one after the
    /// other, these stores wait together.
    #[inline]
    fn write_headers(&self, rest: &[Packet], n: usize) -> usize {
        let (ahead, header) = (&self.ahead, self.header);
        for (i, packet) in rest[..n].iter().enumerate() {
            if i + PREFETCH_BUFFERS < rest.len() {
                ahead.fetch_one(i + PREFETCH_BUFFERS, header, sync::prefetch_write);
            }
            if let Some(later) = rest.get(i + 2 * PREFETCH_PACKETS) {
                sync::prefetch(later.as_raw());
            }
            let buffer = ahead.get(i);
            if (buffer.len as usize) < header + packet.len() {
                return i;
            }
            // SAFETY: the buffer is mapped and holds the header.
            unsafe { raw::header(buffer.host, header == HEADER, 1) };
        }
        n
    }

    /// Copies packets into buffers of any kind.
    fn give_chains(
        &mut self,
        batch: &mut Batch,
        packets: &[Packet],
        moved: &mut Moved,
        copier: &mut impl Copier,
    ) {
        self.begin(batch);
        batch.begin(packets.len());
        self.gather(Direction::ToGuest, packets.len(), batch);
        batch.fetch(self.header, sync::prefetch_write);
        let mut next = 0;
        let (mut taken, mut bytes, mut dropped) = (0, 0, 0);
        while let Some(packet) = packets.get(taken) {
            match self.choose(batch, next, self.header + packet.len()) {
                Choice::Buffers(range) => {
                    next = range.end;
                    taken += 1;
                    bytes += packet.len() as u64;
                    self.write(batch, range, [0; HEADER], Frame::of(packet), copier);
                }
                Choice::Drop(error) => {
                    taken += 1;
                    dropped += 1;
                    copier.begin(0, || 0);
                    copier.end(None);
                    self.count_error(error);
                }
                Choice::Bad(range) => {
                    next = range.end;
                    self.return_unused(batch, range, copier);
                }
                Choice::More => {
                    let have = batch.chains.len() - next;
                    next = 0;
                    self.begin(batch);
                    let rest = packets.len() - taken;
                    // Twice as many: buffers that are read again are few in sum. If there are no
                    // more, or the call has read as much as it may, the rest is left to the next
                    // call.
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

    /// Chooses buffers for `need` bytes, from `batch.chains[from]` on.
    #[inline]
    pub(super) fn choose(&self, batch: &Batch, from: usize, need: usize) -> Choice {
        let (mut end, mut bytes) = (from, 0);
        while bytes < need as u64 {
            let Some(chain) = batch.chains.get(end) else {
                // All buffers of a batch together are too small.
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
    fn return_unused(&mut self, batch: &Batch, range: Range<usize>, copier: &mut impl Copier) {
        for chain in &batch.chains[range.clone()] {
            copier.return_unused(&mut self.layout, chain.id, chain.descs);
        }
        let last = &batch.chains[range.end - 1];
        self.count_error(last.bad.unwrap_or(RingError::SmallBuffer));
    }

    /// Writes a header, with the number of buffers added, and a frame into these buffers, which are
    /// large enough.
    #[inline]
    pub(super) fn write(
        &mut self,
        batch: &Batch,
        range: Range<usize>,
        mut header: [u8; HEADER],
        mut frame: Frame<'_>,
        copier: &mut impl Copier,
    ) {
        let chains = &batch.chains[range];
        copier.begin(frame.len(), || chains.iter().map(|chain| batch.pieces(chain).len()).sum());
        let buffers = chains.len() as u16;
        header[10..].copy_from_slice(&buffers.to_le_bytes());
        let mut header = &header[..self.header];
        for chain in chains {
            let mut written = 0;
            for piece in batch.pieces(chain) {
                let first = header.len().min(piece.len as usize);
                // SAFETY: the piece is mapped and has `first` bytes.
                unsafe { raw::copy(header.as_ptr(), piece.host, first) };
                header = &header[first..];
                let n = first + frame.fill(piece, first, copier);
                written += n;
                if self.log.is_some() {
                    self.mark(piece.host, n);
                }
            }
            copier.write_used(&mut self.layout, chain.id, chain.descs, written as u32);
        }
        copier.end(None);
    }
}

/// The buffers that are chosen for a packet.
pub(super) enum Choice {
    /// The packet goes into these buffers.
    Buffers(Range<usize>),
    /// The packet cannot be sent to this guest.
    Drop(RingError),
    /// The last of these buffers is bad; none of them is used.
    Bad(Range<usize>),
    /// More buffers are needed than were read.
    More,
}

/// A frame, or what is left to be written of it: one packet, or headers and the payloads of several
/// packets.
pub(super) struct Frame<'a> {
    pub data: &'a [u8],
    /// Packets that follow, without their first `skip` bytes.
    pub more: &'a [Packet],
    pub skip: usize,
}

impl<'a> Frame<'a> {
    #[inline]
    fn of(packet: &'a Packet) -> Self {
        Frame { data: packet.data(), more: &[], skip: 0 }
    }

    /// Bytes that are left.
    #[inline]
    pub fn len(&self) -> usize {
        let more = self.more.iter().map(|packet| packet.len() - self.skip);
        self.data.len() + more.sum::<usize>()
    }

    /// Writes as much as the piece holds behind its first `at` bytes; returns how much.
    #[inline]
    fn fill(&mut self, piece: &Piece, mut at: usize, copier: &mut impl Copier) -> usize {
        let (began, room) = (at, piece.len as usize);
        loop {
            let n = self.data.len().min(room - at);
            if n > 0 {
                // SAFETY: the piece is mapped; `at + n` bytes of it at most are written.
                unsafe { copier.copy(self.data.as_ptr(), piece.host.add(at), n) };
            }
            (self.data, at) = (&self.data[n..], at + n);
            match self.more {
                [next, rest @ ..] if at < room => {
                    (self.data, self.more) = (&next.data()[self.skip..], rest);
                }
                _ => return at - began,
            }
        }
    }
}
