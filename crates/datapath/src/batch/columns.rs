//! What is known about each packet of a vector before lookup, besides its key.

use crate::batch::keys::Layout;
use conntrack::{Meta, Ref};
use packet::VECTOR;

/// What is known about each packet of a vector before lookup, besides its key.
pub(crate) struct Columns {
    pub layout: [Layout; VECTOR],
    /// Bytes of the frame.
    pub len: [u16; VECTOR],
    /// True if the packet has the same megaflow as the packet before it: their keys agree on all
    /// that megaflows of their port match on.
    pub same: [bool; VECTOR],
    /// True if the packet is preset: its megaflow and program are set before lookup, by an
    /// adapter's mark, by the input port, or by a prediction after a recirculation. All false in
    /// vectors without such packets.
    pub preset: [bool; VECTOR],
    /// How often the packet was recirculated. Only packets that waited have this.
    pub depth: [u8; VECTOR],
    /// What connection tracking said of the packet. Only packets that waited have this.
    pub ct: Box<[Meta<Ref>; VECTOR]>,
}

impl Columns {
    pub fn new() -> Self {
        Columns {
            layout: [Layout::default(); VECTOR],
            len: [0; VECTOR],
            same: [false; VECTOR],
            preset: [false; VECTOR],
            depth: [0; VECTOR],
            ct: Box::new([Meta::default(); VECTOR]),
        }
    }

    /// Copies the columns of packet `from` to packet `to`, except those that only packets that
    /// waited have.
    pub fn copy(&mut self, from: usize, to: usize) {
        self.layout[to] = self.layout[from];
        self.len[to] = self.len[from];
        self.same[to] = self.same[from];
        self.preset[to] = self.preset[from];
    }

    /// Copies the columns that only packets that waited have from packet `from` to packet `to`.
    pub fn copy_waited(&mut self, from: usize, to: usize) {
        self.depth[to] = self.depth[from];
        self.ct[to] = self.ct[from];
    }
}
