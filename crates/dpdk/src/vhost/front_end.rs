//! If a front-end is connected to a socket that it made, and who waits for that.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

#[derive(Default)]
struct State {
    connected: bool,
    stop: bool,
}

/// If a front-end is connected to a socket, and if the socket's thread is to end.
#[derive(Default)]
pub(crate) struct FrontEnd {
    state: Mutex<State>,
    changed: Condvar,
}

impl FrontEnd {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// A front-end is connected, or no longer.
    pub fn set(&self, connected: bool) {
        self.lock().connected = connected;
        self.changed.notify_all();
    }

    /// The socket's thread is to end.
    pub fn stop(&self) {
        self.lock().stop = true;
        self.changed.notify_all();
    }

    /// Returns when no front-end is connected, or the thread is to end.
    pub fn wait_while_connected(&self) {
        let on = |state: &mut State| state.connected && !state.stop;
        drop(self.changed.wait_while(self.lock(), on));
    }

    /// Waits for this long. True if the thread is to end.
    pub fn pause(&self, time: Duration) -> bool {
        let on = |state: &mut State| !state.stop;
        let waited = self.changed.wait_timeout_while(self.lock(), time, on);
        waited.unwrap_or_else(|e| e.into_inner()).0.stop
    }
}
