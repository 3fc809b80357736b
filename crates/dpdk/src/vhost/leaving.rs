//! A guest that is just being closed.
//!
//! When a guest goes that we connect to, DPDK 22.11 says so, frees what it knows of it (unmapping
//! much memory takes long), and puts the socket on its list of those to connect to again.
//! Unregistering the socket meanwhile looks at that list too early, by chance: the freed socket is
//! tried again within a second, which ends the process. So a socket is not unregistered before that
//! is over.

use dpdk_sys as sys;
use std::ffi::CStr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How long it takes from the moment that a guest is freed until the socket is on the list: one
/// failed `connect`.
const REST: Duration = Duration::from_millis(50);
/// Guests that went longer ago are on the list.
const OLD: Duration = Duration::from_secs(1);
/// What unmapping may take at most.
const LONGEST: Duration = Duration::from_secs(10);

/// The guest of a socket that left last, and when, unless another came since.
#[derive(Default)]
pub(crate) struct Leaving(Mutex<Option<(i32, Instant)>>);

impl Leaving {
    fn set(&self, guest: Option<(i32, Instant)>) {
        *self.0.lock().unwrap_or_else(|e| e.into_inner()) = guest;
    }

    /// This guest is about to be freed.
    pub fn begins(&self, vid: i32) {
        self.set(Some((vid, Instant::now())));
    }

    /// A guest came.
    pub fn ended(&self) {
        self.set(None);
    }

    /// Returns when the socket at `path` may be unregistered.
    pub fn wait(&self, path: &CStr) {
        let left = || *self.0.lock().unwrap_or_else(|e| e.into_inner());
        while let Some((vid, since)) = left()
            && is_there(vid, path)
            && since.elapsed() < LONGEST
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        if left().is_some_and(|(_, since)| since.elapsed() < OLD) {
            std::thread::sleep(REST);
        }
    }
}

/// True if the library still knows guest `vid`, of the socket at `path`.
fn is_there(vid: i32, path: &CStr) -> bool {
    let mut name = [0 as libc::c_char; 4096];
    // SAFETY: writes a NUL-terminated name of at most the length given.
    unsafe {
        sys::rte_vhost_get_ifname(vid, name.as_mut_ptr(), name.len()) == 0
            && CStr::from_ptr(name.as_ptr()) == path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_left_just_now_is_waited_for() {
        let leaving = Leaving::default();
        leaving.wait(c"/a");
        leaving.begins(3);
        let start = Instant::now();
        leaving.wait(c"/a");
        assert!(start.elapsed() >= REST);
        leaving.ended();
        assert!(leaving.0.lock().unwrap().is_none());
    }
}
