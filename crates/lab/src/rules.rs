//! Rule sets and the flows that hit them, from a seed.
//!
//! Every family gives the text for `ovs-ofctl add-flows` and, unless the generator's own arithmetic
//! makes its flows (`port`, `l3`, `dmac`, `vxlan`, `exact`), a table of flows. Output is port 2.

mod acl;
mod clouds;
mod explosion;
mod matching;
mod mixed;
mod ovn;

pub use matching::Match;

use crate::flows::FlowTable;
use crate::random::Random;
use anyhow::{Result, bail};
use serde::Deserialize;
use std::collections::HashSet;

/// A set of rules.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rules {
    /// Their shape.
    pub kind: RuleKind,
    /// How many (of the kind's own unit).
    pub count: u32,
    /// `mixed` only: how many masks, at most 40. `vxlan` only: how many VNIs.
    pub masks: u32,
    /// Seed of every random choice.
    pub seed: u64,
}

impl Default for Rules {
    fn default() -> Self {
        Rules { kind: RuleKind::default(), count: 1, masks: 1, seed: 1 }
    }
}

/// Shapes of rules.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum RuleKind {
    /// Packets go from port 1 to port 2.
    #[default]
    Port,
    /// Disjoint /24 destinations: one mask. The generator's `rules`.
    L3,
    /// Destination MACs: one mask. The generator's `dmacs`.
    Dmac,
    /// VNI and inner destination MAC (papers/003), `masks` VNIs. The generator's kind `vxlan` with
    /// as many `guests` and `vnis`.
    Vxlan,
    /// Two tables, of 16,384 rules each, that look at 28 bits of the flow number: each of the
    /// generator's `udp4` flows is a megaflow of its own, of one mask.
    Exact,
    /// Prefixes, ports and protocols in so many combinations.
    Mixed,
    /// Five-tuple access lists in the style of ClassBench.
    Acl,
    /// A victim's rule, and rules whose un-wildcarding an attacker abuses; new flows are the
    /// attacker's.
    Explosion,
    /// Connection tracking, commit of what clients of the generator's `conn` begin.
    Ct,
    /// Tracked connections with the server's address translated (the generator's `nat`).
    CtNat,
    /// Twenty tables as OVN fills them, for `count` logical ports.
    Ovn,
    /// Security groups of `count` ports as Neutron's firewall driver has them.
    Neutron,
    /// `count` services and a network policy as Antrea has them (the generator's `nat`).
    Antrea,
    /// An OVN logical switch with `count` load balancers and access lists (the generator's `nat`).
    OvnCt,
}

/// A rule set and its flows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleSet {
    /// Lines for `ovs-ofctl add-flows`.
    pub lines: Vec<String>,
    /// Flows for the generator's argument `table`.
    pub flows: Option<FlowTable>,
    /// The five-tuple rules as structures, most important first; empty for the kinds that are not
    /// five-tuples.
    pub matches: Vec<Match>,
}

impl RuleSet {
    /// What `ovs-ofctl add-flows` reads.
    pub fn text(&self) -> String {
        self.lines.join("\n") + "\n"
    }

    /// Distinct masks among the OpenFlow flows, over all tables.
    pub fn masks(&self) -> usize {
        self.lines.iter().map(|l| mask_of(l)).collect::<HashSet<_>>().len()
    }
}

/// A line's table, field names and field masks.
fn mask_of(line: &str) -> String {
    let matched = line.split(",actions=").next().unwrap_or_default();
    let part = |field: &str| match field.split_once('=') {
        Some(("priority", _)) => String::new(),
        Some(("table", _)) | None => field.to_string(),
        Some((name, value)) => match value.split_once('/') {
            Some((_, mask)) => format!("{name}/{mask}"),
            None => name.to_string(),
        },
    };
    matched.split(',').map(part).collect::<Vec<_>>().join(",")
}

impl Rules {
    /// Makes them.
    ///
    /// # Errors
    /// A number is out of bounds.
    pub fn build(&self) -> Result<RuleSet> {
        use RuleKind::{Antrea, Neutron, Ovn, OvnCt};
        let most =
            if matches!(self.kind, Antrea | Neutron | Ovn | OvnCt) { 1 << 12 } else { 1 << 20 };
        if self.count == 0 || self.count > most {
            bail!("rules: count is {}, 1 to {most} are possible", self.count);
        }
        if self.masks == 0 || self.masks > 1024 {
            bail!("rules: masks is {}, 1 to 1024 are possible", self.masks);
        }
        let mut random = Random::new(self.seed);
        Ok(match self.kind {
            RuleKind::Port => plain(vec!["in_port=1,actions=output:2".into()]),
            RuleKind::L3 => plain((0..self.count).map(l3).collect()),
            RuleKind::Dmac => plain((0..self.count).map(dmac).collect()),
            RuleKind::Vxlan => plain((0..self.count).map(|i| vxlan(i, self.masks)).collect()),
            RuleKind::Exact => plain(exact()),
            RuleKind::Mixed => five_tuples(mixed::rules(self.count, self.masks, &mut random)?),
            RuleKind::Acl => five_tuples(acl::rules(self.count, &mut random)),
            RuleKind::Explosion => explosion::rules(),
            RuleKind::Ct => plain(ct("", "")),
            RuleKind::CtNat => plain(ct("nat,", "nat(dst=17.0.0.1),")),
            RuleKind::Ovn => ovn::rules(self.count, &mut random),
            RuleKind::Neutron => plain(clouds::neutron(self.count)),
            RuleKind::Antrea => plain(clouds::antrea(self.count)),
            RuleKind::OvnCt => plain(clouds::ovn(self.count)),
        })
    }
}

fn plain(lines: Vec<String>) -> RuleSet {
    RuleSet { lines, ..RuleSet::default() }
}

fn l3(i: u32) -> String {
    let [a, b, c, _] = (0x1000_0000 + (i << 8)).to_be_bytes();
    format!("priority=10,ip,nw_dst={a}.{b}.{c}.0/24,actions=output:2")
}

fn dmac(i: u32) -> String {
    let [_, x, y, z] = i.to_be_bytes();
    format!("priority=10,dl_dst=02:00:00:{x:02x}:{y:02x}:{z:02x},actions=output:2")
}

fn vxlan(i: u32, vnis: u32) -> String {
    let [_, x, y, z] = i.to_be_bytes();
    let vni = 100 + i % vnis;
    format!("priority=10,tun_id={vni},dl_dst=02:00:01:{x:02x}:{y:02x}:{z:02x},actions=output:2")
}

/// Untracked packets through `ct`; connections to the server are committed.
fn ct(known: &str, new: &str) -> Vec<String> {
    vec![
        format!("table=0,priority=10,ip,ct_state=-trk,actions=ct({known}zone=5,table=1)"),
        format!(
            "table=1,priority=10,tcp,ct_state=+trk+new,tp_dst=5001,actions=ct(commit,{new}zone=5),output:2"
        ),
        "table=1,priority=9,ip,ct_state=+trk+est,actions=output:2".into(),
        "table=1,priority=1,ip,actions=output:2".into(),
    ]
}

/// Flow f of kind `udp4` has source port 1024 + the low 14 bits, and all its bits in the source
/// address.
fn exact() -> Vec<String> {
    let ports = (0..1 << 14)
        .map(|i| format!("table=0,priority=10,udp,tp_src={},actions=goto_table:1", 1024 + i));
    let sources = (0..1u32 << 14).map(|i| {
        let address = std::net::Ipv4Addr::from(i << 14);
        format!("table=1,priority=10,ip,nw_src={address}/15.255.192.0,actions=output:2")
    });
    ports.chain(sources).collect()
}

/// Rules, the first of which is the most important, and a template of each.
fn five_tuples(matches: Vec<Match>) -> RuleSet {
    let n = matches.len();
    let priority = |i: usize| 60000 - (i * 50000 / n);
    let line = |(i, m): (usize, &Match)| format!("priority={},{m},actions=output:2", priority(i));
    RuleSet {
        lines: matches.iter().enumerate().map(line).collect(),
        flows: Some(FlowTable { seen: matches.iter().map(Match::template).collect(), new: vec![] }),
        matches,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(kind: RuleKind, count: u32, masks: u32, seed: u64) -> RuleSet {
        Rules { kind, count, masks, seed }.build().unwrap()
    }

    #[test]
    fn rules_are_the_networks_that_the_generator_sends_to() {
        let set = build(RuleKind::L3, 1000, 1, 1);
        assert_eq!((set.lines.len(), set.masks()), (1000, 1));
        let last = set.lines.last().unwrap();
        assert_eq!(last, "priority=10,ip,nw_dst=16.3.231.0/24,actions=output:2");
        let set = build(RuleKind::Dmac, 258, 1, 1);
        assert!(set.text().ends_with("dl_dst=02:00:00:00:01:01,actions=output:2\n"));
        let set = build(RuleKind::Vxlan, 1000, 10, 1);
        assert_eq!(set.masks(), 1);
        assert!(set.text().ends_with("tun_id=109,dl_dst=02:00:01:00:03:e7,actions=output:2\n"));
        assert_eq!(build(RuleKind::Port, 1, 1, 1).text(), "in_port=1,actions=output:2\n");
        assert_eq!(build(RuleKind::Exact, 1, 1, 1).masks(), 2);
    }

    #[test]
    fn bad_numbers_are_refused() {
        assert!(Rules { count: 0, ..Rules::default() }.build().is_err());
        assert!(Rules { count: 2 << 20, ..Rules::default() }.build().is_err());
        assert!(Rules { kind: RuleKind::Mixed, count: 9, masks: 41, seed: 1 }.build().is_err());
    }

    #[test]
    fn a_seed_repeats_a_set_and_another_makes_another() {
        for kind in [RuleKind::Mixed, RuleKind::Acl, RuleKind::Ovn] {
            assert_eq!(build(kind, 500, 8, 7), build(kind, 500, 8, 7));
            assert_ne!(build(kind, 500, 8, 7).lines, build(kind, 500, 8, 8).lines);
        }
    }

    #[test]
    fn sets_have_the_masks_and_sizes_that_were_asked_for() {
        for (count, masks) in [(1000, 8), (7000, 8), (10000, 40)] {
            let set = build(RuleKind::Mixed, count, masks, 1);
            assert_eq!((set.lines.len(), set.masks()), (count as usize, masks as usize));
        }
        let set = build(RuleKind::Acl, 1000, 1, 1);
        assert_eq!(set.lines.len(), 1000);
        assert!((50..400).contains(&set.masks()), "{}", set.masks());
        let lines: HashSet<_> = set.lines.iter().map(|l| l.split_once(',').unwrap().1).collect();
        assert_eq!(lines.len(), 1000, "a rule twice");
    }

    #[test]
    fn every_flow_hits_the_rule_of_its_template() {
        for set in [
            build(RuleKind::Mixed, 1000, 40, 1),
            build(RuleKind::Acl, 1000, 1, 3),
            build(RuleKind::Explosion, 1, 1, 1),
        ] {
            let flows = set.flows.unwrap();
            for number in 0..5000 {
                let m = &set.matches[number as usize % flows.seen.len()];
                assert!(m.hits(&flows.flow(number, u32::MAX)), "{m} {number}");
            }
        }
    }

    #[test]
    fn flows_are_many_where_rules_leave_room() {
        let set = build(RuleKind::Mixed, 1000, 8, 1);
        let flows = set.flows.unwrap();
        let seen: HashSet<_> = (0..100_000).map(|f| flows.flow(f, u32::MAX)).collect();
        assert!(seen.len() > 95_000, "{}", seen.len());
    }

    #[test]
    fn an_attacker_misses_every_rule_but_the_last_in_its_own_way() {
        let set = build(RuleKind::Explosion, 1, 1, 1);
        let flows = set.flows.unwrap();
        assert_eq!(flows.new.len(), 32 * 16 * 16);
        for number in 1000..1000 + 2 * flows.new.len() as u32 {
            let flow = flows.flow(number, 1000);
            assert!(!set.matches.iter().any(|m| m.hits(&flow)), "{flow:?}");
        }
    }
}
