//! What serves sockets: tasks, listening sockets with their files, writers.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, unconstrained};

/// A task that ends when this is dropped.
pub struct Task(JoinHandle<()>);

impl Task {
    /// Starts it on the control thread.
    pub fn spawn(f: impl Future<Output = ()> + 'static) -> Self {
        Task(tokio::task::spawn_local(f))
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A listening unix socket whose file goes with it.
pub struct UnixSocket {
    pub(super) path: PathBuf,
    pub(super) _task: Task,
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// An error without the number that Rust adds to the system's text.
pub fn error_text(e: &io::Error) -> String {
    let text = e.to_string();
    text.split_once(" (os error").map_or(text.clone(), |(t, _)| t.to_string())
}

/// What was given to a writer and is not written yet.
#[derive(Debug, Default)]
pub struct Backlog {
    bytes: Cell<usize>,
    /// The peer does not take what the writer has.
    is_stalled: Cell<bool>,
}

impl Backlog {
    /// Bytes.
    pub fn bytes(&self) -> usize {
        self.bytes.get()
    }

    /// Counts bytes that the writer is given.
    pub(super) fn add(&self, bytes: usize) {
        self.bytes.set(self.bytes.get() + bytes);
    }

    /// True if the peer takes no more at present.
    pub(super) fn is_stalled(&self) -> bool {
        self.is_stalled.get()
    }
}

/// Writes everything; while that has to wait for the peer, the backlog is stalled.
async fn write_all<W: AsyncWrite>(
    mut writer: Pin<&mut W>,
    bytes: &[u8],
    backlog: &Backlog,
) -> io::Result<()> {
    // That a task has had its share of time is not the peer's fault.
    let mut work = pin!(unconstrained(writer.write_all(bytes)));
    let first = poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx))).await;
    if let Poll::Ready(result) = first {
        return result;
    }
    backlog.is_stalled.set(true);
    let result = work.await;
    backlog.is_stalled.set(false);
    result
}

/// Writes what is queued until the queue or the stream ends.
pub(super) async fn write<W: AsyncWrite>(
    writer: W,
    mut queue: mpsc::UnboundedReceiver<Vec<u8>>,
    backlog: Rc<Backlog>,
) {
    let mut writer = pin!(writer);
    while let Some(mut bytes) = queue.recv().await {
        // Coalesce what is waiting: one system call for many small replies.
        while bytes.len() < 64 * 1024 {
            match queue.try_recv() {
                Ok(more) => bytes.extend_from_slice(&more),
                Err(_) => break,
            }
        }
        let n = bytes.len();
        if write_all(writer.as_mut(), &bytes, &backlog).await.is_err() {
            // Nothing more goes out, so nothing waits: a task that waits for that comes to the end
            // of the connection.
            drop(queue);
            backlog.bytes.set(0);
            return;
        }
        backlog.bytes.set(backlog.bytes().saturating_sub(n));
    }
}

/// Waits until at most `limit` bytes wait for the peer; looks less often the longer that takes.
pub(crate) async fn drained(backlog: &Backlog, limit: usize) {
    const PAUSE_MAX: Duration = Duration::from_millis(20);
    let mut pause = Duration::from_millis(1);
    while backlog.bytes() > limit {
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}
