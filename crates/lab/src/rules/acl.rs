//! Five-tuple access lists in the style of ClassBench (Taylor and Turner, IEEE/ACM ToN 2007):
//! protocol, pair of port classes and pair of prefix lengths are drawn together, addresses from a
//! skewed tree, so that prefixes nest. Port classes have ClassBench's names: any (WC), above 1023
//! (HI), exact (EM), arbitrary range (AR). Shares follow what the literature says of router access
//! lists: source ports are hardly ever given; "above 1023" is in 9 % of the rules and other ranges
//! in about 1 % (Gupta and McKeown, SIGCOMM 1999); hosts and /24 make most prefixes.

use super::matching::{Match, prefix};
use crate::random::Random;
use std::collections::HashSet;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ports {
    Any,
    High,
    Exact,
    Range,
}

/// Source and destination port classes.
const PORTS: &[(u32, (Ports, Ports))] = &[
    (26, (Ports::Any, Ports::Any)),
    (60, (Ports::Any, Ports::Exact)),
    (6, (Ports::Any, Ports::High)),
    (1, (Ports::Any, Ports::Range)),
    (3, (Ports::High, Ports::Exact)),
    (2, (Ports::Exact, Ports::Any)),
    (2, (Ports::Exact, Ports::Exact)),
];

/// Source and destination prefix lengths.
const PREFIXES: &[(u32, (u32, u32))] = &[
    (16, (0, 32)),
    (8, (0, 24)),
    (14, (32, 32)),
    (12, (24, 32)),
    (6, (32, 24)),
    (6, (24, 24)),
    (4, (16, 32)),
    (4, (16, 24)),
    (4, (8, 32)),
    (3, (28, 28)),
    (3, (27, 32)),
    (3, (23, 30)),
    (3, (22, 24)),
    (3, (20, 28)),
    (3, (18, 31)),
    (3, (32, 16)),
    (2, (26, 22)),
    (2, (25, 20)),
    (1, (32, 0)),
];

const PROTOCOLS: &[(u32, Option<u8>)] = &[(72, Some(6)), (22, Some(17)), (6, None)];

/// Services: a few are in most of the rules.
const SERVICES: &[(u32, u16)] = &[
    (22, 80),
    (16, 443),
    (12, 53),
    (8, 22),
    (8, 25),
    (5, 123),
    (4, 161),
    (4, 389),
    (4, 445),
    (3, 21),
    (3, 1433),
    (3, 1521),
    (3, 3306),
    (3, 8080),
    (2, 8443),
];

const RANGES: &[(u16, u16)] =
    &[(20, 24), (135, 139), (1024, 5000), (6000, 6063), (8000, 8099), (33434, 33523)];

/// A range of ports as values and masks (Srinivasan et al. 1998): at most 30.
pub fn cover(low: u16, high: u16) -> Vec<(u16, u16)> {
    let mut parts = Vec::new();
    let (mut at, end) = (u32::from(low), u32::from(high) + 1);
    while at < end {
        let aligned = if at == 0 { 1 << 16 } else { 1 << at.trailing_zeros() };
        let room = 1 << (end - at).ilog2();
        let size = std::cmp::min(aligned, room);
        parts.push((at as u16, (0x1_0000 - size) as u16));
        at += size;
    }
    parts
}

fn port_masks(class: Ports, random: &mut Random) -> Vec<(u16, u16)> {
    match class {
        Ports::Any => vec![(0, 0)],
        Ports::High => cover(1024, u16::MAX),
        Ports::Exact if random.below(5) == 0 => vec![(random.below(10000) as u16, u16::MAX)],
        Ports::Exact => vec![(random.weighted(SERVICES), u16::MAX)],
        Ports::Range => {
            let (low, high) = RANGES[random.below(RANGES.len() as u32) as usize];
            cover(low, high)
        }
    }
}

/// An address inside a /4. Each byte of the next eight bits is skewed: the least of three draws, so
/// that rules share networks and prefixes of different lengths nest.
fn address(net: u32, bits: u32, random: &mut Random) -> (u32, u32) {
    let mut skewed = |n: u32| (0..3).map(|_| random.below(n)).min().unwrap_or(0);
    let high = skewed(16) << 24 | skewed(64) << 16 | skewed(256) << 8;
    let mask = prefix(bits);
    ((net | high | random.below(256)) & mask, mask)
}

/// `count` different OpenFlow flows, most important first. A range becomes as many as its masks.
pub fn rules(count: u32, random: &mut Random) -> Vec<Match> {
    let (mut rules, mut seen) = (Vec::new(), HashSet::new());
    while rules.len() < count as usize {
        let (src_bits, dst_bits) = random.weighted(PREFIXES);
        let protocol = random.weighted(PROTOCOLS);
        let (src, dst) =
            (address(0x3000_0000, src_bits, random), address(0x1000_0000, dst_bits, random));
        let (sports, dports) = match protocol {
            Some(_) => random.weighted(PORTS),
            None => (Ports::Any, Ports::Any),
        };
        let (sports, dports) = (port_masks(sports, random), port_masks(dports, random));
        for sport in &sports {
            for dport in &dports {
                let rule = Match { src, dst, sport: *sport, dport: *dport, protocol };
                if seen.insert(rule) {
                    rules.push(rule);
                }
            }
        }
    }
    rules.truncate(count as usize);
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_covered_exactly() {
        for (low, high) in [(0, 65535), (1024, 65535), (5, 5), (20, 24), (1, 65534), (0, 0)] {
            let parts = cover(low, high);
            assert!(parts.len() <= 30);
            for port in 0..=u16::MAX {
                let hits = parts.iter().filter(|(value, mask)| port & mask == *value).count();
                assert_eq!(hits, usize::from((low..=high).contains(&port)), "{port} {low} {high}");
            }
        }
        assert_eq!(cover(1024, 65535).len(), 6);
    }
}
