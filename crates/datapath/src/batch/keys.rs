//! Keys of the packets of a vector, as 64-byte lines.

use flow::Key;
use packet::VECTOR;

/// Words of one line. Word 7 of line 0 is no part of a key: in a megaflow it is the payload
/// ([`KEY_WORDS`]).
pub(crate) type Line = [u64; 8];

/// Words of line 0 that are compared; the one behind them is not ([`flow::at::PAYLOAD`]).
pub(crate) const KEY_WORDS: usize = flow::at::PAYLOAD / 8;

/// Lines 1 to 3 of a key.
pub(crate) type Ext = [Line; 3];

/// The bit of [`Layout::ext`] and of `have` for key line 1 (IPv6, ARP).
pub(crate) const EXT1: u8 = 1;

/// The bit for key line 2, which holds most of a tunnel's fields.
pub(crate) const EXT2: u8 = 2;

/// 64-bit words of a packet-side key.
pub(crate) const PWORDS: usize = 32;

/// A packet-side mask or key as words.
pub(crate) type Words = [u64; PWORDS];

/// Where things are in a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Bytes of Ethernet header and VLAN tags (and LLC/SNAP): where L3 or MPLS starts.
    pub l3: u16,
    /// Where L4 starts; 0 when there is none (not IP, insane, later fragment).
    pub l4: u16,
    /// Bytes of the frame without padding behind the IP datagram.
    pub end: u16,
    /// Which of key lines 1 to 3 were written: a bit for each, from [`EXT1`] on.
    pub ext: u8,
    /// The header behind L2 is whole and sane (IPv4, IPv6, ARP, an MPLS entry).
    pub sane: bool,
}

/// Bytes of line 0 or of an extension line.
#[inline]
pub(crate) fn bytes_mut(line: &mut Line) -> &mut [u8; 64] {
    // SAFETY: 8 words are 64 bytes; every pattern is valid for both.
    unsafe { &mut *(line.as_mut_ptr().cast()) }
}

/// Bytes of a line.
#[inline]
pub(crate) fn bytes(line: &Line) -> &[u8; 64] {
    // SAFETY: as above.
    unsafe { &*(line.as_ptr().cast()) }
}

/// A whole key from its lines; lines of `ext` that `have` does not name are zero.
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

/// The packet-side part of a key.
#[derive(Clone, Copy)]
pub(crate) struct KeyRef<'a> {
    pub line: &'a Line,
    pub ext: &'a Ext,
    /// Which of `ext` mean something; the others count as zero.
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
    /// All words; 0 in place of the one that is no part of the key.
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

/// Per-packet state of a vector: keys as lines, the rest in columns.
pub(crate) struct Keys {
    pub line: Box<Lines>,
    pub ext: Box<[Ext; VECTOR]>,
    pub have: [u8; VECTOR],
    pub hash: [u64; VECTOR],
    /// Megaflow found; 0: none.
    pub megaflow: [u32; VECTOR],
    /// Its program.
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
    /// Copies everything about packet `from` to packet `to`.
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
