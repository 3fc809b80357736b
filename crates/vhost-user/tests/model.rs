//! A model: a thread that moves packets, the control side that takes its engine back or stops it,
//! and a connection that takes a ring and its memory away, in every order that the memory model
//! allows. Seats and rings' places are the crates' own source, compiled with loom's atomics; what
//! `copies.rs`, `completions.rs` and `Shared::take` do with them is repeated here in small.

#[allow(dead_code)]
#[path = "../../sync/src/place.rs"]
mod place;
#[allow(dead_code)]
#[path = "../src/seat.rs"]
mod seat;

/// What `src/atomics.rs`, and that of `sync`, are outside a model.
mod atomics {
    pub use loom::cell::UnsafeCell;
    pub use loom::sync::Mutex as Handed;
    pub use loom::sync::atomic::{AtomicBool, Ordering};

    /// Loom takes a store for newer or older, as it likes, than an exchange that read what the same
    /// thread had stored before, where it can only be newer. So stores are exchanges here.
    pub struct AtomicU8(loom::sync::atomic::AtomicU8);

    impl AtomicU8 {
        pub fn new(value: u8) -> AtomicU8 {
            AtomicU8(loom::sync::atomic::AtomicU8::new(value))
        }

        pub fn load(&self, order: Ordering) -> u8 {
            self.0.load(order)
        }

        pub fn store(&self, value: u8, order: Ordering) {
            self.0.swap(value, order);
        }

        pub fn compare_exchange(
            &self,
            from: u8,
            to: u8,
            success: Ordering,
            failure: Ordering,
        ) -> Result<u8, u8> {
            self.0.compare_exchange(from, to, success, failure)
        }
    }

    pub fn wait(_attempts: usize) {
        loom::thread::yield_now();
    }
}

/// Counters, which no order depends on.
#[allow(dead_code)]
mod tally {
    #[derive(Clone, Copy, Default)]
    pub struct Tallied {
        pub in_flight_max: u64,
        pub others: (),
    }

    #[derive(Default)]
    pub struct Tally {
        counters: (),
    }

    impl Tally {
        pub fn read(&self) -> Tallied {
            Tallied::default()
        }

        pub fn clear(&self) {}
    }

    impl Tallied {
        pub fn since(&self, _before: &Tallied) -> Tallied {
            *self
        }
    }
}

use loom::cell::Cell;
use loom::thread;
use place::Place;
use seat::{Order, Seat, SeatState};
use std::sync::Arc;
use vhost::{Engine, Job};

/// Times that a thread is interrupted where it need not be, in one execution.
const PREEMPTIONS_MAX: usize = 2;
/// Turns of the thread before it ends: in the last, an order may replace one that it carries out.
const TURNS: usize = 2;
/// Looks of a side that waits, before it waits for the others' end instead: a thread that waits
/// for ever has ever more orders to be tried.
const LOOKS_MAX: usize = 3;

/// A guest's memory. Plain: loom reports accesses that nothing orders.
struct Memory {
    mapped: Cell<bool>,
}

// SAFETY: what the model is to show; loom checks it.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn touch(&self) {
        assert!(self.mapped.get(), "a copy after its memory went");
    }
}

/// An engine that makes its copies as late as it may: when they are reported or, if it hangs, while
/// it is being stopped.
struct Late {
    memory: Arc<Memory>,
    in_flight: usize,
    hangs: bool,
}

impl Engine for Late {
    fn room(&mut self) -> usize {
        1
    }

    unsafe fn copy(&mut self, jobs: &[Job]) -> usize {
        self.in_flight += jobs.len();
        jobs.len()
    }

    fn submit(&mut self) {}

    fn completed(&mut self, max: usize) -> (usize, bool) {
        if self.hangs {
            return (0, false);
        }
        let n = self.in_flight.min(max);
        (0..n).for_each(|_| self.memory.touch());
        self.in_flight -= n;
        (n, false)
    }

    fn statuses(&mut self, _max: usize, _out: &mut Vec<u32>) {}

    fn stop(&mut self) {
        (0..self.in_flight).for_each(|_| self.memory.touch());
        self.in_flight = 0;
    }
}

/// A guest's ring.
#[derive(Default)]
struct Ring {
    in_flight: usize,
    closing: bool,
}

/// What the threads share.
struct World {
    seat: Arc<Seat>,
    ring: Place<Ring>,
    memory: Arc<Memory>,
}

/// The thread that moves packets: `Copies`.
struct Mover {
    world: Arc<World>,
    engine: Option<Box<dyn Engine>>,
    leaving: Option<SeatState>,
    in_flight: usize,
    /// Copies that were reported while the ring was held by another thread; they have to be made.
    late: Option<(usize, bool)>,
}

impl Mover {
    fn is_busy(&self) -> bool {
        self.in_flight > 0 || self.late.is_some()
    }

    fn carry_out(&mut self) {
        let seat = &self.world.seat.clone();
        let order = seat.order();
        match order {
            Order::None => return,
            Order::Take => {
                self.engine = seat.put(None);
                seat.set_state(SeatState::Working);
            }
            Order::Leave if self.engine.is_some() => self.leaving = Some(SeatState::Returned),
            Order::Leave => {}
            Order::Redo => self.settle(self.in_flight, true),
        }
        seat.carried_out(order);
    }

    fn turn(&mut self) {
        self.carry_out();
        self.complete();
        if self.leaving.is_some() && !self.is_busy() {
            self.give_back();
        }
        self.send();
    }

    /// A burst to the guest, of one packet that the engine copies.
    fn send(&mut self) {
        let world = self.world.clone();
        let (Some(engine), None) = (&mut self.engine, self.leaving) else { return };
        if let Some(mut held) = world.ring.try_hold()
            && let Some(own) = held.get()
            && !own.closing
        {
            let job = Job { from: std::ptr::null(), to: std::ptr::null_mut(), len: 1, slot: 0 };
            // SAFETY: this engine follows no addresses.
            let n = unsafe { engine.copy(&[job]) };
            own.in_flight += n;
            self.in_flight += n;
        }
    }

    fn complete(&mut self) {
        if let Some((n, redo)) = self.late.take() {
            self.in_flight += n;
            self.settle(n, redo);
        }
        let Some(engine) = self.engine.as_mut().filter(|_| self.in_flight > 0) else { return };
        match engine.completed(self.in_flight) {
            (0, _) => {
                // It hangs.
                let engine = self.engine.take();
                self.world.seat.put(engine);
                self.world.seat.set_state(SeatState::Stuck);
                self.leaving = None;
            }
            (n, _) => self.settle(n, false),
        }
    }

    fn settle(&mut self, n: usize, redo: bool) {
        if n == 0 {
            return;
        }
        let world = self.world.clone();
        self.in_flight -= n;
        let Some(mut held) = world.ring.try_hold() else {
            self.late = Some((n, redo));
            return;
        };
        if let Some(own) = held.get() {
            if redo {
                world.memory.touch();
            }
            own.in_flight -= n;
        }
    }

    fn give_back(&mut self) {
        let Some(state) = self.leaving.take() else { return };
        if let Some(engine) = self.engine.take() {
            self.world.seat.put(Some(engine));
            self.world.seat.set_state(state);
        }
    }

    /// True: the thread has ended.
    fn leave_seat(&mut self) -> bool {
        let seat = self.world.seat.clone();
        for _ in 0..LOOKS_MAX {
            if !self.is_busy() {
                self.leaving.get_or_insert(SeatState::Returned);
                self.give_back();
                seat.set_gone();
                return true;
            }
            self.complete();
            if self.engine.is_none() {
                if let Some(mut engine) = seat.put(None) {
                    engine.stop();
                    self.settle(self.in_flight, true);
                    (self.engine, self.leaving) = (Some(engine), Some(SeatState::Stuck));
                } else if seat.order() == Order::Redo {
                    self.settle(self.in_flight, true);
                }
            }
            thread::yield_now();
        }
        false
    }
}

/// `Shared::take`, after which the connection unmaps the guest's memory; gives up after some looks.
/// True: done.
fn take(world: &World) -> bool {
    for _ in 0..LOOKS_MAX {
        let is_quiet = world.ring.try_hold().is_some_and(|mut held| {
            let own = held.get().expect("the ring is taken once");
            own.closing = true;
            own.in_flight == 0
        });
        if is_quiet {
            assert!(world.ring.put(None).is_some());
            world.memory.mapped.set(false);
            return true;
        }
        thread::yield_now();
    }
    false
}

/// `Engines::look`, some times. True: the engine is back.
fn control(seat: &Seat) -> bool {
    for _ in 0..LOOKS_MAX {
        let is_settled = seat.is_settled() && !seat.is_gone();
        match seat.state() {
            SeatState::Stuck => {
                if let Some(mut engine) = seat.take_back() {
                    engine.stop();
                    seat.stopped();
                    return true;
                }
            }
            SeatState::Returned => {
                // It has nothing to do: stopping it touches no memory.
                seat.take_back().expect("it was given back").stop();
                return true;
            }
            SeatState::Working if is_settled => seat.recall(),
            _ => {}
        }
        thread::yield_now();
    }
    false
}

fn run(hangs: bool) {
    let memory = Arc::new(Memory { mapped: Cell::new(true) });
    let world = Arc::new(World { seat: Seat::new(0), ring: Place::default(), memory });
    world.ring.put(Some(Ring::default()));
    let memory = world.memory.clone();
    world.seat.give(Box::new(Late { memory, in_flight: 0, hangs }));
    let (engine, leaving, late) = (None, None, None);
    let mut mover = Mover { world: world.clone(), engine, leaving, in_flight: 0, late };
    mover.turn();
    let mover = thread::spawn(move || {
        (0..TURNS).for_each(|_| mover.turn());
        let has_ended = mover.leave_seat();
        (mover, has_ended)
    });
    let of_connection = world.clone();
    let connection = thread::spawn(move || take(&of_connection));
    let is_back = control(&world.seat);
    let (mut mover, has_ended) = mover.join().unwrap();
    let is_taken = connection.join().unwrap();
    // One after the other, nothing is left to wait for.
    assert!(has_ended || mover.leave_seat(), "copies that are never settled");
    assert!(is_taken || take(&world));
    assert!(is_back || control(&world.seat));
    assert!(world.seat.is_gone() && world.seat.put(None).is_none());
    seat::forget_seat(&world.seat);
}

fn check(hangs: bool) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS_MAX);
    builder.check(move || run(hangs));
}

#[test]
fn memory_goes_after_the_copies_of_an_engine_that_is_taken_back() {
    check(false);
}

#[test]
fn memory_goes_after_the_copies_of_an_engine_that_hangs_and_is_stopped() {
    check(true);
}
