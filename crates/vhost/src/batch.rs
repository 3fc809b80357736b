//! Buffers of the guest, read from a ring and checked: a private copy of what to do.

use crate::ahead::lines;
use crate::memory::{Memory, Region};
use crate::misdeed::Misdeed;

/// Most buffers read from a ring at once.
pub const BATCH: usize = 64;
/// Most pieces of all of them together. One buffer may use them all: twice what any packet of a
/// Linux guest has.
const PIECES: usize = 256;
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

/// Which way the bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    FromGuest,
    ToGuest,
}

/// A contiguous piece of mapped guest memory.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    pub at: *mut u8,
    pub len: u32,
}

/// A buffer: pieces in order, or what is wrong with it.
#[derive(Clone, Copy)]
pub(crate) struct Chain {
    /// What the guest calls it.
    pub id: u16,
    /// Entries of a packed ring that it takes.
    pub descs: u16,
    first: u16,
    pieces: u16,
    /// Over all pieces.
    pub bytes: u64,
    pub bad: Option<Misdeed>,
}

/// Room for buffers that were read from a ring. One serves any number of rings in turn.
pub struct Batch {
    pub(crate) chains: Vec<Chain>,
    pieces: Vec<Piece>,
}

// SAFETY: its pointers are only followed during the call that put them there.
unsafe impl Send for Batch {}

impl Default for Batch {
    fn default() -> Self {
        Batch { chains: Vec::with_capacity(BATCH), pieces: Vec::with_capacity(PIECES) }
    }
}

impl Batch {
    pub(crate) fn clear(&mut self) {
        self.chains.clear();
        self.pieces.clear();
    }

    /// Is there room for one more buffer of ordinary size?
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.chains.len() < BATCH
            && (self.pieces.is_empty() || self.pieces.len() < PIECES - PIECES / 4)
    }

    /// Fetches the first bytes of packets in these buffers.
    #[inline]
    pub(crate) fn fetch(&self, header: usize, fetch: fn(*const u8)) {
        for chain in &self.chains {
            if let Some(piece) = self.pieces(chain).first() {
                lines(piece.at, header, fetch);
            }
        }
    }

    #[inline]
    pub(crate) fn pieces(&self, chain: &Chain) -> &[Piece] {
        &self.pieces[chain.first as usize..][..chain.pieces as usize]
    }
}

/// A descriptor, as it was when it was read.
#[derive(Clone, Copy)]
pub(crate) struct Desc {
    pub addr: u64,
    pub len: u32,
    /// Split: flags, then next. Packed: id, then flags.
    pub a: u16,
    pub b: u16,
}

impl Desc {
    /// Reads one from a table, a double word at a time.
    ///
    /// # Safety
    /// 16 bytes at `at` are valid for reads, and aligned to eight.
    #[inline]
    pub(crate) unsafe fn read(at: *const u8) -> Desc {
        let at = at.cast::<u64>();
        // SAFETY: the caller vouches; volatile, as the guest may be writing.
        unsafe { Desc::from_words(at.read_volatile(), at.add(1).read_volatile()) }
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
        Walk { memory, last, direction, batch, bytes: 0, first }
    }

    /// One more descriptor's memory.
    #[inline]
    pub fn piece(&mut self, addr: u64, len: u32, flags: u16) -> Result<(), Misdeed> {
        if (flags & flag::WRITE != 0) != (self.direction == Direction::ToGuest) {
            return Err(Misdeed::Direction);
        }
        let (mut at, mut left) = (addr, len);
        while left > 0 {
            let found = self.memory.translate(self.last, at, left);
            let (host, n) = found.ok_or(Misdeed::Address)?;
            if self.batch.pieces.len() == PIECES {
                return Err(Misdeed::Pieces);
            }
            self.batch.pieces.push(Piece { at: host, len: n });
            (at, left) = (at.wrapping_add(n.into()), left - n);
        }
        self.bytes += u64::from(len);
        Ok(())
    }

    /// Entry `i` of an indirect table.
    pub fn entry(&mut self, table: u64, i: u32) -> Result<Desc, Misdeed> {
        let at = table.wrapping_add(u64::from(i) * DESC as u64);
        let mut words = [0u64; 2];
        match self.memory.translate(self.last, at, DESC as u32) {
            // SAFETY: 16 bytes are mapped there; the copy may be unaligned.
            Some((host, n)) if n == DESC as u32 => unsafe {
                crate::raw::copy(host, words.as_mut_ptr().cast(), DESC);
            },
            _ => return Err(Misdeed::Address),
        }
        Ok(Desc::from_words(words[0], words[1]))
    }

    /// Ends the buffer.
    #[inline]
    pub fn end(self, id: u16, descs: u16, bad: Option<Misdeed>) {
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

/// Entries of an indirect table of `len` bytes.
pub(crate) fn table_entries(len: u32) -> Result<u32, Misdeed> {
    match len as usize {
        0 => Err(Misdeed::Indirect),
        n if !n.is_multiple_of(DESC) || n > DESC * 32_768 => Err(Misdeed::Indirect),
        n => Ok((n / DESC) as u32),
    }
}
