//! Decapsulation in one pass: a rule removes the outer header before the packet is parsed, so that
//! only the inner packet is parsed and looked up.
//!
//! A decapsulation rule is a copy of a megaflow whose operation is `TunnelPop`, and is valid as
//! long as the megaflow is: any megaflow that a packet matches is a right decision about it. The
//! rule matches a packet by its first 48 bytes. Packets that no rule matches (tags, IP options,
//! checksums, extensions, bad headers) take the two steps (`tunnel::header::pop`), from which rules
//! are learned.

use crate::batch::keys::{Line, PWORDS, bytes};
use crate::lookup::flow_store::Store;
use crate::parse::scalar::{UDP, parse};
use crate::tunnel::header::PlainHeader;
use action::Op;
use flow::{PortNo, at};
use packet::Packet;
use std::ops::Range;

/// Rules of a worker; every packet of their ports is compared with each. There is about one for
/// each pair of underlay address and UDP port.
const DECAP_RULES_MAX: usize = 4;

/// First bytes of a packet that a rule compares: Ethernet, IPv4, UDP, and the part of the VXLAN or
/// Geneve header whose bits are not compared.
const HEADER_MATCH_BYTES: usize = 48;

/// The first bytes of the packets that a megaflow matches, if their outer header is IPv4 without
/// options, not a fragment, and UDP without checksum.
struct HeaderMatch {
    /// The packets' input port.
    in_port: PortNo,
    value: [u64; HEADER_MATCH_BYTES / 8],
    mask: [u64; HEADER_MATCH_BYTES / 8],
}

impl HeaderMatch {
    /// The first bytes of packets that a megaflow with this key line 0 and mask matches. None: they
    /// have no such outer header, or the megaflow does not match on the input port.
    fn new(key: &Line, megaflow_mask: &Line) -> Option<HeaderMatch> {
        /// Fields of the megaflow: offset in the key, and bytes in the packet.
        const FIELDS: [(usize, Range<usize>); 7] = [
            (at::ETH_DST, 0..6),
            (at::ETH_SRC, 6..12),
            (at::TOS, 15..16),
            (at::TTL, 22..23),
            (at::IP_SRC, 26..30),
            (at::IP_DST, 30..34),
            (at::TP_SRC, 34..38),
        ];
        let port = |line| *bytes(line)[at::IN_PORT..].first_chunk().unwrap();
        let in_port = PortNo::from_be_bytes(port(key));
        let (mut value, mut mask) = ([0; HEADER_MATCH_BYTES], [0; HEADER_MATCH_BYTES]);
        for (from, to) in FIELDS {
            let from = from..from + to.len();
            value[to.clone()].copy_from_slice(&bytes(key)[from.clone()]);
            mask[to].copy_from_slice(&bytes(megaflow_mask)[from]);
        }
        let mut fixed = |at: usize, bytes: &[u8], of: &[u8]| {
            value[at..at + bytes.len()].copy_from_slice(bytes);
            mask[at..at + of.len()].copy_from_slice(of);
        };
        fixed(12, &[8, 0, 0x45], &[0xff; 3]);
        fixed(20, &[0, 0], &[0x3f, 0xff]);
        fixed(23, &[UDP], &[0xff]);
        fixed(40, &[0, 0], &[0xff, 0xff]);
        // What else the megaflow matches on is the same for all these packets: it is checked once,
        // with one packet of them.
        let mut one = [0; 64];
        one[..HEADER_MATCH_BYTES].copy_from_slice(&value);
        (one[17], one[39]) = (50, 30);
        let (mut line, mut ext) = ([0; 8], [[0; 8]; 3]);
        let layout = parse(&one, in_port, 1, &mut line, &mut ext)?;
        let word = |b: &[u8; HEADER_MATCH_BYTES], i| {
            u64::from_ne_bytes(b[8 * i..][..8].try_into().unwrap())
        };
        let fits = layout.ext == 0 && takes(key, megaflow_mask, &line);
        (fits && port(megaflow_mask) == [0xff; 2]).then(|| HeaderMatch {
            in_port,
            value: std::array::from_fn(|i| word(&value, i)),
            mask: std::array::from_fn(|i| word(&mask, i)),
        })
    }

    #[inline]
    fn matches(&self, head: &[u8; HEADER_MATCH_BYTES]) -> bool {
        let (words, _) = head.as_chunks::<8>();
        let words = words.iter().zip(&self.value).zip(&self.mask);
        words.fold(0, |d, ((w, v), m)| d | (u64::from_ne_bytes(*w) & m) ^ v) == 0
    }
}

/// True if a megaflow with this key line and mask matches packets with key line `line`.
fn takes(key: &Line, mask: &Line, line: &Line) -> bool {
    line.iter().zip(key).zip(mask).all(|((l, k), m)| l & m == *k)
}

/// A copy of a megaflow that decapsulates.
pub(crate) struct DecapRule {
    megaflow: u32,
    /// The megaflow's payload when it was copied; if it is another now, the megaflow ended.
    payload: u64,
    key: Line,
    mask: Line,
    header_match: HeaderMatch,
    /// The datapath port of the tunnels, on which inner packets come in.
    pub port: PortNo,
    pub header: PlainHeader,
    /// The megaflow's operation, a `TunnelPop`.
    pub pop: Op,
    /// Outer packets of this vector, to be credited to the megaflow.
    pub packets: u64,
    pub bytes: u64,
}

impl DecapRule {
    /// A rule from a live megaflow that does `pop` and matches on line 0 only.
    fn new(store: &Store, megaflow: u32, pop: &Op) -> Option<DecapRule> {
        let Op::TunnelPop { port, kind, options } = pop else { return None };
        let header = PlainHeader::new(*kind, options.clone())?;
        let p = store.payload(megaflow);
        let mask = |w| store.mask_word(p.mask(), w);
        if !p.usable() || (8..PWORDS).any(|w| mask(w) != 0) {
            return None;
        }
        let mut key = [0; 8];
        key[..7].copy_from_slice(store.line(megaflow));
        let mask = std::array::from_fn(|w| if w < 7 { mask(w) } else { 0 });
        let header_match = HeaderMatch::new(&key, &mask)?;
        let (payload, port, pop) = (p.0, *port, pop.clone());
        Some(DecapRule {
            megaflow,
            payload,
            key,
            mask,
            header_match,
            port,
            header,
            pop,
            packets: 0,
            bytes: 0,
        })
    }

    /// True if the rule matches a packet of its input port, by the packet's first bytes.
    #[inline]
    pub fn matches(&self, p: &Packet) -> bool {
        p.segments() == 1 && p.data().first_chunk().is_some_and(|h| self.header_match.matches(h))
    }
}

/// The decapsulation rules of one worker, at most [`DECAP_RULES_MAX`].
#[derive(Default)]
pub(crate) struct DecapRules {
    list: Vec<DecapRule>,
    /// Counts replacements: says which rule the next new one replaces.
    replaced: usize,
}

impl DecapRules {
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Makes a rule of this megaflow, whose operations are `ops`, if they are one `TunnelPop`.
    #[cold]
    pub fn learn(&mut self, store: &Store, megaflow: u32, ops: &[Op]) {
        let [pop] = ops else { return };
        if megaflow == 0 || self.list.iter().any(|t| t.megaflow == megaflow) {
            return;
        }
        let Some(new) = DecapRule::new(store, megaflow, pop) else { return };
        match self.list.len() < DECAP_RULES_MAX {
            true => self.list.push(new),
            false => {
                self.list[self.replaced % DECAP_RULES_MAX] = new;
                self.replaced += 1;
            }
        }
    }

    /// Removes the rules whose megaflows ended.
    pub fn refresh(&mut self, store: &Store) {
        self.list.retain(|t| store.payload(t.megaflow).0 == t.payload);
    }

    /// Removes all rules.
    pub fn clear(&mut self) {
        self.list.clear();
    }

    /// True if there is a rule for packets of `in_port`.
    #[inline]
    pub fn serve(&self, in_port: PortNo) -> bool {
        self.list.iter().any(|t| t.header_match.in_port == in_port)
    }

    /// The index of the rule that matches a packet of `in_port`.
    #[inline]
    pub fn find(&self, in_port: PortNo, p: &Packet) -> Option<usize> {
        self.list.iter().position(|t| t.header_match.in_port == in_port && t.matches(p))
    }

    /// The operation of a rule that matches packets with this key line.
    pub fn twin(&self, line: &Line) -> Option<&Op> {
        self.list.iter().find(|t| takes(&t.key, &t.mask, line)).map(|t| &t.pop)
    }

    #[inline]
    pub fn get(&mut self, i: usize) -> &mut DecapRule {
        &mut self.list[i]
    }

    /// Credits the packets that rules decapsulated to their megaflows; returns how many they were.
    pub fn count(&mut self, store: &Store, now_ms: u64) -> u64 {
        let mut all = 0;
        for t in self.list.iter_mut().filter(|t| t.packets > 0) {
            store.counters(t.megaflow).add(t.packets, t.bytes, now_ms);
            all += t.packets;
            (t.packets, t.bytes) = (0, 0);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::keys::bytes_mut;

    /// An outer packet of VXLAN whose inner one is of zeros.
    fn plain() -> [u8; 64] {
        let mut d = [0; 64];
        d[..14].copy_from_slice(&[2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 8, 0]);
        d[14..24].copy_from_slice(&[0x45, 4, 0, 50, 0, 0, 0x40, 0, 64, UDP]);
        d[26..34].copy_from_slice(&[10, 1, 2, 3, 172, 31, 0, 1]);
        d[34..42].copy_from_slice(&[0x80, 1, 0x12, 0xb5, 0, 30, 0, 0]);
        d[42] = 8;
        d
    }

    /// A packet has a megaflow's shape if it is plain and the megaflow takes its line.
    #[test]
    fn first_bytes_tell_what_the_key_tells() {
        const PORT: PortNo = 5;
        let line = |d: &[u8; 64]| {
            let (mut line, mut ext) = ([0; 8], [[0; 8]; 3]);
            parse(d, PORT, 1, &mut line, &mut ext).map(|_| line)
        };
        let mut seed = 1u64;
        let mut random = move |n: usize| {
            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (seed >> 33) as usize % n
        };
        let (mut taken, mut refused) = (0, 0);
        for _ in 0..2000 {
            let mut mask: Line = [0; 8];
            bytes_mut(&mut mask)[at::IN_PORT..at::IN_PORT + 2].fill(0xff);
            for _ in 0..random(24) {
                bytes_mut(&mut mask)[random(48)] |= 1 << random(8);
            }
            let mut key = line(&plain()).unwrap();
            key.iter_mut().zip(&mask).for_each(|(k, m)| *k &= m);
            let header_match = HeaderMatch::new(&key, &mask).unwrap();
            assert_eq!(header_match.in_port, PORT);
            let mut d = plain();
            for _ in 0..random(3) {
                d[random(48)] ^= 1 << random(8);
            }
            let is_plain = d[12..15] == [8, 0, 0x45]
                && [d[20] & 0x3f, d[21], d[40], d[41]] == [0; 4]
                && d[23] == UDP
                && d[16..18] == [0, 50];
            let matches = header_match.matches(d.first_chunk().unwrap());
            if is_plain {
                assert_eq!(matches, takes(&key, &mask, &line(&d).unwrap()), "{d:02x?}");
            } else if d[16..18] == [0, 50] {
                assert!(!matches, "{d:02x?}");
            }
            (taken, refused) = (taken + usize::from(matches), refused + usize::from(!matches));
        }
        assert!(taken > 500 && refused > 100);
    }

    #[test]
    fn megaflows_about_other_packets_have_no_shape() {
        for (at, value) in [(at::ETH_TYPE + 1, 6), (at::VLAN, 0x10), (at::PROTO, 6), (at::FRAG, 1)]
        {
            let (mut key, mut mask): (Line, Line) = ([0; 8], [0; 8]);
            bytes_mut(&mut mask)[at::IN_PORT..at::IN_PORT + 2].fill(0xff);
            assert!(HeaderMatch::new(&key, &mask).is_some());
            (bytes_mut(&mut key)[at], bytes_mut(&mut mask)[at]) = (value, 0xff);
            assert!(HeaderMatch::new(&key, &mask).is_none());
        }
        assert!(HeaderMatch::new(&[0; 8], &[0; 8]).is_none(), "of any port");
    }
}
