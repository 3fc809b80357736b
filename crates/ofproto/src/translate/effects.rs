//! Effects of decisions for the control side, and the contexts of punts.

use crate::learned::{Fin, LearnedFlow};
use crate::tunnel::Underlay;
use export::netflow;
use flow::PortNo;
use openflow::{OfPort, Reason};
use std::net::IpAddr;
use std::sync::Arc;

/// An address to learn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Learn {
    pub bridge: u32,
    pub vlan: u16,
    pub mac: [u8; 6],
    pub port: OfPort,
}

/// A next hop to which a decision sends tunnelled packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hop {
    /// The datapath port on which the packet came in.
    pub from: PortNo,
    pub bridge: u32,
    pub port: OfPort,
    /// The switch's own address.
    pub source: IpAddr,
    pub next: IpAddr,
    /// The next hop's hardware address when the decision was made.
    pub used: Option<[u8; 6]>,
}

/// What a decision asked the underlay, and the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub dst: IpAddr,
    pub mark: u32,
    pub source: Option<IpAddr>,
    pub answer: Option<crate::tunnel::Answer>,
}

/// A neighbour that was heard of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Snooped {
    pub port: String,
    pub ip: IpAddr,
    pub mac: [u8; 6],
    pub how: crate::tunnel::neighbours::How,
}

/// A flow that is exported. The decision is about packets of this flow only, but others (of other
/// TCP flags) may be about the same flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowExport {
    /// The bridge on which the flow came in.
    pub bridge: crate::BridgeId,
    /// The fields that its packets have in common.
    pub flow: netflow::IpFlow,
    /// Where its packets went: an OpenFlow port, or a value of [`netflow::output`].
    pub output: u16,
    /// TCP flags of these packets.
    pub tcp_flags: u8,
}

impl FlowExport {
    /// The flow of a decision's packets, from its effects.
    pub fn of(effects: &(dyn std::any::Any + Send + Sync)) -> Option<&FlowExport> {
        effects.downcast_ref::<Effects>()?.export.as_deref()
    }
}

/// What the control side does when a decision is used: [`action::Decision::effects`].
#[derive(Default)]
pub(crate) struct Effects {
    pub learns: Vec<Learn>,
    pub hops: Vec<Hop>,
    /// Bridges whose tables outer packets passed.
    pub outer_bridges: Vec<u32>,
    pub snooped: Vec<Snooped>,
    pub asked: Vec<Asked>,
    pub flows: Vec<LearnedFlow>,
    pub fins: Vec<Fin>,
    pub export: Option<Box<FlowExport>>,
}

impl Effects {
    pub fn is_empty(&self) -> bool {
        let teaches = !self.flows.is_empty() || !self.fins.is_empty();
        self.export.is_none()
            && !teaches
            && self.learns.is_empty()
            && self.snooped.is_empty()
            && self.asked.is_empty()
    }

    /// True if the underlay would give another answer now.
    pub fn is_stale(&self, now: &Underlay) -> bool {
        self.asked.iter().any(|a| now.answer(a.dst, a.mark, a.source) != a.answer)
    }
}

/// The context of a [`action::Punt`] of an LACP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LacpContext {
    /// The bridge.
    pub bridge: crate::BridgeId,
    /// The port on which the packet came in.
    pub port: OfPort,
}

/// The context of a [`action::Punt`] of a BFD control packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BfdContext {
    /// The bridge.
    pub bridge: crate::BridgeId,
    /// The port on which the packet came in.
    pub port: OfPort,
}

/// The context of a [`action::Punt`] of a continuity check message of CFM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CfmContext {
    /// The bridge.
    pub bridge: crate::BridgeId,
    /// The port on which the packet came in.
    pub port: OfPort,
}

/// The context of a [`action::Punt`] of an LLDP data unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LldpContext {
    /// The bridge.
    pub bridge: crate::BridgeId,
    /// The port on which the packet came in.
    pub port: OfPort,
}

/// The context of a [`action::Punt`] of a BPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeContext {
    /// The bridge.
    pub bridge: crate::BridgeId,
    /// The port on which the packet came in.
    pub port: OfPort,
}

/// The context of a [`action::Punt`] of a packet of IGMP or MLD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct McastContext {
    /// The bridge.
    pub bridge: crate::BridgeId,
    /// The VLAN in that bridge.
    pub vlan: u16,
    /// The port on which the packet came in.
    pub port: OfPort,
}

/// The context of a [`action::Punt`] of class [`action::PuntClass::Sample`].
#[derive(Clone, Debug)]
pub struct SampleContext {
    /// The bridge.
    pub bridge: crate::BridgeId,
    /// The port on which the packet came in.
    pub in_port: OfPort,
    /// Which collectors get it, and what they want to know.
    pub what: Sampled,
}

/// Which collectors a sample is for, and what they want to know.
#[derive(Clone, Debug)]
pub enum Sampled {
    /// sFlow.
    Sflow(Box<SflowNote>),
    /// IPFIX of the bridge.
    Ipfix(IpfixNote),
    /// IPFIX of a collector set, for which a flow takes samples.
    Set(SetNote),
}

/// What IPFIX wants to know of a sampled packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IpfixNote {
    /// The port to which the packet is sent; None: it was sampled as it came in.
    pub output: Option<(OfPort, PortNo)>,
    /// True if the packet is dropped.
    pub dropped: bool,
}

/// The parameters of an action that samples packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetNote {
    /// The collector set.
    pub set: u32,
    /// A packet is sampled with probability `probability / 65536`.
    pub probability: u16,
    /// `obs_domain_id`.
    pub domain: u32,
    /// `obs_point_id`.
    pub point: u32,
    /// The port to which the packet is sent, if the action names it.
    pub output: Option<(OfPort, PortNo)>,
    /// The action's direction: 1 ingress, 2 egress, 0 as `output` says.
    pub direction: u8,
}

/// What sFlow wants to know of a packet that was sampled as it came in.
#[derive(Clone, Debug, Default)]
pub struct SflowNote {
    /// Number of ports to which it was sent.
    pub outputs: u32,
    /// The last of these ports.
    pub output: Option<PortNo>,
    /// The packet's outer tag then.
    pub vlan_tci: u16,
    /// The outer header, if the packet got one and was sent to one port only.
    pub tunnel: Option<Arc<action::TunnelPush>>,
    /// The packet's MPLS labels, outermost first, if it was sent to one port only.
    pub labels: Vec<u32>,
}

/// What a packet-in says about its packet: the context of a [`action::Punt`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketInContext {
    /// The bridge whose controllers get it.
    pub bridge: crate::BridgeId,
    /// The table of the rule that sent it.
    pub table: u8,
    /// The rule's cookie: 0 if no flow matched, all ones if no table was looked up (packet-out).
    pub cookie: u64,
    /// The reason of the packet-in.
    pub reason: Reason,
    /// True if the table-miss flow sent it; OpenFlow 1.3 and later report that as a table miss.
    pub miss_flow: bool,
    /// True if it was sent because no flow matched.
    pub no_flow: bool,
    /// Number of bytes that the action asked for. Packets are not buffered, so all of the packet is
    /// sent.
    pub max_len: u16,
    /// The id of the controllers that get it; 0 is the id of those that set none.
    pub controller_id: u16,
    /// The user data of a Nicira packet-in 2.
    pub userdata: Vec<u8>,
    /// What a controller needs to resume the pipeline.
    pub continuation: Option<openflow::Continuation>,
    /// Fields of the packet-in: in_port, metadata, registers, tunnel fields.
    pub matching: openflow::Match,
}
