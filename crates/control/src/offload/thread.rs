//! The threads that talk to adapters: calls may block as long as a driver likes.

use flow::PortNo;
use offload::{Answer, Outcome, Request};
use port::RuleTable;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Instant;

/// Requests that wait for one thread, at most: so many that it has something to do until control comes by again.
pub const JOBS_MAX: usize = 256;

/// One opening of one port.
pub type TableId = (PortNo, u64);

/// What a thread is to do.
enum What {
    Open(Box<dyn RuleTable>),
    /// All rules go, and the table is not asked again.
    Close,
    Do(Request),
}

struct Job {
    table: TableId,
    what: What,
    since: Instant,
}

/// What it did.
pub struct Done {
    /// Whose.
    pub table: TableId,
    /// What became of it.
    pub answer: Answer,
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
    jobs: SyncSender<Job>,
    done: Receiver<(Done, u64)>,
    handle: Option<JoinHandle<()>>,
    stopping: Arc<AtomicBool>,
    /// Openings and closings that found no room: a few per port.
    first: VecDeque<Job>,
    /// Requests sent and not answered.
    pub under_way: usize,
    /// From request to answer.
    pub latency: Latency,
}

impl Thread {
    /// Starts number `n`.
    pub fn start(n: usize) -> std::io::Result<Thread> {
        let (jobs, todo) = sync_channel(JOBS_MAX);
        let (out, done) = channel();
        let stopping = Arc::new(AtomicBool::new(false));
        let stop = stopping.clone();
        let run = move || work(&todo, &stop, &mut |answer| drop(out.send(answer)));
        let handle = Some(std::thread::Builder::new().name(format!("hw_offload{n}")).spawn(run)?);
        let (first, latency) = (VecDeque::new(), Latency::default());
        Ok(Thread { jobs, done, handle, stopping, first, under_way: 0, latency })
    }

    /// A port's table is this thread's now.
    pub fn open(&mut self, table: TableId, rules: Box<dyn RuleTable>) {
        self.first.push_back(Job { table, what: What::Open(rules), since: Instant::now() });
    }

    /// Nobody needs it any more.
    pub fn close(&mut self, table: TableId) {
        self.first.push_back(Job { table, what: What::Close, since: Instant::now() });
    }

    /// Asks for something; what there is no room for comes back.
    pub fn ask(&mut self, table: TableId, request: Request) -> Option<Request> {
        while let Some(job) = self.first.pop_front() {
            if let Err(TrySendError::Full(job)) = self.jobs.try_send(job) {
                self.first.push_front(job);
                return Some(request);
            }
        }
        let job = Job { table, what: What::Do(request), since: Instant::now() };
        match self.jobs.try_send(job) {
            Err(TrySendError::Full(Job { what: What::Do(request), .. })) => Some(request),
            _ => {
                self.under_way += 1;
                None
            }
        }
    }

    /// The next answer.
    pub fn answer(&mut self) -> Option<Done> {
        while self.under_way < JOBS_MAX
            && let Some(job) = self.first.pop_front()
        {
            if let Err(TrySendError::Full(job)) = self.jobs.try_send(job) {
                self.first.push_front(job);
                break;
            }
        }
        match self.done.try_recv() {
            Ok((done, us)) => {
                self.under_way -= 1;
                self.latency.add(us as f64);
                Some(done)
            }
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => None,
        }
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // It finishes the call it is in. Nobody waits for that: a driver may never come back.
        self.stopping.store(true, Ordering::Relaxed);
        drop(self.handle.take());
    }
}

fn work(todo: &Receiver<Job>, stop: &AtomicBool, done: &mut dyn FnMut((Done, u64))) {
    let mut tables: HashMap<TableId, Box<dyn RuleTable>> = HashMap::new();
    while let Ok(job) = todo.recv() {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        match job.what {
            What::Open(rules) => drop(tables.insert(job.table, rules)),
            What::Close => {
                if let Some(mut rules) = tables.remove(&job.table) {
                    let _ = rules.flush();
                }
            }
            What::Do(request) => {
                let (began, cpu) = (Instant::now(), cpu_us());
                let outcome = execute(tables.get_mut(&job.table), request);
                let took_us = began.elapsed().as_micros() as u64;
                let cpu_us = cpu_us().saturating_sub(cpu);
                let answer = Answer { outcome, took_us, cpu_us };
                let since = job.since.elapsed().as_micros() as u64;
                done((Done { table: job.table, answer }, since));
            }
        }
    }
}

fn execute(table: Option<&mut Box<dyn RuleTable>>, request: Request) -> Outcome {
    let gone = || port::RuleError { errno: libc::ENODEV, kind: 0, message: "closed".into() };
    match (request, table) {
        (Request::Create(mark, rule), Some(t)) => Outcome::Created(mark, t.create(&rule)),
        (Request::Destroy(mark, id), Some(t)) => Outcome::Destroyed(mark, t.destroy(id)),
        (Request::Flush, Some(t)) => Outcome::Flushed(t.flush()),
        (Request::Create(mark, _), None) => Outcome::Created(mark, Err(gone())),
        (Request::Destroy(mark, _), None) => Outcome::Destroyed(mark, Err(gone())),
        (Request::Flush, None) => Outcome::Flushed(Err(gone())),
    }
}

/// What this thread has kept a core busy, microseconds.
fn cpu_us() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills the structure.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as u64 * 1_000_000 + t.tv_nsec as u64 / 1000
}
