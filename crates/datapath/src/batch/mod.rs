//! The packets of one vector and what each step writes about them, side by side in columns.

pub(crate) mod columns;
pub(crate) mod keys;

use crate::batch::columns::Columns;
use crate::batch::keys::{EXT2, Keys};
use crate::parse::frame::Frame;
use flow::PortNo;
use packet::{Packet, VECTOR};
use std::ops::Range;

/// A packet that waits for the next vector: it was recirculated, or is beyond the miss budget.
pub(crate) struct Pending {
    pub packet: Packet,
    pub in_port: PortNo,
    /// How often it was recirculated.
    pub depth: u8,
    /// Metadata lines (0 and 2..3) if there are any beyond in_port.
    pub meta: Option<Box<Frame>>,
}

/// Packets of a vector that one queue brought in one go.
pub(crate) struct Burst {
    /// Their numbers in the vector.
    pub range: Range<usize>,
    /// From this number on all packets of the vector came from the same port.
    pub since: usize,
    pub port: PortNo,
}

/// The packets of a vector on their way through the steps.
pub(crate) struct Batch {
    pub packets: Vec<Packet>,
    pub in_port: Vec<PortNo>,
    pub keys: Box<Keys>,
    pub columns: Box<Columns>,
    /// How often each of the first packets, those with an entry in `meta`, was recirculated.
    pub depth: [u8; VECTOR],
    /// Metadata of the packets that waited for this vector, which are its first.
    pub meta: Vec<Option<Box<Frame>>>,
    /// Packets beyond the miss budget: they wait for the next vector, in order. At most a vector.
    pub postponed: Vec<Pending>,
    /// Packets of this vector whose megaflow is known by their adapter's mark.
    pub marked: usize,
    /// Tags that matching looks behind (`vlan-limit`).
    pub vlan_limit: u8,
}

impl Batch {
    pub fn new() -> Self {
        Batch {
            packets: Vec::with_capacity(VECTOR),
            in_port: Vec::with_capacity(VECTOR),
            keys: Box::new(Keys::new()),
            columns: Box::new(Columns::new()),
            depth: [0; VECTOR],
            meta: Vec::new(),
            postponed: Vec::new(),
            marked: 0,
            vlan_limit: 1,
        }
    }

    /// Number of packets.
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Starts a vector with recirculated packets, then postponed ones, as many as fit; returns how
    /// many those are.
    pub fn begin(&mut self, recirculated: &mut Vec<Pending>) -> usize {
        self.meta.clear();
        if self.marked > 0 {
            self.marked = 0;
            self.columns.known.fill(false);
        }
        if self.postponed.is_empty() && recirculated.is_empty() {
            return 0;
        }
        let n = recirculated.len().min(VECTOR);
        let m = self.postponed.len().min(VECTOR - n);
        let first: Vec<Pending> = recirculated.drain(..n).collect();
        let mut postponed = std::mem::take(&mut self.postponed);
        for p in first.into_iter().chain(postponed.drain(..m)) {
            self.depth[self.packets.len()] = p.depth;
            self.packets.push(p.packet);
            self.in_port.push(p.in_port);
            self.meta.push(p.meta);
        }
        self.postponed = postponed;
        n + m
    }

    /// Packet `i` by itself, with its key and layout.
    pub fn frame(&self, i: usize) -> Frame {
        let k = self.keys.get(i);
        let mut ext = [[0; 8]; 3];
        for (l, e) in ext.iter_mut().enumerate().filter(|(l, _)| k.have & (1 << l) != 0) {
            *e = k.ext[l];
        }
        Frame {
            line: *k.line,
            ext,
            have: k.have,
            layout: self.columns.layout[i],
            vlan_limit: self.vlan_limit,
            tags: self.vlan_limit,
            depth: if i < self.meta.len() { self.depth[i] } else { 0 },
            ct: self.meta.get(i).and_then(|m| m.as_ref()).map(|m| m.ct).unwrap_or_default(),
        }
    }

    /// Moves packets to the next vector.
    pub fn postpone(&mut self, which: &[bool; VECTOR]) {
        for i in (0..self.packets.len()).filter(|i| which[*i]) {
            self.postponed.push(Pending {
                packet: self.packets[i],
                in_port: self.in_port[i],
                depth: if i < self.meta.len() { self.depth[i] } else { 0 },
                meta: match self.meta.get_mut(i) {
                    Some(meta) => meta.take(),
                    // The outer header that its tunnel's fields came from is gone.
                    None => (self.keys.have[i] & EXT2 != 0).then(|| self.frame(i).into()),
                },
            });
        }
        self.remove(which);
    }

    /// Takes packets out of the vector; the others stay in order and side by side.
    pub fn remove(&mut self, which: &[bool; VECTOR]) {
        let mut to = 0;
        for i in (0..self.packets.len()).filter(|i| !which[*i]) {
            self.packets[to] = self.packets[i];
            self.in_port[to] = self.in_port[i];
            self.depth[to] = self.depth[i];
            if i < self.meta.len() {
                self.meta.swap(to, i);
            }
            self.columns.copy(i, to);
            self.keys.copy(i, to);
            to += 1;
        }
        let metas = (0..self.meta.len()).filter(|i| !which[*i]).count();
        self.meta.truncate(metas);
        self.packets.truncate(to);
        self.in_port.truncate(to);
    }

    /// Forgets all packets: each has been sent, kept or freed.
    pub fn clear(&mut self) {
        self.packets.clear();
        self.in_port.clear();
    }
}
