//! Packets of controllers wait for room on the packet side, and whoever counts packets waits for
//! those of controllers.

use crate::state::Shared;
use ofproto::BridgeId;
use std::time::{Duration, Instant};

/// How long a packet waits at most; the worker may be busy elsewhere.
const WAIT_MS_MAX: usize = 1000;

/// How long a reader of counters, or a barrier, waits at most, ms: others may send packets all the
/// time.
const SENT_WAIT_MS_MAX: usize = 20;

/// Waits until the packets that controllers had sent so far are where they go, so that flows and
/// groups have counted them, as ovs-vswitchd's have at once.
pub async fn sent_packets(state: &Shared) {
    let until = state.borrow().dp.injected();
    done(state, until).await;
}

/// Waits until the packets that controllers had sent to a bridge so far are where they go, and
/// takes in what they brought about: controllers that share a bridge expect the packet-ins of each
/// other's packet-outs in front of the reply to a barrier, as from ovs-vswitchd. Packets of other
/// bridges do not hold up a barrier.
pub async fn sent_packets_of(state: &Shared, bridge: BridgeId) {
    let until = state.borrow().pending.injected.last(bridge);
    if until > 0 {
        done(state, until).await;
        crate::housekeeping::poll_datapath(&mut state.borrow_mut());
    }
}

/// Waits until the packet side has done everything with so many packets of the control side.
async fn done(state: &Shared, packets: u64) {
    for _ in 0..SENT_WAIT_MS_MAX {
        if state.borrow().dp.has_injected(packets) {
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
