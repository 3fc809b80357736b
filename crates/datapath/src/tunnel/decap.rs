//! Before step 2: packets that known megaflows decapsulate become their inner packets, burst by
//! burst.

use crate::batch::Vector;
use crate::batch::keys::EXT2;
use crate::batch::keys::bytes_mut;
use crate::mem::prefetch;
use crate::parse::frame::Frame;
use crate::tunnel;
use crate::tx::total;
use crate::verify::{Outer, Twin};
use flow::PortNo;
use packet::Packet;
use std::ops::Range;

impl Vector {
    /// Credits the megaflows that decapsulated packets of this vector.
    #[inline]
    pub fn credit_decap_rules(&mut self, now_ms: u64) {
        if !self.decap_rules.is_empty() {
            let n = self.decap_rules.count(&self.table.store, now_ms);
            self.table.followed(n);
        }
    }

    /// Parses a burst that came in on `port`, those that known megaflows decapsulate as what they
    /// are inside. Since `since` all packets came in there. Returns the bytes that came.
    #[inline]
    pub(crate) fn parse_received(
        &mut self,
        range: Range<usize>,
        since: usize,
        port: PortNo,
    ) -> u64 {
        if self.decap_rules.serve(port) {
            return self.decapsulate_burst(range, since, port);
        }
        if self.marks.serve(port) {
            return self.parse_unmarked(range, since, port);
        }
        self.parse(range.clone(), since, port);
        total(&self.columns.len[range])
    }

    fn decapsulate_burst(&mut self, range: Range<usize>, since: usize, port: PortNo) -> u64 {
        for p in &self.packets[range.clone()] {
            let data = p.data().as_ptr();
            prefetch(data);
            prefetch(data.wrapping_add(64));
        }
        let outers = if self.validate { self.outers(range.clone(), port) } else { Vec::new() };
        let (mut i, end, mut bytes) = (range.start, range.end, 0);
        while i < end {
            let (start, by) = (i, self.decap_rules.find(port, &self.packets[i]));
            if let Some(t) = by {
                let (n, outer) = self.strip(i..end, t);
                (i, bytes) = (i + n, bytes + outer);
                if n > 0 {
                    self.inner_keys(start..i, since);
                    continue;
                }
            }
            let is_other = |p: &&Packet| self.decap_rules.find(port, p).is_none();
            i += 1 + self.packets[i + 1..end].iter().take_while(is_other).count();
            self.parse(start..i, since, port);
            bytes += total(&self.columns.len[start..i]);
        }
        if self.validate {
            self.compare_inner(outers);
        }
        bytes
    }

    /// Packets as they came in.
    fn outers(&self, range: Range<usize>, port: PortNo) -> Vec<(usize, Outer)> {
        let one = |i: usize| {
            let data = self.packets[i].data().to_vec();
            let frame = Frame::new(&data, port, self.vlan_limit)?;
            Some((i, Outer { data, frame }))
        };
        range.filter_map(one).collect()
    }

    /// Compares packets that were decapsulated with what two steps make of them.
    fn compare_inner(&mut self, outers: Vec<(usize, Outer)>) {
        let (mut n, mut found) = (0, Vec::new());
        for (i, outer) in outers {
            if self.in_port[i] == outer.frame.in_port() {
                continue;
            }
            n += 1;
            found.extend(match self.decap_rules.twin(&outer.frame.line) {
                Some(pop) => outer.compare(pop, self.packets[i].data(), &self.frame(i)),
                None => Some("decapsulation: no megaflow wants it".into()),
            });
        }
        self.count_validated(Twin::TwoSteps, n, found);
    }

    /// Takes the outer headers from packets as long as decapsulation rule `t` takes them, and
    /// leaves their tunnel's fields in their keys' lines; how many those are, and their bytes.
    #[inline]
    fn strip(&mut self, range: Range<usize>, t: usize) -> (usize, u64) {
        let t = self.decap_rules.get(t);
        let lines = self.keys.ext[range.clone()].iter_mut().zip(&mut self.stripped[range.clone()]);
        let (mut n, mut bytes) = (0, 0);
        for (p, (ext, word6)) in self.packets[range.clone()].iter_mut().zip(lines) {
            let len = p.len() as u64;
            if !t.matches(p) {
                break;
            }
            let Some(s) = tunnel::strip(p, &mut t.header) else { break };
            (ext[1], *word6) = (s.ext2, s.word6);
            (n, bytes) = (n + 1, bytes + len);
        }
        self.in_port[range][..n].fill(t.port);
        t.packets += n as u64;
        t.bytes += bytes;
        (n, bytes)
    }

    /// Parses inner packets of one tunnels' port.
    fn inner_keys(&mut self, range: Range<usize>, since: usize) {
        let first = range.start;
        self.parse(range.clone(), first, self.in_port[first]);
        let mut before = (0, 0, 0, 0);
        let fields = self.keys.ext[range.clone()].iter().zip(&self.stripped[range.clone()]);
        let keys =
            self.keys.line.0[range.clone()].iter_mut().zip(&mut self.keys.have[range.clone()]);
        let same = &mut self.columns.same[range];
        for (((ext, word6), (line, have)), same) in fields.zip(keys).zip(same) {
            let e = &ext[1];
            bytes_mut(line)[flow::at::FLAGS] |= tunnel::flags_of(e);
            line[6] = *word6;
            *have |= EXT2;
            let from = (*word6, e[0], e[5], e[7]);
            *same &= before == from;
            before = from;
        }
        self.columns.same[first] = first > since && self.follows(first);
    }

    /// Is the key of packet `i`, which was decapsulated, that of the packet before it?
    fn follows(&self, i: usize) -> bool {
        let (a, b) = (self.keys.get(i), self.keys.get(i - 1));
        a.have == EXT2 && b.have == a.have && a.line == b.line && a.ext[1] == b.ext[1]
    }
}
