//! How the worker of kernel ports rests.
//!
//! It waits in epoll on its queues' descriptors and its doorbell. While there was traffic in the last
//! two milliseconds it wakes at least every 50 us to look at its rings, so PMD threads that hand it
//! packets need not ring; only when it sleeps for longer does it say so, and the next handoff then
//! costs that PMD thread one eventfd write.

use crate::events::Wake;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use sync::Reader;

/// Longest rest while traffic flows.
const SHORT: Duration = Duration::from_micros(50);
/// How long after the last packet traffic counts as flowing.
const LINGER: Duration = Duration::from_millis(2);
/// Longest rest: housekeeping still runs.
const LONG: Duration = Duration::from_millis(100);
/// Longest rest while a queue without a descriptor must be polled.
const POLL: Duration = Duration::from_millis(1);

/// An epoll set and a doorbell.
pub(crate) struct Sleep {
    epoll: OwnedFd,
    pub wake: Arc<Wake>,
    busy_until: Instant,
}

impl Sleep {
    pub fn new() -> std::io::Result<Self> {
        // SAFETY: no pointers; the result is checked and owned.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: fresh descriptor.
        let epoll = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut s = Sleep { epoll, wake: Arc::new(Wake::new()?), busy_until: Instant::now() };
        let bell = s.wake.fd();
        s.watch(bell);
        Ok(s)
    }

    /// Waits for `fd`, too.
    pub fn watch(&mut self, fd: i32) {
        let mut e = libc::epoll_event { events: libc::EPOLLIN as u32, u64: fd as u64 };
        // SAFETY: `e` is valid; a descriptor that epoll refuses is polled with the others.
        unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut e) };
    }

    /// No longer waits for `fd`.
    pub fn forget(&mut self, fd: i32) {
        let none = std::ptr::null_mut();
        // SAFETY: removal ignores the event argument.
        unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_DEL, fd, none) };
    }

    /// There was traffic.
    pub fn busy(&mut self) {
        self.busy_until = Instant::now() + LINGER;
    }

    /// Waits for something to do. `quiet`: nothing in any ring.
    pub fn rest(&mut self, reader: &Reader, unwatched: bool, quiet: impl FnOnce() -> bool) {
        let lingering = Instant::now() < self.busy_until;
        reader.offline();
        if lingering {
            self.wait(SHORT);
        } else {
            self.wake.going_to_sleep();
            if quiet() {
                self.wait(if unwatched { POLL } else { LONG });
            }
            self.wake.awake();
        }
        reader.online();
    }

    fn wait(&self, at_most: Duration) {
        let mut p = libc::pollfd { fd: self.epoll.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let ts = libc::timespec { tv_sec: 0, tv_nsec: at_most.as_nanos() as i64 };
        // SAFETY: one pollfd and a timespec, both alive; an epoll descriptor is itself pollable.
        unsafe { libc::ppoll(&mut p, 1, &ts, std::ptr::null()) };
    }
}
