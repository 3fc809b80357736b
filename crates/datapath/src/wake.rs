//! Waking a thread that sleeps in the kernel: the kernel worker, or the control side.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// What the control side waits on: readable when the kernel worker has reports.
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
    /// The other side wants to be woken at the worker's next quiescent state.
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

    /// The worker is about to sleep; it must look at its rings once more after this.
    pub fn going_to_sleep(&self) {
        self.sleeping.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// The worker is awake again.
    pub fn awake(&self) {
        self.sleeping.store(false, Ordering::SeqCst);
        let mut n = 0u64;
        // SAFETY: eight bytes to write to; the descriptor does not block.
        unsafe { libc::read(self.fd(), (&raw mut n).cast(), 8) };
    }

    /// Asks to be woken after the worker's next quiescent state. The caller must look once more
    /// whether that has not come to pass.
    pub fn ask(&self) {
        self.asked.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// A worker has been quiescent.
    pub fn answer(&self) {
        fence(Ordering::SeqCst);
        if self.asked.load(Ordering::Relaxed) && self.asked.swap(false, Ordering::SeqCst) {
            self.wake();
        }
    }

    /// Wakes it if it sleeps: the only system call a PMD thread makes for another thread.
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::Relaxed) && self.sleeping.swap(false, Ordering::SeqCst) {
            let one = 1u64;
            // SAFETY: eight bytes to read from.
            unsafe { libc::write(self.fd(), (&raw const one).cast(), 8) };
        }
    }
}
