//! Bonds that spread packets over their members. Packets are sent to a bond's number as to a
//! port's; each of the bond's 256 buckets names a member.

use flow::PortNo;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering::Relaxed};
use wire::{ETH_IPV4, ETH_IPV6, ETH_QINQ, ETH_VLAN, IP_SCTP, IP_TCP, IP_UDP};

/// Buckets of a bond, the number that OVS has.
pub const BOND_BUCKETS: usize = 256;

/// What a packet's hash, and so its bucket, is computed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BondHash {
    /// The source Ethernet address and VLAN (`balance-slb`).
    Source,
    /// The IP addresses, protocol and ports (`balance-tcp`); for packets that are not IP, the
    /// Ethernet addresses.
    Connection,
}

/// A bond, shared by the threads that send to it. The control side may change members at any time.
#[derive(Debug)]
pub struct Bond {
    hash: BondHash,
    basis: u32,
    /// The members' port numbers, by bucket. [`flow::NO_PORT`]: packets are dropped.
    members: [AtomicU16; BOND_BUCKETS],
    bytes: [AtomicU64; BOND_BUCKETS],
}

impl Bond {
    /// A bond without members. `basis` is mixed into every hash.
    pub fn new(hash: BondHash, basis: u32) -> Bond {
        let members = [const { AtomicU16::new(flow::NO_PORT) }; BOND_BUCKETS];
        Bond { hash, basis, members, bytes: [const { AtomicU64::new(0) }; BOND_BUCKETS] }
    }

    /// Sets the port to which a bucket's packets are sent; None: they are dropped.
    pub fn set(&self, bucket: u8, member: Option<PortNo>) {
        self.members[usize::from(bucket)].store(member.unwrap_or(flow::NO_PORT), Relaxed);
    }

    /// Drops the packets of all buckets whose member is this port.
    pub fn forget(&self, port: PortNo) {
        for member in &self.members {
            let _ = member.compare_exchange(port, flow::NO_PORT, Relaxed, Relaxed);
        }
    }

    /// The members' ports by bucket; [`flow::NO_PORT`] for a bucket without one.
    pub fn members(&self) -> Vec<PortNo> {
        self.members.iter().map(|member| member.load(Relaxed)).collect()
    }

    /// Bytes that were sent by this bucket so far, as a measure of load: threads that count at the
    /// same time may lose some.
    pub fn bytes(&self, bucket: u8) -> u64 {
        self.bytes[usize::from(bucket)].load(Relaxed)
    }

    /// The bucket of a packet, from its bytes as sent.
    pub fn bucket(&self, packet: &[u8]) -> u8 {
        let h = match self.hash {
            BondHash::Source => source_hash(packet),
            BondHash::Connection => connection_hash(packet),
        };
        (mix(h, self.basis.into()) >> 56) as u8
    }

    /// The port to which this packet is sent.
    pub(crate) fn choose(&self, packet: &[u8]) -> PortNo {
        let bucket = usize::from(self.bucket(packet));
        let bytes = &self.bytes[bucket];
        bytes.store(bytes.load(Relaxed) + packet.len() as u64, Relaxed);
        self.members[bucket].load(Relaxed)
    }
}

/// One of 256 buckets by a packet's connection: that of a bond whose basis is 0.
pub(crate) fn connection_bucket(packet: &[u8]) -> u8 {
    (mix(connection_hash(packet), 0) >> 56) as u8
}

fn mix(h: u64, v: u64) -> u64 {
    let x = (h ^ v).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x ^ x >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

/// Up to eight bytes of a packet; bytes behind its end count as zero.
fn word(packet: &[u8], from: usize, n: usize) -> u64 {
    let mut out = [0; 8];
    if let Some(part) = packet.get(from..from + n) {
        out[..n].copy_from_slice(part);
    }
    u64::from_be_bytes(out)
}

/// Two bytes of a packet.
fn half(packet: &[u8], from: usize) -> u16 {
    (word(packet, from, 2) >> 48) as u16
}

/// The Ethertype behind VLAN tags, and where the header behind it begins.
fn behind_tags(packet: &[u8]) -> (u16, usize) {
    let mut at = 12;
    while matches!(half(packet, at), ETH_VLAN | ETH_QINQ) && at < 20 {
        at += 4;
    }
    (half(packet, at), at + 2)
}

/// The hash of [`BondHash::Source`].
fn source_hash(packet: &[u8]) -> u64 {
    let vlan = match half(packet, 12) {
        ETH_VLAN | ETH_QINQ => half(packet, 14) & 0xfff,
        _ => 0,
    };
    mix(word(packet, 6, 6), vlan.into())
}

/// The hash of [`BondHash::Connection`].
fn connection_hash(packet: &[u8]) -> u64 {
    let (eth_type, at) = behind_tags(packet);
    let byte = |i: usize| packet.get(at + i).copied().unwrap_or(0);
    let (addresses, proto, l4) = match eth_type {
        ETH_IPV4 => {
            let is_fragment = half(packet, at + 6) & 0x3fff != 0;
            let l4 = (!is_fragment).then_some(at + usize::from(byte(0) & 0xf) * 4);
            (word(packet, at + 12, 8), byte(9), l4)
        }
        ETH_IPV6 => {
            let [a, b, c, d] = [8, 16, 24, 32].map(|i| word(packet, at + i, 8));
            (mix(mix(a, b), mix(c, d)), byte(6), Some(at + 40))
        }
        _ => return mix(mix(word(packet, 0, 6), word(packet, 6, 6)), eth_type.into()),
    };
    let ports = match (proto, l4) {
        (IP_TCP | IP_UDP | IP_SCTP, Some(at)) => word(packet, at, 4),
        _ => 0,
    };
    mix(mix(addresses, ports), proto.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An Ethernet frame with these bytes at these places.
    fn frame(parts: &[(usize, &[u8])]) -> Vec<u8> {
        let mut out = vec![0; 64];
        parts.iter().for_each(|(at, bytes)| out[*at..at + bytes.len()].copy_from_slice(bytes));
        out
    }

    fn udp(source_port: u16, host: u8) -> Vec<u8> {
        let ports = [source_port.to_be_bytes(), 53u16.to_be_bytes()].concat();
        let ip = [(12, &[8, 0, 0x45][..]), (23, &[17]), (26, &[10, 0, 0, host, 10, 0, 0, 9])];
        frame(&[ip[0], ip[1], ip[2], (34, &ports)])
    }

    #[test]
    fn connections_spread_and_keep_their_bucket() {
        let bond = Bond::new(BondHash::Connection, 0);
        let buckets: std::collections::BTreeSet<u8> =
            (0..4096).map(|port| bond.bucket(&udp(port, 1))).collect();
        assert_eq!(buckets.len(), BOND_BUCKETS);
        let mut later = udp(7, 1);
        later[40..].fill(3);
        assert_eq!(bond.bucket(&udp(7, 1)), bond.bucket(&later));
        let of = |basis| {
            let bond = Bond::new(BondHash::Connection, basis);
            (0..16).map(|port| bond.bucket(&udp(port, 1))).collect::<Vec<_>>()
        };
        assert_ne!(of(0), of(1));
    }

    #[test]
    fn a_datagrams_fragments_stay_together() {
        let bond = Bond::new(BondHash::Connection, 0);
        let (mut first, mut later) = (udp(7, 1), udp(9, 1));
        (first[20], later[21]) = (0x20, 8);
        assert_eq!(bond.bucket(&first), bond.bucket(&later));
    }

    #[test]
    fn a_source_keeps_its_bucket_in_its_vlan() {
        let bond = Bond::new(BondHash::Source, 0);
        let from = |mac: u8, tag: &[u8], rest: u8| {
            bond.bucket(&frame(&[(0, &[rest; 6]), (11, &[mac]), (12, tag), (30, &[rest])]))
        };
        assert_eq!(from(1, &[], 1), from(1, &[], 2));
        assert_eq!(from(1, &[0x81, 0, 0, 5], 1), from(1, &[0x81, 0, 0xe0, 5], 2));
        let all = |tag: &[u8]| (0..16).map(|mac| from(mac, tag, 0)).collect::<Vec<_>>();
        assert_ne!(all(&[]), all(&[0x81, 0, 0, 5]));
    }

    #[test]
    fn short_packets_have_a_bucket_too() {
        for hash in [BondHash::Source, BondHash::Connection] {
            let bond = Bond::new(hash, 0);
            (0..60).for_each(|n| assert!(usize::from(bond.bucket(&udp(1, 1)[..n])) < BOND_BUCKETS));
        }
    }

    #[test]
    fn bytes_count_on_the_bucket() {
        let bond = Bond::new(BondHash::Connection, 0);
        let packet = udp(1, 1);
        let bucket = bond.bucket(&packet);
        assert_eq!(bond.choose(&packet), flow::NO_PORT);
        bond.set(bucket, Some(3));
        assert_eq!((bond.choose(&packet), bond.bytes(bucket)), (3, 128));
        bond.forget(4);
        assert_eq!(bond.choose(&packet), 3);
        bond.forget(3);
        assert_eq!(bond.choose(&packet), flow::NO_PORT);
    }
}
