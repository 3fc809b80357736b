//! `pmd-auto-lb`: moves receive queues to other PMD threads if that balances their load.

use crate::info::BalanceCheck;
use crate::manage::Datapath;
use crate::manage::load::{SAMPLE_MS, SAMPLES_COUNT};
use crate::manage::placement::variance;
use crate::settings::{AutoLb, RxqAssign, WorkerId};

impl Datapath {
    /// Takes a sample of the load when it is due, and moves queues if that improves the balance
    /// enough.
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
        if self.settings.auto_lb.enabled {
            self.auto_balance(now_ms, self.settings.auto_lb);
        }
    }

    /// The result of the last check by `pmd-auto-lb`, if there was one since the last call.
    pub fn take_balance_check(&mut self) -> Option<BalanceCheck> {
        self.auto_lb.check.take()
    }

    fn auto_balance(&mut self, now_ms: u64, s: AutoLb) {
        let pmds = self.workers.iter().flatten().filter(|w| w.id != WorkerId::Kernel);
        let high = pmds.filter(|w| w.load.is_high(u64::from(s.load_threshold))).count() > 0;
        self.auto_lb.high = if high { self.auto_lb.high + 1 } else { 0 };
        let due = now_ms >= self.auto_lb.tried_ms + s.interval_min * 60_000;
        if self.auto_lb.high < SAMPLES_COUNT || !due {
            return;
        }
        (self.auto_lb.tried_ms, self.auto_lb.high) = (now_ms, 0);
        let check = self.check_balance(s);
        if check.moves_queues() {
            self.rebalance();
        }
        self.auto_lb.check = Some(check);
    }

    fn check_balance(&mut self, s: AutoLb) -> BalanceCheck {
        if self.auto_lb.pointless {
            return BalanceCheck::Unchanged;
        }
        let pointless = self.pointless();
        self.auto_lb.pointless = pointless.is_some();
        pointless.unwrap_or_else(|| self.compare(s))
    }

    /// Why queues cannot move whatever the load is, as long as cores and queues stay as they are.
    fn pointless(&self) -> Option<BalanceCheck> {
        if self.settings.rxq_assign == RxqAssign::RoundRobin {
            return Some(BalanceCheck::RoundRobin);
        }
        let open: Vec<WorkerId> =
            self.pmd_info().iter().filter(|p| !p.isolated).map(|p| p.worker).collect();
        let queues = self.rxq_info();
        let polls = |w: &WorkerId| queues.iter().filter(|q| q.worker == Some(*w)).count();
        let mut pmds = open.iter().filter(|w| **w != WorkerId::Kernel);
        let enough = pmds.clone().count() > 1 && pmds.any(|w| polls(w) > 1);
        (!enough).then_some(BalanceCheck::TooFew)
    }

    /// How much placing the queues again would reduce the variance of the cores' load. Unknown if
    /// queues would be polled from other NUMA nodes than their ports', which costs more.
    fn compare(&self, s: AutoLb) -> BalanceCheck {
        let placement = self.placement(&[]);
        if placement.crosses_nodes() {
            return BalanceCheck::CrossNuma;
        }
        let at: Vec<_> = placement.queues.iter().map(|q| q.now).collect();
        let now = variance(&placement.queues, &placement.cores, &at);
        let then = variance(&placement.queues, &placement.cores, &placement.cores_of_queues);
        let improvement = (now.saturating_sub(then) * 100).checked_div(now).unwrap_or(0);
        BalanceCheck::Compared { now, then, improvement, threshold: s.improvement }
    }
}
