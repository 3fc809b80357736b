//! The thread that reads files and makes handshakes.

use std::io;
use std::sync::{Mutex, PoisonError};
use tokio::runtime::{Builder, Handle};
use tokio::task::JoinHandle;

/// Peers that are not known yet use what the control thread leaves of the processor.
const NICENESS: i32 = 5;

/// The thread's runtime, once it is needed: no thread may exist before the daemon has forked.
static RUNTIME: Mutex<Option<Handle>> = Mutex::new(None);

/// Work on the thread that ends when this is dropped.
pub(super) struct Job<T>(JoinHandle<T>);

impl<T> Job<T> {
    /// What the work results in.
    pub(super) async fn result(mut self) -> io::Result<T> {
        (&mut self.0).await.map_err(io::Error::other)
    }
}

impl<T> Drop for Job<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Runs this on the thread.
pub(super) fn spawn<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> io::Result<Job<T>> {
    Ok(Job(runtime()?.spawn(work)))
}

fn runtime() -> io::Result<Handle> {
    let mut started = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(handle) = &*started {
        return Ok(handle.clone());
    }
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    std::thread::Builder::new().name("tls".into()).spawn(move || {
        // SAFETY: changes this thread's niceness only; it may fail, and nothing depends on it.
        unsafe { libc::nice(NICENESS) };
        runtime.block_on(std::future::pending::<()>());
    })?;
    Ok(started.insert(handle).clone())
}
