//! proptest strategies for frames: structured ones whose values collide often enough for rules to
//! match, and hostile ones.

use crate::{Ext, Frame, L4, Net, V4, V6};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use wire::{Mac, MplsLse, VlanTag};

/// A MAC address, mostly of a small set.
pub fn mac() -> impl Strategy<Value = Mac> {
    prop_oneof![
        8 => (0u8..6).prop_map(|n| [2, 0, 0, 0, 0, n]),
        1 => Just(wire::BROADCAST),
        1 => (0u8..3).prop_map(|n| [1, 0, 0x5e, 0, 0, n]),
        1 => any::<Mac>(),
    ]
}

/// An IPv4 address, mostly of a few small nets.
pub fn ipv4() -> impl Strategy<Value = [u8; 4]> {
    prop_oneof![
        8 => (0u8..3, 0u8..6).prop_map(|(net, host)| [10, 0, net, host]),
        1 => (0u8..3).prop_map(|n| [224, 0, 0, n]),
        1 => any::<[u8; 4]>(),
    ]
}

/// An IPv6 address, mostly of a few small nets.
pub fn ipv6() -> impl Strategy<Value = [u8; 16]> {
    let small = |net: u8, host: u8| {
        let mut a = [0; 16];
        (a[0], a[1], a[7], a[15]) = (0xfd, 0, net, host);
        a
    };
    prop_oneof![
        8 => (0u8..3, 0u8..6).prop_map(move |(net, host)| small(net, host)),
        1 => any::<[u8; 16]>(),
    ]
}

/// A transport port, mostly of a small set.
pub fn port() -> impl Strategy<Value = u16> {
    prop_oneof![4 => prop::sample::select(vec![0, 53, 80, 443, 4789, 8080, 65535]), 1 => any::<u16>()]
}

/// A VLAN tag, mostly 802.1Q with a small id.
pub fn tag() -> impl Strategy<Value = VlanTag> {
    let tpid = prop_oneof![4 => Just(wire::ETH_VLAN), 1 => Just(wire::ETH_QINQ)];
    let tci = prop_oneof![4 => 0u16..5, 1 => any::<u16>()];
    (tpid, tci).prop_map(|(tpid, tci)| VlanTag { tpid, tci })
}

/// Payloads of up to 64 bytes.
pub fn payload() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..64)
}

/// Transport packets that both IP versions carry.
pub fn l4() -> impl Strategy<Value = L4> {
    let tcp = (port(), port(), any::<u32>(), any::<u32>(), 0u16..0x1000, payload())
        .prop_map(|(s, d, seq, ack, flags, p)| L4::Tcp(s, d, seq, ack, flags, p));
    let udp = (port(), port(), payload()).prop_map(|(s, d, p)| L4::Udp(s, d, p));
    let sctp =
        (port(), port(), any::<u32>(), payload()).prop_map(|(s, d, t, p)| L4::Sctp(s, d, t, p));
    let kind = prop_oneof![Just(0u8), Just(8), Just(128), Just(129), any::<u8>()];
    let icmp =
        (kind, 0u8..4, any::<[u8; 4]>(), payload()).prop_map(|(k, c, w, p)| L4::Icmp(k, c, w, p));
    let other = (prop::sample::select(vec![2u8, 47, 50, 89, 253]), payload())
        .prop_map(|(proto, p)| L4::Other(proto, p));
    prop_oneof![4 => tcp, 4 => udp, 1 => sctp, 2 => icmp, 1 => other]
}

/// Neighbour solicitations and advertisements.
pub fn nd() -> impl Strategy<Value = L4> {
    (
        prop_oneof![Just(wire::ND_NS), Just(wire::ND_NA)],
        any::<u32>(),
        ipv6(),
        option::of(mac()),
        option::of(mac()),
    )
        .prop_map(|(kind, flags, target, sll, tll)| L4::Nd { kind, flags, target, sll, tll })
}

fn frag() -> impl Strategy<Value = u16> {
    prop_oneof![8 => Just(0u16), 2 => Just(0x4000), 1 => Just(0x2000), 1 => 1u16..0x2000]
}

fn v4() -> impl Strategy<Value = V4> {
    let options = prop_oneof![6 => Just(Vec::new()), 1 => vec(Just(1u8), 1..40)];
    (ipv4(), ipv4(), any::<u8>(), any::<u8>(), any::<u16>(), frag(), options, l4()).prop_map(
        |(src, dst, tos, ttl, id, frag, options, l4)| V4 {
            src,
            dst,
            tos,
            ttl,
            id,
            frag,
            options,
            l4,
        },
    )
}

fn ext() -> impl Strategy<Value = Ext> {
    prop_oneof![
        (0u8..3).prop_map(Ext::HopByHop),
        (0u8..3).prop_map(Ext::DstOpts),
        (0u8..3).prop_map(Ext::Routing),
        (prop_oneof![Just(0u16), 0u16..0x2000], any::<bool>(), any::<u32>())
            .prop_map(|(offset, more, id)| Ext::Fragment(offset, more, id)),
    ]
}

fn v6() -> impl Strategy<Value = V6> {
    let ext = prop_oneof![4 => Just(Vec::new()), 1 => vec(ext(), 1..4)];
    let l4 = prop_oneof![4 => l4(), 1 => nd()];
    (ipv6(), ipv6(), any::<u8>(), 0u32..0x10_0000, any::<u8>(), ext, l4).prop_map(
        |(src, dst, tclass, label, hops, ext, l4)| V6 { src, dst, tclass, label, hops, ext, l4 },
    )
}

fn net() -> impl Strategy<Value = Net> {
    let arp = (1u16..5, (mac(), ipv4()), (mac(), ipv4())).prop_map(|(op, s, t)| Net::Arp(op, s, t));
    let raw =
        (prop::sample::select(vec![0x88b5u16, 0x0800, 0x86dd, 0x0806, 0x8035, 64]), payload())
            .prop_map(|(kind, p)| Net::Raw(kind, p));
    prop_oneof![6 => v4().prop_map(Net::V4), 4 => v6().prop_map(Net::V6), 2 => arp, 1 => raw]
}

/// A structured frame: valid but for what senders may get wrong on their own.
pub fn frame() -> impl Strategy<Value = Frame> {
    let tags = prop_oneof![4 => Just(Vec::new()), 2 => vec(tag(), 1), 1 => vec(tag(), 2..4)];
    let lse =
        (0u32..20, 0u8..8, any::<u8>()).prop_map(|(l, tc, ttl)| MplsLse::new(l, tc, false, ttl));
    let mpls = prop_oneof![8 => Just(Vec::new()), 1 => vec(lse, 1..4)];
    (mac(), mac(), tags, mpls, net()).prop_map(|(dst, src, tags, mut mpls, net)| {
        if let Some(last) = mpls.last_mut() {
            last.0 |= 0x100;
        }
        Frame { dst, src, tags, mpls, net }
    })
}

/// Bytes for parsers to survive: structured frames cut at any length, with bytes overwritten, and
/// plain noise.
pub fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let spoilt = (
        frame(),
        any::<prop::sample::Index>(),
        vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    );
    let spoilt = spoilt.prop_map(|(f, cut, writes)| {
        let mut b = f.bytes();
        b.truncate(cut.index(b.len() + 1));
        for (at, v) in writes {
            if !b.is_empty() {
                let i = at.index(b.len());
                b[i] = v;
            }
        }
        b
    });
    prop_oneof![4 => spoilt, 2 => frame().prop_map(|f| f.bytes()), 1 => vec(any::<u8>(), 0..200)]
}
