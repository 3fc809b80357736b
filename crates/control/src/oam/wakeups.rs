//! When sessions of protocols are to be run.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use tokio::sync::Notify;

/// The longest sleep.
const SLEEP_MS_MAX: u64 = 1000;

/// Times, in ms, at which sessions have to run, with their interfaces.
#[derive(Default)]
pub struct Wakeups {
    due: BTreeSet<(u64, String)>,
    of: BTreeMap<String, u64>,
    /// Notified when another time is the first.
    pub changed: Rc<Notify>,
}

impl Wakeups {
    /// Makes the session of an interface run at `wake`, and at no other time.
    pub fn set(&mut self, iface: &str, wake: u64) {
        self.remove(iface);
        self.of.insert(iface.into(), wake);
        self.due.insert((wake, iface.into()));
        if self.due.first().is_some_and(|(_, first)| first == iface) {
            self.changed.notify_one();
        }
    }

    /// Forgets an interface.
    pub fn remove(&mut self, iface: &str) {
        if let Some(wake) = self.of.remove(iface) {
            self.due.remove(&(wake, iface.to_string()));
        }
    }

    /// An interface whose session is to be run.
    pub fn next(&self, now: u64) -> Option<String> {
        self.due.first().filter(|(at, _)| *at <= now).map(|(_, iface)| iface.clone())
    }

    /// Milliseconds until the next one is, at most a second: the clock may be put forward.
    pub fn sleep_ms(&self, now: u64) -> u64 {
        let wake = self.due.first().map_or(u64::MAX, |(at, _)| *at);
        wake.saturating_sub(now).clamp(1, SLEEP_MS_MAX)
    }
}
