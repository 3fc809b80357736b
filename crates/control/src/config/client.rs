//! The connection to the database server, for the main loop to own.

use super::desired::Desired;
use super::qos::KnownQos;
use super::status::{RowUpdate, Status};
use super::target::{Stream, Target};
use crate::tls::Tls;
use crate::vlog;
use ovsdb::{Event, Replica, Session, SessionConfig, Transaction, TransactionError, TxnId};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::ReadBuf;
use tokio::task::JoinHandle;

/// What the main loop has to react to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The configuration is new, or known again after a pause: reconcile and write the status.
    Config(Box<Desired>),
    /// Another daemon holds the lock: keep what is there, change nothing.
    LockLost,
    /// The database is not initialized yet.
    Empty,
    /// A write has arrived in the database.
    Written,
}

/// Interfaces, and ports, in one transaction: both ends of the connection do it in one turn. To
/// compare those of 4,000 patch ports with the database takes 28 ms.
const PART_ROWS_MAX: usize = 512;

/// The configuration is read in one part of so many of the time, at most, however often others
/// write: that of 4,000 ports takes 17 ms.
const READ_TIME_ONE_OF: u32 = 4;

/// A client of the database that reconnects by itself. All progress is made in
/// [`next`](Self::next), which may be dropped at any time without loss.
pub struct OvsdbClient {
    target: Target,
    name: String,
    session: Session,
    start: Instant,
    connecting: Option<JoinHandle<io::Result<Stream>>>,
    stream: Option<Stream>,
    tls: Tls,
    output: Vec<u8>,
    input: Vec<u8>,
    seen: Option<Desired>,
    known_qos: KnownQos,
    /// The replica has changed since the configuration was last read from it.
    changed: bool,
    /// Before then it is not read again.
    read_due: Instant,
    /// How often the configuration was read.
    reads: u64,
    /// The last read filled the buffer: more is likely to be there.
    more_input: bool,
    writer: Writer,
}

/// The writes under way: one transaction for each part of what waits, one after the other. What the
/// server refuses is tried again in smaller parts, row by row and then column by column, so that
/// one bad value keeps back nothing else; the acknowledgement comes after the rest even then.
#[derive(Default)]
struct Writer {
    waiting: Status,
    in_flight: BTreeMap<TxnId, Vec<RowUpdate>>,
    last: Vec<RowUpdate>,
}

impl OvsdbClient {
    /// A client of the server at `target`; connects when first polled. Needs a tokio runtime.
    pub fn new(target: Target, name: &str) -> Self {
        Self::with(target, name, super::session_config())
    }

    /// A client that reads without the lock, and must not write.
    pub fn reader(target: Target, name: &str) -> Self {
        let mut config = super::session_config();
        config.lock = None;
        Self::with(target, name, config)
    }

    fn with(target: Target, name: &str, mut config: SessionConfig) -> Self {
        if !target.needs_probes() {
            config.probe_interval = Duration::ZERO;
        }
        Self {
            target,
            name: name.to_owned(),
            session: Session::new(config),
            start: Instant::now(),
            connecting: None,
            stream: None,
            tls: Tls::default(),
            output: Vec::new(),
            input: vec![0; 64 << 10],
            seen: None,
            known_qos: KnownQos::default(),
            changed: false,
            read_due: Instant::now(),
            reads: 0,
            more_input: false,
            writer: Writer::default(),
        }
    }

    /// Adds keys and authorities for a server that listens on `ssl:`.
    #[must_use]
    pub fn with_tls(self, tls: Tls) -> Self {
        Self { tls, ..self }
    }

    /// The tables as last heard of.
    pub fn replica(&self) -> &Replica {
        self.session.replica()
    }

    /// Whether writes reach the database now.
    pub fn can_write(&self) -> bool {
        self.session.is_synced() && self.session.has_lock()
    }

    /// Writes what differs from the database, in parts, after a write that is under way; of several
    /// that wait the last counts for each row. While there is no connection or lock it is dropped:
    /// the next [`Change::Config`] asks for another.
    pub fn write(&mut self, status: Status) {
        if self.can_write() {
            self.writer.waiting.add(status);
            self.write_next();
        }
    }

    /// True if a transaction is under way to the database, or waits.
    pub fn is_writing(&self) -> bool {
        !self.writer.in_flight.is_empty() || !self.writer.waiting.is_empty()
    }

    /// True if a part is to be written that waited only for the turn of others.
    fn has_part(&self) -> bool {
        self.writer.in_flight.is_empty() && !self.writer.waiting.is_empty()
    }

    /// Writes what differs of the next part, if nothing is under way.
    fn write_next(&mut self) {
        if self.has_part()
            && let Some(part) = self.writer.waiting.take_part(PART_ROWS_MAX)
        {
            self.transact(part.diff(self.session.replica()));
        }
    }

    fn transact(&mut self, rows: Vec<RowUpdate>) {
        let mut transaction = Transaction::new();
        rows.iter().for_each(|row| row.clone().add_to(&mut transaction));
        if transaction.is_empty() {
            return;
        }
        if let Some(id) = self.session.transact(transaction) {
            self.writer.in_flight.insert(id, rows);
        }
    }

    /// The next change. Cancel-safe.
    pub async fn next(&mut self) -> Change {
        loop {
            while let Some(event) = self.session.poll_event() {
                if let Some(change) = self.event(event) {
                    return change;
                }
            }
            let reads = self.reads;
            if let Some(change) = self.config() {
                return change;
            }
            if self.reads > reads {
                // Others have their turn after that, even if there is always more to be received.
                tokio::task::yield_now().await;
            }
            let output = self.session.take_output();
            self.output.extend(output);
            match self.has_part() {
                true => {
                    // To compare a part takes milliseconds, even if nothing differs.
                    tokio::task::yield_now().await;
                    self.write_next();
                }
                false => self.step().await,
            }
        }
    }

    /// How often the configuration was read from the tables.
    pub fn reads(&self) -> u64 {
        self.reads
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn event(&mut self, event: Event) -> Option<Change> {
        match event {
            Event::Synced | Event::Locked => {
                self.seen = None;
                self.changed = true;
                None
            }
            Event::Changed => {
                self.changed = true;
                None
            }
            Event::LockLost => {
                self.lock_lost();
                Some(Change::LockLost)
            }
            Event::Unusable(why) => {
                vlog::err!("ovsdb_cs", "{}: {why}", self.name);
                self.close(&io::Error::other("database cannot be used"));
                None
            }
            Event::Transaction(id, result) => self.written(id, result.err()),
        }
    }

    /// The configuration, if it differs from the one given last. Of many changes that arrive
    /// together only the last is read.
    fn config(&mut self) -> Option<Change> {
        let begin = Instant::now();
        if !self.changed || self.more_input || !self.can_write() || begin < self.read_due {
            return None;
        }
        self.changed = false;
        let desired = Desired::read(self.session.replica(), &mut self.known_qos);
        self.reads += 1;
        self.read_due = begin + begin.elapsed() * READ_TIME_ONE_OF;
        let Some(desired) = desired else {
            return Some(Change::Empty);
        };
        if self.seen.as_ref() == Some(&desired) {
            return None;
        }
        self.seen = Some(desired.clone());
        Some(Change::Config(Box::new(desired)))
    }

    fn lock_lost(&self) {
        if self.session.is_connected() {
            vlog::err!(
                "bridge",
                "another ovs-vswitchd process is running, disabling this process (pid {}) until it goes away",
                std::process::id()
            );
        }
    }

    fn written(&mut self, id: TxnId, error: Option<TransactionError>) -> Option<Change> {
        let rows = self.writer.in_flight.remove(&id)?;
        match error {
            Some(TransactionError::ConnectionLost) => return None,
            Some(error) => self.write_apart(rows, &error),
            None => {}
        }
        if self.writer.in_flight.is_empty() {
            let last = std::mem::take(&mut self.writer.last);
            self.transact(last);
        }
        if !self.writer.in_flight.is_empty() {
            return None;
        }
        self.writer.waiting.is_empty().then_some(Change::Written)
    }

    fn write_apart(&mut self, rows: Vec<RowUpdate>, error: &TransactionError) {
        let [row] = rows.as_slice() else {
            let (last, first) = rows.into_iter().partition(|row| row.table == "Open_vSwitch");
            self.writer.last = last;
            return Vec::into_iter(first).for_each(|row| self.transact(vec![row]));
        };
        let RowUpdate { table, uuid, columns } = row.clone();
        if let [(column, _)] = columns.as_slice() {
            return vlog::warn!("bridge", "{table} {uuid}: {column} was not written: {error}");
        }
        for column in columns {
            self.transact(vec![RowUpdate { table, uuid, columns: vec![column] }]);
        }
    }

    /// Waits for one thing to happen and does it.
    async fn step(&mut self) {
        match self.stream {
            Some(_) => {
                if let Err(error) = self.exchange().await {
                    self.close(&error);
                }
            }
            None => self.connect().await,
        }
    }

    async fn connect(&mut self) {
        if self.connecting.is_none() {
            let due = self.session.connect_due().unwrap_or_default();
            tokio::time::sleep_until((self.start + due).into()).await;
            vlog::info!("reconnect", "{}: connecting...", self.name);
        }
        let (target, tls) = (&self.target, &self.tls);
        let attempt = self
            .connecting
            .get_or_insert_with(|| tokio::spawn(target.clone().connect(tls.clone())));
        let result = attempt.await.unwrap_or_else(|e| Err(io::Error::other(e)));
        self.connecting = None;
        match result {
            Ok(stream) => {
                vlog::info!("reconnect", "{}: connected", self.name);
                self.stream = Some(stream);
                self.session.connected(self.now());
            }
            Err(error) => {
                let (name, why) = (&self.name, reason(&error));
                vlog::info!("reconnect", "{name}: connection attempt failed ({why})");
                self.session.disconnected(self.now());
            }
        }
    }

    fn close(&mut self, error: &io::Error) {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            vlog::info!("reconnect", "{}: connection closed by peer", self.name);
        } else {
            vlog::warn!("reconnect", "{}: connection dropped ({})", self.name, reason(error));
        }
        self.stream = None;
        self.more_input = false;
        self.output.clear();
        self.writer.waiting = Status::default();
        self.writer.last.clear();
        self.session.disconnected(self.now());
    }

    async fn exchange(&mut self) -> io::Result<()> {
        if self.more_input {
            tokio::task::yield_now().await;
        }
        let deadline = self.session.deadline().map(|at| self.start + at);
        let now = Instant::now();
        let read_due = Some(self.read_due).filter(|due| self.changed && *due > now);
        let deadline = deadline.into_iter().chain(read_due).min();
        let timer = async {
            match deadline {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        let received = tokio::select! {
            biased;
            received = poll_fn(|cx| self.poll_stream(cx)) => received?,
            () = timer => 0,
        };
        let now = self.now();
        if received > 0 {
            self.session.receive(&self.input[..received], now).map_err(io::Error::other)?;
        }
        self.session.tick(now).map_err(io::Error::other)
    }

    /// Writes and reads what can be; how many bytes were read. Waits while nothing can be done.
    fn poll_stream(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let Some(stream) = &mut self.stream else { return Poll::Ready(Ok(0)) };
        let waiting = self.output.len();
        while !self.output.is_empty() {
            match stream.as_mut().poll_write(cx, &self.output)? {
                Poll::Ready(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(count) => drop(self.output.drain(..count)),
                Poll::Pending => break,
            }
        }
        let mut buffer = ReadBuf::new(&mut self.input);
        let mut has_ended = false;
        while buffer.remaining() > 0 && !has_ended {
            let before = buffer.filled().len();
            match stream.as_mut().poll_read(cx, &mut buffer)? {
                Poll::Ready(()) => has_ended = buffer.filled().len() == before,
                Poll::Pending => break,
            }
        }
        let (received, expected) = (buffer.filled().len(), self.more_input);
        self.more_input = buffer.remaining() == 0;
        match received {
            0 if has_ended => Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
            0 if !expected && waiting == self.output.len() => Poll::Pending,
            _ => Poll::Ready(Ok(received)),
        }
    }
}

/// The system's words for an error, without its number.
fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}
