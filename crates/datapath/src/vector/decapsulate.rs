//! Before step 3: packets that known rules decapsulate become their inner packets.

use super::Vector;
use crate::lookup::prefetch;
use crate::parse::bytes_mut;
use crate::tunnel;
use crate::validate::{Outer, Twin};
use packet::VECTOR;
use std::ops::Range;

impl Vector {
    /// Before step 3: packets that known rules decapsulate become their inner packets.
    #[inline]
    pub fn decapsulate(&mut self, now_ms: u64) {
        if !self.terminators.is_empty() {
            self.terminate(now_ms);
        }
    }

    fn terminate(&mut self, now_ms: u64) {
        self.terminators.refresh(&self.table.store);
        let (first, end) = (self.meta.len(), self.packets.len());
        let mut by = [None; VECTOR];
        for (i, by) in by.iter_mut().enumerate().take(end).skip(first) {
            *by = self.terminators.find(&self.keys.line.0[i]).map(|t| t as u8);
            if by.is_some() {
                let data = self.packets[i].data().as_ptr();
                prefetch(data);
                prefetch(data.wrapping_add(64));
            }
        }
        let outers = if self.validate { self.outers(first, &by) } else { Vec::new() };
        let mut i = first;
        while i < end {
            let (start, t) = (i, by[i]);
            while i < end && by[i] == t && t.is_some_and(|t| self.strip(i, t as usize)) {
                i += 1;
            }
            if i > start {
                self.inner_keys(start..i);
            }
            if t.is_some() && i < end {
                // What it would have followed has gone another way.
                self.columns.same[i] = false;
            }
            i += usize::from(i == start);
        }
        if self.validate {
            self.compare_inner(outers, &by);
        }
        let n = self.terminators.count(&self.table.store, now_ms);
        self.table.followed(n);
    }

    /// Packets that may be decapsulated, as they are.
    fn outers(&self, first: usize, by: &[Option<u8>; VECTOR]) -> Vec<(usize, Outer)> {
        let maybe = (first..self.packets.len()).filter(|i| by[*i].is_some());
        let copy = |i: usize| Outer { data: self.packets[i].data().to_vec(), frame: self.frame(i) };
        maybe.map(|i| (i, copy(i))).collect()
    }

    /// Compares packets that were decapsulated with what two steps make of them.
    fn compare_inner(&mut self, outers: Vec<(usize, Outer)>, by: &[Option<u8>; VECTOR]) {
        let (mut n, mut found) = (0, Vec::new());
        for (i, outer) in outers {
            let Some(t) = by[i] else { continue };
            let t = self.terminators.get(t.into());
            if self.in_port[i] == t.port {
                let pop = t.pop.clone();
                n += 1;
                found.extend(outer.compare(&pop, self.packets[i].data(), &self.frame(i)));
            }
        }
        self.validated(Twin::TwoSteps, n, found);
    }

    /// Takes the outer header from packet `i`, and leaves its tunnel's fields in its key's lines.
    #[inline]
    fn strip(&mut self, i: usize, t: usize) -> bool {
        let t = self.terminators.get(t);
        let Some(s) = tunnel::strip(&mut self.packets[i], &self.columns.lay[i], &mut t.header)
        else {
            return false;
        };
        t.packets += 1;
        t.bytes += u64::from(self.columns.len[i]);
        self.in_port[i] = t.port;
        self.keys.ext[i][1] = s.ext2;
        self.stripped[i] = s.word6;
        true
    }

    /// Parses inner packets of one tunnels' port.
    fn inner_keys(&mut self, range: Range<usize>) {
        self.parse(range.clone(), range.start, self.in_port[range.start]);
        let mut before = None;
        for i in range {
            let line = &mut self.keys.line.0[i];
            let e = &self.keys.ext[i][1];
            bytes_mut(line)[flow::at::FLAGS] |= tunnel::flags_of(e);
            line[6] = self.stripped[i];
            self.keys.have[i] |= tunnel::EXT2;
            let from = Some((line[6], e[0], e[5], e[7]));
            self.columns.same[i] &= before == from;
            before = from;
        }
    }
}
