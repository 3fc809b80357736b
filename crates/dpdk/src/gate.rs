//! Whether bursts go through to a device's driver.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

/// Reasons why none do.
const DOWN: u8 = 1;
const PAUSED: u8 = 2;

/// A device's gate.
#[derive(Default)]
pub(crate) struct Gate {
    shut: AtomicU8,
    /// Bursts under way, if they are counted.
    inside: AtomicU32,
}

impl Gate {
    /// Administrative state.
    pub fn set_up(&self, up: bool) {
        match up {
            true => self.shut.fetch_and(!DOWN, Ordering::SeqCst),
            false => self.shut.fetch_or(DOWN, Ordering::SeqCst),
        };
    }

    pub fn is_up(&self) -> bool {
        self.shut.load(Ordering::Relaxed) & DOWN == 0
    }

    #[inline]
    pub fn is_open(&self) -> bool {
        self.shut.load(Ordering::Relaxed) == 0
    }

    /// A burst that counts: None if it may not start.
    #[inline]
    pub fn enter(&self) -> Option<Inside<'_>> {
        let inside = Inside(&self.inside);
        // Ordered against `pause`: one of the two sees the other.
        self.inside.fetch_add(1, Ordering::SeqCst);
        (self.shut.load(Ordering::SeqCst) == 0).then_some(inside)
    }
}

/// A burst under way.
pub(crate) struct Inside<'a>(&'a AtomicU32);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// Stops bursts of a device whose driver changes its queues behind our back.
#[derive(Clone)]
pub struct EthPause(pub(crate) Arc<Gate>);

impl EthPause {
    /// No burst is under way when this returns, and none starts.
    pub fn pause(&self) {
        self.0.shut.fetch_or(PAUSED, Ordering::SeqCst);
        while self.0.inside.load(Ordering::SeqCst) > 0 {
            std::thread::yield_now();
        }
    }

    /// Bursts go through again.
    pub fn resume(&self) {
        self.0.shut.fetch_and(!PAUSED, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn administrative_state_and_pauses() {
        let gate = Arc::new(Gate::default());
        let pause = EthPause(gate.clone());
        assert!(gate.is_open() && gate.enter().is_some());
        pause.pause();
        assert!(gate.is_up() && !gate.is_open() && gate.enter().is_none());
        gate.set_up(false);
        pause.resume();
        assert!(!gate.is_up() && gate.enter().is_none());
        gate.set_up(true);
        assert!(gate.is_open());
    }

    #[test]
    fn a_pause_waits_for_bursts() {
        let gate = Arc::new(Gate::default());
        let pause = EthPause(gate.clone());
        let (stop, own) = (Arc::new(AtomicU8::new(0)), gate.clone());
        // What a burst must not see half of.
        let cell = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
        let (their_stop, their_cell) = (stop.clone(), cell.clone());
        let worker = std::thread::spawn(move || {
            while their_stop.load(Ordering::Relaxed) == 0 {
                if let Some(_inside) = own.enter() {
                    let [a, b] = &*their_cell;
                    assert_eq!(a.load(Ordering::Relaxed), b.load(Ordering::Relaxed));
                }
            }
        });
        for n in 0..2000 {
            pause.pause();
            cell.iter().for_each(|c| c.store(n, Ordering::Relaxed));
            pause.resume();
        }
        stop.store(1, Ordering::Relaxed);
        worker.join().unwrap();
    }
}
