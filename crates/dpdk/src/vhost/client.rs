//! Sockets that front-ends make: a thread for each connects, and again after its front-end left.
//!
//! DPDK's vhost library can connect again by itself, but its version 22.11 then uses freed memory
//! when a front-end leaves while its socket is unregistered: the library's thread that serves the
//! connection puts the socket on the list of those to connect to after that list was cleaned. So
//! sockets are registered with `RTE_VHOST_USER_NO_RECONNECT`: the library connects once, when a
//! socket is started, and the socket has to be unregistered and registered before the next time.

use super::front_end::FrontEnd;
use super::library::{VhostConfig, register, start, unregister};
use super::state::VhostState;
use crate::eal;
use std::ffi::CStr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between two tries, as in the library.
const CONNECT_INTERVAL: Duration = Duration::from_secs(1);
/// The stack of a thread that calls the library and allocates little.
const STACK_BYTES: usize = 256 << 10;

/// The thread that connects a socket; dropping it disconnects and unregisters.
pub(crate) struct Client {
    shared: Arc<VhostState>,
    thread: Option<JoinHandle<()>>,
}

impl Client {
    /// Starts the thread for a socket that is registered.
    ///
    /// # Errors
    /// The kernel has no more threads.
    pub fn new(
        path: &CStr,
        config: &VhostConfig,
        shared: &Arc<VhostState>,
    ) -> std::io::Result<Client> {
        let thread = std::thread::Builder::new().name("vhost-connect".into());
        let (path, config, state) = (path.to_owned(), config.clone(), shared.clone());
        let run = move || run(&path, &config, &state.front_end);
        let thread = thread.stack_size(STACK_BYTES).spawn(run)?;
        Ok(Client { shared: shared.clone(), thread: Some(thread) })
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.shared.front_end.stop();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Connects the registered socket until its thread is to end; leaves nothing registered.
fn run(path: &CStr, config: &VhostConfig, front_end: &FrontEnd) {
    let mut started = start(path);
    loop {
        if started {
            front_end.wait_while_connected();
        }
        unregister(path);
        if front_end.pause(CONNECT_INTERVAL) {
            return;
        }
        let again = || register(path, config).is_ok() && start(path);
        // That a front-end is not there is in the log once.
        started = if started { again() } else { eal::without_log(again) };
    }
}
