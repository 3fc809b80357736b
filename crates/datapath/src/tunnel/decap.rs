//! Replaces the parse step for ports with decapsulation rules: the outer headers of their packets
//! are removed before parsing, burst by burst.

use crate::batch::keys::{EXT2, bytes_mut};
use crate::batch::{Batch, Burst};
use crate::lookup::table::Table;
use crate::mem::prefetch;
use crate::parse::Parser;
use crate::parse::frame::Frame;
use crate::report::Reports;
use crate::settings::Settings;
use crate::tunnel;
use crate::tunnel::decap_rules::DecapRules;
use crate::tx::total;
use crate::verify::{Outer, Twin};
use action::Op;
use flow::PortNo;
use packet::{Packet, VECTOR};
use std::ops::Range;

/// Decapsulation in one pass, by the rules in `decap_rules.rs`.
pub(crate) struct Decap {
    rules: DecapRules,
    /// Word 6 of line 0 (tunnel id, IPv4 source) of each packet of this vector that was
    /// decapsulated.
    stripped: [u64; VECTOR],
    /// False: packets are always decapsulated in two steps, by their megaflow's `TunnelPop`.
    one_pass: bool,
}

impl Decap {
    pub fn new() -> Self {
        Decap { rules: DecapRules::default(), stripped: [0; VECTOR], one_pass: true }
    }

    /// Takes over new settings, and forgets all rules. With captures there is no decapsulation in
    /// one pass, so that both steps are captured.
    pub fn configure(&mut self, s: &Settings, captures: bool) {
        self.one_pass = s.one_pass && !captures;
        self.rules.clear();
    }

    /// Before a vector: forgets rules whose megaflows do not exist any more.
    #[inline]
    pub fn refresh(&mut self, table: &Table) {
        self.rules.refresh(&table.store);
    }

    /// Records that `megaflow`, whose operations are `ops`, decapsulated a packet in two steps.
    pub fn learn(&mut self, table: &Table, megaflow: u32, ops: &[Op]) {
        if self.one_pass {
            self.rules.learn(&table.store, megaflow, ops);
        }
    }

    /// Credits the packets of this vector that were decapsulated to their megaflows.
    #[inline]
    pub fn credit(&mut self, table: &mut Table, now_ms: u64) {
        if !self.rules.is_empty() {
            let n = self.rules.count(&table.store, now_ms);
            table.followed(n);
        }
    }

    /// True if there is a decapsulation rule for packets of this port.
    #[inline]
    pub fn serves(&self, port: PortNo) -> bool {
        self.rules.serve(port)
    }

    /// Parses a burst of a port with rules: packets that a rule matches lose their outer header
    /// first, and their inner header is parsed. Returns the burst's bytes as received.
    #[inline(never)]
    pub fn parse(
        &mut self,
        parser: &mut Parser,
        batch: &mut Batch,
        burst: Burst,
        reports: &mut Reports,
    ) -> u64 {
        let Burst { range, since, port } = burst;
        for p in &batch.packets[range.clone()] {
            let data = p.data().as_ptr();
            prefetch(data);
            prefetch(data.wrapping_add(64));
        }
        let outers = if parser.validate { outers(batch, range.clone(), port) } else { Vec::new() };
        let (mut i, end, mut bytes) = (range.start, range.end, 0);
        while i < end {
            let (start, by) = (i, self.rules.find(port, &batch.packets[i]));
            if let Some(t) = by {
                let (n, outer) = self.strip(batch, i..end, t);
                (i, bytes) = (i + n, bytes + outer);
                if n > 0 {
                    self.inner_keys(parser, batch, start..i, since, reports);
                    continue;
                }
            }
            let is_other = |p: &&Packet| self.rules.find(port, p).is_none();
            i += 1 + batch.packets[i + 1..end].iter().take_while(is_other).count();
            parser.parse(batch, start..i, since, port, reports);
            bytes += total(&batch.columns.len[start..i]);
        }
        if parser.validate {
            self.compare_inner(batch, outers, reports);
        }
        bytes
    }

    /// Compares decapsulated packets with what the two steps make of them.
    fn compare_inner(&mut self, batch: &Batch, outers: Vec<(usize, Outer)>, reports: &mut Reports) {
        let (mut n, mut found) = (0, Vec::new());
        for (i, outer) in outers {
            if batch.in_port[i] == outer.frame.in_port() {
                continue;
            }
            n += 1;
            found.extend(match self.rules.twin(&outer.frame.line) {
                Some(pop) => outer.compare(pop, batch.packets[i].data(), &batch.frame(i)),
                None => Some("decapsulation: no megaflow wants it".into()),
            });
        }
        reports.count_validated(Twin::TwoSteps, n, found);
    }

    /// Removes the outer headers of the packets of `range` up to the first that decapsulation rule
    /// `t` does not match, and writes the tunnel's fields to the packets' key lines. Returns how
    /// many packets it decapsulated, and their bytes.
    #[inline]
    fn strip(&mut self, batch: &mut Batch, range: Range<usize>, t: usize) -> (usize, u64) {
        let t = self.rules.get(t);
        let lines = batch.keys.ext[range.clone()].iter_mut().zip(&mut self.stripped[range.clone()]);
        let (mut n, mut bytes) = (0, 0);
        for (p, (ext, word6)) in batch.packets[range.clone()].iter_mut().zip(lines) {
            let len = p.len() as u64;
            if !t.matches(p) {
                break;
            }
            let Some(s) = tunnel::strip(p, &mut t.header) else { break };
            (ext[1], *word6) = (s.ext2, s.word6);
            (n, bytes) = (n + 1, bytes + len);
        }
        batch.in_port[range][..n].fill(t.port);
        t.packets += n as u64;
        t.bytes += bytes;
        (n, bytes)
    }

    /// Parses decapsulated packets of one tunnel port and adds the tunnel's fields to their keys.
    fn inner_keys(
        &mut self,
        parser: &mut Parser,
        batch: &mut Batch,
        range: Range<usize>,
        since: usize,
        reports: &mut Reports,
    ) {
        let first = range.start;
        parser.parse(batch, range.clone(), first, batch.in_port[first], reports);
        let mut before = (0, 0, 0, 0);
        let fields = batch.keys.ext[range.clone()].iter().zip(&self.stripped[range.clone()]);
        let keys =
            batch.keys.line.0[range.clone()].iter_mut().zip(&mut batch.keys.have[range.clone()]);
        let same = &mut batch.columns.same[range];
        for (((ext, word6), (line, have)), same) in fields.zip(keys).zip(same) {
            let e = &ext[1];
            bytes_mut(line)[flow::at::FLAGS] |= tunnel::flags_of(e);
            line[6] = *word6;
            *have |= EXT2;
            let from = (*word6, e[0], e[5], e[7]);
            *same &= before == from;
            before = from;
        }
        batch.columns.same[first] = first > since && follows(batch, first);
    }
}

/// Copies of the packets of `range` before decapsulation.
fn outers(batch: &Batch, range: Range<usize>, port: PortNo) -> Vec<(usize, Outer)> {
    let one = |i: usize| {
        let data = batch.packets[i].data().to_vec();
        let frame = Frame::new(&data, port, batch.vlan_limit)?;
        Some((i, Outer { data, frame }))
    };
    range.filter_map(one).collect()
}

/// True if decapsulated packet `i` has the same key as the packet before it.
fn follows(batch: &Batch, i: usize) -> bool {
    let (a, b) = (batch.keys.get(i), batch.keys.get(i - 1));
    a.have == EXT2 && b.have == a.have && a.line == b.line && a.ext[1] == b.ext[1]
}
