//! The thread that maintains the connection table: OVS's `ct_clean`.

use crate::settings::Config;
use crate::stats::clock::now_ms;
use conntrack::Keeper;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between two rounds, milliseconds. The table has free entries for what workers need
/// meanwhile.
const ROUND_MILLIS: u64 = 10;
/// Steps of a round: about a millisecond's work, after which the thread pauses even if there is
/// more.
const STEPS_COUNT_MAX: usize = 8192;
/// Length of the pause when there is more work, microseconds.
const PAUSE_MICROS: u64 = 500;

/// The maintenance of the connection table: a thread of its own, or stepped by a simulation.
pub(crate) enum CtKeeper {
    Thread(Arc<AtomicBool>, Option<JoinHandle<()>>),
    Manual(Box<Keeper>),
}

impl CtKeeper {
    /// Starts the thread, unless a simulation steps it.
    pub fn start(config: &Config) -> std::io::Result<CtKeeper> {
        let mut keeper = Keeper::new(&config.conntrack, config.domain.clone(), now_ms());
        if config.manual {
            return Ok(CtKeeper::Manual(Box::new(keeper)));
        }
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let run = move || {
            while !stopped.load(Ordering::Acquire) {
                let pause = match keeper.tend(now_ms(), STEPS_COUNT_MAX) {
                    true => Duration::from_millis(ROUND_MILLIS),
                    false => Duration::from_micros(PAUSE_MICROS),
                };
                std::thread::park_timeout(pause);
            }
        };
        let thread = std::thread::Builder::new().name("ct_clean".into()).spawn(run)?;
        Ok(CtKeeper::Thread(stop, Some(thread)))
    }

    /// Runs one round, if there is no thread.
    pub fn step(&mut self) {
        if let CtKeeper::Manual(keeper) = self {
            keeper.tend(now_ms(), STEPS_COUNT_MAX);
        }
    }
}

impl Drop for CtKeeper {
    fn drop(&mut self) {
        if let CtKeeper::Thread(stop, thread) = self {
            stop.store(true, Ordering::Release);
            if let Some(thread) = thread.take() {
                thread.thread().unpark();
                let _ = thread.join();
            }
        }
    }
}
