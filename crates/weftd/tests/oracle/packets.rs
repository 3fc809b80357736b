//! Packets, and what an OpenFlow match could say of each.

use testkit::Rng;
use testkit::{Ext, Frame, L4, Net, V4, V6};
use wire::{Mac, MplsLse, VlanTag};

/// A frame and the port it comes in by.
pub struct Packet {
    pub in_port: u32,
    pub frame: Frame,
}

/// What the network header is; also what an action list has made of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Any,
    V4,
    V6,
    Arp,
    Mpls,
    Nsh,
}

/// How a value is written, and which masks it takes.
#[derive(Clone, Copy)]
pub enum Form {
    Mac,
    V4,
    V6,
    /// Hexadecimal of so many bits, any mask.
    Hex(u32),
    /// Decimal, exact only.
    Dec,
    /// As it stands, exact only.
    Text(&'static str),
}

/// One thing that can be matched.
#[derive(Clone)]
pub struct Fact {
    pub name: &'static str,
    pub value: u128,
    pub form: Form,
}

pub fn ipv4(a: [u8; 4]) -> u128 {
    u32::from_be_bytes(a).into()
}

fn mac48(m: Mac) -> u128 {
    m.iter().fold(0, |v, b| v << 8 | u128::from(*b))
}

pub fn mac(r: &mut Rng) -> Mac {
    match r.weighted(&[9, 1, 1]) {
        0 => [2, 0, 0, 0, 0, r.below(6) as u8],
        1 => wire::BROADCAST,
        _ => [1, 0, 0x5e, 0, 0, r.below(3) as u8],
    }
}

pub fn ip4(r: &mut Rng) -> [u8; 4] {
    match r.percent(10) {
        true => [224, 0, 0, r.below(3) as u8],
        false => [10, 0, r.below(3) as u8, r.below(6) as u8],
    }
}

pub fn ip6(r: &mut Rng) -> [u8; 16] {
    let mut a = [0; 16];
    (a[0], a[7], a[15]) = (0xfd, r.below(3) as u8, 1 + r.below(6) as u8);
    a
}

pub fn l4_port(r: &mut Rng) -> u16 {
    r.pick(&[0, 53, 80, 81, 443, 4790, 8080, 65535])
}

fn bytes(r: &mut Rng) -> Vec<u8> {
    (0..r.below(30)).map(|_| r.next() as u8).collect()
}

fn transport(r: &mut Rng, v6: bool) -> L4 {
    let (s, d) = (l4_port(r), l4_port(r));
    match r.weighted(&[5, 4, 2, 3, 1, if v6 { 3 } else { 0 }]) {
        0 => L4::Tcp(
            s,
            d,
            r.next() as u32,
            r.next() as u32,
            r.pick(&[2, 16, 18, 17, 0x1c2]),
            bytes(r),
        ),
        1 => L4::Udp(s, d, bytes(r)),
        2 => L4::Sctp(s, d, r.next() as u32, bytes(r)),
        3 => {
            let echo = if v6 { [128, 129] } else { [8, 0] };
            L4::Icmp(r.pick(&[echo[0], echo[1], 3]), r.below(2) as u8, [0, 1, 0, 2], bytes(r))
        }
        4 => L4::Other(r.pick(&[47, 50, 89, 253]), bytes(r)),
        _ => L4::Nd {
            kind: r.pick(&[wire::ND_NS, wire::ND_NA]),
            flags: r.pick(&[0, 0x6000_0000]),
            target: ip6(r),
            sll: r.percent(60).then(|| mac(r)),
            tll: r.percent(40).then(|| mac(r)),
        },
    }
}

fn net(r: &mut Rng) -> Net {
    match r.weighted(&[9, 6, 3, 1]) {
        0 => {
            let l4 = transport(r, false);
            let mut p = V4::new(ip4(r), ip4(r), l4);
            p.tos = r.pick(&[0, 0, 1, 0x28, 0xb8, 0xff]);
            p.ttl = r.pick(&[64, 64, 64, 2, 1, 0, 255]);
            p.frag = r.pick(&[0, 0, 0, 0, 0, 0x4000, 0x2000, 5, 0x2005]);
            p.id = r.next() as u16;
            if r.percent(8) {
                p.options = vec![1; 4];
            }
            Net::V4(p)
        }
        1 => {
            let l4 = transport(r, true);
            let nd = matches!(l4, L4::Nd { .. });
            let mut p = V6::new(ip6(r), ip6(r), l4);
            p.tclass = r.pick(&[0, 0, 2, 0x28, 0xff]);
            p.label = r.pick(&[0, 0, 5, 0xabcde]);
            if !nd {
                p.hops = r.pick(&[64, 64, 2, 1, 255]);
                p.ext = match r.weighted(&[8, 1, 1, 1]) {
                    0 => vec![],
                    1 => vec![Ext::HopByHop(0)],
                    2 => vec![Ext::Fragment(0, true, 7)],
                    _ => vec![Ext::Fragment(9, r.percent(50), 7)],
                };
            }
            Net::V6(p)
        }
        2 => Net::Arp(1 + r.below(3) as u16, (mac(r), ip4(r)), (mac(r), ip4(r))),
        _ => Net::Raw(r.pick(&[0x88b5, 0x88cc, 0x8035]), bytes(r)),
    }
}

/// A packet with a network service header (RFC 8300), in which there is a frame, a packet of the
/// protocol that it names, or something else.
pub fn with_nsh(r: &mut Rng) -> Packet {
    let mut p = packet(r);
    p.frame.mpls.clear();
    let (md_type, words) = r.pick(&[(1, 4), (1, 4), (2, 0), (2, 3)]);
    let (protocol, inside) = match (r.below(6), net(r)) {
        (0, _) => (r.pick(&[0, 5, 0xff]), vec![7; 20]),
        (_, Net::V4(ip)) if r.percent(60) => {
            let net = Net::V4(ip);
            (1, Frame { net, tags: vec![], mpls: vec![], ..p.frame.clone() }.bytes()[14..].to_vec())
        }
        (_, net) => (3, Frame { net, ..p.frame.clone() }.bytes()),
    };
    let ttl = r.pick(&[63, 2, 1, 0]);
    let base = r.pick(&[0, 0x1000, 0x2000]) | ttl << 6 | (2 + words);
    let mut nsh = u16::to_be_bytes(base).to_vec();
    nsh.extend([md_type, protocol, 0, 0, r.below(3) as u8, r.pick(&[255, 254, 1])]);
    let contexts = (0..4 * words).map(|_| r.below(3) as u8);
    match md_type {
        1 => nsh.extend(contexts),
        _ => nsh.extend([0, 1, 2, 8, 3, 4, 5, 6, 7, 8, 9, 10].iter().take(4 * usize::from(words))),
    }
    nsh.extend(inside);
    p.frame.net = Net::Raw(wire::ETH_NSH, nsh);
    p
}

/// Labels make sense with IP in them only: nothing else could be there once they are popped.
fn labels(r: &mut Rng, net: &Net) -> Vec<MplsLse> {
    if !matches!(net, Net::V4(_) | Net::V6(_)) || !r.percent(15) {
        return vec![];
    }
    let n = 1 + r.below(2);
    let ttl = |r: &mut Rng| r.pick(&[64, 2, 1]);
    let lse = |i| MplsLse::new(16 + r.below(4) as u32, r.below(3) as u8, i + 1 == n, ttl(r));
    (0..n).map(lse).collect()
}

pub fn packet(r: &mut Rng) -> Packet {
    let tags = (0..r.weighted(&[12, 6, 2]))
        .map(|_| VlanTag {
            tpid: r.pick(&[wire::ETH_VLAN, wire::ETH_VLAN, wire::ETH_QINQ]),
            tci: r.pick(&[0, 1, 2, 100]) | r.pick(&[0, 0, 3]) << 13,
        })
        .collect();
    let net = net(r);
    let mpls = labels(r, &net);
    let mut src = mac(r);
    src[0] &= 0xfe;
    Packet { in_port: 1 + r.below(4) as u32, frame: Frame { dst: mac(r), src, tags, mpls, net } }
}

impl Packet {
    pub fn bytes(&self) -> Vec<u8> {
        self.frame.padded()
    }

    pub fn kind(&self) -> Kind {
        match (&self.frame.net, self.frame.mpls.is_empty()) {
            (_, false) => Kind::Mpls,
            (Net::V4(_), _) => Kind::V4,
            (Net::V6(_), _) => Kind::V6,
            (Net::Arp(..), _) => Kind::Arp,
            (Net::Raw(wire::ETH_NSH, _), _) => Kind::Nsh,
            _ => Kind::Any,
        }
    }

    /// The transport layer, where a match can see it.
    fn l4(&self) -> Option<&L4> {
        match (&self.frame.net, self.kind()) {
            (Net::V4(p), Kind::V4) => Some(&p.l4),
            (Net::V6(p), Kind::V6) => Some(&p.l4),
            _ => None,
        }
    }

    /// The protocol number, where a match can see it.
    pub fn proto(&self) -> Option<u8> {
        self.l4().map(|l| l.proto(self.kind() == Kind::V6))
    }

    /// True if this is a fragment without a transport header.
    pub fn headless(&self) -> bool {
        match &self.frame.net {
            Net::V4(p) => p.frag & 0x1fff != 0,
            Net::V6(p) => p.ext.iter().any(|e| matches!(e, Ext::Fragment(o, ..) if *o != 0)),
            _ => false,
        }
    }

    /// Ethernet and VLAN.
    pub fn link_facts(&self) -> Vec<Fact> {
        let f = &self.frame;
        let mut v = vec![
            fact("dl_src", mac48(f.src), Form::Mac),
            fact("dl_dst", mac48(f.dst), Form::Mac),
            fact("in_port", self.in_port.into(), Form::Dec),
        ];
        match f.tags.first() {
            Some(t) => v.extend([
                fact("dl_vlan", (t.tci & 0xfff).into(), Form::Dec),
                fact("dl_vlan_pcp", (t.tci >> 13).into(), Form::Dec),
                fact("vlan_tci", (t.tci | 0x1000).into(), Form::Hex(16)),
                fact("vlan_vid", ((t.tci & 0xfff) | 0x1000).into(), Form::Hex(13)),
            ]),
            None => v.push(fact("vlan_tci", 0, Form::Text("0x0000"))),
        }
        v
    }

    /// What needs the Ethertype in the match.
    pub fn net_facts(&self) -> Vec<Fact> {
        match (&self.frame.net, self.frame.mpls.first()) {
            (_, Some(l)) => vec![
                fact("mpls_label", l.label().into(), Form::Dec),
                fact("mpls_tc", l.tc().into(), Form::Dec),
                fact("mpls_bos", u128::from(l.bos()), Form::Dec),
                fact("mpls_ttl", l.ttl().into(), Form::Dec),
            ],
            (Net::V4(p), _) => {
                let mut v = ip_facts(p.tos, p.ttl, v4_frag(p.frag));
                v.push(fact("nw_src", ipv4(p.src), Form::V4));
                v.push(fact("nw_dst", ipv4(p.dst), Form::V4));
                v
            }
            (Net::V6(p), _) => {
                let mut v = ip_facts(p.tclass, p.hops, v6_frag(&p.ext));
                v.push(fact("ipv6_src", u128::from_be_bytes(p.src), Form::V6));
                v.push(fact("ipv6_dst", u128::from_be_bytes(p.dst), Form::V6));
                v.push(fact("ipv6_label", p.label.into(), Form::Hex(20)));
                v
            }
            (Net::Arp(op, s, t), _) => vec![
                fact("arp_op", (*op).into(), Form::Dec),
                fact("arp_sha", mac48(s.0), Form::Mac),
                fact("arp_spa", ipv4(s.1), Form::V4),
                fact("arp_tha", mac48(t.0), Form::Mac),
                fact("arp_tpa", ipv4(t.1), Form::V4),
            ],
            (Net::Raw(wire::ETH_NSH, nsh), _) => nsh_facts(nsh),
            _ => vec![],
        }
    }

    /// What needs the protocol in the match.
    pub fn l4_facts(&self) -> Vec<Fact> {
        let v6 = self.kind() == Kind::V6;
        let ports = |s: u16, d: u16| {
            vec![fact("tp_src", s.into(), Form::Hex(16)), fact("tp_dst", d.into(), Form::Hex(16))]
        };
        match self.l4().filter(|_| !self.headless()) {
            Some(L4::Tcp(s, d, _, _, flags, _)) => {
                let mut v = ports(*s, *d);
                v.push(fact("tcp_flags", (*flags).into(), Form::Hex(12)));
                v
            }
            Some(L4::Udp(s, d, _) | L4::Sctp(s, d, ..)) => ports(*s, *d),
            Some(L4::Icmp(kind, code, ..)) => icmp(*kind, *code),
            Some(L4::Nd { kind, target, sll, tll, .. }) if v6 => {
                let mut v = icmp(*kind, 0);
                v.push(fact("nd_target", u128::from_be_bytes(*target), Form::V6));
                match *kind == wire::ND_NS {
                    true => v.push(fact("nd_sll", mac48(sll.unwrap_or_default()), Form::Mac)),
                    false => v.push(fact("nd_tll", mac48(tll.unwrap_or_default()), Form::Mac)),
                }
                v
            }
            _ => vec![],
        }
    }
}

fn fact(name: &'static str, value: u128, form: Form) -> Fact {
    Fact { name, value, form }
}

fn nsh_facts(nsh: &[u8]) -> Vec<Fact> {
    let Some(h) = wire::Nsh::new(nsh) else { return vec![] };
    let mut v = vec![
        fact("nsh_flags", h.flags().into(), Form::Hex(8)),
        fact("nsh_ttl", h.ttl().into(), Form::Dec),
        fact("nsh_mdtype", h.md_type().into(), Form::Dec),
        fact("nsh_np", h.protocol().into(), Form::Dec),
        fact("nsh_spi", (h.path() >> 8).into(), Form::Dec),
        fact("nsh_si", (h.path() & 0xff).into(), Form::Dec),
    ];
    if h.md_type() == wire::NSH_MD1 {
        let contexts = ["nsh_c1", "nsh_c2", "nsh_c3", "nsh_c4"].iter().zip(nsh[8..].chunks(4));
        let value = |c: &[u8]| c.iter().fold(0, |v, b| v << 8 | u128::from(*b));
        v.extend(contexts.map(|(name, c)| fact(name, value(c), Form::Hex(32))));
    }
    v
}

fn icmp(kind: u8, code: u8) -> Vec<Fact> {
    vec![fact("icmp_type", kind.into(), Form::Dec), fact("icmp_code", code.into(), Form::Dec)]
}

fn ip_facts(tos: u8, ttl: u8, frag: &'static str) -> Vec<Fact> {
    vec![
        fact("nw_tos", (tos & 0xfc).into(), Form::Dec),
        fact("nw_ecn", (tos & 3).into(), Form::Dec),
        fact("nw_ttl", ttl.into(), Form::Dec),
        fact("ip_frag", 0, Form::Text(frag)),
    ]
}

fn v4_frag(frag: u16) -> &'static str {
    match (frag & 0x1fff, frag & 0x2000) {
        (0, 0) => "no",
        (0, _) => "first",
        _ => "later",
    }
}

fn v6_frag(ext: &[Ext]) -> &'static str {
    match ext.iter().find_map(|e| if let Ext::Fragment(o, ..) = e { Some(*o) } else { None }) {
        None => "no",
        Some(0) => "first",
        Some(_) => "later",
    }
}
