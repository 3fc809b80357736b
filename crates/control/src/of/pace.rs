//! A bridge's share of the control thread: however many connections its controllers have, together
//! they work for [`SHARE_TIME`] between two turns of all other work.
//!
//! The connection that uses the share up gives it back when it is polled again: like every task
//! that yields it is not before all others that are ready were polled. Connections that find the
//! share used up wait for it, first come, first served; they are polled meanwhile and do not work.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
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
    /// Connections that wait for it.
    queue: RefCell<VecDeque<u64>>,
    connections: Cell<u64>,
}

impl Pace {
    /// May this connection work now? `waits`: it is in the queue.
    fn admits(&self, number: u64, waits: &mut bool) -> bool {
        self.give_back(number);
        let mut queue = self.queue.borrow_mut();
        let is_free = self.last.get().is_none();
        match queue.front() {
            None if is_free => return true,
            Some(first) if is_free && *first == number => {
                queue.pop_front();
                *waits = false;
                return true;
            }
            _ => {}
        }
        if !std::mem::replace(waits, true) {
            queue.push_back(number);
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

    fn leave(&self, number: u64) {
        self.give_back(number);
        self.queue.borrow_mut().retain(|n| *n != number);
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
pub struct Paced<F: Future> {
    work: Pin<Box<F>>,
    pace: Rc<Pace>,
    number: u64,
    waits: bool,
    /// What the future returned; it is handed on once others had their turn.
    done: Option<F::Output>,
}

impl<F: Future> Paced<F> {
    /// Does `work` with a bridge's share.
    pub fn new(pace: Rc<Pace>, work: F) -> Self {
        let number = pace.connections.get();
        pace.connections.set(number + 1);
        Paced { work: Box::pin(work), pace, number, waits: false, done: None }
    }
}

impl<F: Future> Unpin for Paced<F> {}

impl<F: Future> Future for Paced<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.get_mut();
        if let Some(done) = this.done.take() {
            return Poll::Ready(done);
        }
        if this.pace.admits(this.number, &mut this.waits) {
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

impl<F: Future> Drop for Paced<F> {
    fn drop(&mut self) {
        self.pace.leave(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::task::{LocalSet, spawn_local, yield_now};

    /// Turns of each connection.
    const TURNS: u32 = 4;

    /// Has connections of the given bridges work a whole share each time that they are polled; how
    /// often they worked between two turns of a task that always wants one, and how often in all.
    fn busiest(bridges: &[&str], ends: bool) -> (u32, u32) {
        let worked = Rc::new(Cell::new(0));
        let (mut most, mut before) = (0, 0);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            let paces = Paces::default();
            let tasks: Vec<_> = bridges
                .iter()
                .map(|bridge| {
                    let worked = worked.clone();
                    spawn_local(Paced::new(paces.of(bridge), async move {
                        for _ in 0..if ends { 1 } else { TURNS } {
                            std::thread::sleep(SHARE_TIME);
                            worked.set(worked.get() + 1);
                            if !ends {
                                yield_now().await;
                            }
                        }
                    }))
                })
                .collect();
            while tasks.iter().any(|t| !t.is_finished()) {
                yield_now().await;
                most = most.max(worked.get() - before);
                before = worked.get();
            }
        });
        (most, worked.get())
    }

    #[test]
    fn connections_of_a_bridge_share_its_time() {
        assert_eq!(busiest(&["a"; 20], false), (1, 20 * TURNS));
        assert_eq!(busiest(&["a"; 20], true), (1, 20), "those that end at once, too");
        let two = busiest(&["a", "b", "a", "b", "a", "b"], false);
        assert_eq!(two, (2, 6 * TURNS), "each bridge has its own");
    }

    #[test]
    fn who_leaves_holds_nobody_up() {
        let pace = Rc::new(Pace::default());
        let [a, b, c] = [(); 3].map(|()| Paced::new(pace.clone(), async {}));
        let (mut waits, mut waits_longer) = (false, false);
        assert!(pace.has_spent(a.number, SHARE_TIME));
        assert!(!pace.admits(b.number, &mut waits) && !pace.admits(c.number, &mut waits_longer));
        drop(a);
        assert!(!pace.admits(c.number, &mut waits_longer), "another was there first");
        drop(b);
        assert!(pace.admits(c.number, &mut waits_longer) && !waits_longer);
    }
}
