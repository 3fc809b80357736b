//! NORMAL in a bridge with multicast snooping: multicast is sent to members and routers.

use crate::fields::is_ip;
use crate::mcast::members::McastView;
use crate::mcast::messages::McastKind;
use crate::published::Bundle;
use crate::translate::effects::McastContext;
use crate::translate::normal::{Tags, includes};
use crate::translate::xlate::Xlate;
use crate::types::BridgeId;
use action::{Op, Punt, PuntClass};
use flow::{Field, at};
use openflow::OfPort;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use telemetry::Drop;
use wire::{ETH_IPV4, ETH_IPV6, IP_ICMPV6, IP_IGMP};

const BROADCAST: [u8; 6] = [0xff; 6];
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// What a multicast packet is for snooping.
enum Packet {
    Message(McastKind),
    /// To all hosts of the link, or another message of IGMP (RFC 4541, section 2.1.2, item 2).
    ForAll(&'static str),
    To(Ipv6Addr),
}

/// The input port, and the ports that NORMAL has chosen so far.
struct Ports<'t> {
    input: Option<usize>,
    tags: &'t Tags,
    chosen: Vec<bool>,
}

impl<'a> Xlate<'a, '_> {
    /// Sends a packet to the members of its group; false: it is not a packet to a snooped group.
    pub(super) fn send_to_group(
        &mut self,
        input: Option<usize>,
        tags: &Tags,
        dst: [u8; 6],
    ) -> bool {
        let bridge = self.bridge;
        let Some(published) = &bridge.mcast else { return false };
        let Some(config) = bridge.config.mcast else { return false };
        if dst[0] & 1 == 0 || dst == BROADCAST || !is_ip(self.key.u16(at::ETH_TYPE)) {
            return false;
        }
        self.look_at_ports();
        let view: &McastView = published.read(self.guard());
        let mut to = Ports { input, tags, chosen: vec![false; bridge.bundles.len()] };
        match self.mcast_packet() {
            Packet::Message(kind) => {
                self.hand_to_snooping(input, tags.outer.vid);
                if kind == McastKind::Query {
                    self.trace_detail(|| "multicast traffic, flooding".into());
                    self.normal_flood(input, tags);
                } else {
                    self.send_to_routers(view, &mut to);
                    self.send_to_flagged(&mut to, "report", |b| b.mcast.flood_reports);
                }
            }
            Packet::ForAll(why) => {
                self.trace_detail(|| why.into());
                self.normal_flood(input, tags);
            }
            Packet::To(group) => {
                let mut members = view.members(tags.outer.vid, group).peekable();
                if members.peek().is_none() && config.flood_unregistered {
                    self.trace_detail(|| "unregistered multicast, flooding".into());
                    self.normal_flood(input, tags);
                } else {
                    members.for_each(|port| self.send_to_port(port, &mut to, "group"));
                    self.send_to_flagged(&mut to, "flood", |b| b.mcast.flood);
                    self.send_to_routers(view, &mut to);
                }
            }
        }
        true
    }

    /// Classifies the packet. Every decision depends on the Ethertype anyway.
    fn mcast_packet(&mut self) -> Packet {
        self.wc.set_u8(at::PROTO, 0xff);
        let kind = match (self.key.u16(at::ETH_TYPE), self.key.u8(at::PROTO)) {
            (ETH_IPV4, IP_IGMP) => Some(McastKind::of_igmp(self.mcast_type())),
            (ETH_IPV6, IP_ICMPV6) => McastKind::of_mld(self.mcast_type()).map(Some),
            _ => None,
        };
        match kind {
            Some(Some(kind)) => return Packet::Message(kind),
            Some(None) => return Packet::ForAll("multicast traffic, flooding"),
            None => {}
        }
        let group = match self.key.u16(at::ETH_TYPE) {
            ETH_IPV4 => {
                Field::Ipv4Dst.unwildcard(&mut self.wc);
                Ipv4Addr::from(self.key.u32(at::IP_DST)).to_ipv6_mapped()
            }
            _ => {
                Field::Ipv6Dst.unwildcard(&mut self.wc);
                Ipv6Addr::from(self.key.get::<16>(at::IPV6_DST))
            }
        };
        let local = |v4: Ipv4Addr| matches!(v4.octets(), [224, 0, 0, _]);
        match group.to_ipv4_mapped().map_or(group == ALL_NODES, local) {
            true => Packet::ForAll("RFC4541: section 2.1.2, item 2, flooding"),
            false => Packet::To(group),
        }
    }

    fn mcast_type(&mut self) -> u16 {
        self.wc.set_u16(at::TP_SRC, 0xffff);
        self.key.u16(at::TP_SRC)
    }

    /// Punts the packet to the control side, which reads what it reports. Not for packets that a
    /// controller sent.
    fn hand_to_snooping(&mut self, input: Option<usize>, vlan: u16) {
        let Some(input) = input else { return };
        let port = self.bridge.bundles[input].ports[0];
        let context = McastContext { bridge: BridgeId(self.bridge.id), vlan, port };
        self.commit();
        let class = PuntClass::Controller;
        let punt = Punt { class, max_len: u16::MAX, wanted: None, context: Box::new(context) };
        self.op(Op::Punt(Arc::new(punt)));
        self.answer.decision.drop.get_or_insert(Drop::PuntRate);
    }

    fn send_to_routers(&mut self, view: &McastView, to: &mut Ports<'_>) {
        let routers = view.routers(to.tags.outer.vid);
        routers.for_each(|port| self.send_to_port(port, to, "router"));
    }

    fn send_to_flagged(&mut self, to: &mut Ports<'_>, what: &str, is: impl Fn(&Bundle) -> bool) {
        let bridge = self.bridge;
        for (i, b) in bridge.bundles.iter().enumerate().filter(|(_, b)| is(b)) {
            self.send_to_bundle(i, b, to, what);
        }
    }

    fn send_to_port(&mut self, port: OfPort, to: &mut Ports<'_>, what: &str) {
        let bridge = self.bridge;
        match bridge.port(port).map(|p| p.bundle) {
            Some(i) => self.send_to_bundle(i, &bridge.bundles[i], to, what),
            None => self.trace_warning(|| format!("mcast {what} port is unknown, dropping")),
        }
    }

    /// Sends to a port, unless the packet was sent there before or may not go there.
    fn send_to_bundle(&mut self, i: usize, b: &'a Bundle, to: &mut Ports<'_>, what: &str) {
        if to.chosen[i] || !self.spend(1) {
            return;
        }
        let apart = b.protected && to.input.is_some_and(|i| self.bridge.bundles[i].protected);
        if to.input == Some(i) {
            self.trace_detail(|| format!("mcast {what} port is input port, dropping"));
        } else if !apart && b.mirrors.output == 0 && includes(&b.vlan, to.tags) {
            self.trace_detail(|| format!("forwarding to mcast {what} port"));
            to.chosen[i] = true;
            self.output_bundle(b, to.tags);
        }
    }
}
