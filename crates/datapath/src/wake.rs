//! Waking threads that sleep in the kernel: the kernel worker, and the control thread.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// A descriptor that is readable when the kernel worker has reports.
pub struct Bell(pub(crate) Arc<Wake>);

impl AsRawFd for Bell {
    fn as_raw_fd(&self) -> i32 {
        self.0.fd()
    }
}

/// Wakes a worker that sleeps in the kernel.
pub(crate) struct Wake {
    fd: OwnedFd,
    sleeping: AtomicBool,
    /// The control side wants to be woken at the worker's next quiescent point.
    asked: AtomicBool,
}

impl Wake {
    pub fn new() -> std::io::Result<Self> {
        // SAFETY: no pointers; the result is checked and owned.
        let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: fresh descriptor, with no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Wake { fd, sleeping: AtomicBool::new(false), asked: AtomicBool::new(false) })
    }

    pub fn fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// Announces that the worker is about to sleep. It must look at its rings once more after this.
    pub fn going_to_sleep(&self) {
        self.sleeping.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Records that the worker is awake.
    pub fn awake(&self) {
        self.sleeping.store(false, Ordering::SeqCst);
        let mut n = 0u64;
        // SAFETY: eight bytes to write to; the descriptor does not block.
        unsafe { libc::read(self.fd(), (&raw mut n).cast(), 8) };
    }

    /// Asks to be woken at the worker's next quiescent point. Afterwards the caller must check once
    /// more whether that point has passed.
    pub fn ask(&self) {
        self.asked.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Answers [`Wake::ask`], at a quiescent point.
    pub fn answer(&self) {
        fence(Ordering::SeqCst);
        if self.asked.load(Ordering::Relaxed) && self.asked.swap(false, Ordering::SeqCst) {
            self.wake();
        }
    }

    /// Wakes the worker if it sleeps: the only system call that a PMD thread makes for another
    /// thread.
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::Relaxed) && self.sleeping.swap(false, Ordering::SeqCst) {
            let one = 1u64;
            // SAFETY: eight bytes to read from.
            unsafe { libc::write(self.fd(), (&raw const one).cast(), 8) };
        }
    }
}
