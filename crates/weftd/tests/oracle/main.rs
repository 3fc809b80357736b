//! The installed OVS as oracle: the same flows and packets into Debian's ovs-vswitchd and into
//! weftd; traces, packets, flow dumps and errors must be the same.
//!
//! Flows and packets are made from seeds: `ORACLE_SEED=n cargo test -p weftd --test oracle` runs
//! one set alone. What legitimately differs is in `docs/decisions/0004-differences-from-ovs.md`.

mod actions;
mod compare;
mod ct;
mod flows;
mod packets;
mod rig;

use compare::Trace;
use flows::{Besides, Set};
use packets::Packet;
use rig::Rig;
use std::path::Path;
use testkit::{Netns, SwitchConfig, privileged, to_hex};

const SETS: u64 = 45;
/// The last ones of them, with connection tracking.
const CT_SETS: u64 = 15;
/// After these come some with network service headers.
const NSH_SETS: u64 = 15;
/// Packets of a set that are really sent.
const SENT: usize = 4;
const VERSIONS: [&str; 4] = ["OpenFlow10", "OpenFlow13", "OpenFlow14", "OpenFlow15"];
/// Differences after which there is no point in going on.
const ENOUGH: usize = 40;

fn usable() -> bool {
    let there = Path::new(&SwitchConfig::oracle().daemon).exists();
    privileged() && testkit::available(there, "the package openvswitch-switch")
}

/// Both switches and what was found.
struct Pair<'a> {
    ovs: Rig<'a>,
    weft: Rig<'a>,
    found: Vec<String>,
    count: Count,
    serial: u32,
}

#[derive(Default, Debug)]
struct Count {
    flows: usize,
    refused: usize,
    traces: usize,
    sent: usize,
    frames_out: usize,
    three_tags: usize,
    same_megaflow: usize,
    more_fields: usize,
    fewer_fields: usize,
}

impl<'a> Pair<'a> {
    fn start(a: &'a Netns, b: &'a Netns) -> Pair<'a> {
        let ovs = Rig::start("ovs", a, SwitchConfig::oracle()).unwrap();
        let weft = SwitchConfig::new(env!("CARGO_BIN_EXE_weftd"));
        let weft = Rig::start("weft", b, weft).unwrap();
        for rig in [&ovs, &weft] {
            let words = ["-O", "OpenFlow15", "add-groups", "br0", "-"];
            rig.switch.ofctl_stdin(&words, actions::GROUPS).unwrap();
        }
        Pair { ovs, weft, found: vec![], count: Count::default(), serial: 0 }
    }

    fn differ(&mut self, what: &str, seed: u64, ovs: &str, weft: &str) {
        let how = format!("repeat with ORACLE_SEED={seed}");
        self.found.push(format!("##### {what} ({how})\n--- OVS\n{ovs}\n--- weft\n{weft}\n"));
    }

    fn run(&mut self, set: &Set) {
        let version = VERSIONS[1 + set.seed as usize % 3];
        let ovs = self.ovs.load(version, &set.flows).unwrap();
        let weft = self.weft.load(version, &set.flows).unwrap();
        self.count.flows += set.flows.len();
        self.count.refused += ovs.iter().flatten().count();
        for (flow, (o, w)) in set.flows.iter().zip(ovs.iter().zip(&weft)) {
            if o != w {
                self.differ(
                    &format!("errors of {flow}"),
                    set.seed,
                    &format!("{o:?}"),
                    &format!("{w:?}"),
                );
            }
        }
        self.dumps(set);
        self.forget();
        let mut r = testkit::Rng::new(set.seed);
        for p in &set.packets {
            let port = format!("in_port={}", p.in_port);
            let next = if set.ct { ct::next(&mut r) } else { Vec::new() };
            if set.ct {
                self.trace(set, &[&[&*flows::exact(p)], &next[..]].concat());
                continue;
            }
            self.trace(set, &[&port, &to_hex(&p.bytes())]);
            // OVS gives ports to later fragments that are described, not to those it parses.
            if !p.headless() {
                self.trace(set, &[&flows::exact(p)]);
            }
        }
        // Packets and connections are compared by tests of their own.
        for p in set.packets[..SENT].iter().filter(|_| !set.ct) {
            self.send(set, p);
        }
    }

    fn forget(&self) {
        self.ovs.forget().unwrap();
        self.weft.forget().unwrap();
    }

    /// Every version's `dump-flows`, and `diff-flows`.
    fn dumps(&mut self, set: &Set) {
        // OpenFlow 1.0 has no instructions: OVS sends lists that ovs-ofctl cannot read.
        let spoken = if set.plain { &VERSIONS[..] } else { &VERSIONS[1..] };
        for version in spoken.iter().copied() {
            let mut ovs = self.ovs.dump(version).unwrap();
            let mut weft = self.weft.dump(version).unwrap();
            if version == "OpenFlow10" {
                without_partial_sets(&mut ovs, &mut weft);
            }
            let only = |a: &[String], b: &[String]| {
                a.iter().filter(|l| !b.contains(l)).cloned().collect::<Vec<_>>().join("\n")
            };
            if ovs != weft {
                let what = format!("dump-flows, {version}");
                self.differ(&what, set.seed, &only(&ovs, &weft), &only(&weft, &ovs));
            }
        }
        let target = |r: &Rig| format!("unix:{}", r.switch.dir().join("br0.mgmt").display());
        let (a, b) = (target(&self.ovs), target(&self.weft));
        match self.ovs.switch.ofctl(&["-O", "OpenFlow14", "diff-flows", &a, &b]) {
            Ok(text) if text.is_empty() => {}
            other => self.differ("diff-flows", set.seed, "", &format!("{other:?}")),
        }
    }

    fn trace(&mut self, set: &Set, args: &[&str]) {
        self.count.traces += 1;
        let words: Vec<_> = ["br0"].iter().chain(args).copied().collect();
        let ask = |rig: &Rig| rig.ask("ofproto/trace", &words).map(|t| Trace::new(rig, &t));
        let (ovs, weft) = match (ask(&self.ovs), ask(&self.weft)) {
            (Ok(o), Ok(w)) => (o, w),
            (o, w) => {
                let text = |t: Result<Trace, String>| t.map_or_else(|e| e, |t| t.whole);
                let what = format!("ofproto/trace {}", words.join(" "));
                return self.differ(&what, set.seed, &text(o), &text(w));
            }
        };
        self.megaflow(&ovs, &weft);
        if ovs.three_tags() {
            // OVS forgets the innermost tag of three, weftd does not.
            self.count.three_tags += 1;
        } else if ovs.decision() != weft.decision() {
            let what = format!("ofproto/trace {}\n{}", words.join(" "), set.flows.join("\n"));
            self.differ(&what, set.seed, &ovs.whole, &weft.whole);
        }
    }

    fn megaflow(&mut self, ovs: &Trace, weft: &Trace) {
        let (o, w) = (ovs.looked_at(), weft.looked_at());
        let c = &mut self.count;
        match (ovs.megaflow == weft.megaflow, o.iter().any(|f| !w.contains(f))) {
            (true, _) => c.same_megaflow += 1,
            (false, true) => c.fewer_fields += 1,
            (false, false) => c.more_fields += 1,
        }
    }

    fn send(&mut self, set: &Set, p: &Packet) {
        self.forget();
        self.serial += 1;
        self.count.sent += 1;
        let bytes = p.bytes();
        let ovs = self.ovs.send(p.in_port, &bytes, self.serial).unwrap();
        let weft = self.weft.send(p.in_port, &bytes, self.serial).unwrap();
        self.count.frames_out += ovs.values().map(Vec::len).sum::<usize>();
        if ovs != weft {
            let lines = |out: &rig::Out| {
                let line = |(p, f): (&u32, &Vec<Vec<u8>>)| {
                    f.iter().map(|f| format!("{p}: {}\n", to_hex(f))).collect::<String>()
                };
                out.iter().map(line).collect::<String>()
            };
            let words = ["br0", &format!("in_port={}", p.in_port), &to_hex(&bytes)];
            let trace = self.weft.ask("ofproto/trace", &words).unwrap_or_default();
            if Trace::new(&self.weft, &trace).three_tags() {
                self.count.three_tags += 1;
                return;
            }
            let what = format!("packet {}\n{}\n{trace}", words.join(" "), set.flows.join("\n"));
            self.differ(&what, set.seed, &lines(&ovs), &lines(&weft));
        }
    }
}

/// OVS tells OpenFlow 1.0 that a set-field with a mask sets the whole field (`mod_nw_dst`), weftd
/// tells of the bits (`load`). Removes such flows from both.
fn without_partial_sets(ovs: &mut Vec<String>, weft: &mut Vec<String>) {
    let matched = |l: &String| l.split(" actions=").next().unwrap_or_default().to_owned();
    let partial = |l: &&String| l.contains("load:") && !ovs.contains(l);
    let told_whole = |m: &String| ovs.iter().any(|l| matched(l) == *m && l.contains("mod_"));
    let odd: Vec<_> = weft.iter().filter(partial).map(matched).filter(told_whole).collect();
    ovs.retain(|l| !odd.contains(&matched(l)));
    weft.retain(|l| !odd.contains(&matched(l)));
}

#[test]
fn same_flows_same_decisions() {
    if !usable() {
        return;
    }
    let (a, b) = (Netns::new().unwrap(), Netns::new().unwrap());
    let mut pair = Pair::start(&a, &b);
    let one = std::env::var("ORACLE_SEED").ok().and_then(|s| s.parse().ok());
    for seed in one.map_or(1..=SETS + NSH_SETS, |s| s..=s) {
        let besides = match seed {
            s if s > SETS => Besides::Nsh,
            s if s > SETS - CT_SETS => Besides::Ct,
            _ => Besides::Nothing,
        };
        pair.run(&flows::set(seed, besides));
        if pair.found.len() >= ENOUGH {
            break;
        }
    }
    println!("{:?}", pair.count);
    assert!(pair.found.is_empty(), "{} differences\n{}", pair.found.len(), pair.found.join("\n"));
    assert!(one.is_some() || pair.count.traces >= 300, "{:?}", pair.count);
}

/// What a switch, not ovs-ofctl, refuses.
const REFUSED: [&str; 6] = [
    "actions=group:999",
    "actions=output:65290",
    "actions=write_actions(group:999)",
    "actions=clone(group:999)",
    "table=254,actions=output:1",
    "check_overlap,priority=5,ip,actions=output:1",
];

#[test]
fn refused_flows_are_refused_alike() {
    if !usable() {
        return;
    }
    let (a, b) = (Netns::new().unwrap(), Netns::new().unwrap());
    let pair = Pair::start(&a, &b);
    let before = "priority=5,tcp,actions=output:2".to_owned();
    let flows: Vec<_> = [before].into_iter().chain(REFUSED.map(str::to_owned)).collect();
    for version in &VERSIONS[1..] {
        let errors = |rig: &Rig| -> Vec<_> {
            flows.iter().zip(rig.load(version, &flows).unwrap()).collect()
        };
        let ovs = errors(&pair.ovs);
        assert_eq!(ovs, errors(&pair.weft), "{version}");
        assert!(ovs.iter().filter(|(_, e)| e.is_some()).count() >= 4, "{ovs:?}");
    }
}
