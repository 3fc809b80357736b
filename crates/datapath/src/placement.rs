//! Which worker serves which receive queue: a pure function.

use crate::types::RxqAssign;

/// A receive queue to place.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    /// Core it is pinned to.
    pub pin: Option<usize>,
    /// Measured cost; 0: not measured.
    pub cycles: u64,
    /// Where it is now.
    pub now: Option<usize>,
    /// NUMA node of its port.
    pub numa: usize,
}

/// A core to place on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Core {
    pub id: usize,
    pub numa: usize,
}

/// How much better (1/8) another core must be before a queue moves.
const HYSTERESIS: u64 = 8;

/// A core for each queue; None when there is no core to take. Pinned queues isolate their core; a pin
/// to a core that does not poll is ignored.
pub(crate) fn assign(queues: &[Queue], cores: &[Core], how: RxqAssign) -> Vec<Option<usize>> {
    let exists = |pin: Option<usize>| pin.filter(|p| cores.iter().any(|c| c.id == *p));
    let pins: Vec<Option<usize>> = queues.iter().map(|q| exists(q.pin)).collect();
    let open: Vec<Core> = cores.iter().copied().filter(|c| !pins.contains(&Some(c.id))).collect();
    let mut out = pins.clone();
    let mut order: Vec<usize> = (0..queues.len()).filter(|i| pins[*i].is_none()).collect();
    if how == RxqAssign::Cycles {
        order.sort_by_key(|i| std::cmp::Reverse(queues[*i].cycles));
    }
    let mut load = vec![(0u64, 0usize); open.len()];
    let mut turn = 0;
    for i in order {
        let near: Vec<usize> = on_node(&open, queues[i].numa);
        if near.is_empty() {
            continue;
        }
        let pick = match how {
            RxqAssign::RoundRobin => near[turn % near.len()],
            RxqAssign::Cycles => least(&near, &load, &open, &queues[i]),
        };
        turn += 1;
        load[pick].0 += queues[i].cycles;
        load[pick].1 += 1;
        out[i] = Some(open[pick].id);
    }
    out
}

/// Cores of a node, or all when it has none.
fn on_node(cores: &[Core], numa: usize) -> Vec<usize> {
    let near: Vec<usize> = (0..cores.len()).filter(|c| cores[*c].numa == numa).collect();
    if near.is_empty() { (0..cores.len()).collect() } else { near }
}

/// The least loaded, or where the queue already is when that is about as good.
fn least(near: &[usize], load: &[(u64, usize)], cores: &[Core], q: &Queue) -> usize {
    let best = *near.iter().min_by_key(|c| load[**c]).expect("not empty");
    let stay = near.iter().find(|c| Some(cores[**c].id) == q.now);
    match stay {
        Some(s) if q.cycles > 0 && load[*s].0 <= load[best].0 + q.cycles / HYSTERESIS => *s,
        _ => best,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn q(cycles: u64, pin: Option<usize>, now: Option<usize>) -> Queue {
        Queue { pin, cycles, now, numa: 0 }
    }
    const CORES: [Core; 2] = [Core { id: 1, numa: 0 }, Core { id: 3, numa: 0 }];

    #[test]
    fn costly_queues_are_spread() {
        let qs = [q(10, None, None), q(90, None, None), q(80, None, None)];
        let a = assign(&qs, &CORES, RxqAssign::Cycles);
        assert_eq!(a, [Some(3), Some(1), Some(3)]);
    }

    #[test]
    fn pinned_core_is_isolated() {
        let qs = [q(1, Some(3), None), q(50, None, None), q(60, None, None), q(5, Some(9), None)];
        let a = assign(&qs, &CORES, RxqAssign::Cycles);
        assert_eq!(a, [Some(3), Some(1), Some(1), Some(1)]);
    }

    #[test]
    fn equal_queues_stay_and_unmeasured_ones_spread() {
        let stay = [q(50, None, Some(3)), q(50, None, Some(1))];
        assert_eq!(assign(&stay, &CORES, RxqAssign::Cycles), [Some(3), Some(1)]);
        let new = [q(0, None, None), q(0, None, None)];
        assert_eq!(assign(&new, &CORES, RxqAssign::Cycles), [Some(1), Some(3)]);
        assert_eq!(assign(&new, &CORES, RxqAssign::RoundRobin), [Some(1), Some(3)]);
        assert_eq!(assign(&new, &[], RxqAssign::Cycles), [None, None]);
    }
}
