//! Flow export: what collectors get of bridges (NetFlow, sFlow), from the database to datagrams.
//!
//! Decisions of a bridge that exports say to which flow their packets belong
//! ([`ofproto::FlowExport`]); what was counted for them goes on to the bridge's exporters, which
//! are looked at once a second, in pieces. Sampled packets come with a [`ofproto::SampleContext`].

mod collectors;
mod counts;
pub mod exports;
mod netflow;
mod sflow;
mod sflow_poll;

use crate::config::BridgeConf;
use crate::state::{Shared, State};
use exports::BridgeExports;
use ofproto::{BridgeId, ExportConfig};
use std::time::Duration;

/// Flows that are looked at before others have their turn: less than a millisecond's work.
const SLICE_FLOWS_MAX: usize = 4096;
/// How often exporters are looked at.
const SECOND: Duration = Duration::from_secs(1);

/// Gives a bridge the exporters that the database asks for.
pub fn apply(s: &mut State, conf: &BridgeConf) {
    let now = s.now_ms();
    let Some(id) = s.bridges.get(&conf.name).map(|b| b.id) else { return };
    let export = &mut s.observers.export;
    let mut exports = export.bridges.remove(&id).unwrap_or_default();
    netflow::apply(&mut exports.netflow, conf, now, &mut export.past);
    let sub_agent = export.sub_agent();
    sflow::apply(&mut exports.sflow, conf, sub_agent, now, &mut export.past);
    exports.sflow.iter_mut().for_each(|sflow| sflow_poll::set_interfaces(s, &conf.name, sflow));
    let sflow = exports.sflow.as_ref().map(sflow::Sflow::sampling);
    let config = ExportConfig { netflow: exports.netflow.is_some(), sflow };
    if config != ExportConfig::default() {
        s.observers.export.bridges.insert(id, exports);
    }
    s.change_bridge(id, |c| c.export = config);
}

/// A bridge goes: its exporters report what they know.
pub fn remove(s: &mut State, id: BridgeId) {
    let now = s.now_ms();
    let export = &mut s.observers.export;
    let Some(BridgeExports { netflow, sflow }) = export.bridges.remove(&id) else { return };
    netflow.into_iter().for_each(|n| n.end(now, &mut export.past));
    sflow.into_iter().for_each(|s| s.end(now, &mut export.past));
}

/// The daemon ends: exporters report all that is known.
pub fn stop(s: &mut State) {
    if s.observers.export.bridges.is_empty() {
        return;
    }
    s.collect();
    bridges(s).into_iter().for_each(|id| remove(s, id));
}

/// Looks at the exporters each second until the daemon ends.
pub async fn run(state: Shared) {
    loop {
        tokio::time::sleep(SECOND).await;
        let all = bridges(&state.borrow());
        for id in all {
            begin(&mut state.borrow_mut(), id);
            while turn(&mut state.borrow_mut(), id) {
                tokio::task::yield_now().await;
            }
        }
    }
}

/// The same at once.
pub fn tick(s: &mut State) {
    for id in bridges(s) {
        begin(s, id);
        while turn(s, id) {}
    }
}

fn bridges(s: &State) -> Vec<BridgeId> {
    s.observers.export.bridges.keys().copied().collect()
}

fn begin(s: &mut State, id: BridgeId) {
    sflow_poll::tick(s, id);
    let exports = s.observers.export.bridges.get_mut(&id);
    if let Some(netflow) = exports.and_then(|b| b.netflow.as_mut()) {
        netflow.exporter.begin();
    }
}

/// Some flows of a bridge. True: there are more.
fn turn(s: &mut State, id: BridgeId) -> bool {
    let now = s.now_ms();
    let exports = s.observers.export.bridges.get_mut(&id);
    let netflow = exports.and_then(|b| b.netflow.as_mut());
    netflow.is_some_and(|netflow| netflow.turn(now, SLICE_FLOWS_MAX))
}
