//! Effects of decisions for the control side, and what a packet-in says about its packet.

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

/// A next hop that a decision sends tunnelled packets to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hop {
    /// The datapath port that the packet came in on.
    pub from: PortNo,
    pub bridge: u32,
    pub port: OfPort,
    /// Our own address.
    pub source: IpAddr,
    pub next: IpAddr,
    /// Its hardware address as the decision knew it.
    pub used: Option<[u8; 6]>,
}

/// What a decision found out about the underlay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub dst: IpAddr,
    pub mark: u32,
    pub source: Option<IpAddr>,
    pub answer: Option<crate::tunnel::Answer>,
}

/// A next hop that was heard of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Snooped {
    pub port: String,
    pub ip: IpAddr,
    pub mac: [u8; 6],
    pub how: crate::tunnel::neighbours::How,
}

/// A flow that is exported: the decision is about its packets only, except for parts of it (TCP
/// flags) that other decisions are about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowExport {
    /// The bridge that it came in on.
    pub bridge: crate::BridgeId,
    /// What its packets have in common.
    pub flow: netflow::IpFlow,
    /// Where they went: an OpenFlow port, or one of [`netflow::output`].
    pub output: u16,
    /// TCP flags of these packets.
    pub tcp_flags: u8,
}

impl FlowExport {
    /// The flow that the packets of a decision belong to, by its effects.
    pub fn of(effects: &(dyn std::any::Any + Send + Sync)) -> Option<&FlowExport> {
        effects.downcast_ref::<Effects>()?.export.as_deref()
    }
}

/// What the control side does when a decision is used: [`Decision::effects`].
#[derive(Default)]
pub(crate) struct Effects {
    pub learns: Vec<Learn>,
    pub hops: Vec<Hop>,
    /// Bridges whose tables outer packets met.
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

    /// Would the underlay give another answer now?
    pub fn is_stale(&self, now: &Underlay) -> bool {
        self.asked.iter().any(|a| now.answer(a.dst, a.mark, a.source) != a.answer)
    }
}

/// Whose packet it is: the context of a [`action::Punt`] of an LACP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LacpContext {
    /// The bridge.
    pub bridge: crate::BridgeId,
    /// The port that it came in on.
    pub port: OfPort,
}

/// Whose packet it is: the context of a [`action::Punt`] of a BFD control packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BfdContext {
    /// The bridge.
    pub bridge: crate::BridgeId,
    /// The port that it came in on.
    pub port: OfPort,
}

/// Whose packet it is: the context of a [`action::Punt`] of a packet of IGMP or MLD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct McastContext {
    /// The bridge.
    pub bridge: crate::BridgeId,
    /// The VLAN in that bridge.
    pub vlan: u16,
    /// The port that it came in on.
    pub port: OfPort,
}

/// What is known of a sampled packet: the context of a [`action::Punt`] of class
/// [`action::PuntClass::Sample`].
#[derive(Clone, Debug)]
pub struct SampleContext {
    /// The bridge.
    pub bridge: crate::BridgeId,
    /// The port that it came in on.
    pub in_port: OfPort,
    /// For whom it is.
    pub what: Sampled,
}

/// For whom a packet is sampled, and what they want to know of it.
#[derive(Clone, Debug)]
pub enum Sampled {
    /// sFlow.
    Sflow(Box<SflowNote>),
    /// IPFIX of the bridge.
    Ipfix(IpfixNote),
    /// IPFIX of a collector set, for which a flow takes samples.
    Set(SetNote),
}

/// Where a packet was sampled for IPFIX.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IpfixNote {
    /// The port that it is about to leave by; None: it has just come in.
    pub output: Option<(OfPort, PortNo)>,
    /// It goes nowhere.
    pub dropped: bool,
}

/// What an action that samples packets says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetNote {
    /// The collector set.
    pub set: u32,
    /// One packet of `65536 / probability`.
    pub probability: u16,
    /// `obs_domain_id`.
    pub domain: u32,
    /// `obs_point_id`.
    pub point: u32,
    /// The port that it is about to leave by, if the action says so.
    pub output: Option<(OfPort, PortNo)>,
    /// As the action says it: 1 the packet comes in, 2 it goes out, 0 `output` says that.
    pub direction: u8,
}

/// How a packet went that was sampled as it came in.
#[derive(Clone, Debug, Default)]
pub struct SflowNote {
    /// Ports that it was sent to.
    pub outputs: u32,
    /// The last one of them.
    pub output: Option<PortNo>,
    /// Its tag then.
    pub vlan_tci: u16,
    /// The outer header, if it got one and went one way only.
    pub tunnel: Option<Arc<action::TunnelPush>>,
    /// Its MPLS labels, outermost first, if it went one way only.
    pub labels: Vec<u32>,
}

/// What a packet-in says about its packet: the context of a [`action::Punt`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketInContext {
    /// The bridge whose controllers get it.
    pub bridge: crate::BridgeId,
    /// Table of the rule.
    pub table: u8,
    /// Its cookie: 0 where no flow matched, all ones where no table was looked up (packet-out).
    pub cookie: u64,
    /// Why.
    pub reason: Reason,
    /// Sent by the table-miss flow; OpenFlow 1.3 and later report that as a table miss.
    pub miss_flow: bool,
    /// Sent because no flow matched.
    pub no_flow: bool,
    /// The bytes that the action asked for. Nothing is buffered, so all of the packet is sent.
    pub max_len: u16,
    /// The controllers with this id get it; 0 is the id of those that set none.
    pub controller_id: u16,
    /// Nicira packet-in 2.
    pub userdata: Vec<u8>,
    /// What it takes to have the rest of the pipeline run.
    pub continuation: Option<openflow::Continuation>,
    /// in_port, metadata, registers, tunnel fields.
    pub matching: openflow::Match,
}
