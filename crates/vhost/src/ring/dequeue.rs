//! Packets that the guest sends: copied from its buffers into packets of the switch.

use super::{Moved, PREFETCH_PACKETS, Ring};
use crate::ahead::{BUFFERS_AHEAD_MAX, PREFETCH_BUFFERS, Plain};
use crate::batch::{BATCH, Batch, Chain, Direction, Piece, behind};
use crate::raw;
use crate::ring_error::RingError;
use packet::{Packet, Pool};

impl Ring {
    /// Receives up to `max` packets that the guest sends, and appends them to `out`.
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
        if self.unfinished.is_some() {
            return self.dequeue_unfinished(batch, pool, out, max, moved);
        }
        let other = self.read_plain_ahead(max);
        let (before, n) = (self.base(), self.ahead.len().min(max));
        if n > 0 && !self.take_plain(pool, out, n, moved) {
            moved.starved = true;
        } else if other && n < max {
            self.take_chains(batch, pool, out, max - n, moved);
        }
        self.end(before, began, moved);
    }

    /// Takes the packets in the first `n` plain buffers. False: the pool has no buffers for them.
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
            ahead.fetch_one(i + PREFETCH_BUFFERS, header, sync::prefetch);
            if let Some(soon) = out.get(start + i + PREFETCH_PACKETS) {
                let to = soon.data().as_ptr();
                sync::prefetch_write(to);
                // For the outer header of a tunnel.
                sync::prefetch_write(to.wrapping_sub(64));
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
            // All errors of plain buffers are of one kind: too long.
            (packets..n).for_each(|_| self.count_error(error));
        }
        self.layout.write_used_all((0..n).map(|i| (self.ahead.get(i).id, 0)));
        self.ahead.was_fetched(n + PREFETCH_BUFFERS);
        self.ahead.used(n);
        truncate_and_free(pool, out, start + packets);
        moved.packets += packets;
        moved.bytes += bytes;
        moved.dropped += n - packets;
        true
    }

    /// Reads plain buffers ahead for a call that receives up to `max` packets. True: the next
    /// buffer is not plain.
    #[inline]
    pub(crate) fn read_plain_ahead(&mut self, max: usize) -> bool {
        // Further buffers are prefetched while these are received.
        self.read_ahead(Direction::FromGuest, BUFFERS_AHEAD_MAX.min(max + PREFETCH_BUFFERS))
    }

    /// Reads up to `max` buffers of any kind, and prefetches the first bytes of their packets.
    pub(crate) fn read_chains(&mut self, batch: &mut Batch, max: usize, moved: &mut Moved) {
        self.begin(batch);
        batch.begin(max);
        self.gather(Direction::FromGuest, max, batch);
        self.count_steps(batch, moved);
        batch.fetch(self.header, sync::prefetch);
    }

    /// Receives up to `max` packets from buffers of any kind.
    fn take_chains(
        &mut self,
        batch: &mut Batch,
        pool: &dyn Pool,
        out: &mut Vec<Packet>,
        max: usize,
        moved: &mut Moved,
    ) {
        self.read_chains(batch, max, moved);
        let (n, start) = (batch.chains.len(), out.len());
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
            self.layout.write_used(chain.id, chain.descs, 0);
        }
        truncate_and_free(pool, out, start + packets);
        moved.packets += packets;
        moved.bytes += bytes;
        moved.dropped += n - packets;
    }
}

/// Frees the packets from number `end` on, and removes them from `out`.
#[inline]
pub(super) fn truncate_and_free(pool: &dyn Pool, out: &mut Vec<Packet>, end: usize) {
    if end < out.len() {
        pool.free(&out[end..]);
        out.truncate(end);
    }
}

/// Makes an empty packet `len` bytes long; returns the address of these. Err: it has no room for
/// them.
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
    unsafe { raw::copy(buffer.host.add(header), to, len) };
    Ok(len)
}

/// Copies a frame from a chain of buffers, without its header, into an empty packet; returns its
/// length.
#[inline]
pub(super) fn read(
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
