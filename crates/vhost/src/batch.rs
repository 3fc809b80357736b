//! Buffers of the guest, read from a ring into a private copy and checked.

use crate::ahead::{BUFFERS_AHEAD_MAX, lines};
use crate::memory::{Memory, Region};
use crate::ring_error::RingError;

/// Buffers read from a ring at once, at most.
pub const BATCH: usize = 64;
/// Most pieces of all buffers of a batch together. One buffer may have all of them: that is twice
/// as many as any packet of a Linux guest has.
const PIECES: usize = 256;
/// Most descriptors of one buffer of a packed ring: as many as the longest ring of QEMU has. A
/// buffer cannot be given back before its last descriptor is found, so one with more has the ring
/// given up.
pub(crate) const CHAIN_MAX: u32 = 1024;
/// Descriptors that a call may read, however few packets it is asked for: two buffers of
/// [`PIECES`].
const STEPS_MIN: usize = 2 * PIECES;
/// Descriptors that a call may read for each packet that it is asked for: a frame of 9,000 bytes
/// takes six buffers of a Linux guest, and some buffers are read twice.
const STEPS_PER_PACKET: usize = 16;
/// Bytes of a descriptor, in rings and in indirect tables.
pub(crate) const DESC: usize = 16;

/// Flags of a descriptor, of both layouts.
pub(crate) mod flag {
    pub const NEXT: u16 = 1;
    pub const WRITE: u16 = 2;
    pub const INDIRECT: u16 = 4;
    pub const AVAIL: u16 = 1 << 7;
    pub const USED: u16 = 1 << 15;
}

/// The direction of a ring's packets.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    FromGuest,
    ToGuest,
}

/// A contiguous piece of mapped guest memory.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    pub host: *mut u8,
    pub len: u32,
}

/// The part of these pieces behind their first `skip` bytes: addresses and lengths.
#[inline]
pub(crate) fn behind(
    pieces: &[Piece],
    mut skip: usize,
) -> impl Iterator<Item = (*const u8, usize)> {
    pieces.iter().filter_map(move |piece| {
        let from = skip.min(piece.len as usize);
        skip -= from;
        let n = piece.len as usize - from;
        (n > 0).then(|| (piece.host.wrapping_add(from).cast_const(), n))
    })
}

/// A buffer: its pieces in order, or its error.
#[derive(Clone, Copy)]
pub(crate) struct Chain {
    /// The guest's identifier of the buffer.
    pub id: u16,
    /// Entries of a packed ring that the buffer takes.
    pub descs: u16,
    first: u16,
    pieces: u16,
    /// Bytes of all pieces.
    pub bytes: u64,
    pub bad: Option<RingError>,
}

impl Chain {
    /// Length of the frame that a guest sends in this buffer, behind the header.
    #[inline]
    pub fn frame(&self, header: usize) -> Result<u64, RingError> {
        if let Some(error) = self.bad {
            return Err(error);
        }
        let len = self.bytes.checked_sub(header as u64).filter(|len| *len > 0);
        len.ok_or(RingError::Short)
    }
}

/// Memory for buffers that were read from a ring. One batch can serve any number of rings in turn.
pub struct Batch {
    pub(crate) chains: Vec<Chain>,
    pieces: Vec<Piece>,
    /// What was read in this call: descriptors (one whose memory is in several regions counts once
    /// for each) and one for each buffer. When this reaches the budget, no further buffer is begun.
    pub(crate) steps: u32,
    steps_max: u32,
}

/// What a call for `packets` packets may read before it begins no further buffer. The rest is left
/// to the next call.
fn budget(packets: usize) -> usize {
    STEPS_MIN + STEPS_PER_PACKET * packets
}

/// Descriptors that [`crate::Ring::prepare`] and the call after it read for `packets` packets, at
/// most: the call's budget, the last buffer, which may exceed it, and plain buffers that are read
/// ahead.
pub fn steps_max(packets: usize) -> usize {
    budget(packets) + CHAIN_MAX as usize + PIECES + 2 * (BUFFERS_AHEAD_MAX + packets)
}

// SAFETY: its pointers are only followed during the call that put them there.
unsafe impl Send for Batch {}

impl Default for Batch {
    fn default() -> Self {
        Batch {
            chains: Vec::with_capacity(BATCH),
            pieces: Vec::with_capacity(PIECES),
            steps: 0,
            steps_max: 0,
        }
    }
}

impl Batch {
    /// Begins a call for this many packets.
    pub(crate) fn begin(&mut self, packets: usize) {
        (self.steps, self.steps_max) = (0, budget(packets) as u32);
    }

    /// True if this call has read as much as it may.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.steps >= self.steps_max
    }

    pub(crate) fn clear(&mut self) {
        self.chains.clear();
        self.pieces.clear();
    }

    /// True if another buffer of ordinary size has room and may be read.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.chains.len() < BATCH
            && !self.is_exhausted()
            && (self.pieces.is_empty() || self.pieces.len() < PIECES - PIECES / 4)
    }

    /// Prefetches the first bytes of packets in these buffers.
    #[inline]
    pub(crate) fn fetch(&self, header: usize, fetch: fn(*const u8)) {
        for chain in &self.chains {
            if let Some(piece) = self.pieces(chain).first() {
                lines(piece.host, header, fetch);
            }
        }
    }

    #[inline]
    pub(crate) fn pieces(&self, chain: &Chain) -> &[Piece] {
        &self.pieces[chain.first as usize..][..chain.pieces as usize]
    }
}

/// A private copy of a descriptor.
#[derive(Clone, Copy)]
pub(crate) struct Desc {
    pub addr: u64,
    pub len: u32,
    /// Last words of a descriptor. Split ring: flags, then next. Packed ring: id, then flags.
    pub a: u16,
    pub b: u16,
}

impl Desc {
    /// Reads a descriptor from a table, 64 bits at a time.
    ///
    /// # Safety
    ///
    /// 16 bytes at `ptr` are valid for reads, and aligned to eight.
    #[inline]
    pub(crate) unsafe fn read(ptr: *const u8) -> Desc {
        let ptr = ptr.cast::<u64>();
        // SAFETY: the caller vouches; volatile, as the guest may be writing.
        unsafe { Desc::from_words(ptr.read_volatile(), ptr.add(1).read_volatile()) }
    }

    /// Reads a descriptor that is not aligned, byte by byte.
    ///
    /// # Safety
    /// 16 bytes at `ptr` are valid for reads.
    #[cold]
    unsafe fn read_bytes(ptr: *const u8) -> Desc {
        // SAFETY: the caller vouches; volatile, as the guest may be writing.
        let words = std::array::from_fn(|i| unsafe { ptr.add(i).read_volatile() });
        let words = u128::from_ne_bytes(words);
        Desc::from_words(words as u64, (words >> 64) as u64)
    }

    fn from_words(addr: u64, rest: u64) -> Desc {
        Desc { addr, len: rest as u32, a: (rest >> 32) as u16, b: (rest >> 48) as u16 }
    }
}

/// Reads one buffer's descriptors into a [`Batch`].
pub(crate) struct Walk<'a> {
    pub memory: &'a Memory,
    pub last: &'a mut Region,
    pub direction: Direction,
    pub batch: &'a mut Batch,
    pub bytes: u64,
    /// Descriptors that were read and added no piece.
    others: usize,
    first: usize,
}

impl<'a> Walk<'a> {
    pub fn new(
        memory: &'a Memory,
        last: &'a mut Region,
        direction: Direction,
        batch: &'a mut Batch,
    ) -> Self {
        let first = batch.pieces.len();
        Walk { memory, last, direction, batch, bytes: 0, others: 0, first }
    }

    /// Counts a descriptor that is read only to find the next one.
    #[cold]
    pub fn skip(&mut self) {
        self.others += 1;
    }

    /// Counts a descriptor without memory.
    #[cold]
    fn empty(&mut self) -> Result<(), RingError> {
        self.others += 1;
        let pieces = self.batch.pieces.len() - self.first;
        if pieces + self.others > PIECES { Err(RingError::Pieces) } else { Ok(()) }
    }

    /// Adds the memory of one more descriptor. A descriptor of no bytes counts, too.
    #[inline]
    pub fn piece(&mut self, addr: u64, len: u32, flags: u16) -> Result<(), RingError> {
        if (flags & flag::WRITE != 0) != (self.direction == Direction::ToGuest) {
            return Err(RingError::Direction);
        }
        if len == 0 {
            return self.empty();
        }
        let (mut addr, mut left) = (addr, len);
        while left > 0 {
            let found = self.memory.translate(self.last, addr, left);
            let (host, n) = found.ok_or(RingError::Address)?;
            if self.batch.pieces.len() == PIECES {
                return Err(RingError::Pieces);
            }
            self.batch.pieces.push(Piece { host, len: n });
            (addr, left) = (addr.wrapping_add(n.into()), left - n);
        }
        self.bytes += u64::from(len);
        Ok(())
    }

    /// Entry `i` of an indirect table.
    pub fn entry(&mut self, table: u64, i: u32) -> Result<Desc, RingError> {
        let addr = table.wrapping_add(u64::from(i) * DESC as u64);
        match self.memory.translate(self.last, addr, DESC as u32) {
            // SAFETY: 16 bytes are mapped there, aligned where that is needed.
            Some((host, n)) if n == DESC as u32 => Ok(unsafe {
                match host.addr().is_multiple_of(8) {
                    true => Desc::read(host),
                    false => Desc::read_bytes(host),
                }
            }),
            _ => Err(RingError::Address),
        }
    }

    /// Ends the buffer, with its error if it has one.
    #[inline]
    pub fn end(self, id: u16, descs: u16, bad: Option<RingError>) {
        let read = 1 + self.others + self.batch.pieces.len() - self.first;
        self.batch.steps += read as u32;
        if bad.is_some() {
            self.batch.pieces.truncate(self.first);
        }
        let pieces = self.batch.pieces.len() - self.first;
        self.batch.chains.push(Chain {
            id,
            descs,
            first: self.first as u16,
            pieces: pieces as u16,
            bytes: self.bytes,
            bad,
        });
    }
}

/// Number of entries of an indirect table of `len` bytes. It may not have more than the ring's
/// `size` (virtio 1.2, section 2.7.5.3.1; DPDK's library has the same limit).
pub(crate) fn table_entries(len: u32, size: u32) -> Result<u32, RingError> {
    let (entries, rest) = (len / DESC as u32, len % DESC as u32);
    match entries {
        1.. if rest == 0 && entries <= size => Ok(entries),
        _ => Err(RingError::Indirect),
    }
}
