//! Packets that no megaflow matched, of ports in direct mode (`miss/policy.rs`): what to do with
//! them, and nothing else.

use crate::batch::keys::{KEY_WORDS, KeyRef};
use crate::miss::rates::RESOLVE_PACKETS_MAX;
use crate::miss::{Misses, Scope};
use crate::verify::{Twin, compare_decision};
use action::Decision;
use flow::{Key, PACKET_LINES};
use packet::VECTOR;

/// Packets about which the pipeline is asked, and what it says; kept to be used again.
pub(crate) struct DirectBatch {
    len: usize,
    packets: [usize; RESOLVE_PACKETS_MAX],
    keys: [Key; RESOLVE_PACKETS_MAX],
    /// Keys with something on lines 1 to 3.
    has_extensions: [bool; RESOLVE_PACKETS_MAX],
    decisions: [Decision; RESOLVE_PACKETS_MAX],
}

impl Default for DirectBatch {
    fn default() -> Self {
        DirectBatch {
            len: 0,
            packets: [0; RESOLVE_PACKETS_MAX],
            keys: [Key::ZERO; RESOLVE_PACKETS_MAX],
            has_extensions: [false; RESOLVE_PACKETS_MAX],
            decisions: Default::default(),
        }
    }
}

impl DirectBatch {
    #[inline]
    fn add(&mut self, packet: usize, key: &KeyRef<'_>) {
        let n = self.len;
        self.packets[n] = packet;
        let words = &mut self.keys[n].words;
        if key.have != 0 || self.has_extensions[n] {
            words[..PACKET_LINES * 8].copy_from_slice(&key.words());
            self.has_extensions[n] = key.have != 0;
        } else {
            words[..KEY_WORDS].copy_from_slice(&key.line[..KEY_WORDS]);
        }
        self.decisions[n].clear_keep_mask();
        self.len += 1;
    }
}

impl Misses {
    /// Decides about those that go direct, as far as the budget goes, and takes them out; says how
    /// many they were.
    pub(super) fn resolve_direct(&mut self, v: &mut Scope<'_>, todo: &mut Vec<u8>) -> usize {
        let mut direct_batch = self.direct_batch.take().unwrap_or_default();
        let (mut done, mut n) = ([false; VECTOR], 0);
        for i in todo.iter().take(self.left).map(|i| usize::from(*i)) {
            let key = v.batch.keys.get(i);
            if v.table.is_direct(&key) {
                direct_batch.add(i, &key);
            }
            if direct_batch.len == RESOLVE_PACKETS_MAX {
                n += self.resolve_batch(v, &mut direct_batch, &mut done);
            }
        }
        if direct_batch.len > 0 {
            n += self.resolve_batch(v, &mut direct_batch, &mut done);
        }
        self.direct_batch = Some(direct_batch);
        todo.retain(|i| !done[usize::from(*i)]);
        n
    }

    /// Asks the pipeline about all of them. Those it says something about are done; says how many.
    fn resolve_batch(
        &mut self,
        v: &mut Scope<'_>,
        all: &mut DirectBatch,
        done: &mut [bool; VECTOR],
    ) -> usize {
        let n = std::mem::take(&mut all.len);
        let answers = match self.validate {
            false => {
                let (keys, decisions) = (&mut all.keys[..n], &mut all.decisions[..n]);
                self.pipeline.resolve_unmasked(v.guard, keys, decisions)
            }
            true => self.validate_direct(v, all, n),
        };
        let mut answered = 0;
        for a in 0..n {
            let (i, d) = (all.packets[a], &mut all.decisions[a]);
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

    /// Asks the pipeline twice, and compares what it says about them alone with what it says when
    /// everything is asked.
    fn validate_direct(&self, v: &mut Scope<'_>, all: &mut DirectBatch, n: usize) -> u32 {
        let keys: Vec<Key> = all.packets[..n].iter().map(|i| v.batch.frame(*i).key()).collect();
        let requests = keys.iter().zip(&all.packets).map(|(k, i)| v.request(k, *i));
        let (requests, mut twins): (Vec<_>, _) = (requests.collect(), Vec::new());
        twins.resize_with(n, Decision::default);
        twins.iter_mut().for_each(Decision::clear);
        let DirectBatch { keys: used, decisions, .. } = all;
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
