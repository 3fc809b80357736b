//! How the kernel worker sleeps.
//!
//! It waits in epoll for the descriptors of its queues and for its doorbell, and receives only from
//! queues that epoll reports as ready. Within two milliseconds after traffic it sleeps 50 us at
//! most, so PMD threads that hand it packets need not wake it. Before a longer sleep it announces
//! that it sleeps; then the next handoff costs a PMD thread one eventfd write.

use crate::wake::Wake;
use port::RxQueue;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use sync::Reader;

/// Longest sleep while traffic flows.
const BUSY_SLEEP_MAX: Duration = Duration::from_micros(50);
/// How long after the last packet traffic counts as flowing.
const BUSY_AFTER_PACKET: Duration = Duration::from_millis(2);
/// Longest sleep without traffic: housekeeping is still due.
const IDLE_SLEEP_MAX: Duration = Duration::from_millis(100);
/// Longest sleep while a queue without a descriptor must be polled.
const POLLING_SLEEP_MAX: Duration = Duration::from_millis(1);

/// Events that one call of epoll returns, at most.
const EVENTS_MAX: usize = 64;

/// The descriptors for which the kernel worker waits: those of queues, and its doorbell.
pub(crate) struct KernelWait {
    epoll: OwnedFd,
    pub wake: Arc<Wake>,
    /// Until then traffic counts as flowing.
    busy_until: Instant,
    /// The flags [`IN_EPOLL`] and [`READY`] of each descriptor.
    flags: Vec<u8>,
}

/// The descriptor is in the epoll set.
const IN_EPOLL: u8 = 1;
/// The queue of this descriptor may have packets.
const READY: u8 = 2;

impl KernelWait {
    pub fn new() -> std::io::Result<Self> {
        // SAFETY: no pointers; the result is checked and owned.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: fresh descriptor.
        let epoll = unsafe { OwnedFd::from_raw_fd(fd) };
        let (wake, busy_until) = (Arc::new(Wake::new()?), Instant::now());
        let mut s = KernelWait { epoll, wake, busy_until, flags: Vec::new() };
        let bell = s.wake.fd();
        s.add(bell);
        Ok(s)
    }

    /// Adds `fd` to the descriptors that are waited for.
    pub fn add(&mut self, fd: RawFd) {
        let mut e = libc::epoll_event { events: libc::EPOLLIN as u32, u64: fd as u64 };
        let (epoll, add) = (self.epoll.as_raw_fd(), libc::EPOLL_CTL_ADD);
        // SAFETY: `e` is valid; a descriptor that epoll refuses is polled.
        if unsafe { libc::epoll_ctl(epoll, add, fd, &mut e) } == 0 {
            let i = fd as usize;
            self.flags.resize(self.flags.len().max(i + 1), 0);
            self.flags[i] = IN_EPOLL | READY;
        }
    }

    fn flags(&mut self, fd: RawFd) -> Option<&mut u8> {
        self.flags.get_mut(usize::try_from(fd).ok()?)
    }

    /// Removes `fd` from the descriptors that are waited for.
    pub fn forget(&mut self, fd: RawFd) {
        self.flags(fd).into_iter().for_each(|f| *f = 0);
        let none = std::ptr::null_mut();
        // SAFETY: removal ignores the event argument.
        unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_DEL, fd, none) };
    }

    /// True if epoll waits for the queue; otherwise the queue is polled.
    pub fn waits_for(&self, rx: &dyn RxQueue) -> bool {
        rx.fd().is_some_and(|fd| self.flags.get(fd as usize).is_some_and(|f| *f != 0))
    }

    /// True if the queue may have packets. For an idle queue this needs no system call.
    pub fn is_ready(&self, rx: &dyn RxQueue) -> bool {
        let idle = |fd: RawFd| self.flags.get(fd as usize).is_some_and(|f| *f == IN_EPOLL);
        !rx.fd().is_some_and(idle)
    }

    /// Records that the queue was read until it was empty: epoll reports when it has packets again.
    pub fn drained(&mut self, rx: &dyn RxQueue) {
        if let Some(fd) = rx.fd() {
            self.flags(fd).into_iter().for_each(|f| *f &= !READY);
        }
    }

    /// Asks epoll which queues are ready now, without waiting.
    pub fn poll_ready(&mut self) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX];
        let (epoll, most) = (self.epoll.as_raw_fd(), EVENTS_MAX as i32);
        // SAFETY: room for as many events as said.
        let n = unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), most, 0) };
        for e in events.iter().take(n.max(0) as usize) {
            self.flags(e.u64 as RawFd).into_iter().for_each(|f| *f |= READY);
        }
    }

    /// Records that there was traffic.
    pub fn busy(&mut self) {
        self.busy_until = Instant::now() + BUSY_AFTER_PACKET;
    }

    /// Sleeps until there is something to do. `polled`: there are queues that must be polled.
    /// `quiet` is called last, and returns true if all rings are empty.
    pub fn wait(&mut self, reader: &mut Reader, polled: bool, quiet: impl FnOnce() -> bool) {
        let lingering = Instant::now() < self.busy_until;
        reader.offline();
        if lingering {
            self.wait_at_most(BUSY_SLEEP_MAX);
        } else {
            self.wake.going_to_sleep();
            if quiet() {
                self.wait_at_most(if polled { POLLING_SLEEP_MAX } else { IDLE_SLEEP_MAX });
            }
            self.wake.awake();
        }
        reader.online();
    }

    fn wait_at_most(&self, at_most: Duration) {
        let mut p = libc::pollfd { fd: self.epoll.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let ts = libc::timespec { tv_sec: 0, tv_nsec: at_most.as_nanos() as i64 };
        // SAFETY: one pollfd and a timespec, both alive; an epoll descriptor is itself pollable.
        unsafe { libc::ppoll(&mut p, 1, &ts, std::ptr::null()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packet::Packet;

    struct Queue(RawFd);
    impl RxQueue for Queue {
        fn rx(&mut self, _: &mut Vec<Packet>, _: usize) -> usize {
            0
        }
        fn fd(&self) -> Option<RawFd> {
            Some(self.0)
        }
    }

    #[test]
    fn only_queues_that_have_something_are_ready() {
        let mut s = KernelWait::new().unwrap();
        let bells: Vec<Wake> = (0..100).map(|_| Wake::new().unwrap()).collect();
        let queues: Vec<Queue> = bells.iter().map(|b| Queue(b.fd())).collect();
        queues.iter().for_each(|q| s.add(q.0));
        let ready = |s: &KernelWait| queues.iter().filter(|q| s.is_ready(*q)).count();
        assert_eq!(ready(&s), 100, "what came before it was watched");
        queues.iter().for_each(|q| s.drained(q));
        s.poll_ready();
        assert_eq!(ready(&s), 0);
        bells[7].going_to_sleep();
        bells[7].wake();
        s.poll_ready();
        assert!(ready(&s) == 1 && s.is_ready(&queues[7]));
        s.drained(&queues[7]);
        s.poll_ready();
        assert_eq!(ready(&s), 1, "it has not been emptied");
        s.forget(queues[7].0);
        s.poll_ready();
        assert!(!s.waits_for(&queues[7]) && s.is_ready(&queues[7]), "from now on it is polled");
        assert!(s.waits_for(&queues[8]));
        let file = std::fs::File::open("/proc/self/stat").unwrap();
        let plain = Queue(std::os::fd::AsRawFd::as_raw_fd(&file));
        s.add(plain.0);
        assert!(s.is_ready(&plain), "what epoll refuses is polled");
    }
}
