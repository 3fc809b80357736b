//! All exporters, by bridge.

use super::counts::Counts;
use super::ipfix::Ipfix;
use super::netflow::NetFlow;
use super::past::Past;
use super::sflow::Sflow;
use ::export::Traffic;
use datapath::PuntEvent;
use ofproto::{BridgeId, FlowExport, SampleContext, Sampled};
use openflow::IpfixStats;
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What a bridge exports.
#[derive(Default)]
pub struct BridgeExports {
    /// Its flows.
    pub netflow: Option<NetFlow>,
    /// Samples of its packets, and its interfaces' counters.
    pub sflow: Option<Sflow>,
    /// Flows as samples show them.
    pub ipfix: Ipfix,
}

/// What all bridges export.
#[derive(Default)]
pub struct Exports {
    /// Bridges that export something.
    pub bridges: BTreeMap<BridgeId, BridgeExports>,
    /// Exporters that are gone or end.
    pub past: Past,
}

impl BridgeExports {
    fn counts(&self) -> Counts {
        let mut all = Counts::default();
        self.netflow.iter().for_each(|n| all += n.counts());
        self.sflow.iter().for_each(|s| all += s.counts());
        all += self.ipfix.counts();
        all
    }
}

impl Exports {
    /// What was counted so far.
    pub fn counts(&self) -> Counts {
        let mut all = self.past.counts();
        self.bridges.values().for_each(|b| all += b.counts());
        all
    }

    /// A decision was made, and these are its effects; `alone`: the packet's bytes, if nothing else
    /// counts it.
    pub fn decided(&mut self, effects: &Arc<dyn Any + Send + Sync>, alone: Option<u32>, now: u64) {
        let bytes = alone.map_or(0, u64::from);
        self.used(effects, Traffic { packets: alone.is_some().into(), bytes, used_ms: now });
    }

    /// A packet was sampled.
    pub fn sampled(&mut self, p: &PuntEvent, context: &SampleContext, now: u64) {
        let Some(exports) = self.bridges.get_mut(&context.bridge) else { return };
        match &context.what {
            Sampled::Sflow(note) => {
                exports.sflow.iter_mut().for_each(|sflow| sflow.sampled(p, note));
            }
            Sampled::Ipfix(note) => exports.ipfix.of_bridge(p, context.in_port, note, now),
            Sampled::Set(note) => exports.ipfix.of_set(p, context.in_port, note, now),
        }
    }

    /// What the exporter of a bridge's own samples has done.
    pub fn ipfix_of_bridge(&self, bridge: BridgeId) -> Option<IpfixStats> {
        self.bridges.get(&bridge)?.ipfix.stats_of_bridge()
    }

    /// What those of its collector sets have done.
    pub fn ipfix_of_sets(&self, bridge: BridgeId) -> Vec<IpfixStats> {
        self.bridges.get(&bridge).map(|b| b.ipfix.stats_of_sets()).unwrap_or_default()
    }

    /// A number for an sFlow agent that none has.
    pub fn sub_agent(&self) -> u32 {
        let number = |b: &BridgeExports| Some(b.sflow.as_ref()?.agent.settings().sub_agent);
        let used: BTreeSet<_> = self.bridges.values().filter_map(number).collect();
        (0..).find(|n| !used.contains(n)).unwrap_or(0)
    }

    /// A decision with these effects had traffic.
    pub fn used(&mut self, effects: &Arc<dyn Any + Send + Sync>, traffic: Traffic) {
        if self.bridges.is_empty() {
            return;
        }
        let Some(flow) = FlowExport::of(&**effects) else { return };
        let of_bridge = self.bridges.get_mut(&flow.bridge);
        if let Some(netflow) = of_bridge.and_then(|b| b.netflow.as_mut()) {
            netflow.update(flow, traffic);
        }
    }
}
