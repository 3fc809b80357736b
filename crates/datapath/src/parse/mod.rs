//! The parse step: writes each packet's key from its bytes.
//!
//! `job.rs` parses a burst: profiles of common packets by a SIMD kernel (`profile.rs`, `simd.rs`),
//! all other packets by the complete scalar parser (`scalar.rs`), which is the kernels' twin.

pub(crate) mod frame;
pub(crate) mod job;
pub(crate) mod profile;
pub(crate) mod scalar;
#[cfg(target_arch = "x86_64")]
mod simd;

use crate::actions::interpret::Sink;
use crate::batch::{Batch, Burst};
use crate::capture::Capture;
use crate::cpu::Level;
use crate::parse::job::{ALL_BITS, Matched, ParseJob};
use crate::parse::profile::ProfileStats;
use crate::report::Reports;
use crate::settings::Settings;
use crate::stats::stage_clock::ParseClock;
use crate::tx::{TxState, total};
use crate::verify::{self, Twin};
use flow::PortNo;
use packet::VECTOR;
use std::ops::Range;
use telemetry::Drop;

/// Parses the packets of a worker.
#[derive(Default)]
pub(crate) struct Parser {
    pub level: Level,
    /// Compare the kernels' keys with those of the scalar parser, packet by packet.
    pub validate: bool,
    /// Parse every packet, even if its megaflow is known before: something needs all keys.
    pub all: bool,
    /// Which profiles the packets of each input port matched.
    profile_stats: Vec<ProfileStats>,
    /// Packets of this vector that a profile claimed.
    claimed: u64,
    pub clock: ParseClock,
    /// Packets of this vector that cannot be parsed, and why.
    failed: Vec<(u8, Drop)>,
}

impl Parser {
    /// Takes over new settings.
    pub fn configure(&mut self, s: &Settings, captures: bool) {
        (self.level, self.validate) = (s.level, s.validate);
        self.all = s.validate || captures;
    }

    /// Parses the packets of `range`, which came in on one port; so did all packets from `since`
    /// on.
    pub fn parse(
        &mut self,
        batch: &mut Batch,
        range: Range<usize>,
        since: usize,
        port: PortNo,
        reports: &mut Reports,
    ) {
        self.parse_places(batch, Burst { range, since, port }, None, &ALL_BITS, reports);
    }

    /// Parses the packets of a burst that have a bit in `some` ([`ParseJob::some`]). `matched` is
    /// what megaflows of their port match on.
    pub fn parse_places(
        &mut self,
        batch: &mut Batch,
        burst: Burst,
        some: Option<u32>,
        matched: &Matched,
        reports: &mut Reports,
    ) {
        let Burst { range, since, port } = burst;
        let no = port as usize;
        if self.profile_stats.len() <= no {
            self.profile_stats.resize_with(no + 1, ProfileStats::default);
        }
        let n = range.len();
        let mut job = ParseJob {
            packets: &batch.packets,
            range,
            some,
            since,
            in_port: port,
            vlan_limit: batch.vlan_limit,
            matched,
            keys: &mut batch.keys,
            columns: &mut batch.columns,
            profile_stats: &mut self.profile_stats[no],
            failed: &mut self.failed,
        };
        self.claimed += job.run(self.level) as u64;
        if self.validate {
            let found = verify::compare_parse(&job);
            reports.count_validated(Twin::Parser, n, found);
        }
    }

    /// Parses a burst; returns its bytes.
    #[inline]
    pub fn parse_burst(
        &mut self,
        batch: &mut Batch,
        burst: Burst,
        matched: &Matched,
        reports: &mut Reports,
    ) -> u64 {
        let range = burst.range.clone();
        self.parse_places(batch, burst, None, matched, reports);
        total(&batch.columns.len[range])
    }

    /// Compares the keys of packets that waited with what parsing them again gives.
    pub fn validate_waited(&self, batch: &Batch, reports: &mut Reports) {
        if self.validate {
            let found = (0..batch.waited).filter_map(|i| verify::compare_waited(batch, i));
            let found: Vec<_> = found.collect();
            reports.count_validated(Twin::Parser, batch.waited, found);
        }
    }

    /// Drops packets that could not be parsed.
    pub fn drop_failed(
        &mut self,
        batch: &mut Batch,
        tx: &mut TxState,
        capture: &mut Option<Box<Capture>>,
    ) {
        if self.failed.is_empty() {
            return;
        }
        let mut gone = [false; VECTOR];
        for (i, why) in self.failed.drain(..) {
            let i = i as usize;
            gone[i] = true;
            if let Some(capture) = capture {
                capture.unparsed(batch, i, why);
            }
            tx.dropped(batch.in_port[i], why);
            // SAFETY: the batch's own handle is removed below.
            tx.free(unsafe { batch.packets[i].duplicate() });
        }
        batch.remove(&gone);
    }

    /// Packets that profiles claimed, and cycles spent on parsing, since the last call.
    pub fn take_counts(&mut self) -> (u64, u64) {
        (std::mem::take(&mut self.claimed), self.clock.take())
    }
}
