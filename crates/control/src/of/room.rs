//! Packets of controllers wait for room on the packet side.

use crate::state::Shared;
use ofproto::BridgeId;
use std::time::{Duration, Instant};

/// How long a packet waits at most; the worker may be busy elsewhere.
const WAIT_MS_MAX: usize = 1000;

/// Waits until another packet of a bridge may be sent: its packets did not do too much, and what
/// others did is done.
pub async fn room(state: &Shared, bridge: BridgeId) {
    for _ in 0..WAIT_MS_MAX {
        {
            let mut s = state.borrow_mut();
            let mine = s.pending.injected.has_room(bridge, Instant::now());
            if mine && s.dp.takes_packets() {
                return;
            }
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
