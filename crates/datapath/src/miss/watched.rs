//! Misses of ports that had expensive ones: which these are, and how their packets are decided
//! about one by one ([`costly`] has the account of their time).

use crate::miss::resolve_batch::ResolveBatch;
use crate::miss::{Misses, Scope, costly, is_in_filled};
use crate::stats::clock::thread_nanoseconds;
use action::Decision;
use flow::PortNo;
use packet::VECTOR;
use telemetry::Drop;

impl Misses {
    /// True if misses of packet `i`'s port are decided about one by one.
    #[inline]
    pub(super) fn is_watched(&self, v: &Scope<'_>, i: usize) -> bool {
        !self.costly.is_empty() && self.costly.watches(v.batch.in_port[i])
    }

    /// Decides about missed packets of ports whose misses took long lately, one by one, and removes
    /// them from `missed`. Those of ports that owe time wait or are dropped.
    #[cold]
    #[inline(never)]
    pub(super) fn resolve_costly(
        &mut self,
        v: &mut Scope<'_>,
        missed: &mut Vec<u8>,
        postponed: &mut [bool; VECTOR],
    ) {
        let (all, mut filled) = (std::mem::take(missed), Vec::new());
        let mut asked = self.whole_batch.take().unwrap_or_default();
        let mut waiting = v.batch.postponed.len();
        for n in all {
            let i = usize::from(n);
            let port = v.batch.in_port[i];
            if !self.costly.watches(port) {
                missed.push(n);
                continue;
            }
            if is_in_filled(v, i, &filled) {
                continue;
            }
            if self.left > 0 && !self.costly.owes(port) {
                self.left -= 1;
                asked.len = 0;
                asked.add(i, &v.batch.keys.get(i));
                self.ask_timed(v, &mut asked, port);
                filled.extend(self.apply_decision(v, &mut asked, 0));
            } else if waiting < costly::WAITING_COUNT_MAX {
                waiting += 1;
                postponed[i] = true;
            } else {
                let program = v.programs.intern(&[], Some(Drop::MissTime));
                (v.batch.keys.megaflow[i], v.batch.keys.program[i]) = (0, program);
                self.once_programs.push(program);
            }
        }
        self.whole_batch = Some(asked);
    }

    /// Charges the ports of missed packets that took long. Each is decided about again, up to the
    /// first one of a port that takes long: those behind it are charged as much.
    #[cold]
    #[inline(never)]
    pub(super) fn charge(&mut self, v: &Scope<'_>, packets: &[usize]) {
        let mut costs: Vec<(PortNo, u64, u64)> = Vec::new();
        for i in packets {
            let port = v.batch.in_port[*i];
            match costs.iter_mut().find(|(p, ..)| *p == port) {
                Some((.., misses)) => *misses += 1,
                None => match self.time_again(v, *i) {
                    took if took > costly::MISS_NS_MAX => costs.push((port, took, 1)),
                    _ => {}
                },
            }
        }
        for (port, took, misses) in costs {
            self.costly.charge(port, took, misses, v.now_ms);
        }
    }

    /// Nanoseconds of the thread's time that it takes to decide about a packet. What is more than a
    /// miss may take is found twice, and was spent three times.
    fn time_again(&self, v: &Scope<'_>, i: usize) -> u64 {
        let (key, mut again) = (v.batch.frame(i).key(), Decision::default());
        let mut once = || {
            again.clear();
            let began = thread_nanoseconds();
            self.pipeline.resolve(v.guard, &v.request(&key, i), &mut again);
            thread_nanoseconds() - began
        };
        match once() {
            took if took <= costly::MISS_NS_MAX => took,
            took => match took.min(once()) {
                least if least <= costly::MISS_NS_MAX => least,
                least => 3 * least,
            },
        }
    }

    /// Asks the pipeline about the batch's only packet, and charges its port, which is watched.
    fn ask_timed(&mut self, v: &mut Scope<'_>, asked: &mut ResolveBatch, port: PortNo) {
        if self.costly.is_proven(port) {
            let began = thread_nanoseconds();
            self.ask(v, asked);
            self.costly.charge(port, thread_nanoseconds() - began, 1, v.now_ms);
        } else {
            let took = self.ask(v, asked);
            if self.costly.is_long(took, 1) {
                self.charge(v, &asked.packets[..1]);
            }
        }
        self.costly.count(port);
    }
}
