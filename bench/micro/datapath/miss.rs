//! What misses cost with real tables: `cargo run --release -p datapath --example miss -- KIND COUNT
//! FLOWS [NEW [SECONDS [CACHE [turns]]]]`.
//!
//! KIND and COUNT are the lab's rule sets (acl, mixed, exact, ...), those of mixed with 8 masks,
//! from 10,000 rules on with 40; FLOWS their flows, in random order; NEW of 1000 packets are of
//! flows never seen before, with `turns` in every second second only. CACHE is `on`, `off` or
//! `auto`. One core does worker and control in turn; every second is a line: cycles per packet of
//! the worker's steps, per miss, and of control, flows and masks cached, and resident memory.

mod memory;

use ::action::{Decision, Pipeline, Request};
use ::port::RxQueue;
use datapath::{Config, Datapath, RxAffinity, Settings, Tri, WorkerId, cycles};
use flow::{Key, at, parse_match};
use lab::{Flow, FlowTable, Rules};
use memory::{Borrowed, Mem, cpu_ns, packet};
use ofproto::{BridgeConfig, PortSpec, Switch};
use openflow::{Action, FlowMod, FlowModCommand, Instruction, Match};
use packet::{HeapPool, Packet, Pool};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use sync::Domain;

// As in the daemon.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

struct Source {
    ring: Vec<Packet>,
    next: usize,
    flows: u32,
    new: Arc<AtomicU32>,
    fresh: u32,
    state: u64,
    table: Option<FlowTable>,
}

impl Source {
    fn random(&mut self, below: u32) -> u32 {
        self.state =
            self.state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (((self.state >> 32) * u64::from(below)) >> 32) as u32
    }

    fn flow(&mut self) -> Flow {
        let new = self.random(1000) < self.new.load(Ordering::Relaxed);
        let number = match new {
            true => self.fresh,
            false => self.random(self.flows),
        };
        self.fresh += u32::from(new);
        match &self.table {
            Some(t) => t.flow(number, self.flows),
            None => Flow {
                src: 0x3000_0000 | (number & 0x0fff_ffff),
                dst: 0x1000_0000 + (number << 8),
                sport: 1024 + (number & 0x3fff) as u16,
                dport: 9,
                dmac: number,
                protocol: 17,
            },
        }
    }
}

impl RxQueue for Source {
    fn rx(&mut self, out: &mut Vec<Packet>, max: usize) -> usize {
        for _ in 0..max {
            let f = self.flow();
            // SAFETY: the ring is longer than what is under way, and nothing frees its packets.
            let mut p = unsafe { self.ring[self.next].duplicate() };
            self.next = (self.next + 1) % self.ring.len();
            let b = p.data_mut();
            b[23] = f.protocol;
            b[26..30].copy_from_slice(&f.src.to_be_bytes());
            b[30..34].copy_from_slice(&f.dst.to_be_bytes());
            b[34..36].copy_from_slice(&f.sport.to_be_bytes());
            b[36..38].copy_from_slice(&f.dport.to_be_bytes());
            out.push(p);
        }
        max
    }
}

/// A line of the lab's as a flow-mod: priority, table, the match, and output or the next table.
fn flow_mod(line: &str) -> FlowMod {
    let (matched, actions) = line.split_once(",actions=").expect("actions");
    let (mut table, mut priority, mut rest) = (0, 32768, Vec::new());
    for part in matched.split(',') {
        match part.split_once('=') {
            Some(("table", n)) => table = n.parse().expect("a number"),
            Some(("priority", n)) => priority = n.parse().expect("a number"),
            _ => rest.push(part),
        }
    }
    let (key, mask) = parse_match(&rest.join(","), &|_| None).expect("a match");
    let instructions = match actions.split_once(':') {
        Some(("goto_table", n)) => vec![Instruction::Goto(n.parse().expect("a number"))],
        Some(("output", n)) => {
            vec![Instruction::Apply(vec![Action::output(n.parse().expect("a number"))])]
        }
        _ => vec![],
    };
    let matching = Match::new(key, mask);
    FlowMod { priority, instructions, ..FlowMod::new(FlowModCommand::Add, table, matching) }
}

/// The keys of so many packets.
fn keys(source: &mut Source, n: usize) -> Vec<Key> {
    let first = |f: &Flow| {
        let text = format!(
            "in_port=0,{},nw_src=1.1.1.1,nw_dst=1.1.1.1,tp_src=1,tp_dst=1",
            if f.protocol == 6 { "tcp" } else { "udp" }
        );
        parse_match(&text, &|_| None).expect("a match").0
    };
    let flows: Vec<_> = (0..n).map(|_| source.flow()).collect();
    let [tcp, udp] =
        [6, 17].map(|protocol| first(&Flow { protocol, ..*flows.first().expect("a flow") }));
    let key = |f: &Flow| {
        let mut key = if f.protocol == 6 { tcp } else { udp };
        key.set_u32(at::IP_SRC, f.src);
        key.set_u32(at::IP_DST, f.dst);
        key.set_u16(at::TP_SRC, f.sport);
        key.set_u16(at::TP_DST, f.dport);
        key
    };
    flows.iter().map(key).collect()
}

/// Decisions without a datapath, in cycles each: one after the other, side by side, and side by
/// side when the caller does not ask what was looked at.
fn decisions(sw: &Switch, pipeline: &dyn Pipeline, source: &mut Source) -> [f64; 3] {
    const N: usize = 1 << 18;
    let mut keys = keys(source, N);
    let mut d: [Decision; 16] = Default::default();
    let alone = {
        let start = cycles();
        for key in &keys {
            d[0].clear();
            pipeline.resolve(sw.pin(), &Request { key, options: &[], packet: &[] }, &mut d[0]);
        }
        cycles() - start
    };
    let all = {
        let start = cycles();
        for keys in keys.chunks(8) {
            d[..8].iter_mut().for_each(Decision::clear);
            let requests: [_; 8] =
                std::array::from_fn(|i| Request { key: &keys[i], options: &[], packet: &[] });
            pipeline.resolve_all(sw.pin(), &requests, &mut d[..8]);
        }
        cycles() - start
    };
    let once = {
        let start = cycles();
        for keys in keys.chunks_mut(16) {
            d.iter_mut().for_each(Decision::clear_keep_mask);
            std::hint::black_box(pipeline.resolve_unmasked(sw.pin(), keys, &mut d));
        }
        cycles() - start
    };
    [alone, all, once].map(|c| c as f64 / N as f64)
}

fn resident_mb() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) / 256
}

/// A switch with two ports and these rules.
fn switch(lines: &[String], domain: Domain) -> Switch {
    let mut sw = Switch::new(domain.writer());
    let br = sw.add_bridge("br0", BridgeConfig::default(), 0).expect("a bridge");
    for i in 0..2u16 {
        let spec = PortSpec {
            of_port: u32::from(i) + 1,
            name: format!("p{i}"),
            dp_port: Some(i),
            ..PortSpec::default()
        };
        sw.add_port(br, spec).expect("a port");
    }
    for line in lines {
        sw.flow_mod(br, &flow_mod(line), 0).expect("a flow");
    }
    sw.take_regions();
    sw
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number =
        |i: usize, default: u32| args.get(i).map_or(default, |a| a.parse().expect("a number"));
    let kind = args.first().map_or("acl", String::as_str);
    let (count, flows, new, seconds) =
        (number(1, 1000), number(2, 1 << 20), number(3, 0), number(4, 3));
    let kind = serde_json::from_value(serde_json::json!(kind)).expect("a kind of rules");
    let masks = match count {
        ..=4 => 1,
        5..10_000 => 8,
        _ => 40,
    };
    let set = Rules { kind, count, masks, seed: 1 }.build().expect("rules");
    let domain = Domain::new();
    let sw = switch(&set.lines, domain.clone());
    let pool: Arc<dyn Pool> = Arc::new(Borrowed(HeapPool::new()));
    let ring = (0..2048).map(|_| packet(&*pool)).collect();
    let share = Arc::new(AtomicU32::new(new));
    let table = set.flows;
    let mut source =
        Source { ring, next: 0, flows, new: share.clone(), fresh: flows, state: 1, table };
    let pipeline: Arc<dyn Pipeline> = sw.pipeline();
    let [alone, all, once] = decisions(&sw, &*pipeline, &mut source);
    println!(
        "{alone:.0} cycles per decision alone, {all:.0} of eight, {once:.0} of sixteen direct"
    );
    let mut config = Config::new(pool, domain.clone(), pipeline);
    config.manual = true;
    let mut dp = Datapath::new(config).expect("a datapath");
    let signature_cache = match args.get(5).map(String::as_str) {
        Some("on") => Tri::On,
        Some("off") => Tri::Off,
        _ => Tri::Auto,
    };
    dp.set_settings(Settings { flow_limit: 1 << 24, signature_cache, ..Settings::default() });
    dp.set_pmd_cores(&[0]).expect("a worker");
    dp.add_port(Mem::new(Some(Box::new(source)), 1), RxAffinity::default()).expect("a port");
    dp.add_port(Mem::new(None, 1), RxAffinity::default()).expect("a port");
    let turns = args.get(6).is_some();
    for n in 0..seconds {
        if turns {
            share.store(if n % 2 == 0 { 0 } else { new }, Ordering::Relaxed);
            run(&mut dp, 300);
        }
        second(&mut dp);
    }
}

/// For so many milliseconds; says what control took.
fn run(dp: &mut Datapath, ms: u64) -> u64 {
    let end = datapath::now_ms() + ms;
    let mut control = 0;
    while datapath::now_ms() < end {
        for _ in 0..16 {
            dp.step();
        }
        let start = cycles();
        dp.poll(datapath::now_ms());
        control += cycles() - start;
    }
    control
}

fn second(dp: &mut Datapath) {
    dp.stats_clear(None);
    let cpu = cpu_ns();
    let control = run(dp, 1000);
    let cpu = (cpu_ns() - cpu) * (datapath::cycles_per_second() / 1_000_000) / 1000;
    let start = cycles();
    dp.collect(&mut |u| {
        std::hint::black_box(u.packets);
    });
    let collecting = cycles() - start;
    let (_, p) = dp.perf().into_iter().find(|(w, _)| *w != WorkerId::Kernel).expect("a worker");
    let info = dp.pmd_info().into_iter().find(|i| i.worker != WorkerId::Kernel).expect("a worker");
    if p.differences > 0 {
        println!("{} of {} differ from their twins", p.differences, p.validated());
    }
    let per = |c: u64| c as f64 / p.passes.max(1) as f64;
    println!(
        "{:.2} Mpackets, per packet: all {:.0} parse {:.0} lookup {:.0} act {:.0} control {:.0}; misses {:.3} at {:.0} cycles, stored {:.3}; {} flows {} masks cache {}; {:.2} visits; collect {:.1} ms; {} MB",
        p.passes as f64 / 1e6,
        per(cpu),
        per(p.parse_cycles),
        per(p.lookup_cycles),
        per(p.act_cycles),
        per(control),
        per(p.misses),
        p.miss_cycles as f64 / p.misses.max(1) as f64,
        per(p.installed),
        info.flows,
        info.masks,
        info.signature_cache,
        per(p.subtable_lookups),
        collecting as f64 * 1e3 / datapath::cycles_per_second() as f64,
        resident_mb(),
    );
}
