//! Where a thread that moves packets gets an engine from, and what it tells about it.
//!
//! A thread *sits down* when it starts and finds no engine. The control side gives it one, asks for
//! it back, and stops one that hangs; the thread alone uses it. Neither waits for the other: orders
//! are a word that the thread looks at once per turn, engines change hands in a place that is
//! locked for a moment.

use crate::atomics::{AtomicBool, AtomicU8, Handed, Ordering};
use crate::tally::{Tallied, Tally};
use std::sync::atomic::{AtomicU32, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use vhost::Engine;

/// The threshold that is shown while none is set (that of the paper "Packet Copy Offload
/// in OVS with Intel DSA").
pub const THRESHOLD_BYTES_DEFAULT: usize = 128;
/// Longest frame that a threshold may name, as in that paper's patches.
pub const THRESHOLD_BYTES_MAX: usize = 9728;

/// No threshold is set.
const UNSET: usize = usize::MAX;

static THRESHOLD: AtomicUsize = AtomicUsize::new(UNSET);
static SEATS: Mutex<Vec<Arc<Seat>>> = Mutex::new(Vec::new());

/// Frames of more bytes are left to engines. None: by what copies cost, as measured for each ring.
#[inline]
pub fn threshold() -> Option<usize> {
    Some(THRESHOLD.load(Ordering::Relaxed)).filter(|bytes| *bytes != UNSET)
}

/// Changes [`threshold`], for all threads and ports.
pub fn set_threshold(bytes: Option<usize>) {
    THRESHOLD.store(bytes.unwrap_or(UNSET), Ordering::Relaxed);
}

/// What a thread is to do about its engine.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Order {
    None,
    /// One is there for it.
    Take,
    /// The thread is to give its engine back when nothing is in flight.
    Leave,
    /// The one that hung was stopped: what was in flight is to be copied by the CPU.
    Redo,
}

/// How it is with a thread's engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SeatState {
    /// The thread has no engine.
    Empty,
    /// The thread has an engine.
    Working,
    /// The thread gave an engine back that made nothing for too long: to be stopped.
    Stuck,
    /// The thread gave an engine back that failed too often.
    Failing,
    /// The thread gave its engine back as asked, or at its end.
    Returned,
}

/// What a thread and the control side share.
pub struct Seat {
    /// The core of the thread.
    pub core: usize,
    /// What its engine did.
    pub tally: Tally,
    /// Cycles that a copy to a guest by the engine costs the thread, and one from a guest, as
    /// measured; 0: not yet.
    pub copy_cycles: [AtomicU32; 2],
    /// Cycles that a doorbell costs the thread, as measured; 0: not yet.
    pub doorbell_cycles: AtomicU32,
    /// The tally when its display was cleared.
    cleared: Mutex<Tallied>,
    order: AtomicU8,
    state: AtomicU8,
    /// The thread has ended.
    gone: AtomicBool,
    engine: Handed<Option<Box<dyn Engine>>>,
}

impl Seat {
    pub(crate) fn new(core: usize) -> Arc<Seat> {
        let seat = Arc::new(Seat {
            core,
            tally: Tally::default(),
            copy_cycles: Default::default(),
            doorbell_cycles: AtomicU32::new(0),
            cleared: Mutex::default(),
            order: AtomicU8::new(Order::None as u8),
            state: AtomicU8::new(SeatState::Empty as u8),
            gone: AtomicBool::new(false),
            engine: Handed::new(None),
        });
        seats_mut(|seats| seats.push(seat.clone()));
        seat
    }

    fn cleared(&self) -> MutexGuard<'_, Tallied> {
        self.cleared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What its engine did since [`Seat::clear_shown`]; the most copies in flight are those of all
    /// time.
    pub fn shown(&self) -> Tallied {
        let now = self.tally.read();
        Tallied { in_flight_max: now.in_flight_max, ..now.since(&self.cleared()) }
    }

    /// What is shown counts from now on. The tally itself is its thread's.
    pub fn clear_shown(&self) {
        *self.cleared() = self.tally.read();
    }

    /// How it is.
    pub fn state(&self) -> SeatState {
        match self.state.load(Ordering::Acquire) {
            1 => SeatState::Working,
            2 => SeatState::Stuck,
            3 => SeatState::Failing,
            4 => SeatState::Returned,
            _ => SeatState::Empty,
        }
    }

    pub(crate) fn set_state(&self, state: SeatState) {
        self.state.store(state as u8, Ordering::Release);
    }

    #[inline]
    pub(crate) fn order(&self) -> Order {
        match self.order.load(Ordering::Acquire) {
            0 => Order::None,
            1 => Order::Take,
            2 => Order::Leave,
            _ => Order::Redo,
        }
    }

    pub(crate) fn set_order(&self, order: Order) {
        self.order.store(order as u8, Ordering::Release);
    }

    /// The thread carried out `order`; another order that came meanwhile stays.
    pub(crate) fn carried_out(&self, order: Order) {
        let (from, to) = (order as u8, Order::None as u8);
        let _ = self.order.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
    }

    pub(crate) fn put(&self, engine: Option<Box<dyn Engine>>) -> Option<Box<dyn Engine>> {
        let mut place = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *place, engine)
    }

    pub(crate) fn set_gone(&self) {
        self.gone.store(true, Ordering::Release);
    }

    /// Has the thread ended?
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Has the thread carried out all orders?
    pub fn is_settled(&self) -> bool {
        self.order() == Order::None
    }

    /// Gives the thread an engine; it has none, and [`Seat::is_settled`].
    pub fn give(&self, engine: Box<dyn Engine>) {
        self.tally.clear();
        *self.cleared() = Tallied::default();
        self.put(Some(engine));
        self.set_order(Order::Take);
    }

    /// Asks for the engine: [`Seat::state`] says when it is there.
    pub fn recall(&self) {
        self.set_order(Order::Leave);
    }

    /// Takes an engine that was given back, after its state was looked at.
    pub fn take_back(&self) -> Option<Box<dyn Engine>> {
        let engine = self.put(None);
        match self.state() {
            SeatState::Working => {}
            SeatState::Stuck => {}
            _ => self.set_state(SeatState::Empty),
        }
        engine
    }

    /// The engine that hung was stopped.
    pub fn stopped(&self) {
        self.set_state(SeatState::Empty);
        self.set_order(Order::Redo);
    }
}

fn seats_mut<T>(f: impl FnOnce(&mut Vec<Arc<Seat>>) -> T) -> T {
    f(&mut SEATS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// All seats, also of threads that ended.
pub fn seats() -> Vec<Arc<Seat>> {
    seats_mut(|seats| seats.clone())
}

/// Forgets the seat of a thread that ended.
pub fn forget_seat(seat: &Arc<Seat>) {
    seats_mut(|seats| seats.retain(|other| !Arc::ptr_eq(other, seat)));
}
