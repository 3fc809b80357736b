//! The database's client on a thread of its own: what the server says may be large (it is read,
//! compared and answered at one go), and the control thread has other things to do meanwhile.

use super::client::{Change, OvsdbClient};
use super::status::Status;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// The name of the thread.
pub const DATABASE_THREAD: &str = "database";

/// What both threads see.
#[derive(Default)]
struct Common {
    /// The last change that was not taken yet: one that comes later takes its place.
    change: Mutex<Option<Change>>,
    has_change: Notify,
    /// How many statuses there were to be written.
    sent: AtomicU64,
    /// How many of these are in the database, or never will be.
    written: AtomicU64,
}

impl Common {
    fn change(&self) -> MutexGuard<'_, Option<Change>> {
        self.change.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, new: Change) {
        *self.change() = Some(new);
        self.has_change.notify_one();
    }
}

/// A client of the database, as [`OvsdbClient`], on another thread.
pub struct Database {
    common: Arc<Common>,
    statuses: UnboundedSender<Status>,
}

/// The progress of statuses that were given to the database's thread.
pub struct Writing(Arc<Common>);

impl Writing {
    /// True if a status is under way to the database, or waits.
    pub fn is_under_way(&self) -> bool {
        self.0.written.load(Ordering::Acquire) < self.0.sent.load(Ordering::Relaxed)
    }
}

impl Database {
    /// Gives a client a thread, which ends with the process.
    ///
    /// # Errors
    /// When the system gives no thread, or nothing to wait for files with.
    pub fn start(client: OvsdbClient) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (statuses, received) = unbounded_channel();
        let common = Arc::new(Common::default());
        let run = serve(client, common.clone(), received);
        std::thread::Builder::new()
            .name(DATABASE_THREAD.into())
            .spawn(move || runtime.block_on(run))?;
        Ok(Self { common, statuses })
    }

    /// The next change; of those that came since the last call, the last one. Cancel-safe.
    pub async fn next(&mut self) -> Change {
        loop {
            if let Some(change) = self.common.change().take() {
                return change;
            }
            self.common.has_change.notified().await;
        }
    }

    /// The progress of statuses that were given to the database's thread.
    pub fn writing(&self) -> Writing {
        Writing(self.common.clone())
    }

    /// As [`OvsdbClient::write`].
    pub fn write(&mut self, status: Status) {
        self.common
            .sent
            .fetch_add(u64::from(self.statuses.send(status).is_ok()), Ordering::Relaxed);
    }
}

/// Whether a report to the database is wanted or under way: a command can wait until it is written.
#[derive(Default)]
pub struct Reports {
    /// A command asked for a report, and the main loop has not yet looked if there is one to make.
    pub is_wanted: bool,
    is_under_way: bool,
    writing: Option<Writing>,
}

impl Reports {
    /// True if all that is to be reported is in the database.
    pub fn are_written(&self) -> bool {
        let is_writing = self.writing.as_ref().is_some_and(Writing::is_under_way);
        !self.is_wanted && !self.is_under_way && !is_writing
    }

    /// A report is being put together.
    pub fn begin(&mut self, db: &Database) {
        *self = Reports { is_wanted: false, is_under_way: true, writing: Some(db.writing()) };
    }

    /// The report was given to the database's thread.
    pub fn end(&mut self) {
        self.is_under_way = false;
    }
}

async fn serve(
    mut client: OvsdbClient,
    common: Arc<Common>,
    mut statuses: UnboundedReceiver<Status>,
) {
    let mut received = 0;
    loop {
        tokio::select! {
            change = client.next() => if change != Change::Written { common.put(change) },
            status = statuses.recv() => {
                let Some(status) = status else { return };
                received += 1;
                client.write(status);
            }
        }
        if !client.is_writing() {
            common.written.store(received, Ordering::Release);
        }
    }
}
