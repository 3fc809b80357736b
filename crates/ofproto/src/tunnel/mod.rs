//! Tunnels: what their ports are, which port a decapsulated packet came in on, and what the outer
//! network looks like (routes, addresses, neighbours).

pub(crate) mod neighbours;
mod routes;
mod solicit;

pub use neighbours::Neighbour;
pub use routes::{Addresses, Route, Routes, source_for};
pub use solicit::Solicitation;
pub(crate) use solicit::question;

use crate::types::PortSpec;
use flow::{Key, Mask, PortNo, at, flag};
use openflow::OfPort;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The bits of `tun_flags` (OVS's).
pub(crate) const FLAGS: u16 = 0x7;

/// What a VXLAN interface is configured to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelSpec {
    /// UDP port that packets go to and are taken from.
    pub dst_port: u16,
    /// Where packets go to, and come from.
    pub remote: Remote,
    /// The other end of them.
    pub local: Local,
    /// Tunnel key of packets that come in; None: any.
    pub in_key: Option<u32>,
    /// Tunnel key of packets that go out; None: what the flow says.
    pub out_key: Option<u32>,
    /// DSCP of the outer header, in the place it has in TOS; None: the inner packet's.
    pub tos: Option<u8>,
    /// TTL of the outer header; None: the inner packet's.
    pub ttl: Option<u8>,
    /// Set "don't fragment" in outer IPv4 headers?
    pub df: bool,
    /// Fill in the outer UDP checksum? Always done over IPv6.
    pub csum: bool,
    /// The group policy extension is in use.
    pub gbp: bool,
    /// The mark of outer packets, for the route.
    pub egress_mark: Option<u32>,
}

/// `options:remote_ip`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Remote {
    /// `flow`: as the flow sets `tun_dst`; packets from anywhere come in.
    Flow,
    /// One peer.
    Ip(IpAddr),
}

/// `options:local_ip`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Local {
    /// Not given: whatever the route says.
    Any,
    /// `flow`: as the flow sets `tun_src`.
    Flow,
    /// One address.
    Ip(IpAddr),
}

/// What tells tunnel ports apart when a packet comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Want {
    port: PortNo,
    key: Option<u32>,
    remote: Remote,
    local: Local,
}

impl TunnelSpec {
    fn want(&self, port: PortNo) -> Want {
        Want { port, key: self.in_key, remote: self.remote, local: self.local }
    }

    /// Would packets that come in on one datapath port for `self` be `other`'s as well?
    pub fn conflicts(&self, other: &TunnelSpec) -> bool {
        self.want(0) == other.want(0)
    }
}

/// Tunnel ports of all bridges by what they take in.
#[derive(Default)]
pub(crate) struct Tunnels {
    by: HashMap<Want, (u32, OfPort)>,
    /// UDP port and group policy by datapath port.
    pub listening: BTreeMap<PortNo, (u16, bool)>,
}

impl Tunnels {
    pub fn insert(&mut self, bridge: u32, spec: &PortSpec) {
        if let (Some(t), Some(dp)) = (&spec.tunnel, spec.dp_port) {
            self.by.insert(t.want(dp), (bridge, spec.of_port));
            self.listening.insert(dp, (t.dst_port, t.gbp));
        }
    }

    pub fn is_empty(&self) -> bool {
        self.listening.is_empty()
    }

    /// The port (bridge and OpenFlow number) that a decapsulated packet came in on. The most
    /// specific configuration wins, in OVS's order: key, remote address, local address.
    pub fn receiver(&self, key: &Key) -> Option<(u32, OfPort)> {
        let (src, dst) = (source(key), destination(key));
        let port = key.u16(at::IN_PORT);
        for k in [Some(key.u32(at::TUN_ID)), None] {
            for remote in [Remote::Ip(src), Remote::Flow] {
                for local in [Local::Ip(dst), Local::Any, Local::Flow] {
                    let found = self.by.get(&Want { port, key: k, remote, local });
                    if found.is_some() {
                        return found.copied();
                    }
                }
            }
        }
        None
    }

    /// The datapath port that takes packets to a UDP port, whether with group policies, and the bits
    /// of the number that had to be looked at.
    pub fn listener(&self, udp: u16) -> (Option<(PortNo, bool)>, u16) {
        let mut mask = 0u16;
        for (dp, (port, gbp)) in &self.listening {
            match udp ^ port {
                0 => return (Some((*dp, *gbp)), 0xffff),
                differ => mask |= !(u16::MAX >> differ.leading_zeros() >> 1),
            }
        }
        (None, mask)
    }
}

/// Marks what [`Tunnels::receiver`] and the translation of tunnelled packets look at, as OVS does.
/// An IPv4 destination is not zero, nor is an IPv6 one, and only one of both is there.
pub(crate) fn look(key: &Key, wc: &mut Mask) {
    wc.set_u32(at::TUN_ID, !0);
    if key.u32(at::TUN_DST) != 0 {
        wc.set_u32(at::TUN_SRC, !0);
        wc.set_u32(at::TUN_DST, !0);
    } else {
        wc.set(at::TUN_IPV6_SRC, [0xff; 32]);
    }
    wc.set_u16(at::TUN_FLAGS, FLAGS);
    wc.set_u8(at::TUN_TOS, 0xff);
    wc.set_u8(at::FLAGS, wc.u8(at::FLAGS) | flag::TUNNEL);
}

/// Forgets that tunnel fields were looked at: a packet that came out of no tunnel has none.
pub(crate) fn forget(wc: &mut Mask) {
    wc.bytes_mut()[at::TUN_ID..at::PAYLOAD].fill(0);
    wc.bytes_mut()[at::TUN_DST..at::PKT_MARK].fill(0);
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

/// The network under the tunnels, as translation reads it.
#[derive(Clone, Default)]
pub(crate) struct Underlay {
    pub routes: Routes,
    /// By port name and address.
    pub neighbours: HashMap<(String, IpAddr), [u8; 6]>,
    pub source_ports: SourcePorts,
}

/// UDP source ports of encapsulated packets: first, and one behind the last.
#[derive(Clone, Copy)]
pub(crate) struct SourcePorts(pub u16, pub u16);

impl Default for SourcePorts {
    fn default() -> Self {
        SourcePorts(32768, 61000)
    }
}
