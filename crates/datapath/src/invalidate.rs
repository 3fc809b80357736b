//! Which rules a change kills, and when it is done.
//!
//! The argument for exactness is in `docs/decisions/0001-per-core-megaflow-table.md`: publish, one
//! grace period, mark overlapping rules dead, done.

use crate::lookup::mask::Words;
use crate::lookup::store::{MASKS, PWORDS, Store};
use crate::types::Ticket;
use action::Region;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use sync::{Domain, Grace};

/// A region on the packet-side lines.
struct Area {
    key: Words,
    mask: Words,
}

impl Area {
    fn of(r: &Region) -> Area {
        let mut mask: Words = r.mask.words[..PWORDS].try_into().unwrap();
        mask[7] = 0;
        Area { key: r.key.words[..PWORDS].try_into().unwrap(), mask }
    }
}

/// Marks every rule that overlaps a region dead; returns them.
pub(crate) fn sweep(store: &Store, regions: &[Region]) -> Vec<u32> {
    let areas: Vec<Area> = regions.iter().map(Area::of).collect();
    // Per (mask, region): the words where both look.
    let plans: Vec<Vec<Plan>> = (0..MASKS)
        .map(|m| {
            let mask = store.mask(m);
            areas.iter().map(|a| Plan::new(a, &mask)).collect()
        })
        .collect();
    let mut dead = Vec::new();
    for i in 1..store.high.load(Ordering::Acquire) {
        let p = store.payload(i);
        if p.usable() && plans[p.mask()].iter().any(|plan| plan.hits(store, i)) && store.kill(i, p)
        {
            dead.push(i);
        }
    }
    dead
}

/// What must agree for a rule of one mask to overlap one region.
struct Plan(Vec<(usize, u64, u64)>);

impl Plan {
    fn new(a: &Area, mask: &Words) -> Plan {
        let both = (0..PWORDS).map(|w| (w, a.mask[w] & mask[w])).filter(|(_, m)| *m != 0);
        Plan(both.map(|(w, m)| (w, m, a.key[w] & m)).collect())
    }

    fn hits(&self, store: &Store, i: u32) -> bool {
        self.0.iter().all(|(w, mask, want)| {
            let have = match w {
                0..7 => store.line(i)[*w],
                _ => store.ext(i)[(w - 8) / 8][w % 8],
            };
            have & mask == *want
        })
    }
}

/// Changes that wait for their grace period.
pub(crate) struct Tickets {
    next: u64,
    done: u64,
    waiting: VecDeque<(u64, Grace, Vec<Region>)>,
}

impl Tickets {
    pub fn new() -> Self {
        Tickets { next: 1, done: 0, waiting: VecDeque::new() }
    }

    /// A new change.
    pub fn open(&mut self, domain: &Domain, regions: &[Region]) -> Ticket {
        let t = self.next;
        self.next += 1;
        self.waiting.push_back((t, domain.grace(), regions.to_vec()));
        Ticket(t)
    }

    /// Regions of all changes whose grace period is over. They are done once `close`d.
    pub fn ready(&mut self, domain: &Domain) -> Option<(u64, Vec<Region>)> {
        let mut all = Vec::new();
        let mut last = None;
        while let Some((t, g, _)) = self.waiting.front() {
            if !domain.passed(*g) {
                break;
            }
            last = Some(*t);
            let (_, _, mut regions) = self.waiting.pop_front().unwrap();
            all.append(&mut regions);
        }
        if all.iter().any(|r| r.mask.words[..PWORDS].iter().all(|w| *w == 0)) {
            all = vec![Region::ALL];
        }
        last.map(|t| (t, all))
    }

    /// The rules of all changes up to `t` are marked.
    pub fn close(&mut self, t: u64) {
        self.done = t;
    }

    /// Is the change complete?
    pub fn is_done(&self, t: Ticket) -> bool {
        t.0 <= self.done
    }
}
