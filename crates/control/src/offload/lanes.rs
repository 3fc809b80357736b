//! What waits for a thread that talks to adapters: what is urgent, and the rest.

use super::thread::{TableId, What};
use offload::MarkRequest;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Instant;

/// A request to the thread of an adapter.
pub struct Job {
    pub table: TableId,
    pub what: What,
    pub since: Instant,
}

#[derive(Default)]
struct Queues {
    urgent: VecDeque<Job>,
    rest: VecDeque<Job>,
    stopping: bool,
}

/// Both queues; control never waits for the thread, which holds the lock only to take a job out.
#[derive(Default)]
pub struct Lanes {
    queues: Mutex<Queues>,
    more: Condvar,
}

impl Lanes {
    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Appends a request.
    pub fn push(&self, job: Job, urgent: bool) {
        let mut q = self.lock();
        if urgent {
            q.urgent.push_back(job)
        } else {
            q.rest.push_back(job)
        }
        drop(q);
        self.more.notify_one();
    }

    /// How much waits, but for what is urgent.
    pub fn waiting(&self) -> usize {
        self.lock().rest.len()
    }

    /// The next thing to do, as soon as there is one; None: that was all.
    pub fn pop(&self) -> Option<Job> {
        let mut q = self.lock();
        loop {
            if q.stopping {
                return None;
            }
            if let Some(job) = q.urgent.pop_front().or_else(|| q.rest.pop_front()) {
                return Some(job);
            }
            q = self.more.wait(q).unwrap_or_else(|e| e.into_inner());
        }
    }

    /// Takes out what waits for a table and is about its rules; how much that was.
    pub fn withdraw(&self, table: TableId) -> usize {
        let mut q = self.lock();
        let before = q.urgent.len() + q.rest.len();
        let stays = |j: &Job| {
            let about_rules = matches!(
                j.what,
                What::Do(MarkRequest::Create(..) | MarkRequest::Destroy(..)) | What::Full(_)
            );
            j.table != table || !about_rules
        };
        q.urgent.retain(stays);
        q.rest.retain(stays);
        before - q.urgent.len() - q.rest.len()
    }

    /// Nothing more is to be done.
    pub fn stop(&self) {
        self.lock().stopping = true;
        self.more.notify_one();
    }
}
