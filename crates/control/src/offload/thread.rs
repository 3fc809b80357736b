//! The threads that talk to adapters: calls may block as long as a driver likes.

use super::lanes::{Job, Lanes};
use flow::PortNo;
use offload::{MarkAnswer, MarkRequest, Outcome, full};
use port::{RuleError, RuleTable};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Requests that wait for one thread, at most: enough for it to have something to do until control
/// comes by again.
pub const JOBS_MAX: usize = 256;

/// One opening of one port.
pub type TableId = (PortNo, u64);

/// What a thread is to do.
pub enum What {
    /// The table is this thread's.
    Open(Box<dyn RuleTable>),
    /// All rules go, and the table is not asked again.
    Close,
    /// Marks, or all rules.
    Do(MarkRequest),
    /// Rules that forward.
    Full(full::ForwardRequest),
}

/// What the thread did for a request.
pub struct Done {
    /// Whose request it was.
    pub table: TableId,
    /// What became of the request.
    pub reply: Reply,
}

/// What became of a request.
pub enum Reply {
    /// About marks, or of a flush.
    Mark(MarkAnswer),
    /// About a rule that forwards; the call took so long, and kept a core busy for so long,
    /// microseconds.
    Full(full::Outcome, u64, u64),
    /// The answer to [`Thread::close`].
    Closed,
}

/// As ovs-vswitchd counts: cumulative, and weighted to the last hundred.
#[derive(Clone, Copy, Default)]
pub struct Latency {
    n: f64,
    mean: f64,
    squares: f64,
    recent: f64,
    variance: f64,
}

impl Latency {
    fn add(&mut self, us: f64) {
        const WEIGHT: f64 = 2.0 / 101.0;
        self.n += 1.0;
        let off = us - self.mean;
        self.mean += off / self.n;
        self.squares += off * (us - self.mean);
        if self.n == 1.0 {
            self.recent = us;
            return;
        }
        let off = us - self.recent;
        self.recent += WEIGHT * off;
        self.variance = (1.0 - WEIGHT) * (self.variance + WEIGHT * off * off);
    }

    /// Cumulative mean and standard deviation, those of the last, microseconds.
    pub fn all(&self) -> [u64; 4] {
        let spread = if self.n > 1.0 { (self.squares / (self.n - 1.0)).sqrt() } else { 0.0 };
        [self.mean, spread, self.recent, self.variance.sqrt()].map(|us| us as u64)
    }
}

/// A thread, as the control thread knows it.
pub struct Thread {
    lanes: Arc<Lanes>,
    done: Receiver<(Done, u64)>,
    handle: Option<JoinHandle<()>>,
    /// Requests sent and not answered.
    pub under_way: usize,
    /// Time from a request to its answer.
    pub latency: Latency,
    /// The last answer, or the first request that none came for.
    heard: Instant,
}

impl Thread {
    /// Starts number `n`.
    pub fn start(n: usize) -> std::io::Result<Thread> {
        let lanes = Arc::new(Lanes::default());
        let (out, done) = channel();
        let todo = lanes.clone();
        let run = move || work(&todo, &out);
        let handle = Some(std::thread::Builder::new().name(format!("hw_offload{n}")).spawn(run)?);
        let (latency, heard) = (Latency::default(), Instant::now());
        Ok(Thread { lanes, done, handle, under_way: 0, latency, heard })
    }

    /// A port's table is this thread's now.
    pub fn open(&mut self, table: TableId, rules: Box<dyn RuleTable>) {
        self.send(table, What::Open(rules), false);
    }

    /// The port is not needed any more; [`Reply::Closed`] says when its rules are gone.
    pub fn close(&mut self, table: TableId) {
        self.send(table, What::Close, true);
    }

    fn send(&mut self, table: TableId, what: What, urgent: bool) {
        if self.under_way == 0 {
            self.heard = Instant::now();
        }
        self.under_way += 1;
        self.lanes.push(Job { table, what, since: Instant::now() }, urgent);
    }

    /// Asks for something; what there is no room for comes back.
    pub fn ask(&mut self, table: TableId, request: MarkRequest) -> Option<MarkRequest> {
        if self.lanes.waiting() >= JOBS_MAX {
            return Some(request);
        }
        self.send(table, What::Do(request), false);
        None
    }

    /// True if there is room for a request about a rule that forwards.
    pub fn has_room(&self) -> bool {
        self.lanes.waiting() < JOBS_MAX
    }

    /// Asks for something about a rule that forwards; what ends one is done first.
    pub fn ask_full(&mut self, table: TableId, request: full::ForwardRequest) {
        let urgent = matches!(request, full::ForwardRequest::Destroy(..));
        self.send(table, What::Full(request), urgent);
    }

    /// Ends all rules of the table before anything else is done. What waits for it is not done, nor
    /// answered.
    pub fn flush(&mut self, table: TableId) {
        self.under_way -= self.lanes.withdraw(table);
        self.send(table, What::Do(MarkRequest::Flush), true);
    }

    /// How long the adapter has owed an answer.
    pub fn silence(&self) -> Duration {
        match self.under_way {
            0 => Duration::ZERO,
            _ => self.heard.elapsed(),
        }
    }

    /// The next answer.
    pub fn answer(&mut self) -> Option<Done> {
        let (done, us) = self.done.try_recv().ok()?;
        self.under_way -= 1;
        self.heard = Instant::now();
        let is_count = matches!(done.reply, Reply::Full(full::Outcome::Counted(_), ..));
        if !is_count && !matches!(done.reply, Reply::Closed) {
            self.latency.add(us as f64);
        }
        Some(done)
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // It finishes the call it is in. No thread waits for that: a driver may never come back.
        self.lanes.stop();
        drop(self.handle.take());
    }
}

fn work(todo: &Lanes, out: &Sender<(Done, u64)>) {
    let mut tables: HashMap<TableId, Box<dyn RuleTable>> = HashMap::new();
    while let Some(job) = todo.pop() {
        let (began, cpu) = (Instant::now(), cpu_us());
        let took = || (began.elapsed().as_micros() as u64, cpu_us().saturating_sub(cpu));
        let reply = match job.what {
            What::Open(rules) => {
                tables.insert(job.table, rules);
                Reply::Closed
            }
            What::Close => {
                if let Some(mut rules) = tables.remove(&job.table) {
                    let _ = rules.flush();
                }
                Reply::Closed
            }
            What::Do(request) => {
                let outcome = execute(tables.get_mut(&job.table), request);
                let (took_us, cpu_us) = took();
                Reply::Mark(MarkAnswer { outcome, took_us, cpu_us })
            }
            What::Full(request) => {
                let outcome = execute_full(tables.get_mut(&job.table), request);
                let (took_us, cpu_us) = took();
                Reply::Full(outcome, took_us, cpu_us)
            }
        };
        // Control may be gone.
        let us = job.since.elapsed().as_micros() as u64;
        let _ = out.send((Done { table: job.table, reply }, us));
    }
}

fn gone() -> RuleError {
    RuleError { errno: libc::ENODEV, kind: 0, message: "closed".into() }
}

fn execute(table: Option<&mut Box<dyn RuleTable>>, request: MarkRequest) -> Outcome {
    match (request, table) {
        (MarkRequest::Create(mark, rule), Some(t)) => Outcome::Created(mark, t.create(&rule)),
        (MarkRequest::Destroy(mark, id), Some(t)) => Outcome::Destroyed(mark, t.destroy(id)),
        (MarkRequest::Flush, Some(t)) => Outcome::Flushed(t.flush()),
        (MarkRequest::Create(mark, _), None) => Outcome::Created(mark, Err(gone())),
        (MarkRequest::Destroy(mark, _), None) => Outcome::Destroyed(mark, Err(gone())),
        (MarkRequest::Flush, None) => Outcome::Flushed(Err(gone())),
    }
}

fn execute_full(
    table: Option<&mut Box<dyn RuleTable>>,
    request: full::ForwardRequest,
) -> full::Outcome {
    use full::{ForwardRequest, Outcome};
    match (request, table) {
        (ForwardRequest::Create(id, rule), Some(t)) => Outcome::Created(id, t.forward(&rule)),
        (ForwardRequest::Destroy(id, rule), Some(t)) => {
            // As late as can be: what comes between the two calls is not counted.
            let count = t.count(rule).ok();
            Outcome::Destroyed(id, count, t.destroy(rule))
        }
        (ForwardRequest::Count(all), Some(t)) => {
            let each = all.into_iter().filter_map(|(id, rule)| Some((id, t.count(rule).ok()?)));
            Outcome::Counted(each.collect())
        }
        (ForwardRequest::Create(id, _), None) => Outcome::Created(id, Err(gone())),
        (ForwardRequest::Destroy(id, _), None) => Outcome::Destroyed(id, None, Err(gone())),
        (ForwardRequest::Count(_), None) => Outcome::Counted(Vec::new()),
    }
}

/// What this thread has kept a core busy, microseconds.
fn cpu_us() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills the structure.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as u64 * 1_000_000 + t.tv_nsec as u64 / 1000
}
