//! Choosing a port by hash: the multipath and bundle actions (ovs-actions(7)).
//!
//! The hash functions are Weft's own: a packet may take another link than ovs-vswitchd gives it,
//! but flows spread alike.

use super::buckets::{mix, pair};
use crate::fields;
use crate::translate::xlate::Xlate;
use flow::{Field, Key, Mask, at, frag};
use openflow::{Bundle, OfPort, Subfield, hash_fields, port};

/// Attempts of `iter_hash` before it takes the remainder: each fails with a probability of at most
/// a half.
const ITER_HASHES_MAX: u32 = 64;
/// Size beyond which `iter_hash` is not possible; nor is it if there are fewer places than links.
const ITER_SIZE_MAX: u32 = 65_536;
/// `OFPP_NONE`.
const NONE: OfPort = port::ANY;

/// The parameters of a multipath action.
#[derive(Clone, Copy)]
pub(super) struct Multipath {
    pub fields: u16,
    pub basis: u16,
    pub algorithm: u16,
    pub max_link: u16,
    pub arg: u32,
}

impl<'a> Xlate<'a, '_> {
    pub(super) fn multipath(&mut self, m: Multipath, dst: Subfield) {
        let links = u32::from(m.max_link) + 1;
        let by_weight = m.algorithm == 2;
        if by_weight && !self.spend(links as usize) {
            return;
        }
        let hash = hash_of(m.fields, m.basis, &self.key, &mut self.wc);
        self.write_bits(dst, link(m.algorithm, hash, links, m.arg).into());
        self.now(dst);
    }

    pub(super) fn bundle(&mut self, b: &'a Bundle) {
        if !self.spend(b.members.len()) {
            return;
        }
        self.look_at_ports();
        let chosen = match b.algorithm {
            0 => b.members.iter().find(|p| self.lives(**p)),
            _ => {
                let hash = hash_of(b.fields, b.basis, &self.key, &mut self.wc);
                let all = b.members.iter().enumerate().filter(|(_, p)| self.lives(**p));
                all.max_by_key(|(i, _)| mix(hash, *i as u64)).map(|(_, p)| p)
            }
        };
        let chosen = chosen.copied().unwrap_or(NONE);
        match b.dst {
            Some(dst) => {
                self.write_bits(dst, u128::from(chosen & 0xffff));
                self.now(dst);
            }
            None if chosen != NONE => self.output(chosen, 0),
            None => {}
        }
    }

    /// True if a bundle action may choose the port.
    fn lives(&self, p: OfPort) -> bool {
        match p {
            port::IN_PORT | port::TABLE | port::NORMAL | port::FLOOD | port::ALL | port::LOCAL => {
                true
            }
            p => self.bridge.port(p).is_some_and(|p| p.live()),
        }
    }
}

/// Chooses one of `n` links by an algorithm of ovs-actions(7).
fn link(algorithm: u16, hash: u64, n: u32, arg: u32) -> u32 {
    let short = (hash >> 32) as u32;
    match algorithm {
        // modulo_n
        0 => short % n,
        // hash_threshold: as many equal parts of the range as there are links
        1 => ((u64::from(short) * u64::from(n)) >> 32) as u32,
        // hrw: the highest random weight
        2 => (0..n).max_by_key(|i| mix(hash, u64::from(*i))).unwrap_or(0),
        // iter_hash: a range that stays when links are added; hashes again where there is no link
        _ => {
            let size = if (n..=ITER_SIZE_MAX).contains(&arg) { arg } else { n.next_power_of_two() };
            let mut tries = (0..ITER_HASHES_MAX).map(|i| (mix(hash, i.into()) >> 32) as u32 % size);
            tries.find(|link| *link < n).unwrap_or(short % n)
        }
    }
}

/// The hash that [`hash_fields`] names; adds the bits that it reads to `wc`.
fn hash_of(what: u16, basis: u16, key: &Key, wc: &mut Mask) -> u64 {
    let one = |f: Field, key: &Key, wc: &mut Mask| {
        f.unwildcard(wc);
        let v = f.get(key);
        mix(v as u64, (v >> 64) as u64)
    };
    let eth_type = key.u16(at::ETH_TYPE);
    let hash = match what {
        hash_fields::ETH_SRC => one(Field::EthSrc, key, wc),
        hash_fields::SYMMETRIC_L4 => {
            let stations = pair(Field::EthSrc, Field::EthDst, key, wc);
            Field::VlanVid.unwildcard(wc);
            let vlan = Field::VlanVid.get(key) as u64;
            let outer = mix(mix(stations, u64::from(eth_type)), vlan);
            mix(outer, connection(&[6, 132], key, wc))
        }
        hash_fields::SYMMETRIC_L3L4 => connection(&[6, 132], key, wc),
        hash_fields::SYMMETRIC_L3L4_UDP => connection(&[6, 17, 132], key, wc),
        hash_fields::SYMMETRIC_L3 => addresses(key, wc),
        hash_fields::NW_SRC | hash_fields::NW_DST => {
            let src = what == hash_fields::NW_SRC;
            match eth_type {
                wire::ETH_IPV4 => one(if src { Field::Ipv4Src } else { Field::Ipv4Dst }, key, wc),
                wire::ETH_IPV6 => one(if src { Field::Ipv6Src } else { Field::Ipv6Dst }, key, wc),
                _ => 0,
            }
        }
        _ => 0,
    };
    mix(hash, u64::from(basis))
}

/// A hash of both IP addresses, the same in both directions; 0 for packets that are not IP.
fn addresses(key: &Key, wc: &mut Mask) -> u64 {
    match key.u16(at::ETH_TYPE) {
        wire::ETH_IPV4 => pair(Field::Ipv4Src, Field::Ipv4Dst, key, wc),
        wire::ETH_IPV6 => pair(Field::Ipv6Src, Field::Ipv6Dst, key, wc),
        _ => 0,
    }
}

/// A hash of IP addresses, protocol and, for the protocols in `ported`, both ports; the same in
/// both directions.
fn connection(ported: &[u8], key: &Key, wc: &mut Mask) -> u64 {
    if !fields::is_ip(key.u16(at::ETH_TYPE)) {
        return 0;
    }
    let proto = key.u8(at::PROTO);
    wc.set_u8(at::PROTO, 0xff);
    wc.set_u8(at::FRAG, wc.u8(at::FRAG) | frag::LATER);
    let first = key.u8(at::FRAG) & frag::LATER == 0;
    let ports = match first && ported.contains(&proto) {
        true => pair(Field::TcpSrc, Field::TcpDst, key, wc),
        false => 0,
    };
    mix(mix(addresses(key, wc), ports), u64::from(proto))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connections() -> impl Iterator<Item = Key> {
        (0..40_000u32).map(|i| {
            let mut key = Key::ZERO;
            key.set_u16(at::ETH_TYPE, wire::ETH_IPV4);
            key.set_u8(at::PROTO, 6);
            key.set_u32(at::IP_SRC, 0x0a00_0001);
            key.set_u32(at::IP_DST, 0x0a00_0100 + i % 200);
            key.set_u16(at::TP_SRC, (i / 200) as u16);
            key.set_u16(at::TP_DST, 80);
            Field::EthSrc.set(&mut key, u128::from(i % 7));
            key
        })
    }

    #[test]
    fn all_algorithms_spread_and_move_few_when_a_link_comes() {
        // What a perfect algorithm moves from four links to five is a fifth; modulo moves four
        // fifths.
        for (algorithm, moved_max) in [(0, 0.85), (1, 0.55), (2, 0.23), (3, 0.85)] {
            let (mut four, mut moved) = ([0; 4], 0);
            for key in connections() {
                let hash = hash_of(hash_fields::SYMMETRIC_L4, 7, &key, &mut Mask::default());
                let at = link(algorithm, hash, 4, 8);
                four[at as usize] += 1;
                moved += u32::from(link(algorithm, hash, 5, 8) != at);
            }
            assert!(four.iter().all(|n| (9_500..10_500).contains(n)), "{algorithm}: {four:?}");
            let moved = f64::from(moved) / 40_000.0;
            assert!(moved <= moved_max, "{algorithm} moves {moved}");
        }
        assert_eq!(link(0, u64::MAX, 1, 0), 0);
        assert!(link(3, 5, 65_536, 0) < 65_536);
    }

    #[test]
    fn symmetric_hashes_are_alike_in_both_directions_and_look_at_no_more() {
        use hash_fields::*;
        let all = [SYMMETRIC_L4, SYMMETRIC_L3L4, SYMMETRIC_L3L4_UDP, SYMMETRIC_L3];
        for key in connections().step_by(991) {
            let mut back = key;
            for (a, b) in [(Field::Ipv4Src, Field::Ipv4Dst), (Field::TcpSrc, Field::TcpDst)] {
                a.set(&mut back, b.get(&key));
                b.set(&mut back, a.get(&key));
            }
            for what in all {
                let (mut wc, mut other) = (Mask::default(), Mask::default());
                let hash = hash_of(what, 1, &key, &mut wc);
                Field::EthSrc.set(&mut back, Field::EthDst.get(&key));
                Field::EthDst.set(&mut back, Field::EthSrc.get(&key));
                assert_eq!(hash, hash_of(what, 1, &back, &mut other), "{what}");
                // What is not marked does not matter.
                let mut random = Key::ZERO;
                for i in 0..flow::WORDS {
                    let (mask, noise) = (wc.words[i], 0x5851_f42d_4c95_7f2d_u64);
                    random.words[i] = key.words[i] & mask | noise & !mask;
                }
                random.set_u16(at::ETH_TYPE, wire::ETH_IPV4);
                assert_eq!(hash, hash_of(what, 1, &random, &mut other), "{what}");
            }
        }
    }
}
