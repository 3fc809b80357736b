//! Packets of controllers wait for room on the packet side, and whoever counts packets waits for
//! those of controllers.

use crate::state::Shared;
use ofproto::BridgeId;
use std::time::{Duration, Instant};

/// How long a packet waits at most; the worker may be busy elsewhere.
const WAIT_MS_MAX: usize = 1000;

/// How long a reader of counters waits at most, ms: others may send packets all the time.
const READER_WAIT_MS_MAX: usize = 20;

/// Waits until the packets that controllers had sent so far are where they go, so that flows and
/// groups have counted them, as ovs-vswitchd's have at once.
pub async fn sent_packets(state: &Shared) {
    let until = state.borrow().dp.injected();
    for _ in 0..READER_WAIT_MS_MAX {
        if state.borrow().dp.has_injected(until) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

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
