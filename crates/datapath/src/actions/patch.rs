//! Header rewrites as bits to clear and bits to set, with checksum updates.
//!
//! `rewrite.rs` is the twin: it does every rewrite on every packet. A patch does the common ones:
//! Ethernet addresses on all packets; addresses, ports, ICMP type and code, TOS, TTL and flow label
//! on IPv4 without options and IPv6 without extension headers, in front of a whole L4 header; ARP
//! and RARP.

use crate::batch::keys::{Layout, Line, bytes};
use crate::parse::scalar::{ARP, ICMP, ICMPV6, IGMP, IPV4, IPV6, RARP, TCP, UDP};
use action::{Op, Rewrite};
use flow::{at, flag};

/// `new = old & !clear | set`, in memory order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Blend<W> {
    clear: W,
    set: W,
}

impl Blend<u64> {
    #[inline]
    fn of(self, old: u64) -> u64 {
        old & !self.clear | self.set
    }
}

/// The header behind Ethernet that a patch changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Form {
    /// None: the patch sets Ethernet addresses only, on any packet.
    #[default]
    Ethernet,
    Ipv4,
    Ipv6,
    /// ARP, from its operation field on.
    Arp,
}

/// The fields of L4 that a patch sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum L4 {
    #[default]
    None,
    Ports,
    /// Type and code of ICMP, ICMPv6 or IGMP.
    Icmp,
}

/// One or more rewrites together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Patch {
    /// Bytes 0..8 of the frame.
    eth: Blend<u64>,
    /// Bytes 8..12 of the frame.
    eth_end: Blend<u32>,
    form: Form,
    l4: L4,
    /// True if a field of the IPv4 header is set.
    header: bool,
    /// True if a field that the L4 checksum covers is set.
    covered: bool,
    /// The header behind Ethernet and tags: 24 bytes of IPv4 (with 4 bytes of L4) or ARP, 48 bytes
    /// of IPv6 (with 8 bytes of L4).
    l3: [Blend<u64>; 6],
}

/// Fields of a key: offset in the key, offset in the 48 bytes, length.
type Places = &'static [(usize, usize, usize)];

impl Form {
    /// The form of a rewrite; None: a patch cannot do it.
    fn of(rw: &Rewrite) -> Option<Form> {
        match (crate::actions::rewrite::ethernet_only(rw), rw.key.u16(at::ETH_TYPE)) {
            (true, _) => Some(Form::Ethernet),
            (_, IPV4 | 0) => Some(Form::Ipv4),
            (_, IPV6) => Some(Form::Ipv6),
            (_, ARP | RARP) => Some(Form::Arp),
            _ => None,
        }
    }

    fn places(self) -> Places {
        match self {
            Form::Ethernet => &[],
            Form::Ipv4 => &[(at::IP_SRC, 12, 8), (at::TOS, 1, 1), (at::TTL, 8, 1)],
            Form::Ipv6 => &[(at::IPV6_SRC, 8, 32), (at::TTL, 7, 1)],
            Form::Arp => &[
                (at::PROTO, 1, 1),
                (at::ARP_SHA, 2, 6),
                (at::IP_SRC, 8, 4),
                (at::ARP_THA, 12, 6),
                (at::IP_DST, 18, 4),
            ],
        }
    }

    /// Length of the IP header.
    fn l4(self) -> usize {
        if self == Form::Ipv6 { 40 } else { 20 }
    }
}

/// Bytes to clear and to set: 0..12 are the Ethernet addresses, 16..64 the header behind Ethernet.
struct Draft {
    clear: [u8; 64],
    set: [u8; 64],
    /// The bits of the rewrite's mask that are not in the draft yet.
    left: [u8; flow::WORDS * 8],
}

impl Draft {
    fn put(&mut self, to: usize, key: &[u8], mask: &[u8]) {
        for (i, (k, m)) in key.iter().zip(mask).enumerate() {
            self.clear[to + i] |= m;
            self.set[to + i] = self.set[to + i] & !m | k & m;
        }
    }

    /// Adds bytes of a key that are in the same order in the packet.
    fn copy(&mut self, rw: &Rewrite, from: usize, to: usize, n: usize) {
        let range = from..from + n;
        self.put(to, &rw.key.bytes()[range.clone()], &rw.mask.bytes()[range.clone()]);
        self.left[range].fill(0);
    }

    /// Adds IPv6's traffic class and flow label, which share bytes.
    fn ipv6_word(&mut self, rw: &Rewrite) {
        let word = |of: &flow::Key| {
            let label = of.u32(at::IPV6_LABEL) & 0xf_ffff;
            (label | u32::from(of.u8(at::TOS)) << 20).to_be_bytes()
        };
        self.put(16, &word(&rw.key), &word(&rw.mask));
        self.left[at::IPV6_LABEL..at::IPV6_LABEL + 4].fill(0);
        self.left[at::TOS] = 0;
    }

    /// Adds the L4 fields; L4 begins at byte `to`.
    fn l4(&mut self, rw: &Rewrite, to: usize) -> L4 {
        let ports = at::TP_SRC..at::TP_SRC + 4;
        if self.left[ports.clone()] == [0; 4] {
            return L4::None;
        }
        self.left[ports].fill(0);
        let (k, m) = (rw.key.get::<4>(at::TP_SRC), rw.mask.get::<4>(at::TP_SRC));
        match rw.key.u8(at::PROTO) {
            ICMP | ICMPV6 | IGMP => {
                self.put(to, &[k[1], k[3]], &[m[1], m[3]]);
                L4::Icmp
            }
            _ => {
                self.put(to, &k, &m);
                L4::Ports
            }
        }
    }
}

impl Patch {
    /// A patch that does these rewrites in this order; None: one of them sets a field that no patch
    /// sets.
    pub fn compile(sets: &[Op]) -> Option<Patch> {
        let mut draft = Draft { clear: [0; 64], set: [0; 64], left: [0; flow::WORDS * 8] };
        let (mut form, mut l4) = (Form::Ethernet, L4::None);
        for op in sets {
            let (Op::Set(rw) | Op::PushEth(rw)) = op else { return None };
            draft.left = *rw.mask.bytes();
            draft.copy(rw, 0, 0, 12);
            let of = Form::of(rw)?;
            if of == Form::Ethernet {
                continue;
            }
            if form != Form::Ethernet && form != of {
                return None;
            }
            form = of;
            for (from, to, n) in of.places() {
                draft.copy(rw, *from, 16 + to, *n);
            }
            if of == Form::Ipv6 {
                draft.ipv6_word(rw);
            }
            if of != Form::Arp {
                l4 = match (l4, draft.l4(rw, 16 + of.l4())) {
                    (a, L4::None) => a,
                    (L4::None, b) => b,
                    (a, b) if a == b => a,
                    _ => return None,
                };
            }
            if draft.left.iter().any(|m| *m != 0) {
                return None;
            }
        }
        Some(draft.finish(form, l4))
    }

    /// Sets the Ethernet addresses. The frame is at least that long.
    #[inline(always)]
    pub fn ethernet(&self, d: &mut [u8]) {
        let Some(d) = d.first_chunk_mut::<12>() else { return };
        let first = self.eth.of(read8(d, 0));
        let last = u32::from_ne_bytes([d[8], d[9], d[10], d[11]]);
        let last = last & !self.eth_end.clear | self.eth_end.set;
        d[..8].copy_from_slice(&first.to_ne_bytes());
        d[8..12].copy_from_slice(&last.to_ne_bytes());
    }

    /// True if the patch does with the packet what the rewrites do. Tags that are pushed or popped
    /// afterwards do not matter.
    #[inline(always)]
    pub fn claims(&self, len: usize, line: &Line, layout: Layout) -> bool {
        let line = bytes(line);
        let (l3, proto) = (layout.l3 as usize, line[at::PROTO]);
        let eth_type = u16::from_be_bytes([line[at::ETH_TYPE], line[at::ETH_TYPE + 1]]);
        let (l4, known) = match self.form {
            Form::Ethernet => return true,
            Form::Ipv4 => (20, eth_type == IPV4),
            Form::Ipv6 => (40, eth_type == IPV6),
            Form::Arp => {
                return matches!(eth_type, ARP | RARP) && layout.sane && len >= l3 + ARP_AT + 24;
            }
        };
        // L4 is at that place only if IP has no options or extension headers.
        let plain = known && usize::from(layout.l4) == l3 + l4 && line[at::FLAGS] & flag::L4 != 0;
        let takes = match self.l4 {
            L4::None => true,
            L4::Ports => matches!(proto, TCP | UDP),
            L4::Icmp => matches!(proto, ICMP | IGMP | ICMPV6),
        };
        plain && takes && len >= l3 + l4 + if proto == TCP { 18 } else { 8 }
    }

    /// Applies the patch. False: it does not claim the packet, which is unchanged.
    #[inline(never)]
    pub fn apply(&self, d: &mut [u8], line: &Line, layout: Layout) -> bool {
        let claimed = self.claims(d.len(), line, layout);
        if claimed {
            self.write(d, layout.l3 as usize, bytes(line)[at::PROTO]);
        }
        claimed
    }

    /// Applies the patch to a packet that it claims, and whose L3 now begins at `l3`.
    #[inline(always)]
    pub fn write(&self, d: &mut [u8], l3: usize, proto: u8) {
        self.ethernet(d);
        match self.form {
            Form::Ethernet => {}
            Form::Ipv4 => self.ipv4(&mut d[l3..], proto),
            Form::Ipv6 => self.ipv6(&mut d[l3..], proto),
            Form::Arp => self.arp(&mut d[l3 + ARP_AT..]),
        }
    }

    #[inline(never)]
    fn arp(&self, h: &mut [u8]) {
        self.blend::<3>(h);
    }

    /// Changes the first `N` words. Returns the change of each word's parts, for sums in memory
    /// order (RFC 1071, section 2, B); an unchanged part adds zero.
    #[inline(always)]
    fn blend<const N: usize>(&self, h: &mut [u8]) -> [Change; N] {
        let h = &mut h[..8 * N];
        std::array::from_fn(|i| {
            let old = read8(h, 8 * i);
            let new = self.l3[i].of(old);
            h[8 * i..8 * i + 8].copy_from_slice(&new.to_ne_bytes());
            Change { old, new }
        })
    }

    #[inline(always)]
    fn ipv4(&self, h: &mut [u8], proto: u8) {
        let words = self.blend::<3>(h);
        // In words of 32 bits: 3 and 4 are the addresses, 5 is the ports.
        let addresses = words[1].second() + words[2].first();
        if self.header {
            fix(h, 10, words[0].both() + words[1].first() + addresses);
        }
        if self.covered {
            let l4 = words[2].second();
            match proto {
                TCP => fix(h, 36, addresses + l4),
                UDP => fix_udp(h, 26, addresses + l4),
                // These checksums have no pseudo header.
                ICMP | IGMP if self.l4 == L4::Icmp => fix(h, 22, l4),
                _ => {}
            }
        }
    }

    /// Not inlined, so that the inlined code around it stays small.
    #[inline(never)]
    fn ipv6(&self, h: &mut [u8], proto: u8) {
        let words = self.blend::<6>(h);
        if self.covered {
            let covered = words[1..].iter().map(|w| w.both()).sum();
            match proto {
                TCP => fix(h, 56, covered),
                UDP => fix_udp(h, 46, covered),
                ICMPV6 => fix(h, 42, covered),
                _ => {}
            }
        }
    }
}

impl Draft {
    fn finish(&self, form: Form, l4: L4) -> Patch {
        let (clear, set) = (&self.clear, &self.set);
        let word = |at: usize| Blend { clear: read8(clear, at), set: read8(set, at) };
        let end = |b: &[u8; 64]| u32::from_ne_bytes([b[8], b[9], b[10], b[11]]);
        let any = |range: std::ops::Range<usize>| clear[range].iter().any(|b| *b != 0);
        Patch {
            eth: word(0),
            eth_end: Blend { clear: end(clear), set: end(set) },
            form,
            l4,
            header: form == Form::Ipv4 && any(16..36),
            covered: l4 != L4::None || any(if form == Form::Ipv6 { 24..64 } else { 28..40 }),
            l3: std::array::from_fn(|i| word(16 + 8 * i)),
        }
    }
}

/// Offset of the operation field, the first that is set of ARP.
const ARP_AT: usize = 6;

/// Eight bytes before and after a change.
#[derive(Clone, Copy)]
struct Change {
    old: u64,
    new: u64,
}

impl Change {
    #[inline]
    fn part(self, half: u32) -> u64 {
        (self.new >> half & 0xffff_ffff) + (!self.old >> half & 0xffff_ffff)
    }
    /// The change of the first four bytes.
    #[inline]
    fn first(self) -> u64 {
        self.part(if cfg!(target_endian = "little") { 0 } else { 32 })
    }
    #[inline]
    fn second(self) -> u64 {
        self.part(if cfg!(target_endian = "little") { 32 } else { 0 })
    }
    #[inline]
    fn both(self) -> u64 {
        self.part(0) + self.part(32)
    }
}

/// Updates a checksum by RFC 1624: HC' = ~(~HC + ~m + m').
#[inline]
fn fix(h: &mut [u8], at: usize, delta: u64) {
    let mut sum = delta + u64::from(!u16::from_ne_bytes([h[at], h[at + 1]]));
    sum = (sum & 0xffff_ffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    h[at..at + 2].copy_from_slice(&(!(sum as u16)).to_ne_bytes());
}

/// Updates a UDP checksum. Zero means "no checksum" and stays; a checksum never becomes zero (RFC
/// 768).
#[inline]
fn fix_udp(h: &mut [u8], at: usize, delta: u64) {
    if h[at] | h[at + 1] != 0 {
        fix(h, at, delta);
        if h[at] | h[at + 1] == 0 {
            h[at..at + 2].fill(0xff);
        }
    }
}

#[inline]
fn read8(d: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(d[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actions::rewrite::{self, Place};
    use crate::batch::keys::Ext;
    use crate::parse::scalar::parse;
    use flow::Key;
    use packet::{HeapPool, Pool};
    use proptest::prelude::*;

    /// A frame with a whole header of IP and L4, whose checksum is this one.
    fn frame(tagged: bool, ipv6: bool, proto: u8, body: &[u8], checksum: u16) -> Vec<u8> {
        let mut d = vec![2; 12];
        if tagged {
            d.extend([0x81, 0, 0, 7]);
        }
        d.extend(if ipv6 { [0x86, 0xdd, 0x60] } else { [8, 0, 0x45] });
        d.extend(body);
        let l3 = if tagged { 18 } else { 14 };
        let len = (d.len() - l3) as u16;
        let (length, n) = if ipv6 { (4, len - 40) } else { (2, len) };
        d[l3 + length..l3 + length + 2].copy_from_slice(&n.to_be_bytes());
        if ipv6 {
            d[l3 + 6] = proto;
        } else {
            d[l3 + 6..l3 + 8].fill(0);
            d[l3 + 9] = proto;
        }
        let l4 = l3 + if ipv6 { 40 } else { 20 };
        let at = l4 + sum_at(proto);
        d[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
        if proto == TCP {
            d[l4 + 12] = 0x50;
        }
        d
    }

    /// Where the checksum is in a header of L4.
    fn sum_at(proto: u8) -> usize {
        match proto {
            TCP => 16,
            UDP => 6,
            _ => 2,
        }
    }

    fn set(ipv6: bool, proto: u8, values: &[u8], masks: &[u8], fields: u8) -> Op {
        let (mut key, mut mask) = (Key::ZERO, Key::ZERO);
        let addresses = if ipv6 {
            [(at::IPV6_SRC, 16), (at::IPV6_DST, 16)]
        } else {
            [(at::IP_SRC, 4), (at::IP_DST, 4)]
        };
        let places = [
            (0, 12),
            addresses[0],
            addresses[1],
            (at::TP_SRC, 4),
            (at::TOS, 2),
            (at::IPV6_LABEL, if ipv6 { 4 } else { 0 }),
        ];
        let wanted = places.into_iter().enumerate().filter(|(i, _)| fields & 1 << i != 0);
        for (_, (at, n)) in wanted {
            for i in at..at + n {
                (key.bytes_mut()[i], mask.bytes_mut()[i]) = (values[i], masks[i]);
            }
        }
        key.set_u16(at::ETH_TYPE, if ipv6 { IPV6 } else { IPV4 });
        key.set_u8(at::PROTO, proto);
        Op::Set(Box::new(Rewrite { key, mask }))
    }

    proptest! {
        #[test]
        fn equals_the_rewrite(
            tagged: bool,
            ipv6: bool,
            proto in prop_oneof![Just(TCP), Just(UDP), Just(ICMP)],
            body in proptest::collection::vec(any::<u8>(), 59..90),
            checksum in prop_oneof![Just(0), Just(0xffff), any::<u16>()],
            values in proptest::collection::vec(any::<u8>(), 128),
            masks in proptest::collection::vec(prop_oneof![Just(0xff), Just(0), any::<u8>()], 128),
            fields in (0u8..64, 0u8..64),
        ) {
            let proto = if ipv6 && proto == ICMP { ICMPV6 } else { proto };
            let d = frame(tagged, ipv6, proto, &body, checksum);
            let ops = [set(ipv6, proto, &values, &masks, fields.0), set(ipv6, proto, &masks, &values, fields.1)];
            let (mut line, mut ext): (Line, Ext) = ([0; 8], [[0; 8]; 3]);
            let layout = parse(&d, 1, 1, &mut line, &mut ext).unwrap();
            let mut fast = d.clone();
            let patch = Patch::compile(&ops).unwrap();
            prop_assert!(patch.apply(&mut fast, &line, layout));
            let pool = HeapPool::new();
            let mut p = pool.packet(&d).unwrap();
            for op in &ops {
                let Op::Set(rw) = op else { unreachable!() };
                rewrite::apply(&mut p, &Place { line: &line, layout }, rw).unwrap();
            }
            prop_assert_eq!(&fast[..], p.data());
            pool.free(&[p]);
        }
    }

    #[test]
    fn other_fields_and_packets_are_left_to_the_rewrite() {
        for (eth_type, at) in [(IPV4, at::VLAN), (IPV6, at::ND_TARGET), (0x8847, at::MPLS)] {
            let mut rw = Rewrite { key: Key::ZERO, mask: Key::ZERO };
            rw.mask.bytes_mut()[at] = 1;
            rw.key.set_u16(at::ETH_TYPE, eth_type);
            assert_eq!(Patch::compile(&[Op::Set(Box::new(rw))]), None);
        }
        let [v4, v6] = [false, true].map(|ipv6| set(ipv6, UDP, &[1; 128], &[0xff; 128], 10));
        assert_eq!(Patch::compile(&[v4.clone(), v6]), None);
        let patch = Patch::compile(&[v4]).unwrap();
        let mut d = frame(false, false, UDP, &[9; 50], 5);
        let before = d.clone();
        for (at, value) in [(14, 0x46), (20, 0x20), (23, ICMP), (12, 9)] {
            let mut odd = before.clone();
            odd[at] = value;
            let (mut line, mut ext): (Line, Ext) = ([0; 8], [[0; 8]; 3]);
            let layout = parse(&odd, 1, 1, &mut line, &mut ext).unwrap();
            let first_fragment = at == 20;
            assert_eq!(patch.apply(&mut d, &line, layout), first_fragment, "byte {at}");
            assert_eq!(d == before, !first_fragment);
            d.copy_from_slice(&before);
        }
    }
}
