//! How receive queues share a vector of 256 packets.
//!
//! A queue is saturated if its last poll returned as many packets as it was asked for, and light if
//! it returned less than half a burst. Saturated queues divide the room that the others leave.
//! While there is a saturated queue, light queues are polled only for every second vector. With one
//! busy port and many guests, vectors of packets to the guests then alternate with vectors of the
//! guests' replies, and each guest's queue is served for several packets at once. Without a
//! saturated queue all queues are polled for every vector.

use packet::{BURST, VECTOR};

/// Number of light queues from which on the packets of saturated queues are assumed to go to many
/// ports.
const LIGHT_RXQS_MIN: usize = 8;

/// What a queue did when it was last polled.
#[derive(Clone, Copy, Default)]
pub(crate) struct RxqState {
    last_burst: u16,
    saturated: bool,
    deferred: bool,
}

impl RxqState {
    /// Records that a poll for up to `limit` packets returned `n`.
    #[inline]
    pub fn polled(&mut self, limit: usize, n: usize) {
        *self = RxqState { last_burst: n as u16, saturated: n >= limit, deferred: false };
    }

    /// Records that the vector had no room left for this queue: it is polled first for the next
    /// one.
    pub fn defer(&mut self) {
        self.deferred = true;
    }

    /// True if the last poll returned nothing.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.last_burst == 0
    }

    fn is_light(&self) -> bool {
        !self.saturated && usize::from(self.last_burst) < BURST / 2
    }
}

/// How many packets of the next vector each queue may fill.
pub(crate) struct RxSchedule {
    /// True if there are saturated queues.
    busy: bool,
    /// Packets that one queue may return, at most.
    pub limit: usize,
}

impl RxSchedule {
    /// The schedule that follows from what the queues did when they were last polled.
    pub fn new(queues: &[RxqState]) -> RxSchedule {
        let (mut active, mut saturated, mut light, mut expected) = (0, 0, 0, 0);
        for queue in queues.iter().filter(|queue| !queue.is_idle()) {
            active += 1;
            saturated += usize::from(queue.saturated);
            light += usize::from(queue.is_light());
            let comes = !queue.saturated && (queue.deferred || !queue.is_light());
            expected += if comes { usize::from(queue.last_burst) } else { 0 };
        }
        // Half a vector if all of it may go to one port: that port's ring may be no longer than
        // that.
        let most = if active <= 1 || light >= LIGHT_RXQS_MIN { VECTOR } else { VECTOR / 2 };
        let left = VECTOR.saturating_sub(expected);
        let limit = if saturated <= 1 { left } else { left / saturated };
        RxSchedule { busy: saturated > 0, limit: limit.clamp(BURST, most) }
    }
}

/// Writes the queues to poll to `poll_order`: deferred ones first, then the others, both beginning
/// with number `first`.
pub(crate) fn choose(
    queues: &mut [RxqState],
    schedule: &RxSchedule,
    first: usize,
    poll_order: &mut Vec<usize>,
) {
    poll_order.clear();
    each_from(queues.len(), first, |q| {
        if queues[q].deferred {
            poll_order.push(q);
        }
    });
    each_from(queues.len(), first, |q| {
        let queue = &mut queues[q];
        match queue.deferred {
            true => {}
            false if schedule.busy && queue.is_light() => queue.deferred = true,
            false => poll_order.push(q),
        }
    });
}

/// Calls `each` with the numbers 0 to `n` - 1, beginning with `first`.
#[inline]
fn each_from(n: usize, first: usize, mut each: impl FnMut(usize)) {
    (first..n).for_each(&mut each);
    (0..first).for_each(each);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One vector of queues with so much in each; what is asked is taken. What each brought.
    fn step(queues: &mut [RxqState], have: &mut [usize], first: &mut usize) -> Vec<Option<usize>> {
        let schedule = RxSchedule::new(queues);
        let mut brought = vec![None; queues.len()];
        let (mut room, mut poll_order) = (VECTOR, Vec::new());
        choose(queues, &schedule, *first, &mut poll_order);
        *first = (*first + 1) % queues.len();
        for (k, q) in poll_order.iter().copied().enumerate() {
            let limit = schedule.limit.min(room);
            if limit == 0 {
                poll_order[k..].iter().for_each(|q| queues[*q].defer());
                *first = q;
                break;
            }
            let n = have[q].min(limit);
            queues[q].polled(limit, n);
            have[q] -= n;
            room -= n;
            brought[q] = Some(n);
        }
        brought
    }

    #[test]
    fn alone_a_queue_fills_the_vector_and_two_share_it() {
        for (n, each) in [(1, VECTOR), (2, VECTOR / 2), (4, VECTOR / 4), (8, BURST)] {
            let (mut queues, mut have) = (vec![RxqState::default(); n], vec![100_000; n]);
            let mut first = 0;
            for _ in 0..20 {
                step(&mut queues, &mut have, &mut first);
            }
            assert_eq!(step(&mut queues, &mut have, &mut first), vec![Some(each); n]);
        }
    }

    /// A port that always has packets, and guests that answer each.
    #[test]
    fn many_guests_are_dealt_with_for_several_packets_at_once() {
        const GUESTS: usize = 32;
        let mut queues = vec![RxqState::default(); GUESTS + 1];
        let mut have = vec![0; GUESTS + 1];
        let (mut to, mut asked, mut came) = (0, 0, 0);
        let mut first = 0;
        for i in 0..400 {
            have[GUESTS] = VECTOR;
            let last_burst = step(&mut queues, &mut have, &mut first);
            for _ in 0..last_burst[GUESTS].unwrap_or(0) {
                have[to % GUESTS] += 1;
                to += 1;
            }
            if i >= 100 {
                let guests = last_burst[..GUESTS].iter().flatten();
                asked += guests.clone().count();
                came += guests.sum::<usize>();
            }
        }
        assert!(came >= 6 * asked, "{came} packets in {asked} bursts");
        assert!(have[..GUESTS].iter().all(|n| *n <= 3 * BURST), "{have:?}");
    }

    #[test]
    fn queues_are_deferred_only_beside_a_saturated_one_and_never_twice() {
        let (mut queues, mut have, mut first) = (vec![RxqState::default(); 3], vec![0; 3], 0);
        for _ in 0..5 {
            have.fill(3);
            assert_eq!(step(&mut queues, &mut have, &mut first), vec![Some(3); 3]);
        }
        have[0] = 10_000;
        for _ in 0..5 {
            let twice = [0, 1].map(|_| step(&mut queues, &mut have, &mut first));
            assert!((0..3).all(|q| twice.iter().any(|last_burst| last_burst[q].is_some())));
        }
    }
}
