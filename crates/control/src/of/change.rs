//! Changes of many flows: a slice at a time, so that everything else has its turn.

use super::async_msgs::Origin;
use super::turns::Waiting;
use crate::state::{Forgetting, Shared, State};
use ofproto::{BridgeId, Change, Items, Outcome};
use openflow::{MeterCommand, MeterMod, OfError, meter_id};
use std::collections::BTreeMap;

/// Flows of a slice, which are changed, reported or freed in one turn: a few milliseconds' work.
pub const SLICE_FLOWS_MAX: usize = 2048;

/// Comparisons of a slice's flows with monitors of their bridge, half a microsecond each.
const WATCHES_SLICE_MAX: usize = 16_384;

/// Flows of a slice in a bridge that has so many watches ([`super::conn::Conn::watches`]).
pub fn slice_flows(watches: usize) -> usize {
    (WATCHES_SLICE_MAX / watches.max(1)).clamp(1, SLICE_FLOWS_MAX)
}

/// Executes the items as one change. Once begun it goes on to its end, whatever becomes of the
/// connection that asked for it.
pub async fn run(state: &Shared, origin: Origin, bridge: BridgeId, items: Items) -> Outcome {
    finished(state).await;
    let change = {
        let mut s = state.borrow_mut();
        let now = s.now_ns();
        s.ofproto.begin(bridge, items, now).map_err(|e| (0, e))?
    };
    if let Some(outcome) = run_slice(state, bridge, &change, origin) {
        return outcome;
    }
    let state = state.clone();
    let rest = tokio::task::spawn_local(async move {
        loop {
            tokio::task::yield_now().await;
            if let Some(outcome) = run_slice(&state, bridge, &change, origin) {
                return outcome;
            }
        }
    });
    rest.await.unwrap_or(Err((0, OfError::BadType)))
}

fn run_slice(state: &Shared, bridge: BridgeId, change: &Change, origin: Origin) -> Option<Outcome> {
    let mut s = state.borrow_mut();
    let flows = slice_flows(s.watches_of(bridge));
    let outcome = s.ofproto.advance(change, flows);
    s.deliver(origin);
    outcome
}

/// Makes bridges forget their flows that they were asked to forget.
pub fn begin_forgetting(state: &Shared) {
    let wanted = |(id, how): (&BridgeId, &Forgetting)| (*how == Forgetting::Wanted).then_some(*id);
    let all: Vec<_> = state.borrow().pending.forgetting.iter().filter_map(wanted).collect();
    for id in all {
        state.borrow_mut().pending.forgetting.insert(id, Forgetting::Begun(0));
        let state = state.clone();
        tokio::task::spawn_local(async move { forget(&state, id).await });
    }
}

/// Makes bridges that have to forget their flows do so at once, however many flows that are: for
/// test suites, which warp time.
pub fn forget_now(s: &mut State) {
    let now = s.now_ns();
    s.pending.forgetting.retain(|id, how| {
        let wanted = *how == Forgetting::Wanted;
        if wanted {
            let _ = s.ofproto.flush_flows(*id, now);
        }
        !wanted
    });
}

/// A bridge forgets its flows, groups and meters, a slice at a time, and nothing else of it changes
/// meanwhile.
pub async fn forget(state: &Shared, bridge: BridgeId) {
    begun(&mut state.borrow_mut().pending.forgetting, bridge);
    own_turn(state, bridge).await;
    let _ = run(state, None, bridge, ofproto::all_that_flows_are()).await;
    finished(state).await;
    let mut s = state.borrow_mut();
    let now = s.now_ns();
    // No flow uses them now.
    let (command, id) = (MeterCommand::Delete, meter_id::ALL);
    let _ = s.ofproto.meter_mod(bridge, &MeterMod { command, flags: 0, id, bands: vec![] }, now);
    ended(&mut s.pending.forgetting, bridge);
    s.flush_changes();
}

/// One more begins to have the bridge forget its flows.
fn begun<B: Ord>(all: &mut BTreeMap<B, Forgetting>, bridge: B) {
    match all.entry(bridge).or_insert(Forgetting::Wanted) {
        Forgetting::Begun(n) => *n += 1,
        wanted => *wanted = Forgetting::Begun(1),
    }
}

/// One has ended; others wait for the last one.
fn ended<B: Ord>(all: &mut BTreeMap<B, Forgetting>, bridge: B) {
    if let Some(Forgetting::Begun(n)) = all.get_mut(&bridge) {
        *n = n.saturating_sub(1);
        if *n == 0 {
            all.remove(&bridge);
        }
    }
}

/// Waits until no change is under way, of whatever bridge.
pub async fn finished(state: &Shared) {
    while state.borrow().ofproto.busy() {
        tokio::task::yield_now().await;
    }
}

/// Turns in which all buckets that a bridge may have are notified, and some more.
const NOTIFY_TURNS_MAX: usize = 1024;

/// Waits until the bridge's buckets were notified of what they watch, as changes until now have it;
/// no longer than that may take, as guests may keep their links changing.
pub async fn notified(state: &Shared, bridge: BridgeId) {
    for _ in 0..NOTIFY_TURNS_MAX {
        if !state.borrow().ofproto.is_behind(bridge) {
            return;
        }
        tokio::task::yield_now().await;
    }
}

/// Waits until no change of a bridge is under way.
pub async fn finished_in(state: &Shared, bridge: BridgeId) {
    while state.borrow().ofproto.busy_bridge() == Some(bridge) {
        tokio::task::yield_now().await;
    }
}

/// Waits until no change is under way and it is the bridge's turn to be changed: bridges of which
/// connections wait have their turns one after the other, however many wait of each.
pub async fn turn(state: &Shared, bridge: BridgeId) {
    while state.borrow().pending.forgetting.contains_key(&bridge) {
        tokio::task::yield_now().await;
    }
    own_turn(state, bridge).await;
}

/// [`turn`] of who has the bridge forget its flows, for whom all others wait.
async fn own_turn(state: &Shared, bridge: BridgeId) {
    let turns = state.borrow().pending.turns.clone();
    if !state.borrow().ofproto.busy() && turns.borrow().is_empty() {
        return;
    }
    let waiting = Waiting::new(turns, bridge);
    while state.borrow().ofproto.busy() || !waiting.is_first() {
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::of::account::MONITORS_BRIDGE_MAX;

    #[test]
    fn others_wait_until_the_last_one_has_forgotten() {
        let (mut all, id) = (BTreeMap::new(), 7);
        begun(&mut all, id);
        all.entry(id).or_insert(Forgetting::Wanted);
        begun(&mut all, id);
        ended(&mut all, id);
        assert_eq!(all.get(&id), Some(&Forgetting::Begun(1)));
        ended(&mut all, id);
        assert!(all.is_empty());
    }

    #[test]
    fn slices_are_smaller_where_each_flow_is_compared_with_many_monitors() {
        assert_eq!([0, 1, 8].map(slice_flows), [SLICE_FLOWS_MAX; 3]);
        for monitors in [9, 100, 1024, MONITORS_BRIDGE_MAX] {
            let flows = slice_flows(monitors);
            assert!(flows > 0 && flows * monitors <= WATCHES_SLICE_MAX, "{monitors}: {flows}");
        }
    }
}
