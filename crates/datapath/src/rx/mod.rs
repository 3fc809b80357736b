//! Steps 1 and 2: what waits and what queues bring, parsed burst by burst.

pub(crate) mod kernel_wait;
pub(crate) mod police;
pub(crate) mod schedule;

use crate::actions::interpret::Sink;
use crate::batch::Vector;
use crate::parse::frame::keep_metadata;
use crate::parse::{Job, ProfileStats};
use crate::rx::police::Policer;
use crate::stats::clock::{cycles, nanoseconds};
use crate::tx::{Pending, TxState};
use crate::verify::{self, Twin};
use flow::PortNo;
use packet::VECTOR;
use port::RxQueue;
use std::ops::Range;

/// One vector of so many is measured.
const SAMPLE_VECTORS: u32 = 16;

/// What parsing costs. Bursts are short, and reading the clock costs as much as parsing a packet:
/// some vectors are measured, and the others taken to be like the last of those.
#[derive(Default)]
pub(crate) struct ParseTime {
    vectors: u32,
    packets: u64,
    cycles: u64,
    /// 256ths of a cycle per packet.
    rate: u64,
}

impl ParseTime {
    /// Some burst begins: when, if this vector is measured.
    #[inline]
    fn begin(&self) -> Option<u64> {
        self.vectors.is_multiple_of(SAMPLE_VECTORS).then(cycles)
    }

    #[inline]
    fn end(&mut self, began: Option<u64>, packets: usize) {
        self.packets += packets as u64;
        if let Some(began) = began {
            self.cycles += cycles() - began;
        }
    }

    /// Cycles of the vector that ends here.
    fn take(&mut self) -> u64 {
        let (packets, cycles) =
            (std::mem::take(&mut self.packets), std::mem::take(&mut self.cycles));
        if self.vectors.is_multiple_of(SAMPLE_VECTORS) {
            self.rate = (cycles * 256).checked_div(packets).unwrap_or(self.rate);
        }
        self.vectors = self.vectors.wrapping_add(1);
        self.rate * packets / 256
    }
}

impl Vector {
    /// Starts a vector with what was carried over and recirculated; returns how many those are.
    pub fn begin(&mut self, tx: &mut TxState) -> usize {
        self.meta.clear();
        if self.marks.known > 0 {
            self.marks.known = 0;
            self.columns.known.fill(false);
        }
        self.decap_rules.refresh(&self.table.store);
        if self.carry.is_empty() && tx.recirculated.is_empty() {
            return 0;
        }
        let (mut carry, recirculated) = (std::mem::take(&mut self.carry), &mut tx.recirculated);
        let fits = |have: usize, more: usize| (VECTOR - have).min(more);
        let n = fits(0, recirculated.len());
        let from_again: Vec<Pending> = recirculated.drain(..n).collect();
        let m = fits(n, carry.len());
        for p in from_again.into_iter().chain(carry.drain(..m)) {
            self.depth[self.packets.len()] = p.depth;
            self.packets.push(p.packet);
            self.in_port.push(p.in_port);
            self.meta.push(p.meta);
        }
        self.carry = carry;
        self.parse_again();
        n + m
    }

    /// Steps 1 and 2: receives up to `limit` packets, for which there is room, from a queue while
    /// it returns full bursts, takes out what is more than the port may bring, and parses the rest
    /// of each burst while it is near; returns how many were received, and their bytes.
    #[inline]
    pub fn receive(
        &mut self,
        rx: &mut dyn RxQueue,
        port: PortNo,
        limit: usize,
        police: Option<&Policer>,
    ) -> (usize, u64) {
        let (since, mut received, mut bytes) = (self.packets.len(), 0, 0);
        while received < limit {
            let start = self.packets.len();
            let want = (limit - received).min(packet::BURST);
            let n = rx.rx(&mut self.packets, want);
            if n == 0 {
                break;
            }
            received += n;
            if let Some(police) = police {
                bytes += self.police(police, start);
            }
            let end = self.packets.len();
            if end > start {
                self.in_port.resize(end, port);
                let began = self.parse_time.begin();
                bytes += self.parse_received(start..end, since, port);
                self.parse_time.end(began, end - start);
            }
            if n < want || want < packet::BURST {
                break;
            }
        }
        (received, bytes)
    }

    /// Takes out those of `packets[start..]` that are more than their port may bring; their bytes.
    #[cold]
    fn police(&mut self, police: &Policer, start: usize) -> u64 {
        let before = self.refused.len();
        police.run(nanoseconds(cycles()), &mut self.packets, start, &mut self.refused);
        self.refused[before..].iter().map(|p| p.len() as u64).sum()
    }

    /// Ends the packets that were more than their port might bring; how many.
    pub fn take_refused(&mut self, tx: &mut TxState) -> u64 {
        let n = self.refused.len() as u64;
        self.refused.drain(..).for_each(|p| tx.free(p));
        n
    }

    /// Parses packets of one port, which since `since` are all of that port.
    pub(crate) fn parse(&mut self, range: Range<usize>, since: usize, port: PortNo) {
        let no = port as usize;
        if self.profile_stats.len() <= no {
            self.profile_stats.resize_with(no + 1, ProfileStats::default);
        }
        let n = range.len();
        let mut job = Job {
            packets: &self.packets,
            range,
            since,
            in_port: port,
            vlan_limit: self.vlan_limit,
            keys: &mut self.keys,
            columns: &mut self.columns,
            profile_stats: &mut self.profile_stats[no],
            failed: &mut self.failed,
        };
        self.claimed += job.run(self.level) as u64;
        if self.validate {
            let found = verify::compare_parse(&job);
            self.count_validated(Twin::Parser, n, found);
        }
    }

    /// Parses the packets a vector starts with: their metadata stays.
    fn parse_again(&mut self) {
        let (mut start, n) = (0, self.packets.len());
        let began = self.parse_time.begin();
        while start < n {
            let port = self.in_port[start];
            let run = self.in_port[start..n].iter().take_while(|p| **p == port).count();
            self.parse(start..start + run, start, port);
            start += run;
        }
        self.parse_time.end(began, n);
        self.restore_metadata();
    }

    /// Packets that profiles claimed, and cycles of parsing, since the last call.
    pub fn take_parsed(&mut self) -> (u64, u64) {
        (std::mem::take(&mut self.claimed), self.parse_time.take())
    }

    /// Ends packets that could not be parsed.
    pub fn drop_failed(&mut self, tx: &mut TxState) {
        if self.failed.is_empty() {
            return;
        }
        let mut gone = [false; VECTOR];
        for (i, why) in self.failed.drain(..) {
            let i = i as usize;
            gone[i] = true;
            tx.dropped(self.in_port[i], why);
            tx.free(self.packets[i]);
        }
        self.close_up(&gone);
    }

    fn restore_metadata(&mut self) {
        for (i, meta) in self.meta.iter().enumerate() {
            if let Some(f) = meta {
                keep_metadata(&f.line, &mut self.keys.line.0[i]);
                self.keys.ext[i][1] = f.ext[1];
                self.keys.ext[i][2] = f.ext[2];
                self.keys.have[i] |= f.have & !1;
            }
        }
        self.columns.same[..self.meta.len()].fill(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_that_are_not_measured_are_taken_to_be_like_the_last_one_that_was() {
        let mut time = ParseTime::default();
        let mut vector = |packets| {
            let began = time.begin();
            time.end(began, packets);
            (began.is_some(), time.take())
        };
        let (measured, ten) = vector(10);
        assert!(measured);
        for _ in 1..SAMPLE_VECTORS {
            let (measured, twenty) = vector(20);
            assert!(!measured && (2 * ten..=2 * ten + 1).contains(&twenty));
        }
        assert!(vector(1).0);
    }
}
