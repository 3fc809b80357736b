//! Flow export: what collectors get of bridges (NetFlow, sFlow, IPFIX), from the database to
//! datagrams.
//!
//! Decisions of a bridge that exports say to which flow their packets belong
//! ([`ofproto::FlowExport`]); what was counted for them goes on to the bridge's exporters, which
//! are looked at once a second, in pieces. Sampled packets come with a [`ofproto::SampleContext`].

mod collectors;
mod counts;
pub mod exports;
mod ipfix;
mod netflow;
pub mod past;
mod sflow;
mod sflow_poll;

use crate::config::BridgeConf;
use crate::ports::Iface;
use crate::state::{Shared, State};
use crate::tunnel_options::is_tunnel;
use ::export::ipfix::Interface;
use exports::BridgeExports;
use ofproto::{BridgeId, ExportConfig};
use openflow::OfPort;
use past::Ending;
use std::collections::BTreeMap;
use std::time::Duration;

/// Flows that are looked at, of all exporters of a bridge, before others have their turn: each may
/// be a datagram of its own, some milliseconds' work.
const SLICE_FLOWS_MAX: usize = 512;
/// `ifType` (IANA): Ethernet, a tunnel.
const ETHERNET_CSMACD: u32 = 6;
const TUNNEL: u32 = 131;
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
    exports.ipfix.apply(conf, &mut s.observers.export.past);
    exports.ipfix.interfaces = interfaces(s, &conf.name);
    let (ipfix, sets) = (exports.ipfix.sampling(), exports.ipfix.sets());
    let config = ExportConfig { netflow: exports.netflow.is_some(), sflow, ipfix, sets };
    if config != ExportConfig::default() {
        s.observers.export.bridges.insert(id, exports);
    }
    s.change_bridge(id, |c| c.export = config);
}

/// A bridge goes: its exporters report what they know, in turns.
pub fn remove(s: &mut State, id: BridgeId) {
    let now = s.now_ms();
    let export = &mut s.observers.export;
    let Some(BridgeExports { netflow, sflow, ipfix }) = export.bridges.remove(&id) else { return };
    ipfix.end(&mut export.past);
    netflow.into_iter().for_each(|n| export.past.end(Ending::NetFlow(n)));
    sflow.into_iter().for_each(|s| s.end(now, &mut export.past));
}

/// The daemon ends: exporters report all that is known.
pub fn stop(s: &mut State) {
    if !s.observers.export.bridges.is_empty() {
        s.collect();
        bridges(s).into_iter().for_each(|id| remove(s, id));
    }
    while end_some(s) {}
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
        while end_some(&mut state.borrow_mut()) {
            tokio::task::yield_now().await;
        }
    }
}

/// Does all of a second's work for collectors in one call.
pub fn tick(s: &mut State) {
    for id in bridges(s) {
        begin(s, id);
        while turn(s, id) {}
    }
    while end_some(s) {}
}

/// Some flows of exporters that end. True: there are more.
fn end_some(s: &mut State) -> bool {
    let now = s.now_ms();
    s.observers.export.past.turn(now, SLICE_FLOWS_MAX)
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
    let Some(exports) = s.observers.export.bridges.get_mut(&id) else { return false };
    let mut left = SLICE_FLOWS_MAX;
    let netflow = exports.netflow.as_mut();
    let more = netflow.is_some_and(|netflow| netflow.turn(now, &mut left));
    exports.ipfix.turn(now, &mut left) || more
}

/// A bridge's interfaces, as IPFIX reports them, by OpenFlow port.
fn interfaces(s: &State, bridge: &str) -> BTreeMap<OfPort, Interface> {
    let Some(bridge) = s.bridges.get(bridge) else { return BTreeMap::new() };
    let one = |i: &Iface| {
        let number = i.of_port?;
        let port = i.dp_port.filter(|_| !i.is_virtual()).and_then(|no| s.dp.port(no));
        let index = port.and_then(|p| p.ifindex()).unwrap_or(number);
        let kind = if is_tunnel(&i.conf.kind) { TUNNEL } else { ETHERNET_CSMACD };
        let (name, description) = (i.conf.name.clone(), i.conf.kind.clone());
        Some((number, Interface { index, kind, name, description }))
    };
    bridge.ifaces.values().filter_map(one).collect()
}
