//! Barriers under traffic, with the real pipeline and real threads: a packet that was received
//! after a change was acknowledged never meets the rules before it.
//!
//! Each packet says what its destination's rule was when it was sent: there, gone (both
//! acknowledged), or being changed. Where it comes out says which rules it met.
mod common;

use action::{Pipeline, Region};
use common::udp;
use datapath::testing::{Peer, ring_port};
use datapath::{Config, Datapath, RxAffinity, Settings, now_ms};
use flow::parse_match;
use ofproto::{BridgeConfig, BridgeId, PortSpec};
use openflow::{Action, FlowMod, FlowModCommand, Instruction, Match};
use packet::HeapPool;
use port::Service;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use sync::Domain;

/// Destinations whose rules come and go.
const FLOWS: usize = 64;
/// Barriers, every other one after so many changes and not one.
const ROUNDS: usize = 200;
const BATCH: usize = 16;
/// Packets on their way, at most.
const AHEAD: usize = 512;

/// A test that waits longer failed.
const WAIT_TIME_MAX: Duration = Duration::from_secs(120);

const CHANGING: u8 = 0;
const THERE: u8 = 1;
const GONE: u8 = 2;
/// Where a packet says so.
const STATE: usize = 42;
/// The low half of the source address.
const SOURCE: std::ops::Range<usize> = 28..30;

struct Control {
    dp: Datapath,
    sw: ofproto::Switch,
    br: BridgeId,
}

impl Control {
    fn flow_mod(&mut self, command: FlowModCommand, priority: u16, matching: &str, output: u32) {
        let (key, mask) = parse_match(matching, &|_| None).expect(matching);
        let instructions = vec![Instruction::Apply(vec![Action::output(output)])];
        let m = FlowMod::new(command, 0, Match::new(key, mask));
        let m = FlowMod { priority, instructions, ..m };
        self.sw.flow_mod(self.br, &m, now_ms() * 1_000_000).expect("a change");
    }

    /// Makes the rule of a destination come or go.
    fn toggle(&mut self, i: usize, there: bool) {
        let command = if there { FlowModCommand::DeleteStrict } else { FlowModCommand::Add };
        self.flow_mod(command, 20, &format!("ip,nw_dst=10.0.0.{i}"), 2);
    }

    /// As `control` answers a barrier: what changed is handed over, and its end awaited.
    fn barrier(&mut self) {
        let regions = self.sw.take_regions();
        self.invalidate(&regions);
    }

    fn invalidate(&mut self, regions: &[Region]) {
        let ticket = self.dp.invalidate(regions);
        let end = Instant::now() + WAIT_TIME_MAX;
        while !self.dp.ticket_done(ticket) {
            assert!(Instant::now() < end, "a barrier without an answer");
            std::thread::yield_now();
        }
    }

    /// Makes every source's packets flows of their own: a rule that no packet matches looks at it.
    fn tell_sources_apart(&mut self) {
        self.flow_mod(FlowModCommand::Add, 30, "ip,nw_src=0.0.255.255/0.0.255.255", 2);
        self.barrier();
    }

    /// Packets of which nothing was asked but what to do with them.
    fn direct(&self) -> u64 {
        self.dp.perf().iter().map(|(_, p)| p.direct).sum()
    }

    /// Keeps house until something has come to pass.
    fn until(&mut self, done: impl Fn() -> bool) {
        let end = Instant::now() + WAIT_TIME_MAX;
        while !done() {
            assert!(Instant::now() < end, "no traffic");
            self.dp.poll(now_ms());
            self.sw.reclaim(64);
            std::thread::yield_now();
        }
    }
}

/// Ports 1 (packets come), 2 (of the rules that come and go) and 3 (of the rule below them).
fn switch(cores: &[usize]) -> (Control, Vec<Peer>) {
    let (pool, domain) = (Arc::new(HeapPool::new()), Domain::new());
    let mut sw = ofproto::Switch::new(domain.writer());
    let br = sw.add_bridge("br0", BridgeConfig::default(), 0).expect("a bridge");
    let pipeline: Arc<dyn Pipeline> = sw.pipeline();
    let mut dp = Datapath::new(Config::new(pool.clone(), domain, pipeline)).expect("a datapath");
    dp.set_settings(Settings { pmd_sleep_max_us: 50, ..Settings::default() });
    dp.set_pmd_cores(cores).expect("workers");
    let peers = (0..3).map(|i| {
        let name = format!("p{i}");
        let (port, peer) = ring_port(&name, Service::Poll, 2, 2, pool.clone());
        let dp_port = Some(dp.add_port(port, RxAffinity::default()).expect("a port"));
        let spec = PortSpec { of_port: i + 1, name, dp_port, ..PortSpec::default() };
        sw.add_port(br, spec).expect("a port");
        peer
    });
    let peers = peers.collect();
    let mut c = Control { dp, sw, br };
    c.flow_mod(FlowModCommand::Add, 10, "ip", 3);
    c.barrier();
    (c, peers)
}

/// What the threads of a test know of each other.
struct Traffic {
    states: [AtomicU8; FLOWS],
    /// No more packets, please; and: there are none.
    pause: AtomicBool,
    paused: AtomicBool,
    stop: AtomicBool,
    /// Packets sent, and seen to come out.
    sent: AtomicUsize,
    received: AtomicUsize,
}

impl Traffic {
    fn new() -> Self {
        let no = || AtomicBool::new(false);
        Traffic {
            states: [const { AtomicU8::new(GONE) }; FLOWS],
            pause: no(),
            paused: no(),
            stop: no(),
            sent: AtomicUsize::new(0),
            received: AtomicUsize::new(0),
        }
    }

    /// Sends to all destinations in turn, on two queues, until the end; from so many sources.
    fn send(&self, peer: &Peer, sources: u16) {
        let mut source = 0;
        let frame = |i: usize| udp(0x0b00_0001, 0x0a00_0000 + i as u32, 1, 2, 64);
        let mut frames: Vec<_> = (0..FLOWS).map(frame).collect();
        while !self.stop.load(Ordering::SeqCst) {
            let pause = self.pause.load(Ordering::SeqCst);
            self.paused.store(pause, Ordering::SeqCst);
            if pause || peer.pending() > AHEAD {
                std::thread::yield_now();
                continue;
            }
            for (i, frame) in frames.iter_mut().enumerate() {
                frame[STATE] = self.states[i].load(Ordering::SeqCst);
                source = (source + 1) % sources;
                frame[SOURCE].copy_from_slice(&source.to_be_bytes());
                peer.send_on(i % 2, frame);
            }
            self.sent.fetch_add(FLOWS, Ordering::SeqCst);
        }
    }

    /// Takes what comes out until the end; counts packets, and those that should not have.
    fn receive(&self, peer: &Peer, wrong: u8) -> (usize, usize) {
        let (mut all, mut bad) = (0, 0);
        while !self.stop.load(Ordering::SeqCst) {
            let frames = peer.drain();
            bad += frames.iter().filter(|f| f[STATE] == wrong).count();
            all += frames.len();
            self.received.fetch_add(frames.len(), Ordering::SeqCst);
            std::thread::sleep(Duration::from_micros(200));
        }
        (all, bad)
    }

    /// Nothing is on its way any more, so that no packet says what holds no longer.
    fn quiet(&self, c: &mut Control) {
        self.pause.store(true, Ordering::SeqCst);
        c.until(|| self.paused.load(Ordering::SeqCst));
        c.until(|| self.received.load(Ordering::SeqCst) == self.sent.load(Ordering::SeqCst));
    }

    /// Changes some rules, awaits the barrier, and only then says so. The packets that come in
    /// between find cached decisions, or make them.
    fn change(&self, c: &mut Control, rules: &[usize], there: &mut [bool; FLOWS]) {
        self.quiet(c);
        rules.iter().for_each(|i| self.states[*i].store(CHANGING, Ordering::SeqCst));
        self.pause.store(false, Ordering::SeqCst);
        self.flows(c);
        // Of every other change the old rules are being asked at the time.
        if rules.len() > 1 {
            c.invalidate(&[Region::ALL]);
        }
        for i in rules {
            c.toggle(*i, there[*i]);
            there[*i] = !there[*i];
        }
        c.barrier();
        for i in rules {
            self.states[*i].store(if there[*i] { THERE } else { GONE }, Ordering::SeqCst);
        }
        self.flows(c);
    }

    /// Waits until every destination's packets came out some times more.
    fn flows(&self, c: &mut Control) {
        let enough = self.received.load(Ordering::SeqCst) + AHEAD + 4 * FLOWS;
        c.until(|| self.received.load(Ordering::SeqCst) >= enough);
    }
}

fn barriers_are_exact(cores: &[usize], sources: u16) {
    let (mut c, peers) = switch(cores);
    let t = Traffic::new();
    c.tell_sources_apart();
    let [of_rules, of_default] = std::thread::scope(|scope| {
        let sinks = [(1, GONE), (2, THERE)].map(|(port, wrong)| {
            let (t, peer) = (&t, &peers[port]);
            scope.spawn(move || t.receive(peer, wrong))
        });
        scope.spawn(|| t.send(&peers[0], sources));
        let run = std::panic::AssertUnwindSafe(|| {
            let mut there = [false; FLOWS];
            let end = Instant::now() + WAIT_TIME_MAX;
            while sources > 1 && c.direct() == 0 {
                assert!(Instant::now() < end, "flows are remembered that never come back");
                t.flows(&mut c);
            }
            for round in 0..ROUNDS {
                let n = if round % 2 == 0 { 1 } else { BATCH };
                let rules: Vec<usize> = (0..n).map(|k| (round * 7 + k) % FLOWS).collect();
                t.change(&mut c, &rules, &mut there);
            }
        });
        let result = std::panic::catch_unwind(run);
        t.stop.store(true, Ordering::SeqCst);
        if let Err(e) = result {
            std::panic::resume_unwind(e);
        }
        sinks.map(|s| s.join().expect("a sink"))
    });
    assert_eq!((of_rules.1, of_default.1), (0, 0), "of {of_rules:?} and {of_default:?} packets");
    assert!(of_rules.0 > ROUNDS && of_default.0 > ROUNDS, "{of_rules:?} {of_default:?}");
}

#[test]
fn no_packet_meets_a_rule_whose_deletion_was_acknowledged() {
    barriers_are_exact(&[0], 1);
}

#[test]
fn nor_on_any_of_two_threads() {
    barriers_are_exact(&[0, 1], 1);
}

#[test]
fn nor_when_flows_are_not_remembered() {
    barriers_are_exact(&[0], u16::MAX);
}
