//! Rules of a given number of masks: prefixes of both addresses, the protocol, the destination
//! port.

use super::matching::{Match, prefix};
use crate::random::Random;
use anyhow::{Result, bail};
use std::collections::HashSet;

/// Source prefix, destination prefix, destination port matched. The first eight are the usual ones:
/// routes, hosts, pairs, services; the rest goes through further combinations.
fn shapes() -> Vec<(u32, u32, bool)> {
    let mut shapes = vec![
        (0, 24, false),
        (0, 32, false),
        (24, 24, false),
        (16, 32, false),
        (0, 24, true),
        (0, 32, true),
        (24, 32, true),
        (32, 32, true),
    ];
    for src in [0, 16, 20, 24, 28, 32] {
        for dst in [16, 20, 24, 28, 32] {
            for port in [false, true] {
                if !shapes.contains(&(src, dst, port)) {
                    shapes.push((src, dst, port));
                }
            }
        }
    }
    shapes.truncate(40);
    shapes
}

/// `count` different rules; rule i has shape i mod `masks`, and longer prefixes come first.
pub fn rules(count: u32, masks: u32, random: &mut Random) -> Result<Vec<Match>> {
    let mut shapes = shapes();
    if masks as usize > shapes.len() {
        bail!("rules: masks is {masks}, mixed sets have at most {}", shapes.len());
    }
    shapes.truncate(masks as usize);
    let mut seen = HashSet::new();
    while seen.len() < count as usize {
        let (src, dst, port) = shapes[seen.len() % shapes.len()];
        let address = |net: u32, bits, random: &mut Random| {
            let mask = prefix(bits);
            ((net | random.bits() as u32 >> 4) & mask, mask)
        };
        seen.insert(Match {
            src: address(0x3000_0000, src, random),
            dst: address(0x1000_0000, dst, random),
            dport: if port { (1 + random.below(1023) as u16, u16::MAX) } else { (0, 0) },
            protocol: port.then_some(17),
            ..Match::default()
        });
    }
    let mut rules: Vec<_> = seen.into_iter().collect();
    rules.sort_by_key(|m| {
        let bits = m.src.1.count_ones() + m.dst.1.count_ones() + m.dport.1.count_ones();
        (std::cmp::Reverse(bits), m.src, m.dst, m.dport)
    });
    Ok(rules)
}
