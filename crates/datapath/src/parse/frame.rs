//! One packet's key, layout and metadata, outside a vector.

use crate::batch::keys::{EXT2, Ext, Layout, Line, bytes, bytes_mut, key_of};
use crate::parse::scalar::parse;
use conntrack::{Meta, Ref};
use flow::{Key, PortNo, at, flag};

/// A value of [`Frame::vlan_limit`] that no limit has: the packet has no Ethernet header, and waits
/// to be looked up. The batch compares the number with its own limit anyway, and finds such packets
/// by that.
const BARE: u8 = u8::MAX;
/// Bytes of the Ethernet header that such a packet has in memory.
const ETHERNET: u16 = 14;

/// What is known about one packet while operations are executed.
#[derive(Clone, Copy)]
pub(crate) struct Frame {
    pub line: Line,
    pub ext: Ext,
    /// Which lines of `ext` are valid, a bit each.
    pub have: u8,
    pub layout: Layout,
    /// How many VLAN tags matching looks behind (`vlan-limit`), or [`BARE`].
    pub vlan_limit: u8,
    /// Tags in front of the network header that was matched; pushes and pops change it.
    pub tags: u8,
    pub depth: u8,
    /// What connection tracking said of the packet; the key holds a part of it.
    pub ct: Meta<Ref>,
}

impl Frame {
    /// The frame of a packet that was just received. None: shorter than an Ethernet header.
    pub fn new(d: &[u8], in_port: PortNo, vlan_limit: u8) -> Option<Frame> {
        let mut f = Frame {
            line: [0; 8],
            ext: [[0; 8]; 3],
            have: 0,
            layout: Layout::default(),
            vlan_limit,
            tags: vlan_limit,
            depth: 0,
            ct: Meta::default(),
        };
        f.layout = parse(d, in_port, vlan_limit, &mut f.line, &mut f.ext)?;
        f.have = f.layout.ext;
        Some(f)
    }

    /// The input port.
    pub fn in_port(&self) -> PortNo {
        u16::from_be_bytes(bytes(&self.line)[at::IN_PORT..at::IN_PORT + 2].try_into().unwrap())
    }

    /// Parses the packet again after its headers changed; metadata stays.
    pub fn reparse(&mut self, d: &[u8], vlan_limit: u8) {
        let (old, mut ext) = (self.line, [[0; 8]; 3]);
        if let Some(layout) = parse(d, self.in_port(), vlan_limit, &mut self.line, &mut ext) {
            self.layout = layout;
            self.ext[0] = ext[0];
            self.have = self.have & !1 | layout.ext;
        }
        keep_metadata(&old, &mut self.line);
    }

    /// Clears the fields that say which tunnel the packet came out of.
    pub fn leave_tunnel(&mut self) {
        let line = bytes_mut(&mut self.line);
        line[at::TUN_ID..at::PAYLOAD].fill(0);
        line[at::FLAGS] &= !(flag::TUNNEL_ALL | flag::UNWRAPPED);
        self.have &= !EXT2;
        self.tags = self.vlan_limit;
    }

    /// Records whether the packet was behind a network service header and has no Ethernet header.
    pub fn set_unwrapped(&mut self, is: bool) {
        let flags = &mut bytes_mut(&mut self.line)[at::FLAGS];
        *flags = *flags & !flag::UNWRAPPED | if is { flag::UNWRAPPED } else { 0 };
    }

    /// Marks a packet without an Ethernet header, before it waits to be looked up.
    pub fn mark_bare(&mut self) {
        if self.unseen_bytes() != 0 {
            self.vlan_limit = BARE;
        }
    }

    /// Bytes in front of the packet that are only in memory. Once the packet was looked up, it has
    /// an Ethernet header or goes into a tunnel, unless a header around it was removed since.
    pub fn unseen_bytes(&self) -> u16 {
        let line = bytes(&self.line);
        let (flags, fresh) = (line[at::FLAGS], line[at::RECIRC..at::RECIRC + 4] == [0; 4]);
        let came_bare = flags & flag::BARE != 0 && fresh;
        if came_bare || flags & flag::UNWRAPPED != 0 { ETHERNET } else { 0 }
    }

    /// The whole key.
    pub fn key(&self) -> Key {
        key_of(&self.line, &self.ext, self.have)
    }
}

/// Copies the metadata, which the packet's bytes do not hold, from one line 0 to another.
pub(crate) fn keep_metadata(old: &Line, new: &mut Line) {
    let (old, new) = (bytes(old), bytes_mut(new));
    new[at::CT_STATE] = old[at::CT_STATE];
    new[at::FLAGS] |= old[at::FLAGS] & (flag::TUNNEL_ALL | flag::UNWRAPPED);
    new[at::CT_MARK..at::PAYLOAD].copy_from_slice(&old[at::CT_MARK..at::PAYLOAD]);
}
