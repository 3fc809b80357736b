//! Events that wait for the control side, above all the effects of decisions, in one queue for each
//! input port.
//!
//! Each queue of effects has a bounded length, and the control side takes from the ports' queues in
//! turn. So many packets on one port neither displace nor delay what another port's packets teach.
//! Effects that find their queue full are dropped and counted by port; they come again when the
//! megaflow's counters are next folded, a second later, as long as it has traffic.

use crate::events::{Event, PortEffects};
use crate::messages::PORT_EFFECTS_MAX;
use crate::settings::WorkerId;
use crate::stats::perf::Suspicious;
use flow::PortNo;
use std::collections::{BTreeMap, VecDeque};

/// Effects, and the length of a packet that no counter counts.
type Queued = (PortEffects, Option<u32>);

/// Effects that wait for the control side, in one bounded queue for each port.
#[derive(Default)]
pub(crate) struct EffectQueue {
    queues: BTreeMap<PortNo, VecDeque<Queued>>,
    /// Ports whose queues are not empty, the next one first.
    ready: VecDeque<PortNo>,
    /// Dropped effects by port, since they were last handed over.
    lost: BTreeMap<PortNo, u64>,
}

impl EffectQueue {
    /// Queues the effects of a decision about a packet from `port`. `alone`: the packet's length,
    /// if the decision is not stored.
    pub fn push(&mut self, port: PortNo, effects: PortEffects, alone: Option<u32>) {
        let queue = self.queues.entry(port).or_default();
        if queue.len() >= PORT_EFFECTS_MAX {
            return self.lose(port, 1);
        }
        if queue.is_empty() {
            self.ready.push_back(port);
        }
        queue.push_back((effects, alone));
    }

    /// Counts `n` decisions about packets from `port` whose effects were dropped.
    pub fn lose(&mut self, port: PortNo, n: u64) {
        *self.lost.entry(port).or_default() += n;
    }

    /// The next effects; ports take turns.
    pub fn pop(&mut self) -> Option<Queued> {
        let port = self.ready.pop_front()?;
        let queue = self.queues.get_mut(&port)?;
        let effects = queue.pop_front();
        match queue.is_empty() {
            true => _ = self.queues.remove(&port),
            false => self.ready.push_back(port),
        }
        effects
    }

    /// Hands over the counts of dropped effects, and effects until they cost `most`, as `each`
    /// says, one at least. True: there are more.
    pub fn drain(&mut self, most: usize, each: &mut dyn FnMut(Event) -> usize) -> bool {
        for (port, n) in std::mem::take(&mut self.lost) {
            each(Event::PassedOver { port, n });
        }
        let mut n = 0;
        while n < most {
            let Some((effects, alone)) = self.pop() else { return false };
            n += each(Event::Decided { effects, alone }).max(1);
        }
        !self.ready.is_empty()
    }
}

/// Events that workers reported and the control side has not taken.
#[derive(Default)]
pub(crate) struct EventQueue {
    /// Effects of decisions.
    pub effects: EffectQueue,
    /// Differences that the validating mode found.
    pub differences: Vec<Box<str>>,
    /// Iterations that took suspiciously long.
    pub suspicious: Vec<(WorkerId, Box<Suspicious>)>,
}

impl EventQueue {
    /// Hands over all events, of effects at most `most`. True: there are more effects.
    pub fn drain(&mut self, most: usize, each: &mut dyn FnMut(Event) -> usize) -> bool {
        for how in self.differences.drain(..) {
            each(Event::Differs(how));
        }
        for (worker, one) in self.suspicious.drain(..) {
            each(Event::Suspicious(worker, one));
        }
        self.effects.drain(most, each)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn taken(d: &mut EffectQueue, most: usize) -> (Vec<u32>, BTreeMap<PortNo, u64>, bool) {
        let (mut out, mut lost) = (Vec::new(), BTreeMap::new());
        let more = d.drain(most, &mut |e| {
            match e {
                Event::Decided { effects, .. } => out.extend(effects.downcast_ref::<u32>()),
                Event::PassedOver { port, n } => _ = lost.insert(port, n),
                _ => {}
            }
            1
        });
        (out, lost, more)
    }

    #[test]
    fn a_flood_on_one_port_delays_another_by_one() {
        let mut d = EffectQueue::default();
        (0..10_000u32).for_each(|i| d.push(1, Arc::new(i), None));
        d.push(2, Arc::new(77_777u32), None);
        let (first, lost, more) = taken(&mut d, 3);
        assert_eq!((first, more), (vec![0, 77_777, 1], true));
        assert_eq!(lost, BTreeMap::from([(1, 10_000 - PORT_EFFECTS_MAX as u64)]));
        let (rest, lost, more) = taken(&mut d, usize::MAX);
        assert_eq!((rest.len(), more), (PORT_EFFECTS_MAX - 2, false));
        assert!(lost.is_empty() && d.queues.is_empty(), "reported once, nothing left");
    }

    #[test]
    fn few_effects_that_cost_much_are_handed_over_at_once() {
        let mut d = EffectQueue::default();
        (0..20u32).for_each(|i| d.push(1, Arc::new(i), None));
        for left in [16, 12, 8, 4, 0] {
            assert_eq!(d.drain(10, &mut |_| 3), left > 0);
            assert_eq!(d.queues.get(&1).map_or(0, VecDeque::len), left);
        }
    }
}
