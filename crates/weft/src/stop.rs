//! Ctrl-C, a request to terminate and the end of the terminal, for commands that run until they are
//! ended and then tidy up.

use std::sync::atomic::{AtomicBool, Ordering};

static ASKED: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(_: libc::c_int) {
    ask();
}

/// From now on Ctrl-C, a request to terminate and the end of the terminal only ask to stop; the
/// last is still ignored if it was before (`nohup`).
pub fn on_signals() {
    let handler = on_signal as *const () as libc::sighandler_t;
    // SAFETY: the handler only stores to an atomic.
    unsafe {
        libc::signal(libc::SIGINT, handler);
        libc::signal(libc::SIGTERM, handler);
        if libc::signal(libc::SIGHUP, handler) == libc::SIG_IGN {
            libc::signal(libc::SIGHUP, libc::SIG_IGN);
        }
    }
}

/// Asks to stop.
pub fn ask() {
    ASKED.store(true, Ordering::SeqCst);
}

/// True if the command has been asked to stop.
pub fn is_asked() -> bool {
    ASKED.load(Ordering::SeqCst)
}
