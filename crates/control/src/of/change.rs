//! Changes of many flows: a slice at a time, so that everything else has its turn.

use super::async_msgs::Origin;
use crate::state::Shared;
use ofproto::{BridgeId, Change, Items, Outcome};
use openflow::OfError;

/// Flows that are changed, told of or freed at once: a few milliseconds' work.
pub const SLICE: usize = 2048;

/// Executes the items as one change. Once begun it goes on to its end, whatever becomes of the
/// connection that asked for it.
pub async fn run(state: &Shared, origin: Origin, bridge: BridgeId, items: Items) -> Outcome {
    others(state).await;
    let change = {
        let mut s = state.borrow_mut();
        let now = s.now_ns();
        s.ofproto.begin(bridge, items, now).map_err(|e| (0, e))?
    };
    if let Some(outcome) = slice(state, &change, origin) {
        return outcome;
    }
    let state = state.clone();
    let rest = tokio::task::spawn_local(async move {
        loop {
            tokio::task::yield_now().await;
            if let Some(outcome) = slice(&state, &change, origin) {
                return outcome;
            }
        }
    });
    rest.await.unwrap_or(Err((0, OfError::BadType)))
}

fn slice(state: &Shared, change: &Change, origin: Origin) -> Option<Outcome> {
    let mut s = state.borrow_mut();
    let outcome = s.ofproto.advance(change, SLICE);
    s.deliver(origin);
    outcome
}

/// Waits until no change is under way.
pub async fn others(state: &Shared) {
    while state.borrow().ofproto.busy() {
        tokio::task::yield_now().await;
    }
}
