//! Composes a packet from a key: parsing it gives that key. For dummy ports and tests.

use crate::parse::scalar::{
    ARP, DL_TYPE_NONE, ICMP, ICMPV6, IGMP, IPV4, IPV6, MPLS, MPLS_MC, RARP, SCTP, TCP, UDP,
};
use flow::{Key, at, flag, frag};
use wire::checksum::{Sum, internet, pseudo_v4, pseudo_v6};
use wire::{ETH_QINQ, ETH_VLAN};

const ECHO: [[u8; 2]; 2] = [[8, 0], [128, 129]];
const SOLICIT_OR_ADVERT: [u8; 2] = [135, 136];
const BOTTOM: u8 = 1;
const MORE_FRAGMENTS: u16 = 0x2000;
/// Fragment offset of a later fragment, in units of eight bytes.
const LATER: u16 = 100;
/// TCP flags FIN, SYN and RST: such segments carry no data.
const CONTROL: u8 = 1 | 2 | 4;

/// A packet with this key, and valid lengths and checksums. TCP segments with data, UDP datagrams,
/// and echo requests and replies carry `payload` bytes.
pub fn compose(key: &Key, payload: usize) -> Vec<u8> {
    let eth_type = key.u16(at::ETH_TYPE);
    let mut p = key.get::<12>(at::ETH_DST).to_vec();
    for (place, bit) in [(at::VLAN, flag::VLAN_88A8), (at::VLAN1, flag::VLAN1_88A8)] {
        let tci = key.u16(place);
        if tci & 0x1000 != 0 {
            let tpid: u16 = if key.u8(at::FLAGS) & bit != 0 { ETH_QINQ } else { ETH_VLAN };
            p.extend(tpid.to_be_bytes());
            p.extend((tci & 0xefff).to_be_bytes());
        }
    }
    // Without an Ethertype, the field is a length: 0.
    let wire_type = if eth_type == DL_TYPE_NONE { 0 } else { eth_type };
    p.extend(wire_type.to_be_bytes());
    match eth_type {
        IPV4 => p.extend(ipv4(key, payload)),
        IPV6 => p.extend(ipv6(key, payload)),
        ARP | RARP => p.extend(arp(key)),
        MPLS | MPLS_MC => p.extend(mpls(key)),
        _ => {}
    }
    p
}

fn ipv4(key: &Key, payload: usize) -> Vec<u8> {
    let l4 = l4(key, payload);
    let bits = key.u8(at::FRAG);
    let offset = match bits & (frag::ANY | frag::LATER) {
        0 => 0,
        frag::ANY => MORE_FRAGMENTS,
        _ => MORE_FRAGMENTS | LATER,
    };
    let mut h = vec![0x45, key.u8(at::TOS)];
    h.extend(((20 + l4.len()) as u16).to_be_bytes());
    h.extend([0, 0]);
    h.extend(offset.to_be_bytes());
    h.extend([key.u8(at::TTL), key.u8(at::PROTO), 0, 0]);
    h.extend(key.get::<8>(at::IP_SRC));
    let sum = internet(&h);
    h[10..12].copy_from_slice(&sum.to_be_bytes());
    let proto = key.u8(at::PROTO);
    let pseudo = pseudo_v4(key.get(at::IP_SRC), key.get(at::IP_DST), proto, l4.len());
    h.extend(summed(key, l4, pseudo));
    h
}

fn ipv6(key: &Key, payload: usize) -> Vec<u8> {
    let l4 = l4(key, payload);
    let word = 6 << 28 | u32::from(key.u8(at::TOS)) << 20 | key.u32(at::IPV6_LABEL);
    let bits = key.u8(at::FRAG);
    let fragment = bits & frag::ANY != 0;
    let mut h = word.to_be_bytes().to_vec();
    h.extend(((l4.len() + if fragment { 8 } else { 0 }) as u16).to_be_bytes());
    h.extend([if fragment { 44 } else { key.u8(at::PROTO) }, key.u8(at::TTL)]);
    h.extend(key.get::<32>(at::IPV6_SRC));
    if fragment {
        let offset = if bits & frag::LATER != 0 { LATER << 3 } else { 0 } | 1;
        h.extend([key.u8(at::PROTO), 0]);
        h.extend(offset.to_be_bytes());
        h.extend([0; 4]);
    }
    let proto = key.u8(at::PROTO);
    let (src, dst) = (key.get(at::IPV6_SRC), key.get(at::IPV6_DST));
    h.extend(summed(key, l4.clone(), pseudo_v6(&src, &dst, proto, l4.len())));
    h
}

/// The L4 header with checksum zero, and its payload.
fn l4(key: &Key, payload: usize) -> Vec<u8> {
    if key.u8(at::FRAG) & frag::LATER != 0 {
        return Vec::new();
    }
    let [src, dst] = [key.get::<2>(at::TP_SRC), key.get::<2>(at::TP_DST)];
    let ports = [src, dst].concat();
    let data: Vec<u8> = (0..payload).map(|i| i as u8).collect();
    let icmp = |n: usize| {
        let mut h = vec![src[1], dst[1]];
        h.resize(n, 0);
        h
    };
    match (key.u8(at::PROTO), key.u16(at::ETH_TYPE)) {
        (TCP, _) => {
            let flags = key.get::<2>(at::TCP_FLAGS);
            let head = [&ports[..], &[0; 8], &[0x50 | flags[0] & 15, flags[1]], &[0; 6]].concat();
            if flags[1] & CONTROL == 0 { [head, data].concat() } else { head }
        }
        (UDP, _) => {
            let len = ((8 + payload) as u16).to_be_bytes();
            [&ports[..], &len, &[0, 0], &data].concat()
        }
        (SCTP, _) => [&ports[..], &[0; 8]].concat(),
        (ICMP, IPV4) if ECHO[0].contains(&src[1]) && dst[1] == 0 => [icmp(8), data].concat(),
        (ICMP, IPV4) => icmp(8),
        (IGMP, IPV4) => icmp(8),
        (ICMPV6, IPV6) if ECHO[1].contains(&src[1]) && dst[1] == 0 => [icmp(8), data].concat(),
        (ICMPV6, IPV6) if SOLICIT_OR_ADVERT.contains(&src[1]) && dst[1] == 0 => {
            let reserved = key.get::<4>(at::ND_RESERVED);
            [&icmp(4)[..], &reserved, &neighbour(key)].concat()
        }
        (ICMPV6, IPV6) => icmp(8),
        _ => Vec::new(),
    }
}

/// The body of a neighbour message: target and link-layer address options, of which one may be said
/// to be the first.
fn neighbour(key: &Key) -> Vec<u8> {
    let mut out = key.get::<16>(at::ND_TARGET).to_vec();
    let mut options = [(1, at::ARP_SHA), (2, at::ARP_THA)];
    if key.u8(at::ND_OPTIONS_TYPE) == 2 {
        options.reverse();
    }
    for (kind, place) in options {
        let mac = key.get::<6>(place);
        if mac != [0; 6] {
            out.extend([kind, 1]);
            out.extend(mac);
        }
    }
    out
}

/// `l4` with its checksum.
fn summed(key: &Key, mut l4: Vec<u8>, pseudo: Sum) -> Vec<u8> {
    let (place, sum) = match key.u8(at::PROTO) {
        _ if l4.is_empty() => return l4,
        TCP => (16, pseudo.bytes(&l4).finish()),
        UDP => (6, pseudo.bytes(&l4).finish_udp()),
        ICMPV6 => (2, pseudo.bytes(&l4).finish()),
        ICMP | IGMP => (2, internet(&l4)),
        _ => return l4,
    };
    l4[place..place + 2].copy_from_slice(&sum.to_be_bytes());
    l4
}

fn arp(key: &Key) -> Vec<u8> {
    let op = [0, key.u8(at::PROTO)];
    let from = [&key.get::<6>(at::ARP_SHA)[..], &key.get::<4>(at::IP_SRC)].concat();
    let to = [&key.get::<6>(at::ARP_THA)[..], &key.get::<4>(at::IP_DST)].concat();
    [&[0, 1, 8, 0, 6, 4][..], &op, &from, &to].concat()
}

/// The label stack entries, down to the bottom of the stack or to the last one in the key.
fn mpls(key: &Key) -> Vec<u8> {
    let all = flow::LABELS.map(|place| key.get::<4>(place));
    let bottom = all.iter().position(|entry| entry[2] & BOTTOM != 0).unwrap_or(all.len() - 1);
    all[..=bottom].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extract;

    const FLOWS: &[&str] = &[
        "eth_type(0x1234)",
        "eth_type(0x8100),vlan(vid=9,pcp=3),encap(eth_type(0x0800),ipv4(src=1.2.3.4,dst=5.6.7.8,\
         proto=17,tos=4,ttl=128,frag=no),udp(src=8,dst=10))",
        "eth_type(0x88a8),vlan(vid=9,pcp=0),encap(eth_type(0x8100),vlan(vid=2,pcp=1),encap(\
         eth_type(0x0800),ipv4(src=1.2.3.4,dst=5.6.7.8,proto=6,tos=0,ttl=1,frag=no),\
         tcp(src=80,dst=90),tcp_flags(0x12)))",
        "eth_type(0x0800),ipv4(src=1.2.3.4,dst=5.6.7.8,proto=1,tos=0,ttl=9,frag=no),icmp(type=8,code=0)",
        "eth_type(0x0800),ipv4(src=1.2.3.4,dst=5.6.7.8,proto=1,tos=0,ttl=9,frag=no),icmp(type=3,code=1)",
        "eth_type(0x0800),ipv4(src=1.2.3.4,dst=5.6.7.8,proto=132,tos=0,ttl=9,frag=first),sctp(src=1,dst=2)",
        "eth_type(0x0800),ipv4(src=1.2.3.4,dst=5.6.7.8,proto=6,tos=0,ttl=9,frag=later)",
        "eth_type(0x0800),ipv4(src=1.2.3.4,dst=5.6.7.8,proto=89,tos=0,ttl=9,frag=no)",
        "eth_type(0x0806),arp(sip=1.2.3.4,tip=5.6.7.8,op=1,sha=50:54:00:00:00:09,tha=00:00:00:00:00:00)",
        "eth_type(0x86dd),ipv6(src=fe80::1,dst=fe80::2,label=5,proto=17,tclass=8,hlimit=64,frag=no),\
         udp(src=1,dst=2)",
        "eth_type(0x86dd),ipv6(src=fe80::1,dst=fe80::2,label=0,proto=6,tclass=0,hlimit=64,frag=first),\
         tcp(src=1,dst=2),tcp_flags(0)",
        "eth_type(0x86dd),ipv6(src=fe80::1,dst=fe80::2,label=0,proto=58,tclass=0,hlimit=255,frag=no),\
         icmpv6(type=135,code=0),nd(target=fe80::3,sll=50:54:00:00:00:05),\
         nd_ext(nd_reserved=0,nd_options_type=1)",
        "eth_type(0x86dd),ipv6(src=fe80::1,dst=fe80::2,label=0,proto=58,tclass=0,hlimit=255,frag=no),\
         icmpv6(type=136,code=0),nd(target=fe80::3,sll=50:54:00:00:00:05,tll=50:54:00:00:00:06),\
         nd_ext(nd_reserved=0xe0000000,nd_options_type=2)",
        "eth_type(0x86dd),ipv6(src=fe80::1,dst=fe80::2,label=0,proto=58,tclass=0,hlimit=255,frag=no),\
         icmpv6(type=128,code=0)",
        "eth_type(0x8847),mpls(label=7,tc=1,ttl=64,bos=1)",
        "eth_type(0x8847),mpls(label=7,tc=1,ttl=64,bos=0,label=9,tc=2,ttl=6,bos=1)",
        "eth_type(0x8847),mpls(label=7,tc=1,ttl=64,bos=0,label=9,tc=2,ttl=6,bos=0,label=8,tc=3,ttl=5,bos=0)",
    ];

    #[test]
    fn the_parser_reads_back_what_was_composed() {
        for text in FLOWS {
            // The addresses say that it is Ethernet.
            let text: String = format!("eth(src=50:54:00:00:00:09,dst=50:54:00:00:00:0a),{text}");
            let text: String = text.split_whitespace().collect();
            let (mut key, _) = flow::parse_odp(&text, &|_| None).unwrap();
            key.set_u16(at::IN_PORT, 3);
            let mut found = extract(&compose(&key, 64), 3, 2).unwrap();
            let tags = found.u8(at::FLAGS) & !flag::L4;
            found.set_u8(at::FLAGS, tags);
            assert_eq!(found, key, "{text}");
        }
    }

    #[test]
    fn sums_are_right() {
        let udp = "eth_type(0x0800),ipv4(src=1.2.3.4,dst=5.6.7.8,proto=17,tos=0,ttl=9,frag=no),\
                   udp(src=1,dst=2)";
        let (key, _) = flow::parse_odp(udp, &|_| None).unwrap();
        let p = compose(&key, 64);
        assert_eq!(p.len(), 14 + 20 + 8 + 64);
        assert_eq!(internet(&p[14..34]), 0);
        let pseudo = pseudo_v4([1, 2, 3, 4], [5, 6, 7, 8], 17, 72);
        assert_eq!(pseudo.bytes(&p[34..]).finish(), 0);
    }
}
