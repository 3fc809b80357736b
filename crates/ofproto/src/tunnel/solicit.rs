//! Solicitations of a next hop's hardware address: ARP (RFC 826), Neighbour Solicitation (RFC
//! 4861).

use super::routes::solicited_node;
use crate::types::BridgeId;
use openflow::OfPort;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use wire::IP_ICMPV6;
use wire::checksum::pseudo_v6;

/// A frame that goes through a bridge's tables as if it came in on one of its ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Solicitation {
    /// The bridge.
    pub bridge: BridgeId,
    /// The port whose device asks.
    pub port: OfPort,
    /// The solicitation.
    pub frame: Vec<u8>,
}

/// The solicitation of `target`, from an address of the same family; None if it is of another.
pub(crate) fn question(mac: [u8; 6], source: IpAddr, target: IpAddr) -> Option<Vec<u8>> {
    match (source, target) {
        (IpAddr::V4(s), IpAddr::V4(t)) => Some(arp(mac, s, t)),
        (IpAddr::V6(s), IpAddr::V6(t)) => Some(neighbour(mac, s, t)),
        _ => None,
    }
}

fn arp(mac: [u8; 6], source: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
    let mut f = vec![0xff; 6];
    f.extend(mac);
    f.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    f.extend(mac);
    f.extend(source.octets());
    f.extend([0; 6]);
    f.extend(target.octets());
    f
}

fn neighbour(mac: [u8; 6], source: Ipv6Addr, target: Ipv6Addr) -> Vec<u8> {
    let to = solicited_node(target).octets();
    let mut icmp = vec![135, 0, 0, 0, 0, 0, 0, 0];
    icmp.extend(target.octets());
    icmp.extend([1, 1]); // source link-layer address, 8 bytes
    icmp.extend(mac);
    let sum = pseudo_v6(&source.octets(), &to, IP_ICMPV6, icmp.len()).bytes(&icmp).finish();
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut f = vec![0x33, 0x33];
    f.extend(&to[12..]);
    f.extend(mac);
    f.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, icmp.len() as u8, IP_ICMPV6, 255]);
    f.extend(source.octets());
    f.extend(to);
    f.extend(icmp);
    f
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_have_their_form() {
        let ask = |s: &str, t: &str| question([2; 6], s.parse().unwrap(), t.parse().unwrap());
        let arp = ask("10.0.0.1", "10.0.0.2").unwrap();
        assert_eq!(arp.len(), 42);
        assert_eq!(arp[38..], [10, 0, 0, 2]);
        let nd = ask("fd00::1", "fd00::12:3456").unwrap();
        assert_eq!(nd[..6], [0x33, 0x33, 0xff, 0x12, 0x34, 0x56]);
        let (src, dst) = (nd[22..38].try_into().unwrap(), nd[38..54].try_into().unwrap());
        assert_eq!(pseudo_v6(&src, &dst, IP_ICMPV6, 32).bytes(&nd[54..]).finish(), 0);
        assert_eq!(ask("fd00::1", "10.0.0.2"), None);
    }
}
