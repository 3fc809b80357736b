//! Rewrites of plain packets in a few words: bits to clear, bits to set, checksums following.
//!
//! `rewrite` is the twin: it does every rewrite on every packet. A patch does the common ones:
//! Ethernet addresses on all packets; addresses, ports, TOS and TTL on IPv4 without options that
//! carries a whole TCP or UDP header.

use crate::parse::{Layout, Line, TCP, UDP, bytes};
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

/// What rewrites come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Patch {
    /// Bytes 0..8 and 8..12 of the frame.
    eth: Blend<u64>,
    eth_end: Blend<u32>,
    /// Bytes 0..24 of the IPv4 header and what is behind it.
    ip: [Blend<u64>; 3],
    /// Is a field of the IPv4 header set; one that the L4 checksum covers?
    header: bool,
    covered: bool,
}

/// Where bytes 16..32 of a key's line 0 are, counted from the start of an IPv4 header.
const PLACES: [(usize, usize, usize); 4] =
    [(at::IP_SRC, 12, 8), (at::TP_SRC, 20, 4), (at::TOS, 1, 1), (at::TTL, 8, 1)];

impl Patch {
    /// Of rewrites in this order; None when one of them sets anything else.
    pub fn compile(sets: &[Op]) -> Option<Patch> {
        let (mut clear, mut set) = ([0u8; 36], [0u8; 36]);
        for op in sets {
            let Op::Set(rw) = op else { return None };
            let mut known = 0;
            for (from, to, n) in
                PLACES.into_iter().map(|(f, t, n)| (f, 12 + t, n)).chain([(0, 0, 12)])
            {
                for i in 0..n {
                    let (k, m) = (rw.key.bytes()[from + i], rw.mask.bytes()[from + i]);
                    clear[to + i] |= m;
                    set[to + i] = set[to + i] & !m | k & m;
                    known += (m != 0) as usize;
                }
            }
            if known != touched(rw) {
                return None;
            }
        }
        let word = |at: usize| Blend { clear: read8(&clear, at), set: read8(&set, at) };
        let end = |b: &[u8; 36]| u32::from_ne_bytes([b[8], b[9], b[10], b[11]]);
        let any = |range: std::ops::Range<usize>| clear[range].iter().any(|b| *b != 0);
        Some(Patch {
            eth: word(0),
            eth_end: Blend { clear: end(&clear), set: end(&set) },
            ip: [word(12), word(20), word(28)],
            header: any(12..32),
            covered: any(24..36),
        })
    }

    /// Sets the Ethernet addresses; the frame has them.
    #[inline]
    pub fn ethernet(&self, d: &mut [u8]) {
        let first = self.eth.of(read8(d, 0));
        let last = u32::from_ne_bytes([d[8], d[9], d[10], d[11]]);
        let last = last & !self.eth_end.clear | self.eth_end.set;
        d[..8].copy_from_slice(&first.to_ne_bytes());
        d[8..12].copy_from_slice(&last.to_ne_bytes());
    }

    /// Applies it; false, and nothing is changed, when the packet is not as plain as it takes.
    #[inline]
    pub fn apply(&self, d: &mut [u8], line: &Line, lay: Layout) -> bool {
        let line = bytes(line);
        let (l3, proto) = (lay.l3 as usize, line[at::PROTO]);
        let checksum = match proto {
            TCP => 36,
            UDP => 26,
            _ => return false,
        };
        // Only IPv4 without options has its L4 header there.
        let plain = lay.l4 == lay.l3 + 20 && line[at::FLAGS] & flag::L4 != 0;
        if !plain || d.len() < l3 + checksum + 2 {
            return false;
        }
        self.ethernet(d);
        self.ipv4(&mut d[l3..l3 + checksum + 2], proto);
        true
    }

    /// The header and the ports. Sums are in memory order (RFC 1071, section 2, B).
    #[inline]
    fn ipv4(&self, h: &mut [u8], proto: u8) {
        let old = [0, 8, 16].map(|at| read8(h, at));
        let new = [0, 1, 2].map(|i| self.ip[i].of(old[i]));
        let changed = |i: usize, half: u32| {
            let part = |x: u64| x >> half & 0xffff_ffff;
            part(new[i]) + part(!old[i])
        };
        // Words 3 to 5 are the addresses and the ports.
        let addresses = changed(1, HIGH) + changed(2, LOW);
        for (at, word) in [0, 8, 16].into_iter().zip(new) {
            h[at..at + 8].copy_from_slice(&word.to_ne_bytes());
        }
        if self.header {
            let header = changed(0, LOW) + changed(0, HIGH) + changed(1, LOW) + addresses;
            fix(h, 10, header);
        }
        if self.covered {
            let covered = addresses + changed(2, HIGH);
            match proto {
                TCP => fix(h, 36, covered),
                // Zero means "no checksum" and stays; a checksum never becomes zero (RFC 768).
                _ if h[26] | h[27] != 0 => {
                    fix(h, 26, covered);
                    if h[26] | h[27] == 0 {
                        h[26..28].fill(0xff);
                    }
                }
                _ => {}
            }
        }
    }
}

/// Shifts that bring a word's 32-bit parts down, in memory order.
const LOW: u32 = if cfg!(target_endian = "little") { 0 } else { 32 };
const HIGH: u32 = 32 - LOW;

/// RFC 1624: HC' = ~(~HC + ~m + m').
#[inline]
fn fix(h: &mut [u8], at: usize, delta: u64) {
    let mut sum = delta + u64::from(!u16::from_ne_bytes([h[at], h[at + 1]]));
    sum = (sum & 0xffff_ffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    h[at..at + 2].copy_from_slice(&(!(sum as u16)).to_ne_bytes());
}

#[inline]
fn read8(d: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(d[at..at + 8].try_into().expect("eight bytes"))
}

/// Bytes that a rewrite touches.
fn touched(rw: &Rewrite) -> usize {
    rw.mask.bytes().iter().filter(|m| **m != 0).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::{Ext, parse};
    use crate::rewrite::{self, Place};
    use flow::Key;
    use packet::{HeapPool, Pool};
    use proptest::prelude::*;

    fn frame(tagged: bool, proto: u8, body: &[u8], checksum: u16) -> Vec<u8> {
        let mut d = vec![2; 12];
        if tagged {
            d.extend([0x81, 0, 0, 7]);
        }
        d.extend([8, 0, 0x45]);
        d.extend(body);
        let l3 = if tagged { 18 } else { 14 };
        let len = (d.len() - l3) as u16;
        d[l3 + 2..l3 + 4].copy_from_slice(&len.to_be_bytes());
        d[l3 + 6..l3 + 8].fill(0);
        d[l3 + 9] = proto;
        let at = l3 + if proto == TCP { 36 } else { 26 };
        d[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
        d
    }

    fn set(values: &[u8], masks: &[u8], fields: u8) -> Op {
        let (mut key, mut mask) = (Key::ZERO, Key::ZERO);
        let places = [(0, 12), (at::IP_SRC, 4), (at::IP_DST, 4), (at::TP_SRC, 4), (at::TOS, 1)];
        let wanted = places.into_iter().enumerate().filter(|(i, _)| fields & 1 << i != 0);
        for (_, (at, n)) in wanted {
            for i in at..at + n {
                (key.bytes_mut()[i], mask.bytes_mut()[i]) = (values[i], masks[i]);
            }
        }
        Op::Set(Box::new(Rewrite { key, mask }))
    }

    proptest! {
        #[test]
        fn equals_the_rewrite(
            tagged: bool,
            tcp: bool,
            body in proptest::collection::vec(any::<u8>(), 39..70),
            checksum in prop_oneof![Just(0), Just(0xffff), any::<u16>()],
            values in proptest::collection::vec(any::<u8>(), 64),
            masks in proptest::collection::vec(prop_oneof![Just(0xff), Just(0), any::<u8>()], 64),
            fields in (0u8..32, 0u8..32),
        ) {
            let d = frame(tagged, if tcp { TCP } else { UDP }, &body, checksum);
            let ops = [set(&values, &masks, fields.0), set(&masks, &values, fields.1)];
            let (mut line, mut ext): (Line, Ext) = ([0; 8], [[0; 8]; 3]);
            let lay = parse(&d, 1, 1, &mut line, &mut ext).unwrap();
            let mut fast = d.clone();
            let patch = Patch::compile(&ops).unwrap();
            prop_assert!(patch.apply(&mut fast, &line, lay));
            let pool = HeapPool::new();
            let mut p = pool.packet(&d).unwrap();
            for op in &ops {
                let Op::Set(rw) = op else { unreachable!() };
                rewrite::apply(&mut p, &Place { line: &line, lay }, rw).unwrap();
            }
            prop_assert_eq!(&fast[..], p.data());
            pool.free(&[p]);
        }
    }

    #[test]
    fn other_fields_and_packets_are_left_to_the_rewrite() {
        let mut rw = Rewrite { key: Key::ZERO, mask: Key::ZERO };
        rw.mask.bytes_mut()[at::VLAN] = 1;
        assert_eq!(Patch::compile(&[Op::Set(Box::new(rw))]), None);
        let patch = Patch::compile(&[set(&[1; 64], &[0xff; 64], 2)]).unwrap();
        let mut d = frame(false, UDP, &[9; 50], 5);
        let before = d.clone();
        for (at, value) in [(14, 0x46), (20, 0x20), (23, 1)] {
            let mut odd = before.clone();
            odd[at] = value;
            let (mut line, mut ext): (Line, Ext) = ([0; 8], [[0; 8]; 3]);
            let lay = parse(&odd, 1, 1, &mut line, &mut ext).unwrap();
            let first_fragment = at == 20;
            assert_eq!(patch.apply(&mut d, &line, lay), first_fragment, "byte {at}");
            assert_eq!(d == before, !first_fragment);
            d.copy_from_slice(&before);
        }
    }
}
