//! A table-driven pipeline and packets for the tests.
#![allow(dead_code)]

use action::{Decision, Op, Pipeline, Request};
use datapath::testing::{Peer, ring_port};
use datapath::{Config, Datapath, RxAffinity};
use flow::{Field, Key, Mask, PortNo, at, flag};
use packet::HeapPool;
use port::Service;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use sync::{Domain, Guard, Published};

/// One rule of the fake pipeline.
#[derive(Clone)]
pub struct Rule {
    pub key: Key,
    pub mask: Mask,
    pub ops: Vec<Op>,
    pub credit: u32,
}

/// Rules in order of priority; the first that matches wins, the masks of all before count.
pub struct Rules {
    pub list: Published<Vec<Rule>>,
    pub resolved: AtomicU64,
    /// Decided about alone.
    pub alone: AtomicU64,
    /// One in so many of them with a credit too many; 0: none.
    pub lie: AtomicU64,
    pub cacheable: std::sync::atomic::AtomicBool,
    /// Decisions have an effect.
    pub effects: std::sync::atomic::AtomicBool,
    /// Decisions hold `held`.
    pub holding: std::sync::atomic::AtomicBool,
    pub held: Arc<()>,
    /// Why their packets end that end nowhere else.
    pub why: std::sync::Mutex<Option<telemetry::Drop>>,
}

impl Rules {
    pub fn new(domain: &Domain) -> Arc<Self> {
        Arc::new(Rules {
            list: Published::new(domain.clone(), Vec::new()),
            resolved: AtomicU64::new(0),
            alone: AtomicU64::new(0),
            lie: AtomicU64::new(0),
            cacheable: true.into(),
            effects: false.into(),
            holding: false.into(),
            held: Arc::default(),
            why: Default::default(),
        })
    }
    pub fn decide(&self, guard: Guard<'_>, key: &Key, out: &mut Decision) {
        for r in self.list.read(guard) {
            out.mask.or(&r.mask);
            if key.matches(&r.key, &r.mask) {
                out.ops = r.ops.clone();
                out.credits.push(r.credit);
                break;
            }
        }
        if self.effects.load(Ordering::Relaxed) {
            out.effects = Some(Arc::new(()));
        }
        if self.holding.load(Ordering::Relaxed) {
            out.keep_alive = Some(self.held.clone());
        }
        out.drop = *self.why.lock().unwrap();
        out.cacheable = self.cacheable.load(Ordering::Relaxed);
    }
}

impl Pipeline for Rules {
    fn resolve(&self, guard: Guard<'_>, request: &Request<'_>, out: &mut Decision) {
        self.resolved.fetch_add(1, Ordering::Relaxed);
        // The options are those that the digest is about.
        let fresh = request.key.u32(at::RECIRC) == 0;
        let has = fresh && request.key.u8(at::FLAGS) & flag::TUNNEL_OPTIONS != 0;
        assert_eq!(has, !request.options.is_empty());
        assert!(!has || request.key.u64(at::TUN_OPTIONS) != 0);
        self.decide(guard, request.key, out);
    }

    /// About even destination ports.
    fn resolve_unmasked(&self, guard: Guard<'_>, keys: &mut [Key], out: &mut [Decision]) -> u32 {
        let mut done = 0;
        for (i, (key, out)) in keys.iter_mut().zip(out).enumerate() {
            if key.u32(at::RECIRC) == 0 && key.u16(at::TP_DST) % 2 == 0 {
                let n = self.alone.fetch_add(1, Ordering::Relaxed);
                self.decide(guard, key, out);
                match self.lie.load(Ordering::Relaxed) {
                    every if every > 0 && n.is_multiple_of(every) => out.credits.push(99),
                    _ => {}
                }
                done |= 1 << i;
            }
            key.words[flow::PACKET_LINES * 8..].fill(u64::MAX);
        }
        done
    }
}

/// A rule from fields.
pub fn rule(fields: &[(Field, u128)], ops: Vec<Op>, credit: u32) -> Rule {
    let (mut key, mut mask) = (Key::ZERO, Key::ZERO);
    for (f, v) in fields {
        f.set(&mut key, *v);
        f.unwildcard(&mut mask);
    }
    Rule { key, mask, ops, credit }
}

pub struct Bed {
    pub dp: Datapath,
    pub pool: Arc<HeapPool>,
    pub rules: Arc<Rules>,
    pub domain: Domain,
    pub peers: Vec<Peer>,
    pub nos: Vec<PortNo>,
}

/// A stepped datapath with `n` polled ports 0.. and one PMD.
pub fn bed(n: usize) -> Bed {
    bed_with(n, true, &[0])
}

pub fn bed_with(n: usize, manual: bool, cores: &[usize]) -> Bed {
    let (pool, domain) = (Arc::new(HeapPool::new()), Domain::new());
    let rules = Rules::new(&domain);
    let mut config = Config::new(pool.clone(), domain.clone(), rules.clone());
    config.manual = manual;
    config.max_flows = 1 << 16;
    let dp = Datapath::new(config).unwrap();
    let mut b = Bed { dp, pool, rules, domain, peers: vec![], nos: vec![] };
    b.dp.set_pmd_cores(cores).unwrap();
    for i in 0..n {
        b.add(&format!("p{i}"), Service::Poll);
    }
    b
}

impl Bed {
    pub fn add(&mut self, name: &str, service: Service) -> PortNo {
        self.add_queues(name, service, 1, 4)
    }
    pub fn add_queues(&mut self, name: &str, service: Service, rx: usize, tx: usize) -> PortNo {
        let (port, peer) = ring_port(name, service, rx, tx, self.pool.clone());
        let no = self.dp.add_port(port, RxAffinity::default()).unwrap();
        self.peers.push(peer);
        self.nos.push(no);
        no
    }
    pub fn set_rules(&mut self, rules: Vec<Rule>) {
        self.rules.list.publish(rules);
        let t = self.dp.invalidate(&[action::Region::ALL]);
        self.wait(t);
    }
    pub fn wait(&mut self, t: datapath::Ticket) {
        for _ in 0..1000 {
            if self.dp.ticket_done(t) {
                return;
            }
            self.dp.step();
            std::thread::yield_now();
        }
        panic!("the ticket is never done");
    }
    /// Runs this many iterations of all workers, without the housekeeping of the control side.
    pub fn step(&mut self, n: usize) {
        for _ in 0..n {
            self.dp.step();
        }
    }
    /// Steps until nothing moves. To a kernel port a packet may wait for some more steps: the one
    /// before it seemed to take long if another thread had the core meanwhile.
    pub fn run(&mut self) {
        const STEPS_MAX: usize = 10_000;
        let mut quiet = 0;
        while quiet < 4 || quiet < STEPS_MAX && !self.is_balanced() {
            quiet = if self.dp.step() == 0 { quiet + 1 } else { 0 };
            self.dp.poll(datapath::now_ms());
        }
    }
    /// Sum of collected (packets, bytes) per credit.
    pub fn credits(&mut self) -> std::collections::BTreeMap<u32, (u64, u64)> {
        // Uncached decisions are reported once per millisecond.
        std::thread::sleep(std::time::Duration::from_millis(3));
        self.run();
        let mut all = std::collections::BTreeMap::new();
        self.dp.collect(&mut |u| {
            for c in u.credits {
                let e = all.entry(*c).or_insert((0, 0));
                *e = (e.0 + u.packets, e.1 + u.bytes);
            }
        });
        all
    }
    fn is_balanced(&self) -> bool {
        let (came, went) = self.dp.totals().balance();
        came == went
    }
    pub fn assert_balanced(&self) {
        let t = self.dp.totals();
        let (i, o) = t.balance();
        assert_eq!(i, o, "{t:?}");
    }
}

/// Ethernet/IPv4/UDP, `len` bytes in all, checksums right.
pub fn udp(src: u32, dst: u32, sport: u16, dport: u16, len: usize) -> Vec<u8> {
    let mut p = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    let total = (len - 14) as u16;
    p.extend([0x45, 0]);
    p.extend(total.to_be_bytes());
    p.extend([0, 1, 0, 0, 64, 17, 0, 0]);
    p.extend(src.to_be_bytes());
    p.extend(dst.to_be_bytes());
    p.extend(sport.to_be_bytes());
    p.extend(dport.to_be_bytes());
    p.extend((total - 20).to_be_bytes());
    p.extend([0, 0]);
    p.resize(len, 0x5a);
    let c = !sum(&p[14..34], 0);
    p[24..26].copy_from_slice(&c.to_be_bytes());
    let c = l4_sum(&p);
    p[40..42].copy_from_slice(&c.to_be_bytes());
    p
}

/// One's-complement sum.
pub fn sum(d: &[u8], start: u64) -> u16 {
    let mut s = start;
    for c in d.chunks(2) {
        s += (c[0] as u64) << 8 | c.get(1).copied().unwrap_or(0) as u64;
    }
    while s > 0xffff {
        s = (s & 0xffff) + (s >> 16);
    }
    s as u16
}

/// What the L4 checksum of an untagged IPv4 packet should be (its field is taken as zero).
pub fn l4_sum(p: &[u8]) -> u16 {
    let l4 = 14 + (p[14] & 15) as usize * 4;
    let end = 14 + u16::from_be_bytes([p[16], p[17]]) as usize;
    let mut d = p[l4..end].to_vec();
    let (at, udp) = match p[23] {
        17 => (6, true),
        6 => (16, false),
        _ => (2, false),
    };
    d[at..at + 2].fill(0);
    let pseudo = sum(&p[26..34], p[23] as u64 + (end - l4) as u64) as u64;
    match !sum(&d, if p[23] == 1 { 0 } else { pseudo }) {
        0 if udp => 0xffff,
        c => c,
    }
}
