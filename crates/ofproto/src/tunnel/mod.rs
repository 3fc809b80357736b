//! Tunnels: the configuration of their ports, the port on which a decapsulated packet comes in, and
//! the underlay (routes, addresses, neighbours).

pub(crate) mod neighbourhood;
pub(crate) mod neighbours;
mod routes;
mod solicit;

pub use neighbours::Neighbour;
pub(crate) use routes::solicited_node;
pub use routes::{Addresses, KernelRoutes, Route, Routes, source_for};
pub use solicit::Solicitation;
pub(crate) use solicit::question;

use crate::fields;
use crate::types::PortSpec;
use action::TunnelKind;
use flow::{Key, Mask, PortNo, at, flag};
use openflow::{OfPort, packet_type};
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use wire::ETH_NSH;

/// The least Ethertype (IEEE 802.3): numbers below are lengths.
const ETHERTYPE_LEAST: u16 = 0x600;

/// The configuration of a tunnel interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelSpec {
    /// The kind of its headers.
    pub kind: TunnelKind,
    /// Which packets it carries.
    pub mode: PacketMode,
    /// True: sent VXLAN headers say what the payload is (VXLAN-GPE). Received ones may anyway.
    pub gpe: bool,
    /// The UDP port to which packets are sent, and on which they are received; 0: GRE or ERSPAN.
    pub dst_port: u16,
    /// The address to which packets are sent, and from which they are received.
    pub remote: Remote,
    /// The own address of the tunnel.
    pub local: Local,
    /// Tunnel key of received packets; None: any.
    pub in_key: Option<u32>,
    /// Tunnel key of sent packets; None: as the flow sets it.
    pub out_key: Option<u32>,
    /// DSCP of the outer header, at its place in TOS; None: the inner packet's.
    pub tos: Option<u8>,
    /// TTL of the outer header; None: the inner packet's.
    pub ttl: Option<u8>,
    /// True: outer IPv4 headers have "don't fragment".
    pub df: bool,
    /// True: sent GRE packets have a key. Those of other kinds always have one.
    pub keyed: bool,
    /// True: the outer UDP or GRE checksum is computed. UDP's always is over IPv6.
    pub csum: bool,
    /// True: sent GRE packets have sequence numbers.
    pub sequence: bool,
    /// Fields of sent ERSPAN headers.
    pub erspan: ErspanSpec,
    /// The mark of outer packets, for routing.
    pub egress_mark: Option<u32>,
}

/// `options:packet_type`: with an Ethernet header or without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PacketMode {
    /// `legacy_l2`: frames only.
    LegacyL2,
    /// `legacy_l3`: packets without an Ethernet header only. They get one without addresses when
    /// they come in, so the bridge sees frames; a frame loses its Ethernet header when it leaves.
    LegacyL3,
    /// `ptap`: both, as they are.
    Aware,
}

/// `options:erspan_ver`, `erspan_idx`, `erspan_dir` and `erspan_hwid`; None: as the flow sets the
/// field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErspanSpec {
    /// 1 or 2; 0: none was given, and nothing is sent.
    pub version: Option<u8>,
    /// The index of version 1, 20 bits.
    pub index: Option<u32>,
    /// The direction of version 2: 0 or 1.
    pub direction: Option<u8>,
    /// The hardware id of version 2, 6 bits.
    pub hwid: Option<u8>,
}

/// `options:remote_ip`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Remote {
    /// `flow`: as the flow sets `tun_dst`; packets are received from any address.
    Flow,
    /// One peer.
    Ip(IpAddr),
}

/// `options:local_ip`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Local {
    /// Not given: as the route says.
    Any,
    /// `flow`: as the flow sets `tun_src`.
    Flow,
    /// One address.
    Ip(IpAddr),
}

/// What distinguishes tunnel ports when a packet is received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Want {
    port: PortNo,
    mode: PacketMode,
    key: Option<u32>,
    remote: Remote,
    local: Local,
}

impl TunnelSpec {
    fn want(&self, port: PortNo) -> Want {
        // All that comes out of GTP-U counts as frames.
        let mode = if self.kind == TunnelKind::Gtpu { PacketMode::LegacyL2 } else { self.mode };
        Want { port, mode, key: self.in_key, remote: self.remote, local: self.local }
    }

    /// The Ethertype of this packet, if it is sent without its Ethernet header.
    pub(crate) fn sends_bare(&self, key: &Key) -> Option<u16> {
        let bare = match self.mode {
            PacketMode::LegacyL2 => false,
            PacketMode::LegacyL3 => true,
            PacketMode::Aware => key.u32(at::PACKET_TYPE) != packet_type::ETHERNET,
        };
        bare.then(|| key.u16(at::ETH_TYPE))
    }

    /// True if the tunnel's headers can say that a packet with this Ethertype is behind them.
    pub(crate) fn can_carry(&self, ethertype: u16) -> bool {
        match self.kind {
            TunnelKind::Gre => is_packet(ethertype),
            TunnelKind::Gtpu => fields::is_ip(ethertype),
            TunnelKind::Vxlan | TunnelKind::VxlanGbp => {
                self.gpe && (fields::is_ip(ethertype) || ethertype == ETH_NSH)
            }
            TunnelKind::Geneve | TunnelKind::Erspan => false,
        }
    }

    /// True if packets received on one datapath port for `self` could also be `other`'s.
    pub fn conflicts(&self, other: &TunnelSpec) -> bool {
        self.want(0) == other.want(0)
    }
}

/// What the tunnels of one datapath port have in common.
#[derive(Clone, Copy)]
pub(crate) struct Listening {
    kind: TunnelKind,
    udp: u16,
    /// True if some have peers with IPv6 addresses.
    six: bool,
    /// True if tunnels of the port differ in key, remote or local address.
    keys: bool,
    remotes: bool,
    locals: bool,
}

/// Tunnel ports of all bridges, by the packets that they receive.
#[derive(Default)]
pub(crate) struct Tunnels {
    by: HashMap<Want, (u32, OfPort)>,
    /// The tunnels of each datapath port.
    pub listening: BTreeMap<PortNo, Listening>,
}

impl Tunnels {
    pub fn insert(&mut self, bridge: u32, spec: &PortSpec) {
        if let (Some(t), Some(dp)) = (&spec.tunnel, spec.dp_port) {
            self.by.insert(t.want(dp), (bridge, spec.of_port));
            let new = Listening {
                kind: t.kind,
                udp: t.dst_port,
                six: false,
                keys: false,
                remotes: false,
                locals: false,
            };
            let l = self.listening.entry(dp).or_insert(new);
            l.six |= matches!(t.remote, Remote::Ip(IpAddr::V6(_)));
            l.keys |= t.in_key.is_some();
            l.remotes |= t.remote != Remote::Flow;
            l.locals |= matches!(t.local, Local::Ip(_));
        }
    }

    pub fn is_empty(&self) -> bool {
        self.listening.is_empty()
    }

    /// The kind of the tunnels of a datapath port.
    pub fn kind(&self, port: PortNo) -> Option<TunnelKind> {
        self.listening.get(&port).map(|l| l.kind)
    }

    /// The port (bridge and OpenFlow number) on which a decapsulated packet comes in. The most
    /// specific configuration wins, in OVS's order: key, remote address, local address, packets of
    /// one form.
    pub fn receiver(&self, key: &Key) -> Option<(u32, OfPort)> {
        let (src, dst) = (source(key), destination(key));
        let port = key.u16(at::IN_PORT);
        let only = match key.u8(at::FLAGS) & flag::BARE {
            0 => PacketMode::LegacyL2,
            _ => PacketMode::LegacyL3,
        };
        for k in [Some(key.u32(at::TUN_ID)), None] {
            for remote in [Remote::Ip(src), Remote::Flow] {
                for local in [Local::Ip(dst), Local::Any, Local::Flow] {
                    for mode in [only, PacketMode::Aware] {
                        let found = self.by.get(&Want { port, mode, key: k, remote, local });
                        if found.is_some() {
                            return found.copied();
                        }
                    }
                }
            }
        }
        None
    }

    /// Adds the bits that [`Tunnels::receiver`] reads to `wc`: as few as distinguish the port's
    /// tunnels, so that peers that are treated alike share megaflows.
    pub fn look(&self, key: &Key, wc: &mut Mask) {
        wc.set_u8(at::FLAGS, wc.u8(at::FLAGS) | flag::TUNNEL | flag::BARE);
        let Some(l) = self.listening.get(&key.u16(at::IN_PORT)) else { return };
        if l.keys {
            wc.set_u32(at::TUN_ID, !0);
        }
        if l.remotes {
            look_at_address(key, wc, at::TUN_SRC, at::TUN_IPV6_SRC);
        }
        if l.locals {
            look_at_address(key, wc, at::TUN_DST, at::TUN_IPV6_DST);
        }
    }

    /// The datapath port and kind of the tunnels on a UDP port, and the bits of the port number
    /// that had to be read.
    pub fn listener(&self, udp: u16) -> (Option<(PortNo, TunnelKind)>, u16) {
        let mut mask = 0u16;
        for (dp, l) in self.listening.iter().filter(|(_, l)| !l.kind.is_gre()) {
            match udp ^ l.udp {
                0 => return (Some((*dp, l.kind)), 0xffff),
                differ => mask |= !(u16::MAX >> differ.leading_zeros() >> 1),
            }
        }
        (None, mask)
    }

    /// The datapath port of GRE or ERSPAN tunnels over IPv6 or IPv4. As in OVS one of them gets all
    /// packets of the protocol; here it is GRE.
    pub fn gre_listener(&self, six: bool) -> Option<(PortNo, TunnelKind)> {
        let all = self.listening.iter().filter(|(_, l)| l.kind.is_gre());
        let found = all.min_by_key(|(_, l)| (l.six != six, l.kind != TunnelKind::Gre));
        found.map(|(dp, l)| (*dp, l.kind))
    }
}

/// True if this is the Ethertype of a packet of its own, and neither a length nor that of a tag.
pub(crate) fn is_packet(ethertype: u16) -> bool {
    ethertype >= ETHERTYPE_LEAST && !fields::is_vlan(ethertype)
}

/// Removes tunnel fields from `wc`: a packet that came out of no tunnel has none.
pub(crate) fn forget(wc: &mut Mask) {
    wc.bytes_mut()[at::TUN_ID..at::PAYLOAD].fill(0);
    wc.bytes_mut()[at::TUN_DST..at::PKT_MARK].fill(0);
    wc.set_u64(at::TUN_OPTIONS, 0);
}

/// Adds an outer address to `wc`. A packet has an address of one family; if its IPv4 address is
/// zero, it may be of either.
pub(crate) fn look_at_address(key: &Key, wc: &mut Mask, v4: usize, v6: usize) {
    wc.set_u32(v4, !0);
    if key.u32(v4) == 0 {
        wc.set(v6, [0xff; 16]);
    }
}

fn address(key: &Key, v4: usize, v6: usize) -> IpAddr {
    let six: [u8; 16] = key.get(v6);
    match six == [0; 16] {
        true => Ipv4Addr::from(key.get::<4>(v4)).into(),
        false => Ipv6Addr::from(six).into(),
    }
}

/// `tun_src` or `tun_ipv6_src`; 0.0.0.0 if neither is set.
pub(crate) fn source(key: &Key) -> IpAddr {
    address(key, at::TUN_SRC, at::TUN_IPV6_SRC)
}

/// `tun_dst` or `tun_ipv6_dst`; 0.0.0.0 if neither is set.
pub(crate) fn destination(key: &Key) -> IpAddr {
    address(key, at::TUN_DST, at::TUN_IPV6_DST)
}

/// The underlay of tunnels, as translation reads it.
#[derive(Clone, Default)]
pub(crate) struct Underlay {
    pub routes: Routes,
    pub neighbours: neighbourhood::Neighbourhood,
    pub source_ports: SourcePorts,
    /// True: decisions say how a kernel's datapath would encapsulate, and packets go nowhere.
    pub left_to_kernel: bool,
}

/// How packets to an address are sent: what decisions depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub device: String,
    pub source: IpAddr,
    pub next: IpAddr,
    /// The next hop's hardware address, if it is known.
    pub mac: Option<[u8; 6]>,
}

impl Underlay {
    /// How packets to `dst` with a mark are sent, from `source` if that is given. None: there is no
    /// route.
    pub fn answer(&self, dst: IpAddr, mark: u32, source: Option<IpAddr>) -> Option<Answer> {
        let route = self.routes.lookup(dst, mark, source)?;
        let next = route.gateway.unwrap_or(dst);
        let place = (route.device.clone(), next);
        let mac = self.neighbours.get(&place);
        let source = source.unwrap_or(route.source);
        Some(Answer { device: place.0, source, next, mac })
    }
}

/// UDP source ports of encapsulated packets: the first, and the one behind the last.
#[derive(Clone, Copy)]
pub(crate) struct SourcePorts(pub u16, pub u16);

impl Default for SourcePorts {
    fn default() -> Self {
        SourcePorts(32768, 61000)
    }
}
