//! Tunnels: packets that were decapsulated, packets to be encapsulated, and outer packets to this
//! host. Traces use OVS's words where this follows OVS's native tunnelling.

use crate::fields;
use crate::published::{BridgeView, PortView};
use crate::translate::effects::{Asked, Hop, Snooped};
use crate::translate::encap::ETHERNET_BYTES;
use crate::translate::xlate::Xlate;
use crate::tunnel::neighbours::How;
use crate::tunnel::{self, Answer, Local, PacketMode, Remote, TunnelSpec};
use action::{Op, Payload, TunnelKind, TunnelPush, erspan, gre, gtpu, vxlan};
use flow::{Field, Key, PortNo, at, flag};
use openflow::packet_type;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use telemetry::Drop;
use wire::{ETH_ARP, ETH_IPV4, ETH_IPV6, ETH_NSH, IP_GRE, IP_ICMPV6, IP_UDP};

/// The Ethertype of an Ethernet payload in a tunnel.
const ETHERNET: u32 = 0x6558;
const GENEVE_OAM: u32 = 0x80_0000;
/// Geneve, first word of the header: there is a critical option.
const GENEVE_CRITICAL: u32 = 0x40_0000;
/// Bit of `tun_flags`: the packet is a control message. It is the only one that OpenFlow has.
pub(super) const OAM: u16 = 1;
const ADVERTISEMENT: u16 = 136;
const ARP_REPLY: u8 = 2;
/// Hop limit of a Neighbour Advertisement that no router has forwarded (RFC 4861, section 7.1.2).
const HOP_LIMIT: u8 = 255;
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const TTL: u8 = 64;
/// The ECN bits (RFC 3168) of a TOS byte.
const ECN: u8 = 3;
const CE: u8 = 3;
const ECT_0: u8 = 2;
const VXLAN_GBP: u32 = 0x8000_0000;

/// The fields of the outer header.
pub(super) struct OuterFields {
    pub(super) dst: IpAddr,
    pub(super) src: Option<IpAddr>,
    pub(super) mark: u32,
    pub(super) tos: u8,
    pub(super) ttl: u8,
    /// First word of the VXLAN, Geneve or GTP-U header.
    pub(super) word: u32,
    pub(super) key: u32,
    /// Options of the Geneve header, or the ERSPAN header; empty: there is no such one.
    pub(super) options: Vec<u8>,
    /// Ethertype of the packet inside, if that has no Ethernet header.
    pub(super) bare: Option<u16>,
}

/// How an outer packet leaves: port, route, next hop.
struct Way<'a> {
    bridge: &'a BridgeView,
    /// The port whose device sends the packet.
    port: &'a PortView,
    source: IpAddr,
    next: IpAddr,
    /// The next hop's hardware address, if it is known.
    mac: Option<[u8; 6]>,
}

impl<'a> Xlate<'a, '_> {
    /// Begins with a packet that was decapsulated: congestion that the outer header reports is
    /// copied to the inner header (RFC 6040).
    pub(super) fn leave_tunnel(&mut self, p: &PortView) {
        self.snapshot.published.tunnels.look(&self.key, &mut self.wc);
        self.tunnel.received = true;
        if p.spec.tunnel.as_ref().is_some_and(|t| t.kind == TunnelKind::Geneve) {
            self.read_options();
        }
        p.counts.iter().for_each(|c| self.credit(*c));
        self.take_bare(p);
        let ip = fields::is_ip(self.key.u16(at::ETH_TYPE));
        if ip {
            // This bit is the datapath's form of what TUN_TOS says.
            self.wc.set_u8(at::FLAGS, self.wc.u8(at::FLAGS) | flag::TUNNEL_CE);
        }
        if !ip || self.key.u8(at::TUN_TOS) & ECN != CE {
            return;
        }
        Field::IpEcn.unwildcard(&mut self.wc);
        match self.key.u8(at::TOS) & ECN {
            0 => {
                let why = "dropping tunnel packet marked ECN CE but is not ECN capable";
                self.trace_warning(|| why.into());
                self.fail(Drop::TunnelEcn);
            }
            _ => self.key.set_u8(at::TOS, self.key.u8(at::TOS) | CE),
        }
    }

    /// A packet that came without an Ethernet header gets one without addresses where the tunnel's
    /// port is not aware of packet types.
    fn take_bare(&mut self, p: &PortView) {
        // Only a trace may have a type without the flag.
        if self.key.u8(at::FLAGS) & flag::BARE == 0 && self.is_ethernet() {
            return;
        }
        let kind = packet_type::of_ethertype(self.key.u16(at::ETH_TYPE));
        self.base.set_u32(at::PACKET_TYPE, kind);
        let keeps = p.spec.tunnel.as_ref().is_some_and(|t| t.mode == PacketMode::Aware);
        self.key.set_u32(at::PACKET_TYPE, if keeps { kind } else { packet_type::ETHERNET });
    }

    /// Outputs to a tunnel port. False: the packet cannot be sent there.
    pub(super) fn enter_tunnel(
        &mut self,
        p: &PortView,
        spec: &TunnelSpec,
        dp: PortNo,
        trunc: u32,
    ) -> bool {
        if let Some(ethertype) = spec.sends_bare(&self.key)
            && !spec.can_carry(ethertype)
        {
            self.answer.decision.drop.get_or_insert(Drop::PacketType);
            self.trace_warning(|| format!("the tunnel does not carry packets of {ethertype:#x}"));
            return false;
        }
        let Some(outer) = self.outer(spec) else {
            self.answer.decision.drop.get_or_insert(Drop::TunnelOptions);
            self.trace_warning(|| "tunnel options are too long".into());
            return false;
        };
        if outer.dst == self.tunnel.dst {
            self.trace_warning(|| "Not tunneling to our own address".into());
            return false;
        }
        p.counts.iter().for_each(|base| self.credit(base + 1));
        if self.snapshot.underlay.left_to_kernel {
            self.leave_to_kernel(&outer, spec, dp, trunc);
            return true;
        }
        self.trace_detail(|| "output to native tunnel".into());
        let Some(way) = self.way(&outer) else {
            self.answer.decision.drop.get_or_insert(Drop::TunnelRoute);
            self.trace_warning(|| "native tunnel routing failed".into());
            return true;
        };
        let (next, name, mac) = (way.next, &way.port.spec.name, way.mac);
        self.trace_detail(|| format!("tunneling to {next} via {name}"));
        self.answer.effects.hops.push(Hop {
            from: self.base.u16(at::IN_PORT),
            bridge: way.bridge.id,
            port: way.port.spec.of_port,
            source: way.source,
            next,
            used: mac,
        });
        match mac {
            Some(mac) => self.encapsulate(&outer, &way, mac, spec, dp, trunc),
            None => {
                let kind = if next.is_ipv4() { "ARP" } else { "ND" };
                self.answer.decision.drop.get_or_insert(Drop::TunnelNeighbour);
                self.trace_detail(|| {
                    format!(
                        "neighbor cache miss for {next} on bridge {}, sending {kind} request",
                        way.bridge.name
                    )
                })
            }
        }
        true
    }

    /// The fields of the outer header; None: its options are too long.
    fn outer(&mut self, spec: &TunnelSpec) -> Option<OuterFields> {
        let ip = fields::is_ip(self.key.u16(at::ETH_TYPE));
        let ttl = match spec.ttl {
            Some(ttl) => ttl,
            None if ip => {
                Field::IpTtl.unwildcard(&mut self.wc);
                self.key.u8(at::TTL)
            }
            None => TTL,
        };
        let mut tos = spec.tos.unwrap_or(0);
        if ip {
            if spec.tos.is_none() {
                Field::IpDscp.unwildcard(&mut self.wc);
                tos = self.key.u8(at::TOS) & !ECN;
            }
            // The outer header reports congestion only if the outer network does: ECN is matched
            // on.
            Field::IpEcn.unwildcard(&mut self.wc);
            tos |= match self.key.u8(at::TOS) & ECN {
                CE => ECT_0,
                ecn => ecn,
            };
        }
        if self.tunnel.received {
            self.look_at_outer(spec);
        }
        let key = spec.out_key.unwrap_or_else(|| self.key.u32(at::TUN_ID));
        let (options, critical) = match spec.kind {
            TunnelKind::Geneve => self.bridge.tlv.write(&self.tunnel.fields)?,
            TunnelKind::Erspan => (self.erspan(spec, key).unwrap_or_default(), false),
            _ => (Vec::new(), false),
        };
        let words = (options.len() as u32 / 4) << 24;
        let critical = if critical { GENEVE_CRITICAL } else { 0 };
        Some(OuterFields {
            dst: match spec.remote {
                Remote::Ip(ip) => ip,
                Remote::Flow => tunnel::destination(&self.key),
            },
            src: match spec.local {
                Local::Ip(ip) => Some(ip),
                Local::Flow => Some(tunnel::source(&self.key)).filter(|ip| !ip.is_unspecified()),
                Local::Any => None,
            },
            // Packets are received without a mark, so a mark was set by actions.
            mark: spec.egress_mark.unwrap_or_else(|| self.key.u32(at::PKT_MARK)),
            tos,
            ttl,
            word: self.first_word(spec) | words | critical,
            key,
            options,
            bare: spec.sends_bare(&self.key),
        })
    }

    /// Matches on what may be handed on from the received outer header to the next one.
    fn look_at_outer(&mut self, spec: &TunnelSpec) {
        let mut look = |v4, v6| tunnel::look_at_address(&self.key, &mut self.wc, v4, v6);
        look(at::TUN_DST, at::TUN_IPV6_DST);
        if spec.local == Local::Flow {
            look(at::TUN_SRC, at::TUN_IPV6_SRC);
        }
        if spec.out_key.is_none() {
            Field::TunId.unwildcard(&mut self.wc);
        }
        self.look_at_fields(spec.kind);
    }

    /// Matches on all fields that the received outer header has.
    pub(super) fn look_at_received(&mut self) {
        let Some(kind) = self.snapshot.published.tunnels.kind(self.base.u16(at::IN_PORT)) else {
            return;
        };
        for (v4, v6) in [(at::TUN_SRC, at::TUN_IPV6_SRC), (at::TUN_DST, at::TUN_IPV6_DST)] {
            tunnel::look_at_address(&self.key, &mut self.wc, v4, v6);
        }
        Field::TunId.unwildcard(&mut self.wc);
        self.look_at_fields(kind);
    }

    /// Matches on the fields of an outer header that only this kind has.
    fn look_at_fields(&mut self, kind: TunnelKind) {
        match kind {
            TunnelKind::VxlanGbp => {
                Field::TunGbpId.unwildcard(&mut self.wc);
                Field::TunGbpFlags.unwildcard(&mut self.wc);
            }
            TunnelKind::Geneve => {
                self.wc.set_u16(at::TUN_FLAGS, self.wc.u16(at::TUN_FLAGS) | OAM);
            }
            TunnelKind::Erspan | TunnelKind::Gtpu => self.wc.set_u64(at::TUN_OPTIONS, !0),
            TunnelKind::Vxlan | TunnelKind::Gre => {}
        }
    }

    /// An ERSPAN header. None: it has no such version, or the key is no session id.
    fn erspan(&self, spec: &TunnelSpec, key: u32) -> Option<Vec<u8>> {
        let (own, k) = (spec.erspan, &self.key);
        let version = own.version.unwrap_or_else(|| k.u8(at::TUN_ERSPAN_VER));
        let first = (key & !erspan::SESSION == 0).then_some(u32::from(version) << 28 | key)?;
        let mut h = first.to_be_bytes().to_vec();
        match version {
            1 => {
                let index = own.index.unwrap_or_else(|| Field::TunErspanIdx.get(k) as u32);
                h.extend(index.to_be_bytes());
            }
            2 => {
                let hwid = own.hwid.unwrap_or_else(|| k.u8(at::TUN_ERSPAN_HWID));
                let direction = own.direction.unwrap_or_else(|| k.u8(at::TUN_ERSPAN_DIR));
                let direction = if direction == 0 { 0 } else { erspan::DIRECTION };
                let last = u32::from(hwid) << erspan::HWID_SHIFT | direction;
                h.extend([0; 4]);
                h.extend(last.to_be_bytes());
            }
            _ => return None,
        }
        Some(h)
    }

    /// The first 32 bits of the VXLAN, Geneve or GTP-U header.
    fn first_word(&self, spec: &TunnelSpec) -> u32 {
        let policy = u32::from(self.key.u8(at::TUN_GBP_FLAGS)) << 16
            | u32::from(self.key.u16(at::TUN_GBP_ID));
        match spec.kind {
            TunnelKind::Vxlan | TunnelKind::VxlanGbp if spec.gpe => {
                let payload = match spec.sends_bare(&self.key) {
                    None => vxlan::ETHERNET,
                    Some(ETH_IPV6) => vxlan::IPV6,
                    Some(ETH_NSH) => vxlan::NSH,
                    Some(_) => vxlan::IPV4,
                };
                vxlan::VALID | vxlan::GPE | payload
            }
            TunnelKind::VxlanGbp if policy != 0 => vxlan::VALID | VXLAN_GBP | policy,
            TunnelKind::Geneve if self.key.u16(at::TUN_FLAGS) & OAM != 0 => GENEVE_OAM | ETHERNET,
            TunnelKind::Geneve => ETHERNET,
            TunnelKind::Gtpu => u32::from_be_bytes([gtpu::VERSION, gtpu::PACKET, 0, 0]),
            _ => vxlan::VALID,
        }
    }

    /// The route of an outer packet, and the port of the route's device; None: there is none.
    fn way(&mut self, outer: &OuterFields) -> Option<Way<'a>> {
        let (dst, mark, source) = (outer.dst, outer.mark, outer.src);
        let answer = self.snapshot.underlay.answer(dst, mark, source);
        self.answer.effects.asked.push(Asked { dst, mark, source, answer: answer.clone() });
        let Answer { device, source, next, mac } = answer?;
        let (bridge, port) = self.snapshot.published.device(&device)?;
        (source.is_ipv4() == dst.is_ipv4()).then_some(Way { bridge, port, source, next, mac })
    }

    /// Adds the encapsulation, and translates the outer packet in the tables of its bridge.
    fn encapsulate(
        &mut self,
        outer: &OuterFields,
        way: &Way<'a>,
        mac: [u8; 6],
        spec: &TunnelSpec,
        tunnel_port: PortNo,
        trunc: u32,
    ) {
        let (own, source, next) = (way.port.spec.hw_addr, way.source, way.next);
        self.trace_detail(|| {
            format!("tunneling from {} {source} to {} {next}", mac_text(own), mac_text(mac))
        });
        if spec.kind == TunnelKind::Erspan && outer.options.is_empty() {
            self.answer.decision.drop.get_or_insert(Drop::TunnelOptions);
            return self.trace_warning(|| "native tunnel header build failed".into());
        }
        let Some(out_port) = way.port.spec.dp_port else {
            return self.trace_warning(|| "Nonexistent output port".into());
        };
        if self.is_too_much() {
            return;
        }
        let payload = self.commit_payload(outer);
        let first = self.answer.decision.ops.len();
        if trunc != 0 {
            let unseen = if outer.bare.is_some() { ETHERNET_BYTES.into() } else { 0 };
            self.op(Op::Truncate(trunc.saturating_add(unseen)));
        }
        let from = self.answer.decision.ops.len();
        let header = header(outer, own, mac, source, spec);
        let unseen = if payload == Payload::Frame { 0 } else { ETHERNET_BYTES.into() };
        let header_bytes = (header.len() as u32).saturating_sub(unseen);
        let ports = self.snapshot.underlay.source_ports;
        self.op(Op::TunnelPush(Arc::new(TunnelPush {
            kind: spec.kind,
            payload,
            tunnel_port,
            out_port,
            header: header.into(),
            source_ports: (ports.0, ports.1),
        })));
        let (key, base, wc) = (self.key, self.base, self.wc);
        let layers = std::mem::take(&mut self.packet.layers);
        let tun = std::mem::take(&mut self.tunnel.fields);
        self.key = outer_key(outer, own, mac, source, spec, out_port);
        self.base = self.key;
        let encapsulated = std::mem::replace(&mut self.tunnel.encapsulated, true);
        // What the bridges outside count has the outer header.
        let before = self.tunnel.header_bytes;
        self.tunnel.header_bytes = before + header_bytes;
        self.credit(action::longer(self.tunnel.header_bytes));
        self.visit(way.bridge, way.port.spec.of_port);
        self.credit(action::longer(before));
        self.tunnel.header_bytes = before;
        self.tunnel.encapsulated = encapsulated;
        // Fields of the outer packet are made by the switch: the decision does not depend on them.
        (self.key, self.base, self.wc) = (key, base, wc);
        (self.packet.layers, self.tunnel.fields) = (layers, tun);
        match self.answer.decision.ops.len() - from {
            0 | 1 => self.answer.decision.ops.truncate(first),
            _ => {
                let ops = self.answer.decision.ops.split_off(from).into_boxed_slice();
                self.answer.decision.ops.push(Op::Clone(ops));
            }
        }
    }

    /// Adds the operations that make the packet what is put into the tunnel.
    pub(super) fn commit_payload(&mut self, outer: &OuterFields) -> Payload {
        let Some(ethertype) = outer.bare else {
            self.commit();
            return Payload::Frame;
        };
        // Its addresses do not matter.
        let (kind, addresses) = (self.key.u32(at::PACKET_TYPE), self.key.get::<12>(at::ETH_DST));
        self.key.set_u32(at::PACKET_TYPE, packet_type::of_ethertype(ethertype));
        self.key.set(at::ETH_DST, self.base.get::<12>(at::ETH_DST));
        self.commit();
        self.key.set_u32(at::PACKET_TYPE, kind);
        self.key.set(at::ETH_DST, addresses);
        match self.base.u32(at::PACKET_TYPE) {
            packet_type::ETHERNET => Payload::Popped,
            _ => Payload::Bare,
        }
    }

    /// True (Some) if the packet, which goes to a port with addresses, is for a tunnel of this
    /// switch: the tunnel's datapath port and kind.
    pub(super) fn terminates(&mut self, p: &PortView) -> Option<(PortNo, TunnelKind)> {
        let (published, routes) = (self.snapshot.published, &self.snapshot.underlay.routes);
        if published.tunnels.is_empty() || !routes.has_addresses(&p.spec.name) {
            return None;
        }
        self.wc.set(at::ETH_DST, [0xff; 6]);
        self.snoop(p);
        let ours = self.key.get::<6>(at::ETH_DST) == p.spec.hw_addr;
        if !ours || !fields::is_ip(self.key.u16(at::ETH_TYPE)) || self.key.u8(at::FRAG) != 0 {
            return None;
        }
        self.wc.set_u8(at::PROTO, 0xff);
        let to = self.ip_dst();
        if !routes.has_address(&p.spec.name, to) {
            return None;
        }
        match self.key.u8(at::PROTO) {
            IP_UDP => {}
            IP_GRE => return published.tunnels.gre_listener(to.is_ipv6()),
            _ => return None,
        }
        let (found, bits) = published.tunnels.listener(self.key.u16(at::TP_DST));
        self.wc.set_u16(at::TP_DST, self.wc.u16(at::TP_DST) | bits);
        found
    }

    fn ip_dst(&mut self) -> IpAddr {
        match self.key.u16(at::ETH_TYPE) {
            ETH_IPV6 => {
                Field::Ipv6Dst.unwildcard(&mut self.wc);
                self.key.get::<16>(at::IPV6_DST).into()
            }
            _ => {
                Field::Ipv4Dst.unwildcard(&mut self.wc);
                self.key.get::<4>(at::IP_DST).into()
            }
        }
    }

    /// Learns next hops' addresses from their answers, and from what they announce.
    fn snoop(&mut self, p: &PortView) {
        let found = match self.key.u16(at::ETH_TYPE) {
            ETH_ARP => self.snoop_arp(p),
            ETH_IPV6 => self.snoop_nd(p),
            _ => None,
        };
        let Some((ip, mac, how)) = found else { return };
        let port = &p.spec.name;
        if mac[0] & 1 == 0 && mac != [0; 6] && !self.snapshot.underlay.routes.has_address(port, ip)
        {
            self.answer.effects.snooped.push(Snooped { port: port.clone(), ip, mac, how });
        }
    }

    fn snoop_arp(&mut self, p: &PortView) -> Option<(IpAddr, [u8; 6], How)> {
        for f in [Field::ArpOp, Field::ArpSpa, Field::ArpTpa, Field::ArpSha] {
            f.unwildcard(&mut self.wc);
        }
        let (from, to): ([u8; 4], [u8; 4]) = (self.key.get(at::IP_SRC), self.key.get(at::IP_DST));
        let answer = self.key.u8(at::PROTO) == ARP_REPLY
            && self.snapshot.underlay.routes.has_address(&p.spec.name, to.into());
        let how = if answer { How::Reply } else { How::Announcement };
        (answer || from == to).then(|| (from.into(), self.key.get(at::ARP_SHA), how))
    }

    /// A Neighbour Advertisement counts if it was sent on this link (hop limit 255, RFC 4861,
    /// 7.1.2) to one of the port's addresses, or to its solicited-node multicast address as in OVS.
    /// One to all nodes counts less.
    fn snoop_nd(&mut self, p: &PortView) -> Option<(IpAddr, [u8; 6], How)> {
        self.wc.set_u8(at::PROTO, 0xff);
        if self.key.u8(at::PROTO) != IP_ICMPV6 {
            return None;
        }
        self.wc.set_u16(at::TP_SRC, 0xffff);
        if self.key.u16(at::TP_SRC) != ADVERTISEMENT {
            return None;
        }
        for f in [Field::NdTarget, Field::NdTll, Field::Ipv6Dst] {
            f.unwildcard(&mut self.wc);
        }
        self.wc.set_u8(at::TTL, 0xff);
        let to: Ipv6Addr = self.key.get::<16>(at::IPV6_DST).into();
        let own = |ip: &IpAddr| match ip {
            IpAddr::V6(ip) => *ip == to || tunnel::solicited_node(*ip) == to,
            IpAddr::V4(_) => false,
        };
        let all = self.snapshot.underlay.routes.addresses().iter();
        let how = match all.filter(|(d, ..)| *d == p.spec.name).any(|(_, ip, _)| own(ip)) {
            true => How::Reply,
            false if to == ALL_NODES => How::Unsolicited,
            false => return None,
        };
        let (target, mac) = (self.key.get::<16>(at::ND_TARGET), self.key.get(at::ARP_THA));
        (self.key.u8(at::TTL) == HOP_LIMIT).then(|| (target.into(), mac, how))
    }
}

fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|b| format!("{b:02x}")).join(":")
}

/// The template of the outer header.
fn header(
    outer: &OuterFields,
    own: [u8; 6],
    mac: [u8; 6],
    source: IpAddr,
    spec: &TunnelSpec,
) -> Vec<u8> {
    let proto = protocol(spec.kind);
    let mut h = Vec::with_capacity(70);
    h.extend(mac);
    h.extend(own);
    match (source, outer.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let frag = if spec.df { 0x40 } else { 0 };
            h.extend([8, 0, 0x45, outer.tos, 0, 0, 0, 0, frag, 0, outer.ttl, proto, 0, 0]);
            h.extend(src.octets());
            h.extend(dst.octets());
        }
        _ => {
            let word = 0x6000_0000 | u32::from(outer.tos) << 20;
            h.extend([0x86, 0xdd]);
            h.extend(word.to_be_bytes());
            h.extend([0, 0, proto, outer.ttl]);
            let six = |ip| match ip {
                IpAddr::V6(ip) => ip,
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            };
            h.extend(six(source).octets());
            h.extend(six(outer.dst).octets());
        }
    }
    match spec.kind {
        TunnelKind::Gre => gre_header(&mut h, outer, spec),
        TunnelKind::Erspan => erspan_header(&mut h, &outer.options),
        _ => udp_header(&mut h, outer, spec),
    }
    h
}

/// The IP protocol number of the outer packet.
fn protocol(kind: TunnelKind) -> u8 {
    if kind.is_gre() { IP_GRE } else { IP_UDP }
}

/// Adds UDP and a VXLAN, Geneve or GTP-U header.
fn udp_header(h: &mut Vec<u8>, outer: &OuterFields, spec: &TunnelSpec) {
    h.extend([0, 0]);
    h.extend(spec.dst_port.to_be_bytes());
    let sum = if spec.csum || outer.dst.is_ipv6() { 0xff } else { 0 };
    h.extend([0, 0, sum, sum]);
    h.extend(outer.word.to_be_bytes());
    let key = if spec.kind == TunnelKind::Gtpu { outer.key } else { outer.key << 8 };
    h.extend(key.to_be_bytes());
    h.extend(&outer.options);
}

fn gre_header(h: &mut Vec<u8>, outer: &OuterFields, spec: &TunnelSpec) {
    let flag = |is: bool, flag: u16| if is { flag } else { 0 };
    let flags = flag(spec.csum, gre::CHECKSUM)
        | flag(spec.keyed, gre::KEY)
        | flag(spec.sequence, gre::SEQUENCE);
    h.extend(flags.to_be_bytes());
    h.extend(outer.bare.unwrap_or(ETHERNET as u16).to_be_bytes());
    if spec.csum {
        h.extend([0; 4]);
    }
    if spec.keyed {
        h.extend(outer.key.to_be_bytes());
    }
    if spec.sequence {
        h.extend([0; 4]);
    }
}

/// Adds GRE with a sequence number, and an ERSPAN header.
fn erspan_header(h: &mut Vec<u8>, header: &[u8]) {
    let version = usize::from(header[0] >> 4);
    h.extend(gre::SEQUENCE.to_be_bytes());
    h.extend(erspan::ETHERTYPES[version - 1].to_be_bytes());
    h.extend([0; 4]);
    h.extend(header);
}

/// The outer packet's key as tables see it. Its UDP source port, which differs from packet to
/// packet, is 0.
fn outer_key(
    outer: &OuterFields,
    own: [u8; 6],
    mac: [u8; 6],
    source: IpAddr,
    spec: &TunnelSpec,
    in_port: PortNo,
) -> Key {
    let mut k = Key::ZERO;
    k.set(at::ETH_DST, mac);
    k.set(at::ETH_SRC, own);
    match (source, outer.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            k.set_u16(at::ETH_TYPE, ETH_IPV4);
            k.set(at::IP_SRC, src.octets());
            k.set(at::IP_DST, dst.octets());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            k.set_u16(at::ETH_TYPE, ETH_IPV6);
            k.set(at::IPV6_SRC, src.octets());
            k.set(at::IPV6_DST, dst.octets());
        }
        _ => {}
    }
    k.set_u8(at::PROTO, protocol(spec.kind));
    k.set_u8(at::TOS, outer.tos);
    k.set_u8(at::TTL, outer.ttl);
    if !spec.kind.is_gre() {
        k.set_u16(at::TP_DST, spec.dst_port);
        k.set_u8(at::FLAGS, flag::L4);
    }
    k.set_u16(at::IN_PORT, in_port);
    k.set_u32(at::PKT_MARK, outer.mark);
    k
}
