//! Reports of a worker to the control side: a bounded ring, and a backlog while the ring is full.

use crate::lookup::port_classifier::PortLookup;
use crate::messages::{Report, Shared};
use crate::miss::uncached_stats::UncachedStats;
use crate::stats::worker_stats::PerfCell;
use crate::verify::{self, Twin};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use sync::Producer;

/// [`Report::Uncached`] lists that may be in the ring. One is sent per millisecond, so this is how
/// many milliseconds the control side may be late before their sums are merged in one list.
const UNCACHED_REPORTS_MAX: u64 = 16;

/// The worker's end of the report ring.
pub(crate) struct Reports {
    ring: Producer<Report>,
    /// Reports for which the ring had no room. While there are some, no megaflow is stored. So the
    /// backlog grows only by answers to commands and by one report for each evicted megaflow.
    backlog: VecDeque<Report>,
    shared: Arc<Shared>,
    /// Something was reported since this was last cleared.
    pub any: bool,
    /// Lookup statistics as last reported.
    lookups: Box<[PortLookup]>,
    /// Number of [`Report::Uncached`] lists that were sent.
    uncached_lists: u64,
}

impl Reports {
    pub fn new(ring: Producer<Report>, shared: Arc<Shared>) -> Self {
        let lookups = Box::default();
        Reports { ring, backlog: VecDeque::new(), shared, any: false, lookups, uncached_lists: 0 }
    }

    /// The worker's counters.
    #[inline]
    pub fn perf(&self) -> &PerfCell {
        &self.shared.perf
    }

    /// Number of reports that can be sent now without going to the backlog.
    pub fn room(&mut self) -> usize {
        if self.backlog.is_empty() { self.ring.room() } else { 0 }
    }

    /// Sends a report; if the ring is full, it goes to the backlog.
    pub fn send(&mut self, r: Report) {
        self.any = true;
        if !self.backlog.is_empty() {
            self.backlog.push_back(r);
        } else if let Err(r) = self.ring.push(r) {
            self.backlog.push_back(r);
        }
    }

    /// Counts `n` comparisons with a twin, and reports the first differences in words.
    pub fn count_validated(&mut self, with: Twin, n: usize, found: Vec<String>) {
        let perf = &self.shared.perf;
        let count = match with {
            Twin::Parser => &perf.parse_validated,
            Twin::Megaflows => &perf.lookup_validated,
            Twin::WholeWay => &perf.direct_validated,
            Twin::TwoSteps => &perf.tunnel_validated,
            Twin::Interpreter => &perf.act_validated,
        };
        count.add(n as u64);
        for how in found {
            self.shared.perf.differences.add(1);
            if self.shared.perf.differences.get() <= verify::DIFFERENCES_REPORTED_MAX {
                self.send(Report::Differs(how.into()));
            }
        }
    }

    /// Sends lookup statistics, if they changed and the ring has room.
    pub fn send_lookups(&mut self, now: Box<[PortLookup]>) {
        if now != self.lookups && self.room() > 0 {
            self.lookups = now.clone();
            self.send(Report::Lookups(now));
        }
    }

    /// Sends the backlog as far as the ring has room, then the traffic of decisions that were not
    /// stored. Called about once per millisecond.
    pub fn flush(&mut self, uncached: &mut UncachedStats) {
        while let Some(r) = self.backlog.pop_front() {
            if let Err(r) = self.ring.push(r) {
                self.backlog.push_front(r);
                break;
            }
        }
        let read = self.shared.taken.load(Ordering::Acquire);
        let behind = self.uncached_lists - read;
        if !uncached.is_empty() && self.room() > 0 && behind < UNCACHED_REPORTS_MAX {
            self.uncached_lists += 1;
            self.send(Report::Uncached(Box::new(uncached.take())));
        }
    }

    /// True if the backlog is empty.
    pub fn is_flushed(&self) -> bool {
        self.backlog.is_empty()
    }
}
