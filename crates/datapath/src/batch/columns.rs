//! What is known about each packet of a vector before lookup, besides its key.

use crate::batch::keys::Layout;
use conntrack::{Meta, Ref};
use packet::VECTOR;

/// What is known about each packet of a vector before lookup, besides its key.
pub(crate) struct Columns {
    pub layout: [Layout; VECTOR],
    /// Bytes of the frame.
    pub len: [u16; VECTOR],
    /// The packet has the same key as the packet before it.
    pub same: [bool; VECTOR],
    /// Its megaflow and program are set already: by an adapter's mark, by its port, or for the
    /// lookup after a recirculation. All false in vectors without such packets.
    pub known: [bool; VECTOR],
    /// How often a packet that waited was recirculated.
    pub depth: [u8; VECTOR],
    /// What connection tracking said of a packet that waited.
    pub ct: Box<[Meta<Ref>; VECTOR]>,
}

impl Columns {
    pub fn new() -> Self {
        Columns {
            layout: [Layout::default(); VECTOR],
            len: [0; VECTOR],
            same: [false; VECTOR],
            known: [false; VECTOR],
            depth: [0; VECTOR],
            ct: Box::new([Meta::default(); VECTOR]),
        }
    }

    /// Copies everything about packet `from` to packet `to`.
    pub fn copy(&mut self, from: usize, to: usize) {
        self.layout[to] = self.layout[from];
        self.len[to] = self.len[from];
        self.same[to] = self.same[from];
        self.known[to] = self.known[from];
    }

    /// As [`Columns::copy`] for the columns that only packets that waited have.
    pub fn copy_waited(&mut self, from: usize, to: usize) {
        self.depth[to] = self.depth[from];
        self.ct[to] = self.ct[from];
    }
}
