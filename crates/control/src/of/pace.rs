//! A bridge's share of the control thread: however many connections its controllers have, together
//! they work for [`SHARE_TIME`] between two turns of all other work.
//!
//! The connection that uses the share up gives it back when it is polled again: like every task
//! that yields it is not before all others that are ready were polled. Connections that find the
//! share used up wait for it; they are polled meanwhile and do not work. The share goes to their
//! peers (processes and hosts) in turn, and within a peer to who waited longest, so that a peer has
//! no more of it for having many connections.

use crate::listener::{EvictionQueue, Peer};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound;
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// What all connections of a bridge may work between two turns of others, give or take a message.
pub const SHARE_TIME: Duration = Duration::from_millis(5);

/// What the connections of one bridge have used of their share.
#[derive(Debug, Default)]
pub struct Pace {
    spent: Cell<Duration>,
    /// The connection that used the share up.
    last: Cell<Option<u64>>,
    queue: RefCell<Queue>,
    connections: Cell<u64>,
}

/// Connections that wait for the share, by their peers. Those that the switch began count as one
/// peer's (None).
#[derive(Debug, Default)]
struct Queue {
    waiting: BTreeMap<Option<Peer>, VecDeque<u64>>,
    /// The peer that had the share last.
    served: Option<Peer>,
}

impl Queue {
    /// The peer whose turn it is.
    fn next(&self) -> Option<Option<Peer>> {
        let behind = (Bound::Excluded(self.served), Bound::Unbounded);
        let first = self.waiting.range(behind).next().or_else(|| self.waiting.iter().next());
        first.map(|(peer, _)| *peer)
    }

    /// The connection whose turn it is.
    fn first(&self) -> Option<u64> {
        self.waiting[&self.next()?].front().copied()
    }

    fn push(&mut self, peer: Option<Peer>, number: u64) {
        self.waiting.entry(peer).or_default().push_back(number);
    }

    /// A connection waits no more.
    fn remove(&mut self, peer: Option<Peer>, number: u64) {
        let Some(queue) = self.waiting.get_mut(&peer) else { return };
        queue.retain(|n| *n != number);
        if queue.is_empty() {
            self.waiting.remove(&peer);
        }
    }
}

impl Pace {
    /// True if this connection may work now. `waits`: it is in the queue.
    fn admits(&self, peer: Option<Peer>, number: u64, waits: &mut bool) -> bool {
        self.give_back(number);
        let mut queue = self.queue.borrow_mut();
        let first = queue.first();
        if self.last.get().is_none() && first.is_none_or(|first| first == number) {
            queue.served = peer;
            if std::mem::take(waits) {
                queue.remove(peer, number);
            }
            return true;
        }
        if !std::mem::replace(waits, true) {
            queue.push(peer, number);
        }
        false
    }

    /// A connection has worked; true: the share is used up.
    fn has_spent(&self, number: u64, time: Duration) -> bool {
        self.spent.set(self.spent.get() + time);
        let over = self.spent.get() >= SHARE_TIME;
        if over {
            self.last.set(Some(number));
        }
        over
    }

    /// The share is there again, if it was this connection that used it up.
    fn give_back(&self, number: u64) {
        if self.last.get() == Some(number) {
            self.last.set(None);
            self.spent.set(Duration::ZERO);
        }
    }
}

/// The shares of all bridges that have connections.
#[derive(Debug, Default)]
pub struct Paces(RefCell<HashMap<String, Weak<Pace>>>);

impl Paces {
    /// A bridge's.
    pub fn of(&self, bridge: &str) -> Rc<Pace> {
        let mut all = self.0.borrow_mut();
        if let Some(pace) = all.get(bridge).and_then(Weak::upgrade) {
            return pace;
        }
        all.retain(|_, pace| pace.strong_count() > 0);
        let pace = Rc::default();
        all.insert(bridge.into(), Rc::downgrade(&pace));
        pace
    }
}

/// A connection's work, which keeps to its bridge's share.
pub struct Paced<'a, F: Future> {
    work: Pin<Box<F>>,
    pace: Rc<Pace>,
    eviction: &'a EvictionQueue,
    number: u64,
    waits: bool,
    /// What the future returned; it is handed on once others had their turn.
    done: Option<F::Output>,
}

impl<'a, F: Future> Paced<'a, F> {
    /// Does `work` with a bridge's share. A connection that is to make room does not wait for the
    /// share.
    pub fn new(pace: Rc<Pace>, eviction: &'a EvictionQueue, work: F) -> Self {
        let number = pace.connections.get();
        pace.connections.set(number + 1);
        Paced { work: Box::pin(work), pace, eviction, number, waits: false, done: None }
    }

    fn may_work(&mut self) -> bool {
        self.pace.admits(self.eviction.peer(), self.number, &mut self.waits)
            || self.eviction.is_evicted()
    }
}

impl<F: Future> Unpin for Paced<'_, F> {}

impl<F: Future> Future for Paced<'_, F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.get_mut();
        if let Some(done) = this.done.take() {
            return Poll::Ready(done);
        }
        if this.may_work() {
            let since = Instant::now();
            let work = this.work.as_mut().poll(cx);
            if !this.pace.has_spent(this.number, since.elapsed()) {
                return work;
            }
            if let Poll::Ready(done) = work {
                this.done = Some(done);
            }
        }
        // Polled again, after all others that are ready.
        let _ = pin!(tokio::task::yield_now()).poll(cx);
        Poll::Pending
    }
}

impl<F: Future> Drop for Paced<'_, F> {
    fn drop(&mut self) {
        self.pace.give_back(self.number);
        if self.waits {
            self.pace.queue.borrow_mut().remove(self.eviction.peer(), self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listener::ConnectionSlots;
    use tokio::task::{LocalSet, spawn_local, yield_now};

    /// Turns of each connection.
    const TURNS: u32 = 4;

    /// A connection of this process.
    async fn connection(process: i32) -> crate::listener::ConnectionSlot {
        let slots = ConnectionSlots::new(1);
        slots.take(Peer::Process(process)).await.expect("a place")
    }

    /// Has connections of the given bridges and processes work a whole share each time that they
    /// are polled; how often they worked between two turns of a task that always wants one, and
    /// the processes in the order in which they worked.
    fn busiest(of: &[(&str, i32)], turns: u32) -> (usize, Vec<i32>) {
        let worked = Rc::new(RefCell::new(Vec::new()));
        let (mut most, mut before) = (0, 0);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            let paces = Paces::default();
            let start = |&(bridge, process): &(&str, i32)| {
                let (worked, pace) = (worked.clone(), paces.of(bridge));
                spawn_local(async move {
                    let slot = connection(process).await;
                    let work = async {
                        for _ in 0..turns {
                            std::thread::sleep(SHARE_TIME);
                            worked.borrow_mut().push(process);
                            if turns > 1 {
                                yield_now().await;
                            }
                        }
                    };
                    Paced::new(pace, slot.eviction(), work).await;
                })
            };
            let tasks: Vec<_> = of.iter().map(start).collect();
            while tasks.iter().any(|t| !t.is_finished()) {
                yield_now().await;
                most = most.max(worked.borrow().len() - before);
                before = worked.borrow().len();
            }
        });
        (most, worked.take())
    }

    #[test]
    fn connections_of_a_bridge_share_its_time() {
        let count = |of: &[(&str, i32)], turns| {
            let (most, worked) = busiest(of, turns);
            (most, worked.len())
        };
        assert_eq!(count(&[("a", 1); 20], TURNS), (1, 20 * TURNS as usize));
        assert_eq!(count(&[("a", 1); 20], 1), (1, 20), "those that end at once, too");
        let two = count(&[("a", 1), ("b", 1)].repeat(3), TURNS);
        assert_eq!(two, (2, 6 * TURNS as usize), "each bridge has its own");
    }

    #[test]
    fn a_peer_has_its_turn_however_many_connections_another_one_has() {
        let mut of = vec![("a", 1); 20];
        of.push(("a", 2));
        let (_, worked) = busiest(&of, TURNS);
        let last = worked.iter().rposition(|p| *p == 2).expect("it worked");
        assert!(last <= 2 * TURNS as usize, "{worked:?}");
    }

    #[tokio::test]
    async fn who_leaves_holds_no_other_up() {
        let (pace, slot) = (Rc::new(Pace::default()), connection(1).await);
        let [a, mut b, mut c] =
            [(); 3].map(|()| Paced::new(pace.clone(), slot.eviction(), async {}));
        assert!(pace.has_spent(a.number, SHARE_TIME));
        assert!(!b.may_work() && !c.may_work());
        drop(a);
        assert!(!c.may_work(), "another was there first");
        drop(b);
        assert!(c.may_work() && !c.waits);
    }

    #[tokio::test]
    async fn who_must_make_room_does_not_wait_for_the_share() {
        let (pace, slots) = (Rc::new(Pace::default()), ConnectionSlots::new(1));
        let slot = slots.take(Peer::Process(1)).await.expect("a place");
        let mut waits = Paced::new(pace.clone(), slot.eviction(), slot.eviction().evicted());
        assert!(pace.has_spent(u64::MAX, SHARE_TIME) && !waits.may_work());
        assert!(slots.take(Peer::Process(2)).await.is_none(), "nothing polls the first one");
        waits.await;
        drop(slot);
        assert!(slots.take(Peer::Process(2)).await.is_some());
    }
}
