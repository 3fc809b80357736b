//! The tuple-space explosion of Csikor et al. (CoNEXT 2019): a tenant's packets miss three rules at
//! every possible bit, which makes 8,192 masks. What it may cost the others is counted here.
mod common;

use action::{Decision, Op, Pipeline, Request};
use common::*;
use datapath::{Config, Datapath, PortLookup, RxAffinity, Settings, Tri, WorkerId};
use flow::{Field, Key, Mask};
use packet::HeapPool;
use port::Service;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use sync::{Domain, Guard};

const ALLOWED: [(Field, u128, u32); 3] =
    [(Field::UdpDst, 80, 16), (Field::Ipv4Src, 0x0a00_0001, 32), (Field::UdpSrc, 12345, 16)];

/// Masks one port may have, and the full mask.
const BUDGET: u32 = 193;
const VICTIMS: u32 = 200;
const FLOW_LIMIT: u32 = 1000;

/// Three allow rules and a default drop for each destination; un-wildcards as little as can be.
#[derive(Default)]
struct Rules {
    of_victims: AtomicU64,
    of_attacker: AtomicU64,
}

impl Rules {
    /// Does the packet match? Looks at its bits from the first on, until one differs.
    fn matches(key: &Key, mask: &mut Mask, (field, value, width): (Field, u128, u32)) -> bool {
        let differ = (field.get(key) ^ value) << (128 - width);
        let looked = (differ.leading_zeros() + 1).min(width);
        let bits = u128::MAX << (128 - looked) >> (128 - width);
        field.set(mask, bits | field.get(mask));
        differ == 0
    }
}

impl Pipeline for Rules {
    fn resolve(&self, _: Guard<'_>, request: &Request<'_>, out: &mut Decision) {
        Field::EthType.unwildcard(&mut out.mask);
        Field::Ipv4Dst.unwildcard(&mut out.mask);
        let counter = match Field::UdpDst.get(request.key) {
            80 => &self.of_victims,
            _ => &self.of_attacker,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        if ALLOWED.into_iter().any(|rule| Self::matches(request.key, &mut out.mask, rule)) {
            out.ops.push(Op::Output(2));
        }
    }
}

/// The attacker's packet for one of the 32 x 16 x 16 masks.
fn attack(i: u32) -> Vec<u8> {
    let (src, sport, dport) = (i / 256 % 32, i / 16 % 16, i % 16);
    udp(0x0a00_0001 ^ 0x8000_0000 >> src, 1, 12345 ^ 0x8000 >> sport, 80 ^ 0x8000 >> dport, 64)
}

fn victim(i: u32) -> Vec<u8> {
    udp(77 + i, 0x1000 + i % VICTIMS, 1000, 80, 64)
}

struct Switch {
    dp: Datapath,
    rules: Arc<Rules>,
    peers: Vec<datapath::testing::Peer>,
}

fn switch() -> Switch {
    let (pool, rules) = (Arc::new(HeapPool::new()), Arc::new(Rules::default()));
    let mut config = Config::new(pool.clone(), Domain::new(), rules.clone());
    config.manual = true;
    let mut dp = Datapath::new(config).unwrap();
    dp.set_settings(Settings {
        flow_limit: FLOW_LIMIT,
        signature_cache: Tri::Off,
        ..Settings::default()
    });
    dp.set_pmd_cores(&[0]).unwrap();
    let peers = (0..3).map(|i| {
        let (port, peer) =
            datapath::testing::ring_port(&format!("p{i}"), Service::Poll, 1, 1, pool.clone());
        assert_eq!(dp.add_port(port, RxAffinity::default()).unwrap(), i);
        peer
    });
    let peers = peers.collect();
    Switch { dp, rules, peers }
}

impl Switch {
    fn run(&mut self) {
        while self.dp.step() > 0 {
            self.dp.poll(datapath::now_ms());
        }
        self.peers[2].drain();
    }

    /// Victims' packets, port 0, and the attacker's.
    fn round(&mut self, n: u32, attacker: usize) {
        (0..VICTIMS).for_each(|i| self.peers[0].send(&victim(VICTIMS * n + i)));
        (0..56).for_each(|i| self.peers[attacker].send(&attack(56 * n + i)));
        self.run();
    }

    /// Rounds without the attacker.
    fn victims_only(&mut self, rounds: u32) {
        for _ in 0..rounds {
            (0..VICTIMS).for_each(|i| self.peers[0].send(&victim(i)));
            self.run();
        }
    }

    fn resolved(&self) -> (u64, u64) {
        let of = |n: &AtomicU64| n.load(Ordering::Relaxed);
        (of(&self.rules.of_victims), of(&self.rules.of_attacker))
    }

    fn perf(&self) -> datapath::Perf {
        let mut all = self.dp.perf().into_iter();
        all.find(|(w, _)| *w != WorkerId::Kernel).expect("a PMD thread").1
    }

    /// What the worker reports of a port that goes on getting packets, about once per second.
    fn lookups(&mut self, port: u16) -> PortLookup {
        loop {
            // Enough between two judgements, however slow the machine.
            let packet = if port == 0 { victim } else { attack };
            (0..VICTIMS).for_each(|i| self.peers[usize::from(port)].send(&packet(i)));
            self.run();
            let mut all = self.dp.lookups().into_iter().flat_map(|(_, ports)| ports);
            if let Some(p) = all.find(|p| p.port == port && p.rates.lookups.hits() > 0) {
                return p;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

/// 300 rounds of 200 victims' packets and 56 of the attacker, who comes twice with every mask.
fn explode(attacker: usize) -> Switch {
    let mut s = switch();
    (0..4).for_each(|_| s.round(0, 2));
    let before = s.resolved().0;
    assert_eq!(before, u64::from(VICTIMS));
    for n in 0..300 {
        s.round(n, attacker);
    }
    let (of_victims, of_attacker) = s.resolved();
    assert!(of_attacker >= 8192, "{of_attacker}");
    let perf = s.perf();
    assert!(perf.evicted > 50, "the table was full: {}", perf.evicted);
    assert!(perf.installed < of_attacker / 3, "what is not used is not stored: {}", perf.installed);
    // A flow or two may go when a whole stretch of the table is the victims'.
    assert!(of_victims - before <= 20, "victims' flows stay: {of_victims}");
    s
}

/// How many subtables each victim's packet visits, once all victims' flows are stored: the
/// attacker's last round may have evicted some, which are stored when they come again, and on a
/// machine that stops meanwhile the port is judged by few packets.
fn victims_pay(s: &mut Switch) -> f64 {
    for _ in 0..20 {
        s.victims_only(3);
        s.dp.stats_clear(None);
        s.victims_only(10);
        let p = s.perf();
        if p.misses == 0 {
            return p.subtable_lookups as f64 / p.flow_hits as f64;
        }
    }
    panic!("victims' flows are never all stored: {:?}", s.perf());
}

#[test]
fn another_ports_masks_cost_the_victims_nothing() {
    let mut s = explode(1);
    assert_eq!(victims_pay(&mut s), 1.0);
    let masks = s.dp.pmd_info().iter().map(|p| p.masks).max().unwrap();
    assert!(masks <= BUDGET + 1, "{masks}");
    let victims = s.lookups(0);
    assert_eq!((victims.masks, victims.flows), (1, VICTIMS));
    assert!(s.lookups(1).masks <= BUDGET);
}

#[test]
fn masks_on_the_same_port_are_bounded_and_ranked_behind_the_victims() {
    let mut s = explode(0);
    assert_eq!(victims_pay(&mut s), 1.0);
    let masks = s.dp.pmd_info().iter().map(|p| p.masks).max().unwrap();
    assert!(masks <= BUDGET, "{masks}");
}
