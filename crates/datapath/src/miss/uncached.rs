//! Packets that no rule matched, of ports in direct mode (`miss/policy.rs`): what to do with them, and nothing else.

use crate::batch::Vector;
use crate::lookup::KeyRef;
use crate::verify::{Twin, compare_decision};
use action::Decision;
use flow::{Key, PACKET_LINES};
use packet::VECTOR;

/// Packets that the pipeline is asked about side by side.
const AT_ONCE: usize = 16;

/// Packets about which the pipeline is asked, and what it says; kept to be used again.
pub(crate) struct Strangers {
    len: usize,
    packets: [usize; AT_ONCE],
    keys: [Key; AT_ONCE],
    /// Keys with something on lines 1 to 3.
    long: [bool; AT_ONCE],
    decisions: [Decision; AT_ONCE],
}

impl Default for Strangers {
    fn default() -> Self {
        Strangers {
            len: 0,
            packets: [0; AT_ONCE],
            keys: [Key::ZERO; AT_ONCE],
            long: [false; AT_ONCE],
            decisions: Default::default(),
        }
    }
}

impl Strangers {
    #[inline]
    fn add(&mut self, packet: usize, key: &KeyRef<'_>) {
        let n = self.len;
        self.packets[n] = packet;
        let words = &mut self.keys[n].words;
        if key.have != 0 || self.long[n] {
            words[..PACKET_LINES * 8].copy_from_slice(&key.words());
            self.long[n] = key.have != 0;
        } else {
            words[..7].copy_from_slice(&key.line[..7]);
        }
        self.decisions[n].begin();
        self.len += 1;
    }
}

impl Vector {
    /// Decides about those that go direct, as far as the budget goes, and takes them out; says how many they were.
    pub(crate) fn direct(&mut self, todo: &mut Vec<u8>, now_ms: u64) -> usize {
        let mut strangers = self.strangers.take().unwrap_or_default();
        let (mut done, mut n) = ([false; VECTOR], 0);
        for i in todo.iter().take(self.budget).map(|i| usize::from(*i)) {
            let key = self.keys.get(i);
            if self.table.goes_direct(&key) {
                strangers.add(i, &key);
            }
            if strangers.len == AT_ONCE {
                n += self.decide(&mut strangers, &mut done, now_ms);
            }
        }
        if strangers.len > 0 {
            n += self.decide(&mut strangers, &mut done, now_ms);
        }
        self.strangers = Some(strangers);
        todo.retain(|i| !done[usize::from(*i)]);
        n
    }

    /// Asks the pipeline about all of them. Those it says something about are done; says how many.
    fn decide(&mut self, all: &mut Strangers, done: &mut [bool; VECTOR], now_ms: u64) -> usize {
        let n = std::mem::take(&mut all.len);
        let answers = match self.validate {
            false => self.pipeline.resolve_once(&mut all.keys[..n], &mut all.decisions[..n]),
            true => self.validate_direct(all, n),
        };
        let mut answered = 0;
        for a in 0..n {
            let (i, d) = (all.packets[a], &mut all.decisions[a]);
            done[i] = answers >> a & 1 != 0;
            self.table.went_direct(&self.keys.get(i), done[i]);
            if !done[i] {
                continue;
            }
            answered += 1;
            let program = self.programs.intern(&d.ops, d.drop);
            (self.keys.rule[i], self.keys.program[i]) = (0, program);
            self.use_once(i, program, d, now_ms);
        }
        answered
    }

    /// Asks the pipeline twice, and compares what it says about them alone with what it says when everything is asked.
    fn validate_direct(&mut self, all: &mut Strangers, n: usize) -> u32 {
        let keys: Vec<Key> = all.packets[..n].iter().map(|i| self.frame(*i).key()).collect();
        let requests = keys.iter().zip(&all.packets).map(|(k, i)| self.request(k, *i));
        let (requests, mut twins): (Vec<_>, _) = (requests.collect(), Vec::new());
        twins.resize_with(n, Decision::default);
        twins.iter_mut().for_each(Decision::clear);
        let Strangers { keys: used, decisions, .. } = all;
        let (used, decisions) = (&mut used[..n], &mut decisions[..n]);
        let answers = self.pipeline.resolve_twice(&requests, used, decisions, &mut twins);
        let each = keys.iter().zip(decisions).zip(&twins).enumerate();
        let answered = each.filter(|(a, _)| answers >> a & 1 != 0);
        let found = answered.filter_map(|(_, ((key, d), twin))| compare_decision(d, twin, key));
        let found: Vec<_> = found.collect();
        self.validated(Twin::WholeWay, answers.count_ones() as usize, found);
        answers
    }
}
