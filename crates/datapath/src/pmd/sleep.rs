//! How an idle worker sleeps.

use super::Worker;
use crate::stats::clock::{cycles, nanoseconds};
use packet::BURST;
use std::time::Duration;

/// What a PMD thread's next sleep depends on, besides its queues.
#[derive(Default)]
pub(super) struct IdleState {
    /// Length of the last sleep, microseconds; 0: there was work since.
    sleep_us: u64,
    /// A DMA engine has copies of this worker that it has not finished.
    pub in_flight: bool,
}

impl Worker {
    /// Sleeps if the iteration had no packets (`n` is 0) and nothing else is to be done.
    #[inline]
    pub(super) fn sleep_if_idle(&mut self, n: usize) {
        match self.rx.wait {
            Some(_) => self.sleep_in_kernel(n),
            None => self.idle_sleep(n),
        }
    }

    /// A PMD thread's sleep (`pmd-sleep-max`): one microsecond longer each time.
    fn idle_sleep(&mut self, n: usize) {
        let (max, waiting) = (self.settings.pmd_sleep_max_us, !self.batch.postponed.is_empty());
        if max == 0 || n >= BURST / 2 || waiting {
            self.idle.sleep_us = 0;
        }
        if n > 0 {
            return;
        }
        if max == 0 || waiting || self.idle.in_flight {
            return std::hint::spin_loop();
        }
        self.idle.sleep_us = (self.idle.sleep_us + 1).min(max);
        let began = cycles();
        self.reader.offline();
        std::thread::sleep(Duration::from_micros(self.idle.sleep_us));
        self.reader.online();
        self.count_sleep(began);
    }

    /// The kernel worker's sleep, see `rx/kernel_wait.rs`.
    fn sleep_in_kernel(&mut self, n: usize) {
        let Some(wait) = &mut self.rx.wait else { return };
        let reported = std::mem::take(&mut self.reports.any);
        let punted = self.tx.has_punted();
        if let Some(bell) = &self.shared.bell {
            if reported | punted {
                bell.wake();
            }
            bell.answer();
        }
        if n > 0 || !self.batch.postponed.is_empty() || self.tx.has_pending() {
            return wait.busy();
        }
        let began = cycles();
        let polled = self.rx.rxqs.iter().any(|r| !wait.waits_for(&*r.rx));
        let (rings, commands) = (&mut self.inbound, &mut self.commands);
        let quiet = || rings.iter_mut().all(|r| r.is_empty()) && commands.is_empty();
        wait.wait(&mut self.reader, polled, quiet);
        self.count_sleep(began);
    }

    /// Counts a sleep that began at cycle `began`.
    fn count_sleep(&mut self, began: u64) {
        sync::waits::slept();
        self.cycles.ended = cycles();
        if self.timers.next >= began {
            // What became due meanwhile is not late.
            self.timers.next = self.timers.next.max(self.cycles.ended);
        }
        self.shared.perf.sleep_iterations.add(1);
        self.shared.perf.sleep_cycles.add(self.cycles.ended - began);
        if !self.misses.costly.is_empty() {
            self.misses.costly.slept(nanoseconds(self.cycles.ended - began));
        }
        if !self.tx.copies.is_empty() {
            self.tx.copies.pay(nanoseconds(self.cycles.ended - began));
        }
    }
}
