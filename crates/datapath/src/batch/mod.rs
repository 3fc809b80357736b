//! The packets of one vector and what each step writes about them, side by side in columns.

pub(crate) mod columns;
pub(crate) mod keys;

use crate::batch::columns::Columns;
use crate::batch::keys::{Keys, bytes_mut};
use crate::parse::frame::Frame;
use conntrack::Meta;
use flow::{PortNo, at};
use packet::{Packet, VECTOR};
use std::ops::Range;

/// A packet that waits to be looked up: it was recirculated, or is beyond the miss budget. Its key
/// goes with it, so it is not parsed again.
pub(crate) struct Pending {
    pub packet: Packet,
    pub frame: Frame,
}

/// Packets that one call of a receive queue returned, at most [`packet::BURST`].
pub(crate) struct Burst {
    /// The packets' numbers in the vector.
    pub range: Range<usize>,
    /// The number from which on all packets of the vector came in on `port`.
    pub since: usize,
    pub port: PortNo,
}

/// The packets of a vector on their way through the steps.
pub(crate) struct Batch {
    pub packets: Vec<Packet>,
    pub in_port: Vec<PortNo>,
    pub keys: Box<Keys>,
    pub columns: Box<Columns>,
    /// Number of packets, the first ones, that waited for this vector or for this pass of it. Only
    /// these have the columns `depth` and `ct`.
    pub waited: usize,
    /// Packets beyond the miss budget, in order: they wait for the next vector. At most [`VECTOR`].
    pub postponed: Vec<Pending>,
    /// Number of preset packets of this vector ([`Columns::preset`]).
    pub preset_count: usize,
    /// Numbers of the packets that stay in the batch for one more pass, ascending. Their keys are
    /// those of that pass.
    staying: Vec<u8>,
    /// Number of staying packets that are preset for the next pass.
    next_preset_count: usize,
    /// How many VLAN tags matching looks behind (`vlan-limit`).
    pub vlan_limit: u8,
}

impl Batch {
    pub fn new() -> Self {
        Batch {
            packets: Vec::with_capacity(VECTOR),
            in_port: Vec::with_capacity(VECTOR),
            keys: Box::new(Keys::new()),
            columns: Box::new(Columns::new()),
            waited: 0,
            postponed: Vec::new(),
            preset_count: 0,
            staying: Vec::with_capacity(VECTOR),
            next_preset_count: 0,
            vlan_limit: 1,
        }
    }

    /// Number of packets.
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Starts a vector with the packets that wait, as many as fit: recirculated ones, then
    /// postponed ones. Returns how many it took.
    pub fn begin(&mut self, recirculated: &mut Vec<Pending>) -> usize {
        self.begin_pass(recirculated);
        if !self.postponed.is_empty() {
            let mut postponed = std::mem::take(&mut self.postponed);
            self.take_up(&mut postponed);
            self.postponed = postponed;
        }
        self.waited
    }

    /// Starts a vector, or one more pass of it, with the packets that stayed in the batch, and with
    /// as many of `recirculated` as fit. Returns how many packets it starts with.
    pub fn begin_pass(&mut self, recirculated: &mut Vec<Pending>) -> usize {
        self.waited = self.packets.len();
        if self.preset_count > 0 || self.next_preset_count > 0 {
            self.preset_count = std::mem::take(&mut self.next_preset_count);
            let kept = if self.preset_count > 0 { self.waited } else { 0 };
            self.columns.preset[kept..].fill(false);
        }
        if !recirculated.is_empty() {
            self.take_up(recirculated);
        }
        self.waited
    }

    /// Moves packets that waited into the vector, with their keys.
    fn take_up(&mut self, from: &mut Vec<Pending>) {
        let n = from.len().min(VECTOR - self.packets.len());
        for Pending { packet, mut frame } in from.drain(..n) {
            let mut len = packet.len() as u16;
            if frame.vlan_limit != self.vlan_limit {
                frame.vlan_limit = self.vlan_limit;
                frame.reparse(packet.data(), self.vlan_limit);
                len -= frame.unseen_bytes();
            }
            let (i, columns) = (self.packets.len(), &mut self.columns);
            self.in_port.push(frame.in_port());
            self.keys.put(i, &frame.line, &frame.ext, frame.have);
            (columns.len[i], columns.layout[i]) = (len, frame.layout);
            columns.same[i] = false;
            (columns.depth[i], columns.ct[i]) = (frame.depth, frame.ct);
            self.packets.push(packet);
        }
        self.waited = self.packets.len();
    }

    /// A copy of packet `i`'s key, layout and metadata, as a [`Frame`].
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
            depth: if i < self.waited { self.columns.depth[i] } else { 0 },
            ct: if i < self.waited { self.columns.ct[i] } else { Meta::default() },
        }
    }

    /// Moves the marked packets to the next vector.
    pub fn postpone(&mut self, which: &[bool; VECTOR]) {
        for i in (0..self.packets.len()).filter(|i| which[*i]) {
            // SAFETY: the batch's own handle is removed below.
            let packet = unsafe { self.packets[i].duplicate() };
            let mut frame = self.frame(i);
            frame.mark_bare();
            self.postponed.push(Pending { packet, frame });
        }
        self.remove(which);
    }

    /// Removes the marked packets from the vector; the others keep their order and become adjacent.
    pub fn remove(&mut self, which: &[bool; VECTOR]) {
        let mut to = 0;
        for i in (0..self.packets.len()).filter(|i| !which[*i]) {
            self.packets.swap(to, i);
            self.in_port[to] = self.in_port[i];
            self.columns.copy(i, to);
            if i < self.waited {
                self.columns.copy_waited(i, to);
            }
            self.keys.copy(i, to);
            to += 1;
        }
        self.waited -= which[..self.waited].iter().filter(|gone| **gone).count();
        self.packets.truncate(to);
        self.in_port.truncate(to);
    }

    /// Keeps packet `i` in the batch for one more pass, recirculated with `id`. The caller has
    /// written its key, depth and connection tracking columns, and calls this in ascending order of
    /// `i`.
    #[inline]
    pub fn stay(&mut self, i: usize, id: u32) {
        let line = bytes_mut(&mut self.keys.line.0[i]);
        line[at::RECIRC..at::RECIRC + 4].copy_from_slice(&id.to_be_bytes());
        self.columns.preset[i] = false;
        self.note_staying(i);
    }

    /// Keeps these packets in the batch for one more pass, in which they take the megaflows and
    /// programs that are in their keys' columns. As for [`Batch::stay`], except that keys and other
    /// columns may be stale: the caller guarantees that the programs do not read them.
    #[inline]
    pub fn stay_preset(&mut self, these: Range<usize>) {
        self.columns.preset[these.clone()].fill(true);
        self.columns.same[these.clone()].fill(false);
        self.columns.depth[these.clone()].iter_mut().for_each(|depth| *depth += 1);
        self.next_preset_count += these.len();
        self.staying.extend(these.map(|i| i as u8));
    }

    fn note_staying(&mut self, i: usize) {
        self.columns.depth[i] += 1;
        self.columns.same[i] = false;
        self.staying.push(i as u8);
    }

    /// Removes all packets but those that stay: the caller has sent, kept or freed each of the
    /// others.
    pub fn end_pass(&mut self) {
        let n = self.staying.len();
        if n > 0 {
            let mut staying = std::mem::take(&mut self.staying);
            for (to, i) in staying.drain(..).map(usize::from).enumerate() {
                if to != i {
                    self.packets.swap(to, i);
                    self.in_port[to] = self.in_port[i];
                    self.columns.copy(i, to);
                    self.columns.copy_waited(i, to);
                    self.keys.copy(i, to);
                }
            }
            self.staying = staying;
        }
        self.packets.truncate(n);
        self.in_port.truncate(n);
    }
}
