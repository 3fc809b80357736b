//! In-band control: which hidden flows let the switch's own connections to its controllers and
//! managers through, whatever the flows of controllers say (OVS's design document, "In-Band
//! Control").

use flow::Field;
use openflow::{Action, Instruction, Match, port};
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddrV4};
use wire::{ETH_ARP, ETH_IPV4, IP_TCP, IP_UDP};

/// Operations of ARP (RFC 826).
const REQUEST: u8 = 1;
const REPLY: u8 = 2;
/// UDP ports of DHCP (RFC 2131, section 4.1).
pub(crate) const DHCP_SERVER: u16 = 67;
pub(crate) const DHCP_CLIENT: u16 = 68;

/// Hidden flows of a bridge that has remotes, beside those of each remote.
pub const BRIDGE_FLOWS_MAX: usize = 3;
/// Hidden flows of one remote, at most.
pub const REMOTE_FLOWS_MAX: usize = 6;

/// What a bridge's hidden flows follow from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InBand {
    /// Controllers and managers that may be reached through the bridge.
    pub remotes: BTreeSet<SocketAddrV4>,
    /// Hardware addresses of the remotes, or of the routers on the way to them, as far as known.
    pub next_hops: BTreeSet<[u8; 6]>,
    /// Hardware address of the LOCAL port.
    pub local: Option<[u8; 6]>,
    /// The queue of packets that take these flows (`in-band-queue`).
    pub queue: Option<u32>,
}

/// What kind of hidden flow a rule is. The order decides nothing but which of several that match is
/// counted: all do the same. It begins with 0 and is OVS's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u16)]
enum Rank {
    LocalDhcp,
    ToLocalArp,
    FromLocalArp,
    ToNextHopArp,
    FromNextHopArp,
    ToRemoteArp,
    FromRemoteArp,
    ToRemoteTcp,
    FromRemoteTcp,
}

/// A match under construction.
struct Building(Match);

impl Building {
    fn new(eth_type: u16, proto: u8) -> Self {
        Building(Match::default()).with(Field::EthType, eth_type).with(Field::IpProto, proto)
    }

    fn with(mut self, field: Field, value: impl Into<u128>) -> Self {
        field.set(&mut self.0.key, value.into());
        field.unwildcard(&mut self.0.mask);
        self
    }
}

fn number(mac: [u8; 6]) -> u64 {
    mac.iter().fold(0, |n, byte| n << 8 | u64::from(*byte))
}

impl InBand {
    /// The hidden flows: what kind of one each is, by OVS's order, and its match. No two are the
    /// same.
    pub(crate) fn flows(&self) -> Vec<(u16, Match)> {
        if self.remotes.is_empty() {
            return Vec::new();
        }
        let mut flows =
            Vec::with_capacity(BRIDGE_FLOWS_MAX + REMOTE_FLOWS_MAX * self.remotes.len());
        let mut add = |rank: Rank, m: Building| flows.push((rank as u16, m.0));
        if let Some(local) = self.local {
            let dhcp = Building::new(ETH_IPV4, IP_UDP)
                .with(Field::InPort, port::LOCAL)
                .with(Field::EthSrc, number(local))
                .with(Field::UdpSrc, DHCP_CLIENT)
                .with(Field::UdpDst, DHCP_SERVER);
            add(Rank::LocalDhcp, dhcp);
            add(Rank::ToLocalArp, to(local));
            add(Rank::FromLocalArp, from(local));
        }
        for mac in self.next_hops.iter().filter(|mac| Some(**mac) != self.local) {
            add(Rank::ToNextHopArp, to(*mac));
            add(Rank::FromNextHopArp, from(*mac));
        }
        let hosts: BTreeSet<&Ipv4Addr> = self.remotes.iter().map(SocketAddrV4::ip).collect();
        for ip in hosts {
            let ip = ip.to_bits();
            add(Rank::ToRemoteArp, Building::new(ETH_ARP, REPLY).with(Field::ArpTpa, ip));
            add(Rank::FromRemoteArp, Building::new(ETH_ARP, REQUEST).with(Field::ArpSpa, ip));
        }
        for remote in &self.remotes {
            let (ip, port) = (remote.ip().to_bits(), remote.port());
            let tcp = || Building::new(ETH_IPV4, IP_TCP);
            let to = tcp().with(Field::Ipv4Dst, ip).with(Field::TcpDst, port);
            add(Rank::ToRemoteTcp, to);
            let from = tcp().with(Field::Ipv4Src, ip).with(Field::TcpSrc, port);
            add(Rank::FromRemoteTcp, from);
        }
        flows
    }

    /// What all hidden flows do.
    pub(crate) fn instructions(&self) -> Vec<Instruction> {
        let queue = self.queue.map(Action::SetQueue);
        vec![Instruction::Apply(queue.into_iter().chain([Action::output(port::NORMAL)]).collect())]
    }
}

/// ARP replies to a station.
fn to(mac: [u8; 6]) -> Building {
    Building::new(ETH_ARP, REPLY).with(Field::EthDst, number(mac))
}

/// ARP requests from a station.
fn from(mac: [u8; 6]) -> Building {
    Building::new(ETH_ARP, REQUEST).with(Field::EthSrc, number(mac))
}
