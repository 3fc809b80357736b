//! `pmd-auto-lb`: receive queues move to other PMD threads when that evens out their load.

use crate::control::Datapath;
use crate::control::load::{SAMPLE_MS, SAMPLES_COUNT};
use crate::control::placement::variance;
use crate::settings::WorkerId;

impl Datapath {
    /// Takes a sample when it is time, and moves queues if they should be.
    pub(crate) fn balance(&mut self, now_ms: u64) {
        if now_ms < self.auto_lb.sampled_ms + SAMPLE_MS {
            return;
        }
        self.auto_lb.sampled_ms = now_ms;
        for w in self.workers.iter_mut().flatten() {
            let p = w.shared.perf.read();
            w.load.busy.sample(p.busy_cycles);
            w.load.total.sample(p.busy_cycles + p.idle_cycles + p.sleep_cycles);
        }
        for q in self.ports.values_mut().flat_map(|p| &mut p.rxqs) {
            q.load.sample(q.cell.cycles.get());
        }
        self.auto_balance(now_ms);
    }

    fn auto_balance(&mut self, now_ms: u64) {
        let Some(s) = self.settings.auto_lb else { return };
        let pmds = self.workers.iter().flatten().filter(|w| w.id != WorkerId::Kernel);
        let high = pmds.filter(|w| w.load.is_high(u64::from(s.load_threshold))).count() > 0;
        self.auto_lb.high = if high { self.auto_lb.high + 1 } else { 0 };
        let due = now_ms >= self.auto_lb.tried_ms + s.interval_min * 60_000;
        if self.auto_lb.high < SAMPLES_COUNT || !due {
            return;
        }
        (self.auto_lb.tried_ms, self.auto_lb.high) = (now_ms, 0);
        if self.would_improve() >= u64::from(s.improvement) {
            self.rebalance();
        }
    }

    /// By how many percent placing the queues again would reduce the variance of the cores' load.
    pub(crate) fn would_improve(&self) -> u64 {
        let placement = self.placement(&[]);
        let at: Vec<_> = placement.queues.iter().map(|q| q.now).collect();
        let now = variance(&placement.queues, &placement.cores, &at);
        let then = variance(&placement.queues, &placement.cores, &placement.at);
        (now.saturating_sub(then) * 100).checked_div(now).unwrap_or(0)
    }
}
