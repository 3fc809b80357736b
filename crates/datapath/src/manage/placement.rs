//! Placement: which core polls which receive queue. A pure function.

use crate::manage::topology::Core;
use crate::settings::RxqAssign;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// A receive queue to place.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    /// The core to which the queue is pinned.
    pub pin: Option<usize>,
    /// Measured cost in cycles; 0: not measured.
    pub cycles: u64,
    /// The core that polls it now.
    pub now: Option<usize>,
    /// NUMA node of its port.
    pub numa: usize,
}

/// A queue stays on its core unless another core's load is lower by more than one part in this many
/// of the queue's own cycles.
const HYSTERESIS: u64 = 8;

/// Chooses a core for each queue; None: no core can take it. `isolate`: a core with a pinned queue
/// takes no others. A pin to a core without a PMD thread is ignored.
pub(crate) fn assign(
    queues: &[Queue],
    cores: &[Core],
    how: RxqAssign,
    isolate: bool,
) -> Vec<Option<usize>> {
    let at = |id: usize| cores.iter().position(|c| c.id == id);
    let mut out: Vec<Option<usize>> = queues.iter().map(|q| q.pin.and_then(at)).collect();
    let mut filling = Filling::new(cores);
    for (q, core) in queues.iter().zip(&out) {
        core.iter().for_each(|c| filling.add(*c, q.cycles));
    }
    let open: Vec<usize> =
        (0..cores.len()).filter(|c| !isolate || !out.contains(&Some(*c))).collect();
    let mut order: Vec<usize> = (0..queues.len()).filter(|i| out[*i].is_none()).collect();
    if how != RxqAssign::RoundRobin {
        order.sort_by_key(|i| Reverse(queues[*i].cycles));
    }
    // Number of queues that were placed in turn, by the cores among which they were.
    let mut placed = BTreeMap::<Vec<usize>, usize>::new();
    for i in order {
        let q = &queues[i];
        let near = on_node(&open, cores, q.numa);
        let pick = match how {
            _ if near.is_empty() => continue,
            RxqAssign::RoundRobin => {
                let count = placed.entry(near.clone()).or_default();
                *count += 1;
                near[(*count - 1) % near.len()]
            }
            RxqAssign::Cycles => filling.pick(&near, q, true),
            RxqAssign::Group => filling.pick(&near, q, false),
        };
        filling.add(pick, q.cycles);
        out[i] = Some(pick);
    }
    out.into_iter().map(|c| Some(cores[c?].id)).collect()
}

/// How uneven the load of the cores is: the variance of their shares of all cycles, in percent
/// squared. Only `cores` count.
pub(crate) fn variance(queues: &[Queue], cores: &[Core], at: &[Option<usize>]) -> u64 {
    let total: u64 = queues.iter().map(|q| q.cycles).sum::<u64>().max(1);
    let on = |id: usize| queues.iter().zip(at).filter(move |(_, c)| **c == Some(id));
    let share =
        |c: &Core| on(c.id).map(|(q, _)| q.cycles).sum::<u64>() as f64 * 100.0 / total as f64;
    let n = cores.len().max(1) as f64;
    let mean = cores.iter().map(share).sum::<f64>() / n;
    (cores.iter().map(|c| (share(c) - mean).powi(2)).sum::<f64>() / n) as u64
}

/// The open cores of a NUMA node; if there are none on that node, all open cores.
fn on_node(open: &[usize], cores: &[Core], numa: usize) -> Vec<usize> {
    let near: Vec<usize> = open.iter().copied().filter(|c| cores[*c].numa == numa).collect();
    if near.is_empty() { open.to_vec() } else { near }
}

/// The queues and cycles that each core has got so far.
struct Filling<'a> {
    cores: &'a [Core],
    cycles: Vec<u64>,
    queues: Vec<usize>,
    /// Number of the placement that each core got last.
    last: Vec<usize>,
    placed: usize,
    fastest: u64,
}

impl<'a> Filling<'a> {
    fn new(cores: &'a [Core]) -> Self {
        let fastest = cores.iter().map(|c| c.khz).max().unwrap_or(0);
        let n = cores.len();
        let (cycles, queues, last) = (vec![0; n], vec![0; n], vec![0; n]);
        Filling { cores, cycles, queues, last, placed: 0, fastest }
    }

    fn add(&mut self, core: usize, cycles: u64) {
        self.cycles[core] += cycles;
        self.queues[core] += 1;
        self.placed += 1;
        self.last[core] = self.placed;
    }

    /// The load of a core: its own cycles and half of its hyper-thread siblings', scaled up for a
    /// slower core.
    fn load(&self, core: usize) -> u64 {
        let me = &self.cores[core];
        let sibling = |c: &usize| *c != core && self.cores[*c].siblings == me.siblings;
        let others: u64 = (0..self.cores.len()).filter(sibling).map(|c| self.cycles[c]).sum();
        let sum = u128::from(self.cycles[core] + others / 2);
        match me.khz {
            0 => sum as u64,
            khz => (sum * u128::from(self.fastest) / u128::from(khz)) as u64,
        }
    }

    /// Number of queues on the core, and on the core and its siblings.
    fn count(&self, core: usize) -> (usize, usize) {
        let mine = self.cores[core].siblings;
        let all = (0..self.cores.len()).filter(|c| self.cores[*c].siblings == mine);
        (self.queues[core], all.map(|c| self.queues[c]).sum())
    }

    /// The core with the least load, or the queue's present core if that is about as good. `even`:
    /// no core gets two queues more than another; among equal cores the order then alternates, so
    /// that no core gets the most expensive queue of every round.
    fn pick(&self, near: &[usize], q: &Queue, even: bool) -> usize {
        let rank = |c: usize| {
            let (own, shared) = self.count(c);
            let (first, last) = if even { (own, self.last[c]) } else { (0, 0) };
            (first, self.load(c), shared, own, Reverse(self.cores[c].khz), Reverse(last), c)
        };
        let best = near.iter().copied().map(rank).min().map_or(near[0], |r| r.6);
        let stay = near.iter().copied().find(|c| Some(self.cores[*c].id) == q.now);
        let good = |s: &usize| {
            (!even || self.queues[*s] == self.queues[best])
                && self.load(*s) <= self.load(best) + q.cycles / HYSTERESIS
        };
        stay.filter(good).filter(|_| q.cycles > 0).unwrap_or(best)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn q(cycles: u64, pin: Option<usize>, now: Option<usize>) -> Queue {
        Queue { pin, cycles, now, numa: 0 }
    }
    fn core(id: usize, siblings: usize, khz: u64) -> Core {
        Core { id, numa: 0, khz, siblings }
    }
    const CORES: [Core; 2] = [
        Core { id: 1, numa: 0, khz: 0, siblings: 1 },
        Core { id: 3, numa: 0, khz: 0, siblings: 3 },
    ];

    #[test]
    fn costly_queues_are_spread() {
        let qs = [q(10, None, None), q(90, None, None), q(80, None, None)];
        let a = assign(&qs, &CORES, RxqAssign::Cycles, true);
        assert_eq!(a, [Some(3), Some(1), Some(3)]);
    }

    #[test]
    fn cycles_keeps_numbers_even_and_group_the_load() {
        let qs = [q(90, None, None), q(10, None, None), q(9, None, None), q(8, None, None)];
        let even = assign(&qs, &CORES, RxqAssign::Cycles, true);
        assert_eq!(even, [Some(1), Some(3), Some(3), Some(1)]);
        let least = assign(&qs, &CORES, RxqAssign::Group, true);
        assert_eq!(least, [Some(1), Some(3), Some(3), Some(3)]);
        assert!(variance(&qs, &CORES, &least) < variance(&qs, &CORES, &even));
    }

    #[test]
    fn pinned_core_is_isolated_unless_told_otherwise() {
        let qs = [q(1, Some(3), None), q(50, None, None), q(60, None, None), q(5, Some(9), None)];
        let a = assign(&qs, &CORES, RxqAssign::Cycles, true);
        assert_eq!(a, [Some(3), Some(1), Some(1), Some(1)]);
        let a = assign(&qs, &CORES, RxqAssign::Group, false);
        assert_eq!(a, [Some(3), Some(3), Some(1), Some(3)]);
    }

    #[test]
    fn equal_queues_stay_and_unmeasured_ones_spread() {
        let stay = [q(50, None, Some(3)), q(50, None, Some(1))];
        assert_eq!(assign(&stay, &CORES, RxqAssign::Cycles, true), [Some(3), Some(1)]);
        let new = [q(0, None, None), q(0, None, None)];
        for how in [RxqAssign::Cycles, RxqAssign::Group, RxqAssign::RoundRobin] {
            assert_eq!(assign(&new, &CORES, how, true), [Some(1), Some(3)]);
            assert_eq!(assign(&new, &[], how, true), [None, None]);
        }
    }

    #[test]
    fn queues_not_measured_go_to_and_fro_or_round() {
        let new = vec![q(0, None, None); 8];
        let on_first = |how| {
            let at = assign(&new, &CORES, how, true);
            (0..8).filter(|i| at[*i] == Some(1)).collect::<Vec<_>>()
        };
        assert_eq!(on_first(RxqAssign::Cycles), [0, 3, 4, 7]);
        assert_eq!(on_first(RxqAssign::Group), [0, 2, 4, 6]);
        assert_eq!(on_first(RxqAssign::RoundRobin), [0, 2, 4, 6]);
    }

    #[test]
    fn priority_cores_and_whole_cores_come_first() {
        let cores = [core(0, 0, 2_100_000), core(1, 1, 2_700_000), core(2, 0, 2_100_000)];
        let new = [q(0, None, None), q(0, None, None), q(0, None, None)];
        // The fast core, then one of the siblings, then the other.
        let a = assign(&new, &cores, RxqAssign::Group, true);
        assert_eq!(a, [Some(1), Some(0), Some(2)]);
        // Two equal loads do not share a physical core while another one is idle.
        let two = [q(100, Some(0), None), q(100, None, None)];
        assert_eq!(assign(&two, &cores, RxqAssign::Group, true), [Some(0), Some(1)]);
        // The same load weighs more on a slow core.
        let cores = [core(0, 0, 2_000_000), core(1, 1, 3_000_000)];
        let three = [q(100, None, None), q(60, None, None), q(30, None, None)];
        assert_eq!(
            assign(&three, &cores, RxqAssign::Group, true),
            [Some(1), Some(0), Some(0)],
            "100 on the fast core are 100, 60 on the slow one are 90"
        );
    }

    #[test]
    fn a_port_goes_to_cores_of_its_node() {
        let cores = [core(0, 0, 0), Core { id: 5, numa: 1, khz: 0, siblings: 5 }];
        let far = Queue { numa: 1, ..q(7, None, None) };
        let nowhere = Queue { numa: 2, ..q(9, None, None) };
        let a = assign(&[q(9, None, None), far, nowhere], &cores, RxqAssign::Group, true);
        assert_eq!(a, [Some(0), Some(5), Some(5)]);
        let cores = [core(0, 0, 0), core(1, 1, 0), Core { id: 5, numa: 1, khz: 0, siblings: 5 }];
        let new = q(0, None, None);
        let far = Queue { numa: 1, ..new.clone() };
        let a = assign(&[far, new.clone(), new], &cores, RxqAssign::RoundRobin, true);
        assert_eq!(a, [Some(5), Some(0), Some(1)], "each node has an order of its own");
    }
}
