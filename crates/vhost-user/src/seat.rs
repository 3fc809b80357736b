//! The engine of a thread that moves packets: how the control side hands it over, and what the
//! thread reports about it.
//!
//! A thread gets a *seat* when it starts, without an engine. The control side gives it an engine,
//! asks for it back, and stops one that hangs; only the thread uses it. Neither waits for the
//! other: an order is a word that the thread reads once per turn, and the engine is handed over in
//! a place that is locked for a moment.

use crate::atomics::{AtomicBool, AtomicU8, Handed, Ordering};
use crate::tally::{Tallied, Tally};
use std::sync::atomic::{AtomicU32, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use vhost::Engine;

/// The threshold that is displayed while none is configured (that of the paper "Packet Copy Offload
/// in OVS with Intel DSA").
pub const THRESHOLD_BYTES_DEFAULT: usize = 128;
/// Largest threshold in bytes, as in that paper's patches.
pub const THRESHOLD_BYTES_MAX: usize = 9728;

/// Ports that are noted for the log until it is written.
const NOTED_MAX: usize = 16;

/// No threshold is configured.
const UNSET: usize = usize::MAX;

static THRESHOLD: AtomicUsize = AtomicUsize::new(UNSET);
static SEATS: Mutex<Vec<Arc<Seat>>> = Mutex::new(Vec::new());

/// Frames with more bytes than this are left to engines. None: decided for each ring by the
/// measured costs of copies.
#[inline]
pub fn threshold() -> Option<usize> {
    Some(THRESHOLD.load(Ordering::Relaxed)).filter(|bytes| *bytes != UNSET)
}

/// Changes [`threshold`], for all threads and ports.
pub fn set_threshold(bytes: Option<usize>) {
    THRESHOLD.store(bytes.unwrap_or(UNSET), Ordering::Relaxed);
}

/// What a thread has to do with its engine.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Order {
    None,
    /// Take the engine that is handed over.
    Take,
    /// Give the engine back when no copy is in flight.
    Leave,
    /// The hanging engine was stopped: the CPU makes the copies in flight.
    Redo,
}

/// State of a thread's engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SeatState {
    /// The thread has no engine.
    Empty,
    /// The thread has an engine.
    Working,
    /// The thread gave back an engine that completed nothing for too long, and that is to be
    /// stopped.
    Stuck,
    /// The thread gave its engine back as ordered, or when it ended.
    Returned,
}

/// State that a thread and the control side share.
pub struct Seat {
    /// The core of the thread.
    pub core: usize,
    /// Counters of its engine.
    pub tally: Tally,
    /// Measured cycles that a copy by the engine costs the thread, to a guest and from a guest; 0:
    /// not yet measured.
    pub copy_cycles: [AtomicU32; 2],
    /// Measured cycles that a doorbell costs the thread; 0: not yet measured.
    pub doorbell_cycles: AtomicU32,
    /// The counters when the displayed ones were last cleared.
    cleared: Mutex<Tallied>,
    /// Paths of ports of which too many copies failed, for the log.
    noted: Mutex<Vec<String>>,
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
            noted: Mutex::default(),
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

    /// Counters of its engine since [`Seat::clear_shown`], except the most copies in flight, which
    /// is never cleared.
    pub fn shown(&self) -> Tallied {
        let now = self.tally.read();
        Tallied { in_flight_max: now.in_flight_max, ..now.since(&self.cleared()) }
    }

    /// Clears the displayed counters. The tally itself is written only by its thread.
    pub fn clear_shown(&self) {
        *self.cleared() = self.tally.read();
    }

    /// State of the thread's engine.
    pub fn state(&self) -> SeatState {
        match self.state.load(Ordering::Acquire) {
            1 => SeatState::Working,
            2 => SeatState::Stuck,
            3 => SeatState::Returned,
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

    /// The thread carried out `order`; another order given meanwhile is kept.
    pub(crate) fn carried_out(&self, order: Order) {
        let (from, to) = (order as u8, Order::None as u8);
        let _ = self.order.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
    }

    pub(crate) fn put(&self, engine: Option<Box<dyn Engine>>) -> Option<Box<dyn Engine>> {
        let mut place = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *place, engine)
    }

    /// Too many copies of the port at `path` failed. Happens once a minute for a port, at most.
    #[cold]
    pub(crate) fn note_barred(&self, path: &str) {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.len() < NOTED_MAX {
            noted.push(path.to_owned());
        }
    }

    /// The ports of which too many copies failed since the last call: the CPU makes their copies
    /// for a while.
    pub fn take_barred(&self) -> Vec<String> {
        std::mem::take(&mut *self.noted.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn set_gone(&self) {
        self.gone.store(true, Ordering::Release);
    }

    /// Whether the thread has ended.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Whether the thread has carried out all orders.
    pub fn is_settled(&self) -> bool {
        self.order() == Order::None
    }

    /// Gives an engine to the thread, which has none and [`Seat::is_settled`].
    pub fn give(&self, engine: Box<dyn Engine>) {
        self.tally.clear();
        *self.cleared() = Tallied::default();
        self.put(Some(engine));
        self.set_order(Order::Take);
    }

    /// Orders the thread to give the engine back: [`Seat::state`] shows when it has.
    pub fn recall(&self) {
        self.set_order(Order::Leave);
    }

    /// Takes an engine that was given back, after its state was read.
    pub fn take_back(&self) -> Option<Box<dyn Engine>> {
        let engine = self.put(None);
        match self.state() {
            SeatState::Working => {}
            SeatState::Stuck => {}
            _ => self.set_state(SeatState::Empty),
        }
        engine
    }

    /// The hanging engine was stopped.
    pub fn stopped(&self) {
        self.set_state(SeatState::Empty);
        self.set_order(Order::Redo);
    }
}

fn seats_mut<T>(f: impl FnOnce(&mut Vec<Arc<Seat>>) -> T) -> T {
    f(&mut SEATS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// All seats, also those of threads that ended.
pub fn seats() -> Vec<Arc<Seat>> {
    seats_mut(|seats| seats.clone())
}

/// Removes the seat of a thread that ended.
pub fn forget_seat(seat: &Arc<Seat>) {
    seats_mut(|seats| seats.retain(|other| !Arc::ptr_eq(other, seat)));
}
