//! Which megaflows a change kills, and when it is done. `flow_index` finds them quickly.
//!
//! The argument for exactness is in `docs/decisions/0001-per-core-megaflow-table.md`: publish, one
//! grace period, mark overlapping megaflows dead, done.

use crate::batch::keys::{PWORDS, Words};
use crate::events::{Stale, Ticket};
use crate::lookup::flow_store::Store;
use action::Region;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use sync::{Domain, Grace};

/// Regions on the packet-side lines, by mask.
pub(crate) struct RegionSet(HashMap<Words, Vec<Words>>);

impl RegionSet {
    pub fn of(regions: &[Region]) -> RegionSet {
        let mut by_mask: HashMap<Words, Vec<Words>> = HashMap::new();
        for r in regions {
            let mut mask: Words = r.mask.words[..PWORDS].try_into().unwrap();
            mask[7] = 0;
            let key: Words = r.key.words[..PWORDS].try_into().unwrap();
            by_mask.entry(mask).or_default().push(key);
        }
        RegionSet(by_mask)
    }

    /// (mask, values of every region that has it).
    pub fn groups(&self) -> impl Iterator<Item = (&Words, &Vec<Words>)> {
        self.0.iter()
    }
}

/// What must agree for a megaflow of one mask to overlap one region.
pub(crate) struct OverlapTest(Vec<(u8, u64, u64)>);

impl OverlapTest {
    /// `both`: the bits at which both look, by word; `key`: the region's values.
    pub fn new(both: &[(u8, u64)], key: &Words) -> OverlapTest {
        OverlapTest(both.iter().map(|(w, m)| (*w, *m, key[*w as usize] & m)).collect())
    }

    /// Does megaflow `i` overlap the region?
    pub fn hits(&self, store: &Store, i: u32) -> bool {
        self.0.iter().all(|(w, mask, want)| store.word(i, *w as usize) & mask == *want)
    }
}

/// Every usable megaflow that overlaps a region, by looking at all of them: what is right.
#[cfg(test)]
pub(crate) fn overlapping(store: &Store, regions: &RegionSet) -> std::collections::BTreeSet<u32> {
    let overlaps = |i: u32| {
        let mask = store.mask(store.payload(i).mask());
        regions.groups().any(|(region, keys)| {
            let agree = |k: &Words, w: usize| (store.word(i, w) ^ k[w]) & mask[w] & region[w] == 0;
            keys.iter().any(|k| (0..PWORDS).filter(|w| *w != 7).all(|w| agree(k, w)))
        })
    };
    let high = store.high.load(std::sync::atomic::Ordering::Acquire);
    (1..high).filter(|i| store.payload(*i).usable() && overlaps(*i)).collect()
}

/// Decisions that may have changed.
#[derive(Default)]
pub(crate) struct Change {
    /// Decisions about packets in these regions.
    pub regions: Vec<Region>,
    /// Decisions of which these say that they may have changed.
    pub stale: Vec<Stale>,
}

/// Megaflows whose effects are looked at in one turn: some hundred microseconds' work.
pub(crate) const STALE_TURN_MAX: usize = 1 << 12;

/// Looking for stale decisions. Those that come meanwhile are made from what holds
/// now.
pub(crate) struct StaleSearch {
    /// The ticket that is done at its end.
    last: u64,
    pub stale: Vec<Stale>,
    /// What is left to look at: workers' slots, and behind which megaflow each one's end.
    ahead: VecDeque<(usize, usize)>,
    /// The next megaflow.
    from: usize,
}

impl StaleSearch {
    /// The megaflows of this turn, no more than [`STALE_TURN_MAX`], by slot; the ticket that is
    /// done if they are the last.
    pub fn turn(&mut self) -> (Vec<(usize, Range<usize>)>, Option<u64>) {
        let (mut left, mut out) = (STALE_TURN_MAX, Vec::new());
        while let Some((slot, end)) = self.ahead.front().copied() {
            let to = end.min(self.from.saturating_add(left));
            left -= to.saturating_sub(self.from);
            out.push((slot, self.from..to));
            self.from = to;
            if to < end {
                return (out, None);
            }
            self.ahead.pop_front();
            self.from = 0;
        }
        (out, Some(self.last))
    }
}

/// Changes that wait for their grace period.
pub(crate) struct Tickets {
    next: u64,
    done: u64,
    waiting: VecDeque<(u64, Grace, Change)>,
    search: Option<StaleSearch>,
}

impl Tickets {
    pub fn new() -> Self {
        Tickets { next: 1, done: 0, waiting: VecDeque::new(), search: None }
    }

    /// A new change.
    pub fn open(&mut self, domain: &Domain, change: Change) -> Ticket {
        let t = self.next;
        self.next += 1;
        self.waiting.push_back((t, domain.grace(), change));
        Ticket(t)
    }

    /// All changes whose grace period is over, together. They are done once `close`d.
    pub fn ready(&mut self, domain: &Domain) -> Option<(u64, Change)> {
        let mut all = Change::default();
        let mut last = None;
        while let Some((t, g, _)) = self.waiting.front() {
            if !domain.passed(*g) {
                break;
            }
            last = Some(*t);
            let (_, _, mut change) = self.waiting.pop_front().unwrap();
            all.regions.append(&mut change.regions);
            all.stale.append(&mut change.stale);
        }
        if all.regions.iter().any(|r| r.mask.words[..PWORDS].iter().all(|w| *w == 0)) {
            all = Change { regions: vec![Region::ALL], stale: Vec::new() };
        }
        last.map(|t| (t, all))
    }

    /// Of all changes up to `last` only stale decisions are left to be marked; `ends`:
    /// workers' slots, and behind which megaflow each one's end.
    pub fn search(
        &mut self,
        last: u64,
        stale: Vec<Stale>,
        ends: impl Iterator<Item = (usize, usize)>,
    ) {
        self.search = Some(StaleSearch { last, stale, ahead: ends.collect(), from: 0 });
    }

    /// The search that is under way. The caller that takes it puts it back unless it is over.
    pub fn searching(&mut self) -> &mut Option<StaleSearch> {
        &mut self.search
    }

    /// The megaflows of all changes up to `t` are marked.
    pub fn close(&mut self, t: u64) {
        self.done = t;
    }

    /// Is no change under way?
    pub fn none_waiting(&self) -> bool {
        self.waiting.is_empty() && self.search.is_none()
    }

    /// Is the change complete?
    pub fn is_done(&self, t: Ticket) -> bool {
        t.0 <= self.done
    }
}
