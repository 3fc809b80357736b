//! Samples of packets for collectors: copies that go to the control side, with what the decision
//! says of the packet.

use crate::fields;
use crate::translate::effects::{SampleContext, Sampled, SflowNote};
use crate::translate::xlate::Xlate;
use crate::types::BridgeId;
use action::{Op, Punt, PuntClass, TunnelPush};
use flow::{Key, at};
use openflow::{meter_id, port};
use std::sync::Arc;

/// Label stack entries that are reported, at most: OVS's number.
const LABELS_MAX: usize = 3;
/// Of a label stack entry: it is the last one.
const BOTTOM_OF_STACK: u32 = 0x100;

/// What operations do to a packet that sFlow reports. None where it is too much to report.
#[derive(Default)]
struct Changes {
    tunnels: usize,
    tunnel: Option<Arc<TunnelPush>>,
    labels: Option<Vec<u32>>,
}

impl Xlate<'_, '_> {
    /// A copy of up to `bytes` of one packet of `2^32 / chance` goes to the control side.
    pub(super) fn sample_op(&self, chance: u32, bytes: u16, what: Sampled) -> Op {
        let bridge = BridgeId(self.bridge.id);
        let context = SampleContext { bridge, in_port: self.export.from, what };
        let (class, context) = (PuntClass::Sample, Box::new(context));
        let punt = Op::Punt(Arc::new(Punt { class, max_len: bytes, wanted: None, context }));
        let meter = self.bridge.meter(self.guard(), meter_id::SLOWPATH);
        match meter {
            Some(meter) => Op::Sample { chance, ops: Box::new([Op::Meter(meter.clone()), punt]) },
            None if chance == u32::MAX => punt,
            None => Op::Sample { chance, ops: Box::new([punt]) },
        }
    }

    /// The packet was sampled as it came: says how it went.
    pub(super) fn finish_sflow(&mut self) {
        let Some(sflow) = self.bridge.config.export.sflow else { return };
        if !self.export.fresh || self.export.from == port::ANY {
            return;
        }
        let changes = changes(&self.export.first, &self.out.ops);
        let single = self.export.outputs == 1;
        let note = SflowNote {
            outputs: self.export.outputs,
            output: self.export.last,
            vlan_tci: self.base.u16(at::VLAN) & !fields::VLAN_PRESENT,
            tunnel: changes.tunnel.filter(|_| single && changes.tunnels == 1),
            labels: changes.labels.filter(|_| single).unwrap_or_default(),
        };
        let op = self.sample_op(sflow.chance, sflow.header_bytes, Sampled::Sflow(Box::new(note)));
        self.out.ops.insert(0, op);
    }
}

/// What operations do to a packet with this key.
fn changes(key: &Key, ops: &[Op]) -> Changes {
    let mut all = Changes { labels: Some(labels(key)), ..Changes::default() };
    for op in ops {
        follow(op, &mut all);
    }
    all.labels = all.labels.filter(|l| l.len() <= LABELS_MAX);
    all.labels.iter_mut().for_each(|l| l.reverse());
    all
}

/// The labels that a packet has, innermost first.
fn labels(key: &Key) -> Vec<u32> {
    if !fields::is_mpls(key.u16(at::ETH_TYPE)) {
        return Vec::new();
    }
    let top = key.u32(at::MPLS);
    match top & BOTTOM_OF_STACK {
        0 => vec![key.u32(at::IP_DST), top],
        _ => vec![top],
    }
}

fn follow(op: &Op, all: &mut Changes) {
    match op {
        Op::PushMpls { lse, .. } | Op::EncapMpls { lse, .. } => {
            all.labels.iter_mut().for_each(|l| l.push(*lse));
        }
        Op::PopMpls { .. } | Op::DecapMpls => {
            all.labels = all.labels.take().filter(|l| !l.is_empty());
            all.labels.iter_mut().for_each(|l| _ = l.pop());
        }
        Op::Set(set) if fields::is_mpls(set.key.u16(at::ETH_TYPE)) => {
            let (new, mask) = (set.key.u32(at::MPLS), set.mask.u32(at::MPLS));
            if let Some(top) = all.labels.as_mut().and_then(|l| l.last_mut()) {
                *top = *top & !mask | new & mask;
            }
        }
        Op::TunnelPush(t) => {
            all.tunnels += 1;
            all.tunnel = Some(t.clone());
        }
        Op::TunnelPop { .. } => all.tunnels += 2,
        Op::Clone(ops) => ops.iter().for_each(|op| follow(op, all)),
        _ => {}
    }
}
