//! Cycles per packet of the five steps: an in-memory source, N rules, a sink.
//!
//! `cargo run --release -p datapath --example loop -- [flows] [rules] [seconds] [cores] [burst]`
//! 64-byte UDP packets from 2048 buffers that rotate as in a NIC's ring. `flows` destinations in
//! turn, each rule takes flows/rules of them, of no rules one takes all by their port; prints what
//! a step of the vector cost. Without `cores` everything is one thread; with it each of so many PMD
//! threads has a source and a sink of its own. A source has at most `burst` packets at a time: what
//! iterations cost.

mod memory;

use action::{Decision, Op, Pipeline, Request};
use datapath::{Config, Datapath, RxAffinity, Settings, Tri, WorkerId, cycles};
use flow::{Field, at};
use memory::{Borrowed, Mem, cpu_ns, packet};
use packet::{HeapPool, Packet, Pool};
use port::RxQueue;
use std::sync::Arc;
use sync::{Domain, Guard};

struct Source {
    ring: Vec<Packet>,
    next: usize,
    flow: u32,
    flows: u32,
    burst: usize,
}

impl RxQueue for Source {
    fn rx(&mut self, out: &mut Vec<Packet>, max: usize) -> usize {
        let max = max.min(self.burst);
        for _ in 0..max {
            // SAFETY: the ring is longer than what is under way, and nothing frees its packets.
            let mut p = unsafe { self.ring[self.next].duplicate() };
            self.next = (self.next + 1) % self.ring.len();
            p.data_mut()[30..34].copy_from_slice(&self.flow.to_be_bytes());
            self.flow = if self.flow + 1 == self.flows { 0 } else { self.flow + 1 };
            out.push(p);
        }
        max
    }
}

/// Flows in blocks of `1 << shift` destinations go one way; None: those of a port do.
struct Blocks {
    shift: Option<u32>,
}
impl Pipeline for Blocks {
    fn resolve(&self, _: Guard<'_>, request: &Request<'_>, out: &mut Decision) {
        if let Some(shift) = self.shift {
            Field::EthType.unwildcard(&mut out.mask);
            Field::Ipv4Dst.set(&mut out.mask, (u32::MAX << shift).into());
        }
        let port = request.key.bytes()[at::IN_PORT..].first_chunk().expect("two bytes");
        out.ops.push(Op::Output(u16::from_be_bytes(*port)));
        out.credits.push(1);
    }
}

/// A datapath with a source for each of these cores.
fn datapath(flows: u32, rules: u32, cores: &[usize], manual: bool, burst: usize) -> Datapath {
    let block = flows.next_power_of_two().checked_div(rules);
    let shift = block.map(|flows| flows.max(1).trailing_zeros());
    let pool: Arc<dyn Pool> = Arc::new(Borrowed(HeapPool::new()));
    let mut config = Config::new(pool.clone(), Domain::new(), Arc::new(Blocks { shift }));
    config.manual = manual;
    let mut dp = Datapath::new(config).unwrap();
    dp.set_settings(Settings {
        flow_limit: 1 << 20,
        signature_cache: Tri::Auto,
        ..Settings::default()
    });
    dp.set_pmd_cores(cores).unwrap();
    for core in cores {
        let ring = (0..2048).map(|_| packet(&*pool)).collect();
        // The kernel worker has a queue too.
        let source = Source { ring, next: 0, flow: 0, flows, burst };
        let port = Mem::new(Some(Box::new(source)), cores.len() + 1);
        dp.add_port(port, RxAffinity([(0, *core)].into())).unwrap();
    }
    dp
}

fn run(dp: &mut Datapath, ms: u64, manual: bool) {
    let end = datapath::now_ms() + ms;
    while datapath::now_ms() < end {
        if !manual {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        for _ in 0..if manual { 64 } else { 0 } {
            dp.step();
        }
        dp.poll(datapath::now_ms());
    }
}

fn main() {
    let mut args = std::env::args().skip(1).map(|a| a.parse::<u32>().expect("a number"));
    let flows = args.next().unwrap_or(1);
    let rules = args.next().unwrap_or(1);
    let rules = if rules == 0 { 0 } else { rules.next_power_of_two() };
    let ms = u64::from(args.next().unwrap_or(2)) * 1000;
    let cores: Vec<usize> = (0..args.next().unwrap_or(0) as usize).collect();
    let manual = cores.is_empty();
    let burst = args.next().unwrap_or(u32::MAX) as usize;
    let mut dp = datapath(flows, rules, if manual { &[0] } else { &cores }, manual, burst);
    run(&mut dp, 500, manual);
    dp.stats_clear(None);
    let (start, cpu) = (cycles(), cpu_ns());
    run(&mut dp, ms, manual);
    let total = cycles() - start;
    let own = (cpu_ns() - cpu) as u128 * datapath::cycles_per_second() as u128 / 1_000_000_000;
    println!("flows {flows}, rules {}", dp.flows().len());
    let mut sum = 0;
    for (_, p) in dp.perf().into_iter().filter(|(w, _)| *w != WorkerId::Kernel) {
        sum += p.passes;
        let per = |c: u64| c as f64 / p.passes as f64;
        if manual {
            println!("cycles/packet of CPU time: {:.1}", per(own as u64));
        }
        println!(
            "packets {}; cycles/packet: {:.1} of wall time: rx {:.1}  parse {:.1}  lookup {:.1}  \
             act+tx {:.1}; {:.2} visits/packet, {:.3} misses/packet",
            p.passes,
            per(total),
            per(p.rx_cycles),
            per(p.parse_cycles),
            per(p.lookup_cycles),
            per(p.act_cycles),
            per(p.subtable_lookups),
            per(p.misses)
        );
    }
    let seconds = total as f64 / datapath::cycles_per_second() as f64;
    println!("Mpps: {:.2}", sum as f64 / seconds / 1e6);
}
