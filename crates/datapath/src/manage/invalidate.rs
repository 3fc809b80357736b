//! Which megaflows a change invalidates, and when it is complete. `flow_index` finds them quickly.
//!
//! Why this is exact: `docs/decisions/0001-per-core-megaflow-table.md`. In short: publish, one
//! grace period, mark overlapping megaflows dead, done.

use crate::batch::keys::{PWORDS, Words};
use crate::events::{Stale, Ticket};
use crate::lookup::flow_store::Store;
use crate::lookup::table::port_of;
use action::{PortSet, Region};
use flow::{PortNo, at};
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use sync::{Domain, Grace};

/// Values of regions that are looked for by port, at most: each costs a lookup for each mask, and
/// saves examining megaflows of other ports.
const VALUES_BY_PORT_MAX: usize = 1024;

/// Regions with one mask.
pub(crate) struct RegionGroup {
    pub mask: Words,
    /// The values of each.
    pub keys: Vec<Words>,
    /// The ports by which their packets come in; None: by any.
    pub from: Option<Arc<PortSet>>,
}

impl RegionGroup {
    /// True if megaflow `i` is of a port by which packets of these regions come in.
    pub fn has_port(&self, store: &Store, i: u32) -> bool {
        let port = || port_of(store.word(i, at::IN_PORT / 8));
        self.from.as_ref().is_none_or(|from| from.contains(port()))
    }
}

/// Regions on the packet-side lines, grouped by mask and ports.
pub(crate) struct RegionSet(Vec<RegionGroup>);

impl RegionSet {
    pub fn of(regions: &[Region]) -> RegionSet {
        let mut set = RegionSet(Vec::new());
        let (mut numbers, mut by_port) = (HashMap::new(), 0);
        for r in regions {
            let mut mask: Words = r.mask.words[..PWORDS].try_into().unwrap();
            mask[7] = 0;
            let key: Words = r.key.words[..PWORDS].try_into().unwrap();
            match &r.from {
                Some(from) if by_port + from.len() <= VALUES_BY_PORT_MAX => {
                    by_port += from.len();
                    let mask = with_port(&mask, u16::MAX);
                    let keys = from.iter().map(|port| with_port(&key, port));
                    set.group(&mut numbers, mask, None).keys.extend(keys);
                }
                from => set.group(&mut numbers, mask, from.as_ref()).keys.push(key),
            }
        }
        set
    }

    /// The group of this mask and these ports.
    fn group(
        &mut self,
        numbers: &mut HashMap<(Words, usize), usize>,
        mask: Words,
        from: Option<&Arc<PortSet>>,
    ) -> &mut RegionGroup {
        // Regions of one change have the same set.
        let which = from.map_or(0, |from| Arc::as_ptr(from) as usize);
        let n = *numbers.entry((mask, which)).or_insert_with(|| {
            self.0.push(RegionGroup { mask, keys: Vec::new(), from: from.cloned() });
            self.0.len() - 1
        });
        &mut self.0[n]
    }

    /// The regions by mask and ports.
    pub fn groups(&self) -> &[RegionGroup] {
        &self.0
    }
}

/// A key or mask with these bits of the input port.
fn with_port(words: &Words, port: PortNo) -> Words {
    let mut words = *words;
    let word = &mut words[at::IN_PORT / 8];
    let mut bytes = word.to_ne_bytes();
    bytes[at::IN_PORT % 8..][..2].copy_from_slice(&port.to_be_bytes());
    *word = u64::from_ne_bytes(bytes);
    words
}

/// The bits that must be equal for a megaflow of one mask to overlap one region.
pub(crate) struct OverlapTest(Vec<(u8, u64, u64)>);

impl OverlapTest {
    /// `both`: the bits that both masks have, by word; `key`: the region's values.
    pub fn new(both: &[(u8, u64)], key: &Words) -> OverlapTest {
        OverlapTest(both.iter().map(|(w, m)| (*w, *m, key[*w as usize] & m)).collect())
    }

    /// True if megaflow `i` overlaps the region.
    pub fn hits(&self, store: &Store, i: u32) -> bool {
        self.0.iter().all(|(w, mask, want)| store.word(i, *w as usize) & mask == *want)
    }
}

/// Every usable megaflow that overlaps a region, found by examining all of them: the twin of the
/// index.
#[cfg(test)]
pub(crate) fn overlapping(store: &Store, regions: &RegionSet) -> std::collections::BTreeSet<u32> {
    let overlaps = |i: u32| {
        let mask = store.mask(store.payload(i).mask());
        regions.groups().iter().any(|group| {
            let both = |w: usize| mask[w] & group.mask[w];
            let agree = |k: &Words, w: usize| (store.word(i, w) ^ k[w]) & both(w) == 0;
            let agrees = |k: &Words| (0..PWORDS).filter(|w| *w != 7).all(|w| agree(k, w));
            group.has_port(store, i) && group.keys.iter().any(agrees)
        })
    };
    let high = store.high.load(std::sync::atomic::Ordering::Acquire);
    (1..high).filter(|i| store.payload(*i).usable() && overlaps(*i)).collect()
}

/// The megaflows that a change may have made wrong.
#[derive(Default)]
pub(crate) struct Change {
    /// Megaflows that overlap these regions.
    pub regions: Vec<Region>,
    /// Megaflows for which one of these predicates is true.
    pub stale: Vec<Stale>,
}

/// Megaflows whose effects are examined in one slice: some hundred microseconds' work.
const STALE_SLICE_MAX: usize = 1 << 12;
/// Steps of a slice that looks for megaflows which overlap regions: a comparison, a lookup, a
/// megaflow that comes into an index; one that is found takes [`super::flow_index`]'s steps.
pub(crate) const REGION_STEPS_MAX: usize = 1 << 12;
/// Regions from which on no other change is taken into a search.
const REGIONS_TOGETHER_MAX: usize = 1 << 12;

/// A search for megaflows that a change may have made wrong. Megaflows stored meanwhile are made
/// from the new state and need not be found.
pub(crate) struct Search {
    /// The ticket that is complete when the search ends.
    last: u64,
    pub regions: RegionSet,
    /// Numbers of the workers whose megaflows are yet to be compared with regions, or are being
    /// compared.
    pub compared: VecDeque<usize>,
    pub stale: Vec<Stale>,
    /// What is left to examine: numbers of workers, and the index behind each one's last megaflow.
    ahead: VecDeque<(usize, usize)>,
    /// The megaflow at which the next slice begins.
    from: usize,
}

impl Search {
    /// The megaflows of the next slice of those that may be stale, by worker number, at most
    /// [`STALE_SLICE_MAX`]; and the ticket that is complete after this slice, if it is the last.
    pub fn next_slice(&mut self) -> (Vec<(usize, Range<usize>)>, Option<u64>) {
        let (mut left, mut out) = (STALE_SLICE_MAX, Vec::new());
        if self.stale.is_empty() {
            return (out, Some(self.last));
        }
        while let Some((worker_no, end)) = self.ahead.front().copied() {
            let to = end.min(self.from.saturating_add(left));
            left -= to.saturating_sub(self.from);
            out.push((worker_no, self.from..to));
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

/// Changes whose grace period is not over, and changes that are complete.
pub(crate) struct Tickets {
    next: u64,
    done: u64,
    waiting: VecDeque<(u64, Grace, Change)>,
    search: Option<Search>,
}

impl Tickets {
    pub fn new() -> Self {
        Tickets { next: 1, done: 0, waiting: VecDeque::new(), search: None }
    }

    /// Adds a change, whose grace period begins now.
    pub fn open(&mut self, domain: &Domain, change: Change) -> Ticket {
        let t = self.next;
        self.next += 1;
        self.waiting.push_back((t, domain.grace(), change));
        Ticket(t)
    }

    /// The first changes whose grace period is over, together. They are complete after `close`.
    pub fn ready(&mut self, domain: &Domain) -> Option<(u64, Change)> {
        let mut all = Change::default();
        let mut last = None;
        while let Some((t, g, _)) = self.waiting.front() {
            if !domain.passed(*g) || all.regions.len() >= REGIONS_TOGETHER_MAX {
                break;
            }
            last = Some(*t);
            let (_, _, mut change) = self.waiting.pop_front().unwrap();
            all.regions.append(&mut change.regions);
            all.stale.append(&mut change.stale);
        }
        let is_all =
            |r: &Region| r.from.is_none() && r.mask.words[..PWORDS].iter().all(|w| *w == 0);
        if all.regions.iter().any(is_all) {
            all = Change { regions: vec![Region::ALL], stale: Vec::new() };
        }
        last.map(|t| (t, all))
    }

    /// Begins the search for megaflows of all changes up to `last`. `ends`: numbers of workers, and
    /// the index behind each one's last megaflow.
    pub fn search(&mut self, last: u64, change: Change, ends: Vec<(usize, usize)>) {
        let compared = ends.iter().map(|(worker_no, _)| *worker_no).collect();
        let (regions, stale) = (RegionSet::of(&change.regions), change.stale);
        self.search = Some(Search { last, regions, compared, stale, ahead: ends.into(), from: 0 });
    }

    /// The search under way. A caller that takes it puts it back unless it has ended.
    pub fn searching(&mut self) -> &mut Option<Search> {
        &mut self.search
    }

    /// Completes all changes up to `t`, whose megaflows are marked.
    pub fn close(&mut self, t: u64) {
        self.done = t;
    }

    /// True if no change is under way.
    pub fn none_waiting(&self) -> bool {
        self.waiting.is_empty() && self.search.is_none()
    }

    /// True if the change is complete.
    pub fn is_done(&self, t: Ticket) -> bool {
        t.0 <= self.done
    }
}
