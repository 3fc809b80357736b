//! Frames that a guest leaves for the device to finish (virtio 1.2, section 5.1.6.2): their
//! checksums are not computed, or their TCP is not cut into segments. The switch gets them as they
//! would be on the wire.

use super::dequeue::{make_room, read, truncate_and_free};
use super::{Moved, Ring};
use crate::batch::{Batch, Chain, Direction, Piece, behind};
use crate::raw;
use crate::ring_error::RingError;
use packet::{Packet, Pool};
use wire::gso::Plan;
use wire::vnet::{GSO_TCP_V4, GSO_TCP_V6, VNET_LEN, VnetHeader, complete_checksum};

/// Buffers that are read at once, at most: those for whose segments there is no room are read
/// again.
const BUFFERS_READ_MAX: usize = 8;
/// Bytes of a frame whose copying counts as much as reading one descriptor.
const STEP_BYTES: usize = 256;
/// Bytes of a frame, at most: an IP packet, and an Ethernet header with two tags.
const FRAME_BYTES_MAX: u64 = 65_535 + 22;

/// A frame that is being cut into segments, as far as there is room for them.
#[derive(Default)]
pub(super) struct Unfinished {
    /// A copy of the guest's frame.
    frame: Vec<u8>,
    /// How the frame is cut; None: nothing is left of it.
    plan: Option<Plan>,
    /// Number of the next segment.
    next: usize,
}

/// Where received packets go.
struct Out<'a> {
    pool: &'a dyn Pool,
    packets: &'a mut Vec<Packet>,
    /// Length that `packets` may have.
    end: usize,
    moved: &'a mut Moved,
}

impl Ring {
    /// Does what [`Ring::dequeue`] does, for a guest that leaves checksums and segments to the
    /// device.
    #[inline(never)] // Few guests take this way.
    pub(super) fn dequeue_unfinished(
        &mut self,
        batch: &mut Batch,
        pool: &dyn Pool,
        out: &mut Vec<Packet>,
        max: usize,
        moved: &mut Moved,
    ) {
        let Some(mut unfinished) = self.unfinished.take() else { return };
        let (before, began) = (self.base(), moved.packets);
        let end = out.len() + max;
        batch.begin(max);
        let mut to = Out { pool, packets: out, end, moved };
        let cut = unfinished.cut(&mut to);
        self.settle(cut, &mut to);
        while to.has_room() && !self.broken && !batch.is_exhausted() {
            self.begin(batch);
            self.gather(Direction::FromGuest, BUFFERS_READ_MAX, batch);
            if batch.chains.is_empty() {
                break;
            }
            batch.fetch(self.header, sync::prefetch);
            let mut steps = 0;
            for chain in &batch.chains {
                let taken = unfinished.take(chain, batch.pieces(chain), self.header, &mut to);
                if to.moved.starved && unfinished.plan.is_none() {
                    break;
                }
                self.settle(taken, &mut to);
                self.layout.write_used(chain.id, chain.descs, 0);
                steps += chain.bytes.min(FRAME_BYTES_MAX) as usize / STEP_BYTES;
                if !to.has_room() {
                    break;
                }
            }
            batch.steps += steps as u32;
        }
        self.count_steps(batch, moved);
        self.unfinished = Some(unfinished);
        self.end(before, began, moved);
    }

    /// Counts a frame that cannot be received, if this is the result of one.
    fn settle(&mut self, result: Result<(), RingError>, to: &mut Out<'_>) {
        if let Err(error) = result {
            to.moved.dropped += 1;
            self.count_error(error);
        }
    }
}

impl Out<'_> {
    /// True if more packets may be appended.
    fn has_room(&self) -> bool {
        self.packets.len() < self.end && !self.moved.starved
    }

    /// Appends `n` packets without data. False: the pool has none.
    fn alloc(&mut self, n: usize) -> bool {
        self.moved.starved |= !self.pool.alloc(self.packets, n);
        !self.moved.starved
    }

    /// Counts the packets from `start` on as received.
    fn count(&mut self, start: usize) {
        let new = &self.packets[start..];
        self.moved.packets += new.len();
        self.moved.bytes += new.iter().map(|packet| packet.len() as u64).sum::<u64>();
    }
}

impl Unfinished {
    /// Receives the frame of a buffer, or the first of its segments; nothing if the pool has no
    /// packets.
    fn take(
        &mut self,
        chain: &Chain,
        pieces: &[Piece],
        header: usize,
        to: &mut Out<'_>,
    ) -> Result<(), RingError> {
        let len = chain.frame(header)?;
        let h = vnet_header(pieces);
        if h.gso != 0 {
            self.plan(pieces, header, len, &h)?;
            return self.cut(to);
        }
        let start = to.packets.len();
        if !to.alloc(1) {
            return Ok(());
        }
        let packet = &mut to.packets[start];
        let done = read(packet, chain, pieces, header).and_then(|_| {
            let left =
                h.needs_csum && !complete_checksum(packet.data_mut(), h.csum_start, h.csum_offset);
            if left { Err(RingError::Offload) } else { Ok(()) }
        });
        if done.is_err() {
            truncate_and_free(to.pool, to.packets, start);
        }
        to.count(start);
        done
    }

    /// Copies a frame of `len` bytes that is to be cut.
    fn plan(
        &mut self,
        pieces: &[Piece],
        header: usize,
        len: u64,
        h: &VnetHeader,
    ) -> Result<(), RingError> {
        if len > FRAME_BYTES_MAX {
            return Err(RingError::Long);
        }
        self.frame.resize(len as usize, 0);
        let mut to = self.frame.as_mut_ptr();
        for (from, n) in behind(pieces, header) {
            // SAFETY: the piece is mapped; the pieces without the header have `len` bytes together.
            unsafe {
                raw::copy(from, to, n);
                to = to.add(n);
            }
        }
        let known = matches!(h.gso, GSO_TCP_V4 | GSO_TCP_V6);
        self.plan = Plan::new(&self.frame, h).filter(|_| known);
        self.next = 0;
        self.plan.map(|_| ()).ok_or(RingError::Offload)
    }

    /// Appends the next segments of the frame, as many as there is room for; nothing if the pool
    /// has no packets.
    fn cut(&mut self, to: &mut Out<'_>) -> Result<(), RingError> {
        let Some(plan) = self.plan else { return Ok(()) };
        let start = to.packets.len();
        let n = (plan.count() - self.next).min(to.end - start);
        if n == 0 || !to.alloc(n) {
            return Ok(());
        }
        for (i, packet) in (self.next..).zip(&mut to.packets[start..]) {
            let room = make_room(packet, plan.len(i) as u64);
            let written = room.map(|_| plan.write(&self.frame, i, packet.data_mut()));
            let Ok(Some(())) = written else {
                // All segments but the last have one length.
                self.plan = None;
                truncate_and_free(to.pool, to.packets, start);
                return Err(written.err().unwrap_or(RingError::Offload));
            };
            packet.set_sound_checksums();
        }
        to.count(start);
        self.next += n;
        if self.next == plan.count() {
            self.plan = None;
        }
        Ok(())
    }
}

/// The virtio-net header in front of a frame, whose pieces have at least so many bytes.
fn vnet_header(pieces: &[Piece]) -> VnetHeader {
    let (mut raw_header, mut n) = ([0; VNET_LEN], 0);
    for piece in pieces {
        let part = (piece.len as usize).min(VNET_LEN - n);
        // SAFETY: the piece is mapped and has `part` bytes; there is room for them.
        unsafe { raw::copy(piece.host, raw_header[n..].as_mut_ptr(), part) };
        n += part;
    }
    VnetHeader::read(&raw_header)
}
