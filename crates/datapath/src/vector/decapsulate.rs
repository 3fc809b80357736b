//! Before step 3: packets that known rules decapsulate become their inner packets.

use super::Vector;
use crate::lookup::prefetch;
use crate::parse::bytes_mut;
use crate::tunnel;
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
        let n = self.terminators.count(&self.table.store, now_ms);
        self.table.followed(n);
    }

    /// Takes the outer header from packet `i`, and leaves its tunnel's fields in its key's lines.
    #[inline]
    fn strip(&mut self, i: usize, t: usize) -> bool {
        let t = self.terminators.get(t);
        let Some(s) = tunnel::strip(&mut self.packets[i], &self.columns.lay[i], t.word) else {
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
            let tos = self.keys.ext[i][1][0].to_ne_bytes()[6];
            bytes_mut(line)[flow::at::FLAGS] |= tunnel::tunnel_flags(tos);
            line[6] = self.stripped[i];
            self.keys.have[i] |= tunnel::EXT2;
            let e = &self.keys.ext[i][1];
            let from = Some((line[6], e[0], e[5]));
            self.columns.same[i] &= before == from;
            before = from;
        }
    }
}
