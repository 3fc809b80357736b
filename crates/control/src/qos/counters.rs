//! Counters of queues, as the kernel said last. It is asked when a command or a controller wants to
//! know, by a thread of its own that may wait for it; who wants the same meanwhile has the same
//! answer.

use super::applied::{Counted, Gate, minor};
use crate::state::{Shared, State};
use ::port::tc::{ClassStats, TrafficControl};
use flow::PortNo;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::task::spawn_blocking;

/// How often a task that waits for an answer looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(2);

/// A queue's counters, and when it was made (`now_ms`).
pub struct QueueCounters {
    /// What the queue has sent.
    pub stats: ClassStats,
    /// When the queue was made.
    pub since_ms: u64,
}

/// Asks the kernel about the ports that are due, one after the other, until the daemon ends.
pub async fn run(state: Shared) {
    let wake = state.borrow().applied.queues_asked.due.wake.clone();
    loop {
        let next = state.borrow_mut().applied.queues_asked.due.next();
        match next {
            Some(no) => ask(&state, no).await,
            None => wake.notified().await,
        }
    }
}

async fn ask(state: &Shared, no: PortNo) {
    let Some((gate, number, mut tc)) = begin(&mut state.borrow_mut(), no) else { return };
    let stats = spawn_blocking(move || tc.class_stats().unwrap_or_default()).await;
    let s = &mut *state.borrow_mut();
    s.applied.queues_asked.current = None;
    // The port may have gone meanwhile, and another one have its number.
    if let Some(applied) = s.applied.qos.get_mut(&no).filter(|applied| applied.gate.is(&gate)) {
        applied.counted = Counted { number, stats: stats.unwrap_or_default() };
    }
}

fn begin(s: &mut State, no: PortNo) -> Option<(Gate, u64, TrafficControl)> {
    let asked = &mut s.applied.queues_asked;
    asked.due.ports.remove(&no);
    let gate = s.applied.qos.get(&no)?.gate.clone();
    let tc = s.dp.port(no)?.traffic_control()?;
    asked.begun += 1;
    asked.current = Some(no);
    Some((gate, asked.begun, tc))
}

/// Waits until the kernel was asked about the queues of these ports after this call, and gives
/// others their turn meanwhile.
pub async fn asked(state: &Shared, mut ports: Vec<PortNo>) {
    let after = want(&mut state.borrow_mut(), &mut ports);
    loop {
        ports.retain(|no| is_awaited(&state.borrow(), *no, after));
        if ports.is_empty() {
            return;
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

/// The number of the last question that comes too early for who asks now. Ports without queues are
/// left out.
fn want(s: &mut State, ports: &mut Vec<PortNo>) -> u64 {
    let applied = &mut s.applied;
    let qos = &applied.qos;
    ports.retain(|no| qos.get(no).is_some_and(|a| a.queues().next().is_some()));
    ports.iter().for_each(|no| applied.queues_asked.due.add(*no));
    applied.queues_asked.begun
}

/// False: there is an answer, or there will be none.
fn is_awaited(s: &State, no: PortNo, after: u64) -> bool {
    let asked = &s.applied.queues_asked;
    let is_older = s.applied.qos.get(&no).is_some_and(|a| a.counted.number <= after);
    is_older && (asked.current == Some(no) || asked.due.ports.contains(&no))
}

/// The counters of a port's queues, by number, as they were when the kernel was [`asked`].
pub fn counters(s: &State, no: PortNo) -> BTreeMap<u32, QueueCounters> {
    let Some(applied) = s.applied.qos.get(&no) else { return BTreeMap::new() };
    let found = applied.since_ms.iter().filter_map(|(id, since_ms)| {
        let stats = *applied.counted.stats.get(&minor(*id))?;
        Some((*id, QueueCounters { stats, since_ms: *since_ms }))
    });
    found.collect()
}
