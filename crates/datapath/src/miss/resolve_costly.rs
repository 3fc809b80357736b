//! Misses of ports that had expensive ones: which these are, and how their packets are decided
//! about one by one (`costly.rs` has the account of their work).

use crate::miss::rates::RESOLVE_PACKETS_MAX;
use crate::miss::resolve_batch::ResolveBatch;
use crate::miss::{Misses, Scope, is_in_filled};
use packet::VECTOR;
use telemetry::Drop;

impl Misses {
    /// True if misses of packet `i`'s port are decided about one by one.
    #[inline]
    pub(super) fn is_costly(&self, v: &Scope<'_>, i: usize) -> bool {
        !self.costly.is_empty() && self.costly.has(v.batch.in_port[i])
    }

    /// Decides about missed packets of costly ports, one by one, and removes them from `missed`.
    /// Packets of ports that have debts wait, and so do those beyond the miss budget,
    /// [`RESOLVE_PACKETS_MAX`] at most; further ones are dropped.
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
            if !self.costly.has(port) {
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
                self.ask(v, &mut asked);
                filled.extend(self.apply_decision(v, &mut asked, 0));
            } else if waiting < RESOLVE_PACKETS_MAX {
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

    /// Charges the ports of the first `n` packets of `asked`, which were decided about.
    #[inline]
    pub(super) fn charge(&mut self, v: &Scope<'_>, asked: &ResolveBatch, n: usize) {
        for (i, d) in asked.packets[..n].iter().zip(&asked.decisions) {
            self.costly.charge(v.batch.in_port[*i], d.steps, v.now_ms);
        }
    }
}
