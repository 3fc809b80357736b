//! The megaflows that most packets take.

use crate::appctl::dpctl;
use crate::ct_walk::Walker;
use crate::state::Shared;
use datapath::FlowDump;
use serde_json::{Value, json};
use std::cmp::Reverse;

/// Megaflows in the answer, at most.
const MEGAFLOWS_TOLD_MAX: usize = 200;
/// Megaflows that are looked at, at most; more are only counted.
const MEGAFLOWS_SEEN_MAX: u64 = 100_000;
/// Places of megaflows that are looked at in one turn.
const TURN_PLACES_MAX: usize = 1024;

/// The busiest megaflows since each was installed, the busiest first.
pub async fn megaflows(state: &Shared, turns: &Walker) -> Value {
    let workers = state.borrow().dp.pmd_info();
    let all_there: u64 = workers.iter().map(|p| u64::from(p.flows)).sum();
    if all_there > MEGAFLOWS_SEEN_MAX {
        let why = format!("there are more than {MEGAFLOWS_SEEN_MAX}: too many to sort by use");
        return json!({"all": all_there, "hottest": [], "error": why});
    }
    let mut hottest = Vec::new();
    for worker in workers {
        let mut next = Some(0);
        while let Some(from) = next {
            turns.turn().await;
            let dp = &mut state.borrow_mut().dp;
            next = dp.flows_of(worker.worker, from, TURN_PLACES_MAX, &mut hottest);
            keep_hottest(&mut hottest);
        }
    }
    hottest.sort_by_key(rank);
    json!({"all": all_there, "hottest": dpctl::flows_json(&state.borrow(), &hottest)})
}

fn rank(f: &FlowDump) -> Reverse<u64> {
    Reverse(f.packets)
}

/// Leaves as many megaflows as are answered.
fn keep_hottest(all: &mut Vec<FlowDump>) {
    all.retain(|f| !f.dead);
    if all.len() > MEGAFLOWS_TOLD_MAX {
        all.select_nth_unstable_by_key(MEGAFLOWS_TOLD_MAX, rank);
        all.truncate(MEGAFLOWS_TOLD_MAX);
    }
}
