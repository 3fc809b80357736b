//! Direct mode (`miss/policy.rs`): the pipeline decides about missed packets without a mask, and
//! the decisions are not stored.

use crate::miss::rates::RESOLVE_PACKETS_MAX;
use crate::miss::resolve_batch::ResolveBatch;
use crate::miss::{Misses, Scope};
use crate::verify::{Twin, compare_decision};
use action::Decision;
use flow::Key;
use packet::VECTOR;

impl Misses {
    /// Decides about packets of ports in direct mode, except samples, within the budget, and
    /// removes them from `todo`. Returns how many packets it decided about.
    pub(super) fn resolve_direct(&mut self, v: &mut Scope<'_>, todo: &mut Vec<u8>) -> usize {
        let mut asked = self.direct_batch.take().unwrap_or_default();
        let (mut done, mut n) = ([false; VECTOR], 0);
        for i in todo.iter().take(self.left).map(|i| usize::from(*i)) {
            let key = v.batch.keys.get(i);
            if v.table.is_direct(&key) && !self.is_costly(v, i) {
                asked.add(i, &key);
            }
            if asked.len == RESOLVE_PACKETS_MAX {
                n += self.resolve_batch(v, &mut asked, &mut done);
            }
        }
        if asked.len > 0 {
            n += self.resolve_batch(v, &mut asked, &mut done);
        }
        self.direct_batch = Some(asked);
        todo.retain(|i| !done[usize::from(*i)]);
        n
    }

    /// Asks the pipeline about the packets of the batch. Marks those that it decides about in
    /// `done`; returns how many these are.
    fn resolve_batch(
        &mut self,
        v: &mut Scope<'_>,
        asked: &mut ResolveBatch,
        done: &mut [bool; VECTOR],
    ) -> usize {
        let n = std::mem::take(&mut asked.len);
        asked.decisions[..n].iter_mut().for_each(Decision::clear_keep_mask);
        let answers = match self.validate {
            false => {
                let (keys, decisions) = (&mut asked.keys[..n], &mut asked.decisions[..n]);
                self.pipeline.resolve_unmasked(v.guard, keys, decisions)
            }
            true => self.validate_direct(v, asked, n),
        };
        self.charge(v, asked, n);
        let mut answered = 0;
        for a in 0..n {
            let (i, d) = (asked.packets[a], &mut asked.decisions[a]);
            done[i] = answers >> a & 1 != 0;
            v.table.count_direct(&v.batch.keys.get(i), done[i]);
            if !done[i] {
                continue;
            }
            answered += 1;
            let program = v.programs.intern(&d.ops, d.drop);
            (v.batch.keys.megaflow[i], v.batch.keys.program[i]) = (0, program);
            self.apply_once(v, i, program, d);
        }
        answered
    }

    /// Asks the pipeline both with and without masks, and compares the two decisions about each
    /// packet.
    fn validate_direct(&self, v: &mut Scope<'_>, asked: &mut ResolveBatch, n: usize) -> u32 {
        let keys: Vec<Key> = asked.packets[..n].iter().map(|i| v.batch.frame(*i).key()).collect();
        let requests = keys.iter().zip(&asked.packets).map(|(k, i)| v.request(k, *i));
        let (requests, mut twins): (Vec<_>, _) = (requests.collect(), Vec::new());
        twins.resize_with(n, Decision::default);
        twins.iter_mut().for_each(Decision::clear);
        let ResolveBatch { keys: used, decisions, .. } = asked;
        let (used, decisions) = (&mut used[..n], &mut decisions[..n]);
        let answers = self.pipeline.resolve_both(v.guard, &requests, used, decisions, &mut twins);
        let each = keys.iter().zip(decisions).zip(&twins).enumerate();
        let answered = each.filter(|(a, _)| answers >> a & 1 != 0);
        let found = answered.filter_map(|(_, ((key, d), twin))| compare_decision(d, twin, key));
        let found: Vec<_> = found.collect();
        v.reports.count_validated(Twin::WholeWay, answers.count_ones() as usize, found);
        answers
    }
}
