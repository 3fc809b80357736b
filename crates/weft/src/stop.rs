//! Ctrl-C, for commands that run until they are ended and then tidy up.

use std::sync::atomic::{AtomicBool, Ordering};

static ASKED: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(_: libc::c_int) {
    ask();
}

/// From now on Ctrl-C and a request to terminate only ask to stop.
pub fn on_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the handler only stores to an atomic.
        unsafe { libc::signal(signal, on_signal as *const () as libc::sighandler_t) };
    }
}

/// Asks to stop.
pub fn ask() {
    ASKED.store(true, Ordering::SeqCst);
}

/// Is the command to stop?
pub fn is_asked() -> bool {
    ASKED.load(Ordering::SeqCst)
}
