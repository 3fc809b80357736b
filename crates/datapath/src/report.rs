//! After a vector: room in the table, and what control is told.

use crate::batch::Vector;
use crate::messages::Report;
use crate::verify::{self, Twin};
use std::sync::atomic::Ordering;

/// Lists of decisions that were not stored which may wait for control: about as many milliseconds
/// as it may be behind before what they say is summed up in one.
const UNCACHED_REPORTS_MAX: u64 = 16;

impl Vector {
    /// Tells control; keeps what does not fit for later.
    pub fn report(&mut self, r: Report) {
        self.has_reports = true;
        if !self.backlog.is_empty() {
            self.backlog.push_back(r);
        } else if let Err(r) = self.reports.push(r) {
            self.backlog.push_back(r);
        }
    }

    /// Counts comparisons, and tells of differences.
    pub(crate) fn count_validated(&mut self, with: Twin, n: usize, found: Vec<String>) {
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
                self.report(Report::Differs(how.into()));
            }
        }
    }

    /// After the last use of megaflow numbers and programs of this vector.
    pub(crate) fn finish(&mut self, now_ms: u64) {
        for id in self.once_programs.drain(..) {
            self.programs.release(id);
        }
        let dead = self.table.take_dead();
        if !dead.is_empty() {
            self.unlink(dead);
        }
        // Room is made before it is needed: an index comes back only after control folded it.
        let margin = self.margin();
        if self.table.live + margin > self.limit {
            for _ in 0..margin.max(1) {
                let Some(v) = self.table.victim(now_ms) else { break };
                self.shared.perf.evicted.add(1);
                self.unlink([v]);
            }
        }
    }

    /// Tells how lookups go, when that changed and there is room.
    pub fn report_lookups(&mut self) {
        let now = self.table.show();
        if now != self.reported_lookups && self.backlog.is_empty() && self.reports.room() > 0 {
            self.reported_lookups = now.clone();
            self.report(Report::Lookups(now));
        }
    }

    /// Unlinks megaflows and says so.
    pub fn unlink(&mut self, megaflows: impl IntoIterator<Item = u32>) {
        for idx in megaflows {
            if let Some(program) = self.table.unlink(idx) {
                self.programs.release(program);
                self.report(Report::Unlinked(idx));
            }
        }
    }

    /// Sends what waited for room in the report ring; called about once per millisecond.
    pub fn flush_reports(&mut self) {
        while let Some(r) = self.backlog.pop_front() {
            if let Err(r) = self.reports.push(r) {
                self.backlog.push_front(r);
                break;
            }
        }
        let taken = self.shared.taken.load(Ordering::Acquire);
        if self.backlog.is_empty()
            && !self.uncached.is_empty()
            && self.reports.room() > 0
            && self.uncached_reports - taken < UNCACHED_REPORTS_MAX
        {
            self.uncached_reports += 1;
            let uncached = Box::new(self.uncached.take());
            self.report(Report::Uncached(uncached));
        }
    }

    /// Is everything told?
    pub fn has_reported_all(&self) -> bool {
        self.backlog.is_empty() && self.uncached.is_empty()
    }
}
