//! Keys of the packets of a vector, as 64-byte lines.

use flow::Key;
use packet::VECTOR;

/// One line of a key, as words. In line 0, word 7 is no part of the key ([`KEY_WORDS`]): in a
/// megaflow it is the payload.
pub(crate) type Line = [u64; 8];

/// Words of line 0 that are compared. The word behind them is no part of the key
/// ([`flow::at::PAYLOAD`]).
pub(crate) const KEY_WORDS: usize = flow::at::PAYLOAD / 8;

/// Lines 1 to 3 of a key, the extension lines.
pub(crate) type Ext = [Line; 3];

/// The bit of [`Layout::ext`] and of `have` for key line 1 (IPv6, ARP).
pub(crate) const EXT1: u8 = 1;

/// The bit for key line 2, which holds most of a tunnel's fields.
pub(crate) const EXT2: u8 = 2;

/// 64-bit words of a packet-side key: four lines.
pub(crate) const PWORDS: usize = 32;

/// A packet-side mask or key as words.
pub(crate) type Words = [u64; PWORDS];

/// Where the headers are in a frame, in bytes from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(8))]
pub(crate) struct Layout {
    /// Bytes of Ethernet header and VLAN tags (and LLC/SNAP): where L3 or MPLS starts.
    pub l3: u16,
    /// Where L4 starts; 0 if there is no valid L4 header (not IP, a malformed header, a later
    /// fragment).
    pub l4: u16,
    /// Bytes of the frame without padding behind the IP datagram.
    pub end: u16,
    /// Which of key lines 1 to 3 were written: a bit for each, from [`EXT1`] on.
    pub ext: u8,
    /// The header behind L2 is whole and valid (IPv4, IPv6, ARP, an MPLS entry).
    pub sane: bool,
}

/// The bytes of a line, to be written.
#[inline]
pub(crate) fn bytes_mut(line: &mut Line) -> &mut [u8; 64] {
    // SAFETY: 8 words are 64 bytes; every pattern is valid for both.
    unsafe { &mut *(line.as_mut_ptr().cast()) }
}

/// The bytes of a line.
#[inline]
pub(crate) fn bytes(line: &Line) -> &[u8; 64] {
    // SAFETY: as above.
    unsafe { &*(line.as_ptr().cast()) }
}

/// The whole key that these lines make up; lines of `ext` without a bit in `have` are zero.
pub(crate) fn key_of(line: &Line, ext: &Ext, have: u8) -> Key {
    let mut k = Key::ZERO;
    k.words[..8].copy_from_slice(line);
    for (i, l) in ext.iter().enumerate() {
        if have & (1 << i) != 0 {
            k.words[8 * (i + 1)..8 * (i + 2)].copy_from_slice(l);
        }
    }
    k
}

/// A packet-side key by reference.
#[derive(Clone, Copy)]
pub(crate) struct KeyRef<'a> {
    pub line: &'a Line,
    pub ext: &'a Ext,
    /// Which lines of `ext` are valid, a bit each; the others count as zero.
    pub have: u8,
}

impl KeyRef<'_> {
    /// Word `w` (0..32).
    #[inline]
    pub fn word(&self, w: usize) -> u64 {
        let line = w / 8;
        if line == 0 {
            self.line[w]
        } else if self.have & (1 << (line - 1)) != 0 {
            self.ext[line - 1][w % 8]
        } else {
            0
        }
    }
    /// All words; 0 in place of word 7 of line 0, which is no part of the key.
    pub fn words(&self) -> Words {
        let mut words = [0; PWORDS];
        words[..KEY_WORDS].copy_from_slice(&self.line[..KEY_WORDS]);
        let ext = self.ext.iter().enumerate().filter(|(l, _)| self.have & (1 << l) != 0);
        ext.for_each(|(l, e)| words[8 * (l + 1)..8 * (l + 2)].copy_from_slice(e));
        words
    }
}

#[repr(align(64))]
pub(crate) struct Lines(pub [Line; VECTOR]);

/// Per-packet state of a vector: keys as lines, the rest as columns.
pub(crate) struct Keys {
    pub line: Box<Lines>,
    pub ext: Box<[Ext; VECTOR]>,
    pub have: [u8; VECTOR],
    pub hash: [u64; VECTOR],
    /// Index of the megaflow that was found; 0: none.
    pub megaflow: [u32; VECTOR],
    /// Number of the packet's program.
    pub program: [u32; VECTOR],
}

impl Keys {
    pub fn new() -> Self {
        Keys {
            line: Box::new(Lines([[0; 8]; VECTOR])),
            ext: Box::new([[[0; 8]; 3]; VECTOR]),
            have: [0; VECTOR],
            hash: [0; VECTOR],
            megaflow: [0; VECTOR],
            program: [0; VECTOR],
        }
    }
    /// Sets the key of packet `i`.
    pub fn put(&mut self, i: usize, line: &Line, ext: &Ext, have: u8) {
        self.line.0[i] = *line;
        self.have[i] = have;
        for (l, e) in ext.iter().enumerate().filter(|(l, _)| have & (1 << l) != 0) {
            self.ext[i][l] = *e;
        }
    }
    /// Copies key, hash, megaflow and program of packet `from` to packet `to`.
    pub fn copy(&mut self, from: usize, to: usize) {
        self.line.0[to] = self.line.0[from];
        self.have[to] = self.have[from];
        if self.have[from] != 0 {
            self.ext[to] = self.ext[from];
        }
        self.hash[to] = self.hash[from];
        self.megaflow[to] = self.megaflow[from];
        self.program[to] = self.program[from];
    }
    #[inline]
    pub fn get(&self, i: usize) -> KeyRef<'_> {
        KeyRef { line: &self.line.0[i], ext: &self.ext[i], have: self.have[i] }
    }
}

/// How many of the first entries of a column are equal; at least one.
#[inline]
pub(crate) fn run_length(of: &[u32]) -> usize {
    let first = of[0];
    match of.get(1) {
        Some(second) if *second == first => {}
        _ => return 1,
    }
    let whole = of.chunks_exact(8).take_while(|c| c.iter().fold(0, |d, x| d | (x ^ first)) == 0);
    let n = whole.count() * 8;
    n + of[n..].iter().take_while(|x| **x == first).count()
}
