//! Changes of many flows: a slice at a time, so that everything else has its turn.

use super::async_msgs::Origin;
use crate::state::Shared;
use ofproto::{BridgeId, Change, Items, Outcome};
use openflow::OfError;

/// Flows of a slice, which are changed, reported or freed in one turn: a few milliseconds' work.
pub const SLICE_FLOWS_MAX: usize = 2048;

/// Executes the items as one change. Once begun it goes on to its end, whatever becomes of the
/// connection that asked for it.
pub async fn run(state: &Shared, origin: Origin, bridge: BridgeId, items: Items) -> Outcome {
    wait_until_idle(state).await;
    let change = {
        let mut s = state.borrow_mut();
        let now = s.now_ns();
        s.ofproto.begin(bridge, items, now).map_err(|e| (0, e))?
    };
    if let Some(outcome) = run_slice(state, &change, origin) {
        return outcome;
    }
    let state = state.clone();
    let rest = tokio::task::spawn_local(async move {
        loop {
            tokio::task::yield_now().await;
            if let Some(outcome) = run_slice(&state, &change, origin) {
                return outcome;
            }
        }
    });
    rest.await.unwrap_or(Err((0, OfError::BadType)))
}

fn run_slice(state: &Shared, change: &Change, origin: Origin) -> Option<Outcome> {
    let mut s = state.borrow_mut();
    let outcome = s.ofproto.advance(change, SLICE_FLOWS_MAX);
    s.deliver(origin);
    outcome
}

/// Waits until no change is under way.
pub async fn wait_until_idle(state: &Shared) {
    while state.borrow().ofproto.busy() {
        tokio::task::yield_now().await;
    }
}
