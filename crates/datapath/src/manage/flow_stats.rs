//! Traffic of megaflows by account: megaflows with the same list of counters, often thousands,
//! share an account, which sums their traffic up until it is handed over.

use crate::events::{Stale, Used};
use crate::messages::Effects;
use crate::messages::{Credits, UncachedReport};
use action::{CachedDecision, Op};
use std::collections::{HashMap, VecDeque};

/// Crediting this many counters of an account takes as long as handing the account over.
const ENTRY_COUNTERS: usize = 16;
/// An account with effects counts as this many more accounts: its effects may teach or renew four
/// flows, which takes some 15 us each.
const EFFECTS_ENTRIES: usize = 16;

#[derive(Default)]
struct Account {
    credits: Credits,
    effects: Effects,
    /// The control side has the effects of the first packet already, but not that packet's traffic.
    first: bool,
    /// Number of megaflows that share the account.
    megaflows: u32,
    /// Traffic that was not handed over yet.
    packets: u64,
    bytes: u64,
    used_ms: u64,
}

/// The accounts of one worker's megaflows; number 0 is no account.
pub(crate) struct FlowStats {
    list: Vec<Account>,
    free: Vec<u32>,
    /// The accounts without effects, by their counters.
    plain: HashMap<Credits, u32>,
    /// The accounts with traffic that was not handed over.
    used: VecDeque<u32>,
    /// Traffic of decisions that were not stored, by counter.
    uncached: Vec<Total>,
    /// Counters with such traffic.
    counted: VecDeque<u32>,
    /// How many entries of `used` and of `counted` belong to the current round.
    due: (usize, usize),
}

/// Traffic that was not handed over yet.
#[derive(Clone, Copy, Default)]
struct Total {
    packets: u64,
    bytes: u64,
    used_ms: u64,
}

impl FlowStats {
    pub fn new() -> Self {
        let list = vec![Account::default()];
        FlowStats {
            list,
            free: Vec::new(),
            plain: HashMap::new(),
            used: VecDeque::new(),
            uncached: Vec::new(),
            counted: VecDeque::new(),
            due: (0, 0),
        }
    }

    /// The account for a new megaflow with these credits and effects.
    pub fn open(&mut self, credits: Credits, effects: Effects) -> u32 {
        let existing = effects.is_none().then(|| self.plain.get(&credits)).flatten();
        let id = existing.copied().unwrap_or_else(|| self.add(credits, effects));
        self.list[id as usize].megaflows += 1;
        id
    }

    /// Adds a user of this account, until [`FlowStats::close`].
    pub fn hold(&mut self, id: u32) {
        self.list[id as usize].megaflows += 1;
    }

    fn add(&mut self, credits: Credits, effects: Effects) -> u32 {
        let id = self.free.pop().unwrap_or_else(|| {
            self.list.push(Account::default());
            self.list.len() as u32 - 1
        });
        if effects.is_none() {
            self.plain.insert(credits.clone(), id);
        }
        self.list[id as usize] = Account { credits, effects, first: true, ..Account::default() };
        id
    }

    /// Removes a user of the account: a megaflow that ended.
    pub fn close(&mut self, id: u32) {
        self.list[id as usize].megaflows -= 1;
        self.forget(id);
    }

    /// Frees an account that no megaflow uses and whose traffic was handed over.
    fn forget(&mut self, id: u32) {
        let account = &mut self.list[id as usize];
        if account.megaflows == 0 && account.packets == 0 {
            let gone = std::mem::take(account);
            if gone.effects.is_none() {
                self.plain.remove(&gone.credits);
            }
            self.free.push(id);
        }
    }

    /// Adds traffic of a megaflow to its account, at least one packet.
    pub fn credit(&mut self, id: u32, packets: u64, bytes: u64, used_ms: u64) {
        let account = &mut self.list[id as usize];
        if account.packets == 0 {
            self.used.push_back(id);
        }
        account.packets += packets;
        account.bytes += bytes;
        account.used_ms = account.used_ms.max(used_ms);
    }

    /// Adds traffic of decisions that were not stored.
    pub fn uncached(&mut self, uncached: &UncachedReport) {
        for s in &uncached.sums {
            let i = s.counter as usize;
            if self.uncached.len() <= i {
                self.uncached.resize(i + 1, Total::default());
            }
            let t = &mut self.uncached[i];
            if t.packets == 0 {
                self.counted.push_back(s.counter);
            }
            t.packets += s.packets;
            t.bytes += s.bytes;
            t.used_ms = t.used_ms.max(uncached.used_ms);
        }
    }

    /// True if one of these predicates says that the account's decision with these operations is
    /// stale.
    pub fn is_stale(&self, id: u32, ops: &[Op], stale: &[Stale]) -> bool {
        let Account { credits, effects, .. } = &self.list[id as usize];
        let decision = CachedDecision { ops, credits, effects: effects.as_deref() };
        stale.iter().any(|stale| stale(&decision))
    }

    /// Begins a round: traffic that was credited so far is to be handed over.
    pub fn begin(&mut self) {
        self.due = (self.used.len(), self.counted.len());
    }

    /// Hands over traffic of this round, at most `most` accounts and counters, fewer if accounts
    /// have many counters. Returns how many entries the last ones were; None: there are more.
    pub fn collect(&mut self, most: usize, each: &mut dyn FnMut(Used<'_>)) -> Option<usize> {
        let mut n = 0;
        while n < most {
            n += 1;
            if self.due.0 > 0
                && let Some(id) = self.used.pop_front()
            {
                self.due.0 -= 1;
                let account = &self.list[id as usize];
                n += account.credits.len() / ENTRY_COUNTERS;
                n += if account.effects.is_some() { EFFECTS_ENTRIES } else { 0 };
                self.hand_over(id, each);
            } else if self.due.1 > 0
                && let Some(counter) = self.counted.pop_front()
            {
                self.due.1 -= 1;
                let t = std::mem::take(&mut self.uncached[counter as usize]);
                let (credits, effects) = (&[counter][..], None);
                let Total { packets, bytes, used_ms } = t;
                each(Used { credits, effects, reported: false, packets, bytes, used_ms });
            } else {
                return Some(n - 1);
            }
        }
        None
    }

    /// Hands over an account's traffic, with its effects. If the only packet was the first one, its
    /// effects were reported when the megaflow was stored.
    fn hand_over(&mut self, id: u32, each: &mut dyn FnMut(Used<'_>)) {
        let a = &mut self.list[id as usize];
        let (packets, bytes, used_ms) = (a.packets, a.bytes, a.used_ms);
        let reported = std::mem::take(&mut a.first) && packets == 1;
        let (credits, effects) = (&*a.credits, a.effects.as_ref());
        each(Used { credits, effects, reported, packets, bytes, used_ms });
        (a.packets, a.bytes) = (0, 0);
        self.forget(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::Sum;
    use std::any::Any;
    use std::sync::Arc;

    fn collected(accounts: &mut FlowStats) -> Vec<(Vec<u32>, u64, u64)> {
        let mut out = Vec::new();
        accounts.begin();
        accounts.collect(usize::MAX, &mut |u| out.push((u.credits.to_vec(), u.packets, u.used_ms)));
        out
    }

    #[test]
    fn megaflows_with_the_same_counters_share_one_until_the_last_is_gone() {
        let mut all = FlowStats::new();
        let ids: Vec<u32> =
            [[1, 2], [1, 2], [1, 3]].iter().map(|l| all.open(l[..].into(), None)).collect();
        assert_eq!((ids[0] == ids[1], ids[0] == ids[2]), (true, false));
        all.credit(ids[0], 2, 200, 7);
        all.close(ids[0]);
        all.credit(ids[1], 3, 300, 5);
        all.close(ids[1]);
        assert_eq!(collected(&mut all), [(vec![1, 2], 5, 7)]);
        assert_eq!(collected(&mut all), []);
        assert_eq!(all.open([9].as_slice().into(), None), ids[0], "its place is used again");
    }

    #[test]
    fn effects_of_a_packet_are_handed_over_once() {
        let mut all = FlowStats::new();
        let id = all.open([1][..].into(), Some(Arc::new(4u8)));
        let mut reported = |packets| {
            all.credit(id, packets, 100, 1);
            let mut list = Vec::new();
            all.begin();
            all.collect(usize::MAX, &mut |u| list.push(u.effects.is_some() && !u.reported));
            list
        };
        assert_eq!([reported(1), reported(1), reported(2)], [[false], [true], [true]]);
        let mut all = FlowStats::new();
        let id = all.open([1][..].into(), Some(Arc::new(4u8)));
        all.credit(id, 2, 100, 1);
        all.begin();
        all.collect(usize::MAX, &mut |u| assert!(!u.reported, "the second packet's"));
    }

    #[test]
    fn traffic_is_handed_over_piece_by_piece() {
        let mut all = FlowStats::new();
        for i in 0..100u32 {
            let id = all.open([i][..].into(), None);
            all.credit(id, 2, 100, 1);
        }
        let sums = (200..250).map(|counter| Sum { counter, packets: 1, bytes: 60 }).collect();
        let (effects, lost) = (Vec::new(), Vec::new());
        all.uncached(&UncachedReport { sums, effects, lost, used_ms: 2 });
        let mut seen: Vec<u32> = Vec::new();
        all.begin();
        for n in 1..=15 {
            // What comes meanwhile has its turn in the next round.
            let id = all.open([1000][..].into(), None);
            all.credit(id, 1, 60, 3);
            assert_eq!(all.collect(10, &mut |u| seen.extend(u.credits)), None);
            assert_eq!(seen.len(), 10 * n);
        }
        assert_eq!(all.collect(10, &mut |u| seen.extend(u.credits)), Some(0));
        assert!(seen.into_iter().eq((0..100).chain(200..250)), "each once, in order");
        assert_eq!(collected(&mut all), [(vec![1000], 15, 3)]);
    }

    #[test]
    fn accounts_with_effects_are_fewer_in_a_piece() {
        let mut all = FlowStats::new();
        for i in 0..100u32 {
            let id = all.open([i][..].into(), Some(Arc::new(4u8)));
            all.credit(id, 2, 100, 1);
        }
        let (mut pieces, mut seen) = (0, 0);
        all.begin();
        while all.collect(10 * (1 + EFFECTS_ENTRIES), &mut |u| seen += u.credits.len()).is_none() {
            pieces += 1;
            assert_eq!(seen, 10 * pieces);
        }
        assert_eq!(seen, 100);
    }

    #[test]
    fn accounts_of_many_counters_are_fewer_in_a_piece() {
        let mut all = FlowStats::new();
        for i in 0..10u32 {
            let id = all.open((i * 1000..i * 1000 + 800).collect::<Vec<u32>>()[..].into(), None);
            all.credit(id, 2, 100, 1);
        }
        let (mut pieces, mut seen) = (0, 0);
        all.begin();
        while all.collect(100, &mut |u| seen += u.credits.len()).is_none() {
            pieces += 1;
            assert!(seen <= pieces * 2 * 800, "{seen} in {pieces}");
        }
        assert_eq!((pieces, seen), (5, 8000));
    }

    #[test]
    fn effects_are_nobody_elses() {
        let mut all = FlowStats::new();
        let effects = || Some(Arc::new(4u8) as Arc<dyn Any + Send + Sync>);
        let (a, b) = (all.open([1][..].into(), effects()), all.open([1][..].into(), effects()));
        let plain = all.open([1][..].into(), None);
        assert!(a != b && b != plain && a != plain);
        let is = |n: u8| -> Stale {
            Box::new(move |d| d.effects.and_then(|e| e.downcast_ref()) == Some(&n))
        };
        let ops = [Op::Output(7)];
        let stale = |id, list: &[Stale]| all.is_stale(id, &ops, list);
        let four_or_five = [is(4), is(5)];
        assert_eq!([a, b, plain].map(|id| stale(id, &four_or_five)), [true, true, false]);
        assert_eq!([a, b, plain].map(|id| stale(id, &four_or_five[1..])), [false; 3]);
        let credited = |n: u32| -> Stale { Box::new(move |d| d.credits.contains(&n)) };
        assert!(stale(plain, &[credited(1)]) && !stale(plain, &[credited(2)]));
        let sent = |n: u16| -> Stale { Box::new(move |d| d.ops == [Op::Output(n)]) };
        assert!(stale(plain, &[sent(7)]) && !stale(plain, &[sent(8)]));
        all.close(a);
        assert!(!all.is_stale(a, &ops, &four_or_five));
    }
}
