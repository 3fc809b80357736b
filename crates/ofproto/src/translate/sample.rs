//! Samples of packets for collectors: copies that are punted to the control side, with what the
//! decision says of the packet.

use crate::fields;
use crate::published::PortView;
use crate::translate::effects::{IpfixNote, SampleContext, Sampled, SetNote, SflowNote};
use crate::translate::xlate::Xlate;
use crate::types::BridgeId;
use action::{Op, Punt, PuntClass, TunnelPush};
use flow::{Key, LABELS, PortNo, at};
use openflow::{Action, OfPort, meter_id, port};
use std::sync::Arc;

/// Label stack entries that are reported, at most: OVS's number.
const LABELS_MAX: usize = 3;

/// What operations do to a packet, for sFlow. A field is None where sFlow cannot report it.
#[derive(Default)]
struct Changes {
    tunnels: usize,
    tunnel: Option<Arc<TunnelPush>>,
    labels: Option<Vec<u32>>,
}

impl Xlate<'_, '_> {
    /// An operation that punts up to `bytes` bytes of a packet, with probability `chance / 2^32`.
    pub(super) fn sample_op(&self, chance: u32, bytes: u16, what: Sampled) -> Op {
        let bridge = BridgeId(self.bridge.id);
        let context = SampleContext { bridge, in_port: self.answer.export.from, what };
        let (class, context) = (PuntClass::Sample, Box::new(context));
        let punt = Op::Punt(Arc::new(Punt { class, max_len: bytes, wanted: None, context }));
        let meter = self.bridge.meter(self.guard(), meter_id::SLOWPATH);
        match meter {
            Some(meter) => Op::Sample { chance, ops: Box::new([Op::Meter(meter.clone()), punt]) },
            None if chance == u32::MAX => punt,
            None => Op::Sample { chance, ops: Box::new([punt]) },
        }
    }

    /// Completes sFlow's sample of the received packet: says where it went.
    pub(super) fn finish_sflow(&mut self) {
        let Some(sflow) = self.bridge.config.export.sflow else { return };
        if !self.answer.export.fresh || self.answer.export.from == port::ANY {
            return;
        }
        let changes = changes(&self.answer.export.first, &self.answer.decision.ops);
        let single = self.answer.export.outputs == 1;
        let note = SflowNote {
            outputs: self.answer.export.outputs,
            output: self.answer.export.last,
            vlan_tci: self.base.u16(at::VLAN) & !fields::VLAN_PRESENT,
            tunnel: changes.tunnel.filter(|_| single && changes.tunnels == 1),
            labels: changes.labels.filter(|_| single).unwrap_or_default(),
        };
        let op = self.sample_op(sflow.chance, sflow.header_bytes, Sampled::Sflow(Box::new(note)));
        self.answer.decision.ops.insert(0, op);
    }
}

/// Bytes of a packet that IPFIX's samples have: the key and the length say all that is exported.
const IPFIX_BYTES: u16 = 64;

impl Xlate<'_, '_> {
    /// Completes IPFIX's sample of the received packet.
    pub(super) fn finish_ipfix(&mut self) {
        let Some(ipfix) = self.bridge.config.export.ipfix.filter(|i| i.input) else { return };
        if self.answer.export.from == port::ANY {
            return;
        }
        let note = IpfixNote { output: None, dropped: self.answer.export.outputs == 0 };
        let op = self.sample_op(ipfix.chance, IPFIX_BYTES, Sampled::Ipfix(note));
        self.answer.decision.ops.insert(0, op);
    }

    /// Adds IPFIX's sample of a packet that is about to be sent to a port.
    pub(super) fn sample_output(&mut self, p: &PortView, no: PortNo) {
        let Some(ipfix) = self.bridge.config.export.ipfix.filter(|i| i.output) else { return };
        let note = IpfixNote { output: Some((p.spec.of_port, no)), dropped: false };
        let op = self.sample_op(ipfix.chance, IPFIX_BYTES, Sampled::Ipfix(note));
        self.op(op);
    }

    /// Executes the action `sample`. Without its collector set it does nothing.
    pub(super) fn sample_for_set(&mut self, action: &Action) {
        let Action::Sample { probability, collector_set, domain, point, port: to, direction } =
            action
        else {
            return;
        };
        if *probability == 0 || !self.bridge.config.export.sets.contains(collector_set) {
            return;
        }
        let output = match *to {
            port::ANY => None,
            to if to == self.answer.export.from => None,
            to => match self.output_of(to) {
                Some(output) => Some(output),
                None => {
                    return self.trace_warning(|| {
                        format!("can't use unknown port {to} in flow sample action")
                    });
                }
            },
        };
        self.commit();
        let chance = u32::from(*probability) << 16 | u32::from(*probability);
        let (set, domain, point, direction) = (*collector_set, *domain, *point, *direction);
        let probability = *probability;
        let note = SetNote { set, probability, domain, point, output, direction };
        let op = self.sample_op(chance, IPFIX_BYTES, Sampled::Set(note));
        self.op(op);
    }

    fn output_of(&mut self, to: OfPort) -> Option<(OfPort, PortNo)> {
        self.look_at_ports();
        Some((to, self.bridge.port(to)?.spec.dp_port?))
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
    let known = usize::from(super::labels::labels(key));
    LABELS[..known].iter().rev().map(|a| key.u32(*a)).collect()
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
