//! An engine that is a thread: late, in any order, failing and hanging as the test asks.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use testkit::Noise;
use vhost::{Engine, Job};

/// What is wrong with it.
#[derive(Clone, Copy, Default)]
pub struct Faults {
    /// One copy of so many fails; 0: none.
    pub error_one_of: usize,
    /// It makes no more copies after so many; 0: never.
    pub hang_after: usize,
    /// Copies that it holds.
    pub room: usize,
    /// Longest delay of copies that were submitted together.
    pub delay_us: usize,
    /// Copies fail of which no end is in memory that is mapped for it ([`MAPPED`]).
    pub needs_maps: bool,
    /// Copies to pages fail that are not there yet, as an engine does that causes no page faults.
    pub needs_pages: bool,
}

/// True if the page at this address is in memory.
fn is_there(at: *mut u8) -> bool {
    let (page, mut there) = (at.map_addr(|at| at & !0xfff), 0);
    // SAFETY: it looks at the page tables of a mapping.
    let known = unsafe { libc::mincore(page.cast(), 1, &raw mut there) } == 0;
    known && there & 1 != 0
}

/// What is mapped for engines: ranges of addresses. The test that has engines map keeps it.
pub static MAPPED: Mutex<Vec<Range<usize>>> = Mutex::new(Vec::new());

/// True if an end of a copy is in memory that is mapped for engines.
fn is_mapped(job: &Job) -> bool {
    let mapped = MAPPED.lock().unwrap();
    [job.from.addr(), job.to.addr()].iter().any(|at| mapped.iter().any(|m| m.contains(at)))
}

#[derive(Default)]
struct State {
    /// Copies to be made, and whether each is to fail.
    todo: VecDeque<(Job, bool)>,
    /// What became of those that are made and not reported.
    done: VecDeque<u32>,
    stopping: bool,
    made: usize,
}

pub struct SlowEngine {
    shared: Arc<(Mutex<State>, Condvar)>,
    waiting: Vec<(Job, bool)>,
    held: usize,
    noise: Noise,
    faults: Faults,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// How long engines that hang are waited for, and those that do not, ms.
const HANG_TIME_MS: [u32; 2] = [100, 20_000];

impl SlowEngine {
    pub fn new(seed: u64, faults: Faults) -> SlowEngine {
        vhost_user::testing::set_hang_time(HANG_TIME_MS[usize::from(faults.hang_after == 0)]);
        let shared: Arc<(Mutex<State>, Condvar)> = Arc::default();
        let theirs = shared.clone();
        let thread = std::thread::spawn(move || run(&theirs, Noise(seed), faults));
        let (waiting, noise) = (Vec::new(), Noise(seed + 1));
        SlowEngine { shared, waiting, held: 0, noise, faults, thread: Some(thread) }
    }
}

fn run(shared: &(Mutex<State>, Condvar), mut noise: Noise, faults: Faults) {
    let (state, changed) = shared;
    loop {
        let mut now = state.lock().unwrap();
        while now.todo.is_empty() && !now.stopping {
            now = changed.wait(now).unwrap();
        }
        if now.stopping {
            return;
        }
        let n = 1 + noise.below(now.todo.len());
        let mut row: Vec<_> = now.todo.drain(..n).collect();
        drop(now);
        for (job, fails) in &mut row {
            *fails |= faults.needs_pages && !is_there(job.to);
            *fails |= faults.needs_maps && !is_mapped(job);
        }
        let statuses: Vec<u32> = row.iter().map(|(_, fails)| 7 * u32::from(*fails)).collect();
        std::thread::sleep(Duration::from_micros(noise.below(faults.delay_us + 1) as u64));
        // In any order; some of what fails is made in part, or twice.
        while !row.is_empty() {
            let (mut job, fails) = row.swap_remove(noise.below(row.len()));
            if state.lock().unwrap().stopping {
                return;
            }
            if fails && faults.needs_pages {
                continue;
            }
            job.len = if fails { job.len / 2 } else { job.len };
            // SAFETY: who gave the job vouches for both ends until it is reported.
            unsafe { job.make() };
        }
        let mut now = state.lock().unwrap();
        now.made += statuses.len();
        if faults.hang_after > 0 && now.made > faults.hang_after {
            // What was made is not reported any more.
            drop(changed.wait_while(now, |now| !now.stopping).unwrap());
            return;
        }
        now.done.extend(statuses);
    }
}

impl Engine for SlowEngine {
    fn room(&mut self) -> usize {
        self.faults.room - self.held
    }

    unsafe fn copy(&mut self, jobs: &[Job]) -> usize {
        // Now and then it takes less than it said.
        let n =
            if self.noise.below(50) == 0 { self.noise.below(jobs.len() + 1) } else { jobs.len() };
        for job in &jobs[..n] {
            let one_of = self.faults.error_one_of;
            self.waiting.push((*job, one_of > 0 && self.noise.below(one_of) == 0));
        }
        self.held += n;
        n
    }

    fn submit(&mut self) {
        self.shared.0.lock().unwrap().todo.extend(self.waiting.drain(..));
        self.shared.1.notify_all();
    }

    fn completed(&mut self, max: usize) -> (usize, bool) {
        let mut state = self.shared.0.lock().unwrap();
        let n = state.done.iter().take(max).take_while(|status| **status == 0).count();
        state.done.drain(..n);
        self.held -= n;
        (n, n < max && !state.done.is_empty())
    }

    fn statuses(&mut self, max: usize, out: &mut Vec<u32>) {
        let mut state = self.shared.0.lock().unwrap();
        let n = state.done.len().min(max).min(5);
        out.extend(state.done.drain(..n));
        self.held -= n;
    }

    fn stop(&mut self) {
        self.shared.0.lock().unwrap().stopping = true;
        self.shared.1.notify_all();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for SlowEngine {
    fn drop(&mut self) {
        self.stop();
    }
}
