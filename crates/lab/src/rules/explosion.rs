//! The tuple-space explosion of Csikor et al. (CoNEXT 2019): few allow rules on independent fields,
//! and packets that miss each of them at every possible bit. A switch that un-wildcards just the
//! bits that tell a packet from the rules it missed gets one mask for each combination: 32 x 16 x
//! 16.

use super::RuleSet;
use super::matching::Match;
use crate::flows::{FlowTable, Template};

const ALLOWED_SRC: u32 = 0x0a00_0001;
const ALLOWED_SPORT: u16 = 12345;
const ALLOWED_DPORT: u16 = 80;

/// Three allow rules before the default; the victim's traffic is what the first allows.
pub fn rules() -> RuleSet {
    let udp = Match { protocol: Some(17), ..Match::default() };
    let matches = vec![
        Match { dport: (ALLOWED_DPORT, u16::MAX), ..udp },
        Match { src: (ALLOWED_SRC, u32::MAX), protocol: None, ..udp },
        Match { sport: (ALLOWED_SPORT, u16::MAX), ..udp },
    ];
    let mut lines: Vec<_> = (0..)
        .zip(&matches)
        .map(|(i, m)| format!("priority={},{m},actions=output:2", 40 - 10 * i))
        .collect();
    lines.push("priority=0,ip,actions=drop".into());
    let new = (0..32 * 16 * 16).map(attack).collect();
    // One template, of the first rule: the other two only serve the attacker.
    let seen = vec![matches[0].template()];
    RuleSet { lines, flows: Some(FlowTable { seen, new }), matches }
}

/// Packets that differ from the allowed values first at these bits; what is behind those bits is
/// any.
fn attack(i: u32) -> Template {
    let (src, sport, dport) = (i / 256, i / 16 % 16, i % 16);
    let port = |allowed: u16, bit: u32| {
        let flipped = 0x8000u16 >> bit;
        (u32::from((allowed ^ flipped) & !(flipped - 1)), u32::from(flipped - 1))
    };
    let flipped = 0x8000_0000u32 >> src;
    let ((sport, wild_sport), (dport, wild_dport)) =
        (port(ALLOWED_SPORT, sport), port(ALLOWED_DPORT, dport));
    Template {
        src: (ALLOWED_SRC ^ flipped) & !(flipped - 1),
        dst: 0x1000_0001,
        ports: sport << 16 | dport,
        wild_src: flipped - 1,
        wild_ports: wild_sport << 16 | wild_dport,
        protocol: 17,
        ..Template::default()
    }
}
