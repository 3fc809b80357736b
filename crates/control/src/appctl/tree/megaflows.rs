//! The megaflows that most packets take.

use crate::appctl::dpctl;
use crate::state::State;
use datapath::FlowDump;
use serde_json::{Value, json};

/// Megaflows in the answer, at most.
const MEGAFLOWS_TOLD_MAX: usize = 200;
/// Megaflows that are looked at, all on the control thread; more are only counted.
const MEGAFLOWS_SEEN_MAX: u64 = 100_000;

/// The busiest megaflows since each was installed, the busiest first.
pub fn megaflows(s: &mut State) -> Value {
    let all_there: u64 = s.dp.pmd_info().iter().map(|p| u64::from(p.flows)).sum();
    if all_there > MEGAFLOWS_SEEN_MAX {
        let why = format!("there are more than {MEGAFLOWS_SEEN_MAX}: too many to sort by use");
        return json!({"all": all_there, "hottest": [], "error": why});
    }
    let mut all: Vec<FlowDump> = s.dp.flows().into_iter().filter(|f| !f.dead).collect();
    let rank = |f: &FlowDump| std::cmp::Reverse(f.packets);
    if all.len() > MEGAFLOWS_TOLD_MAX {
        all.select_nth_unstable_by_key(MEGAFLOWS_TOLD_MAX, rank);
        all.truncate(MEGAFLOWS_TOLD_MAX);
    }
    all.sort_by_key(rank);
    json!({"all": all_there, "hottest": dpctl::flows_json(s, &all)})
}
