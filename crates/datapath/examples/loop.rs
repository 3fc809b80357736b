//! Cycles per packet of the five steps: an in-memory source, N rules, a sink.
//!
//! `cargo run --release -p datapath --example loop -- [flows] [rules] [seconds] [cores]`
//! 64-byte UDP packets from 2048 buffers that rotate as in a NIC's ring. `flows` destinations in turn, each
//! rule takes flows/rules of them; prints what a step of the vector cost. Without `cores` everything is
//! one thread; with it each of so many PMD threads has a source and a sink of its own.

use action::{Decision, Op, Pipeline, Request};
use datapath::{Config, Datapath, RxAffinity, Settings, Tri, WorkerId, cycles};
use flow::{Field, at};
use packet::{HeapPool, Packet, Pool};
use port::{Counters, Link, Port, PortConfig, PortError, RxQueue, Service, TxQueue};
use std::collections::BTreeMap;
use std::sync::Arc;
use sync::Domain;

/// A pool that gives nothing back: the packets belong to the source.
struct Borrowed(HeapPool);
impl Pool for Borrowed {
    fn alloc(&self, out: &mut Vec<Packet>, n: usize) -> bool {
        self.0.alloc(out, n)
    }
    fn free(&self, _: &[Packet]) {}
}

struct Source {
    ring: Vec<Packet>,
    next: usize,
    flow: u32,
    flows: u32,
}

impl RxQueue for Source {
    fn rx(&mut self, out: &mut Vec<Packet>, max: usize) -> usize {
        for _ in 0..max {
            let mut p = self.ring[self.next];
            self.next = (self.next + 1) % self.ring.len();
            p.data_mut()[30..34].copy_from_slice(&self.flow.to_be_bytes());
            self.flow = if self.flow + 1 == self.flows { 0 } else { self.flow + 1 };
            out.push(p);
        }
        max
    }
}

struct Sink;
impl TxQueue for Sink {
    fn tx(&mut self, packets: &[Packet]) -> usize {
        packets.len()
    }
}

struct Mem {
    rx: Option<Source>,
    tx: usize,
}
impl Port for Mem {
    fn name(&self) -> &str {
        "mem"
    }
    fn kind(&self) -> &str {
        "mem"
    }
    fn service(&self) -> Service {
        Service::Poll
    }
    fn n_rxq(&self) -> usize {
        1
    }
    fn n_txq(&self) -> usize {
        self.tx
    }
    fn take_rx(&mut self, _: usize) -> Option<Box<dyn RxQueue>> {
        self.rx.take().map(|r| Box::new(r) as _)
    }
    fn take_tx(&mut self, _: usize) -> Option<Box<dyn TxQueue>> {
        Some(Box::new(Sink))
    }
    fn mac(&self) -> [u8; 6] {
        [0; 6]
    }
    fn mtu(&self) -> u16 {
        1500
    }
    fn link(&mut self) -> Link {
        Link::default()
    }
    fn set_admin_up(&mut self, _: bool) -> Result<(), PortError> {
        Ok(())
    }
    fn counters(&mut self) -> Counters {
        Counters::new()
    }
    fn status(&mut self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }
    fn reconfigure(&mut self, _: &PortConfig) -> Result<bool, PortError> {
        Ok(true)
    }
}

/// Flows in blocks of `1 << shift` destinations go one way.
struct Blocks {
    shift: u32,
}
impl Pipeline for Blocks {
    fn resolve(&self, request: &Request<'_>, out: &mut Decision) {
        let mask = u32::MAX << self.shift;
        Field::EthType.unwildcard(&mut out.mask);
        Field::Ipv4Dst.set(&mut out.mask, mask as u128);
        let port = request.key.bytes()[at::IN_PORT..].first_chunk().expect("two bytes");
        out.ops.push(Op::Output(u16::from_be_bytes(*port)));
        out.credits.push(1);
    }
}

fn packet(pool: &dyn Pool) -> Packet {
    let mut p = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    p.extend([0x45, 0, 0, 50, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 0, 0, 0, 0]);
    p.extend([0, 1, 0, 2, 0, 30, 0, 0]);
    p.resize(64, 0);
    pool.packet(&p).unwrap()
}

/// CPU time of this thread: what other processes take is not ours.
fn cpu_ns() -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is a valid place.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut ts) };
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}

/// A datapath with a source for each of these cores.
fn datapath(flows: u32, rules: u32, cores: &[usize], manual: bool) -> Datapath {
    let shift = (flows.next_power_of_two() / rules).max(1).trailing_zeros();
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
        let port = Mem { rx: Some(Source { ring, next: 0, flow: 0, flows }), tx: cores.len() + 1 };
        dp.add_port(Box::new(port), RxAffinity([(0, *core)].into())).unwrap();
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
    let rules = args.next().unwrap_or(1).next_power_of_two();
    let ms = u64::from(args.next().unwrap_or(2)) * 1000;
    let cores: Vec<usize> = (0..args.next().unwrap_or(0) as usize).collect();
    let manual = cores.is_empty();
    let mut dp = datapath(flows, rules, if manual { &[0] } else { &cores }, manual);
    run(&mut dp, 500, manual);
    dp.stats_clear();
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
