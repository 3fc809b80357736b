//! Handles copies in flight that are complete, that failed, or that never complete.
//!
//! The oldest copies are *settled*, ring by ring: the ring is held, the descriptors of complete
//! copies are marked as used, and these are published to the guest.

use crate::copies::{Copies, LISTS};
use crate::seat::SeatState;
use crate::tally::add;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::{Duration, Instant};
use sync::cycles;

/// An engine that completes no copy for this long hangs, ms: a full engine of 4,096 jumbo frames
/// needs about a millisecond.
pub(crate) static HANG_TIME_MS_MAX: AtomicU32 = AtomicU32::new(100);
/// Polls without a completion between two readings of the clock.
const LOOKS_PER_CLOCK: u32 = 64;
/// Time between two readings that counts at most: while the thread itself did not run it did not
/// look, and what the engine completed meanwhile is seen by the next poll only.
const IDLE_TIME_COUNTED_MAX: Duration = Duration::from_millis(5);
/// Guests that seemed to poll are notified after this many iterations.
const ITERATIONS_PER_NOTICE: u32 = 8;

/// How long an engine has completed nothing.
pub(crate) struct Idle {
    /// The last reading of the clock.
    looked: Instant,
    /// Time between readings, as far as it counts.
    time: Duration,
}

impl Idle {
    fn new() -> Idle {
        Idle { looked: Instant::now(), time: Duration::ZERO }
    }

    /// Reads the clock; returns how long the engine has completed nothing.
    fn look(&mut self) -> Duration {
        let now = Instant::now();
        self.time += (now - self.looked).min(IDLE_TIME_COUNTED_MAX);
        self.looked = now;
        self.time
    }
}

impl Copies {
    /// Copies in flight are made by the CPU: the engine was stopped.
    #[cold]
    pub fn redo(&mut self) {
        let n = self.flights.len();
        self.tally(|tally| add(&tally.redone, n as u64));
        self.settle(n, true);
        LISTS.set(self.engine.is_some() || self.in_flight() > 0);
    }

    /// Settles the copies that the engine has completed.
    pub fn complete(&mut self) {
        let began = self.cost.timed.then(cycles);
        let late = self.late.len();
        for (flight, redo) in std::mem::take(&mut self.late) {
            self.flights.push_front(flight);
            self.settle(1, redo);
        }
        let before = self.in_flight();
        let mut most = self.flights.len();
        while let Some(engine) = &mut self.engine
            && most > 0
        {
            let (n, failed) = engine.completed(most);
            self.tally(|tally| add(&tally.completed, n as u64));
            self.settle(n, false);
            most -= n;
            if !failed {
                break;
            }
            most -= self.complete_failed(most);
        }
        let progress = before - self.flights.len().min(before) + late;
        if let Some(began) = began {
            self.cost.completed(progress, cycles().saturating_sub(began));
        }
        self.tally(|tally| {
            add(&tally.polls, 1);
            add(&tally.polls_empty, u64::from(progress == 0));
        });
        match progress {
            0 => self.watch(),
            _ => (self.idle_looks, self.idle) = (0, None),
        }
        self.notify_guests();
    }

    /// The next copy failed: asks the engine for the result of that copy and of at most `most`
    /// copies from it on. Returns how many results were handled.
    #[cold]
    fn complete_failed(&mut self, most: usize) -> usize {
        let mut statuses = std::mem::take(&mut self.statuses);
        statuses.clear();
        if let Some(engine) = &mut self.engine {
            engine.statuses(most, &mut statuses);
        }
        let failed = statuses.iter().filter(|status| **status != 0).count() as u64;
        self.tally(|tally| {
            add(&tally.completed, statuses.len() as u64);
            add(&tally.errors, failed);
        });
        for status in &statuses {
            if *status != 0 {
                self.blame();
            }
            self.settle(1, *status != 0);
        }
        let n = statuses.len();
        self.statuses = statuses;
        // An engine that reports a failure but no result is not asked again in this iteration.
        if n == 0 { most } else { n }
    }

    /// The oldest copy failed: if too many of its ring do, the CPU makes its port's copies.
    fn blame(&mut self) {
        let Some(known) = self.flights.front().map(|f| &mut self.targets[f.target]) else { return };
        let now = Instant::now();
        if known.failures.add(now)
            && known.shared.counted.barred.begin(now)
            && let Some(seat) = &self.seat
        {
            seat.note_barred(&known.shared.path);
        }
    }

    /// No copy was completed: stops the engine if it hangs.
    fn watch(&mut self) {
        self.idle_looks += 1;
        if !self.idle_looks.is_multiple_of(LOOKS_PER_CLOCK) || self.flights.is_empty() {
            return;
        }
        let hang_time = Duration::from_millis(HANG_TIME_MS_MAX.load(Ordering::Relaxed).into());
        if self.idle.get_or_insert_with(Idle::new).look() < hang_time {
            return;
        }
        (self.idle_looks, self.idle) = (0, None);
        if let (Some(seat), Some(engine)) = (&self.seat, self.engine.take()) {
            seat.put(Some(engine));
            seat.set_state(SeatState::Stuck);
        }
        (self.leaving, self.waiting) = (None, false);
    }

    /// Settles the oldest `n` copies: they are complete, or with `redo` the CPU makes them now.
    fn settle(&mut self, mut n: usize, redo: bool) {
        while n > 0
            && let Some(first) = self.flights.front()
        {
            let target = first.target;
            let row = self.flights.iter().take(n).take_while(|f| f.target == target).count();
            self.settle_row(target, row, redo);
            n -= row;
        }
    }

    /// Settles the oldest `n` copies, which are all of one ring.
    fn settle_row(&mut self, target: usize, n: usize, redo: bool) {
        let Copies { targets, flights, late, gone, .. } = self;
        let known = &mut targets[target];
        let Some(mut held) = known.shared.rings.hold(known.ring) else {
            late.extend(flights.drain(..n).map(|flight| (flight, redo)));
            return;
        };
        let own = held.get().filter(|own| own.id == known.id);
        if let Some(own) = own {
            for flight in flights.drain(..n) {
                if redo {
                    // SAFETY: the ring is held, and keeps the guest's memory mapped; the packet is
                    // not freed yet.
                    unsafe { flight.job.make() };
                }
                own.ring.done(flight.job.slot);
                gone.extend(flight.packet);
            }
            known.to_notify |= own.ring.publish_done();
        } else {
            // The ring was given up with copies in flight.
            flights.drain(..n).for_each(|flight| gone.extend(flight.packet));
        }
        drop(held);
        known.in_flight -= n;
        known.failures.reported += n as u64;
        known.pool.free(gone);
        gone.clear();
    }

    /// Notifies the guests to which descriptors were published, if they want notifications.
    fn notify_guests(&mut self) {
        self.iterations = self.iterations.wrapping_add(1);
        let idle = self.in_flight() == 0;
        if !idle && !self.iterations.is_multiple_of(ITERATIONS_PER_NOTICE)
            || !self.targets.iter().any(|target| target.to_notify)
        {
            return;
        }
        fence(Ordering::SeqCst);
        for target in self.targets.iter_mut().filter(|target| target.to_notify) {
            target.to_notify = false;
            target.shared.notify(target.ring);
        }
    }
}
