//! What marks of an adapter save: `cargo run --release -p datapath --example marks --
//! [RULES [PERCENT [ROUNDS]]]`.
//!
//! UDP packets of a million flows in random order to RULES networks, which go to one port; packets
//! of PERCENT of the rules come marked in every second half second. Prints cycles per packet by
//! step, least and median of all rounds, without and with marks.

mod memory;

use action::{Decision, Op, Pipeline, Request};
use datapath::{Config, Datapath, RxAffinity, SampleCursor, Settings, WorkerId};
use flow::{Field, at};
use memory::{Borrowed, Mem, cpu_ns, packet};
use offload::{Mark, first_bytes};
use packet::{HeapPool, Packet, Pool};
use port::RxQueue;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use sync::{Domain, Guard};

/// The flag of packets with a mark (`RTE_MBUF_F_RX_FDIR_ID`).
const MARKED: u64 = 1 << 13;
const FLOWS: u32 = 1 << 20;
/// 16.0.0.0, where the networks begin.
const NETWORKS: u32 = 16 << 24;

struct Source {
    ring: Vec<Packet>,
    next: usize,
    state: u64,
    /// By rule; 0: none.
    marks: Arc<[AtomicU32]>,
}

impl RxQueue for Source {
    fn rx(&mut self, out: &mut Vec<Packet>, max: usize) -> usize {
        for _ in 0..max {
            self.state = self.state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let flow = (self.state >> 40) as u32 % FLOWS;
            let rule = flow % self.marks.len() as u32;
            // SAFETY: the ring is longer than what is under way, and nothing frees its packets.
            let mut p = unsafe { self.ring[self.next].duplicate() };
            self.next = (self.next + 1) % self.ring.len();
            let b = p.data_mut();
            b[26..30].copy_from_slice(&(0x3000_0000 + flow).to_be_bytes());
            b[30..34].copy_from_slice(&(NETWORKS + (rule << 8) + flow % 256).to_be_bytes());
            let mark = self.marks[rule as usize].load(Ordering::Relaxed);
            let m = p.mbuf();
            (m.ol_flags, m.hash_hi) = (MARKED * u64::from(mark != 0), mark);
            out.push(p);
        }
        max
    }
}

struct Networks;

impl Pipeline for Networks {
    fn resolve(&self, _: Guard<'_>, _: &Request<'_>, out: &mut Decision) {
        Field::EthType.unwildcard(&mut out.mask);
        Field::Ipv4Dst.set(&mut out.mask, 0xffff_ff00);
        out.ops.push(Op::Output(1));
        out.credits.push(1);
    }
}

/// Binds marks to the megaflows of the first rules; rules and their marks.
fn bind(dp: &mut Datapath, rules: u32) -> Vec<(u32, u32)> {
    let mut flows = Vec::new();
    let mut at = SampleCursor::default();
    while dp.sample(&mut at, 1 << 16, &mut |flow, _, _| flows.push(flow)) {}
    dp.enable_marks(0);
    let mut marks = Vec::new();
    for flow in flows {
        let Some((key, mask, _)) = dp.megaflow(flow) else { continue };
        let rule = (key.u32(at::IP_DST) - NETWORKS) >> 8;
        let Ok((bytes, _)) = first_bytes(&key, &mask) else { continue };
        let mark = Mark::of(rule << 8 | 1).filter(|_| rule < rules);
        if let Some(mark) = mark.filter(|mark| dp.bind_mark(flow, 0, *mark, &bytes)) {
            marks.push((rule, mark.number()));
        }
    }
    marks
}

fn run(dp: &mut Datapath, ms: u64) {
    let end = datapath::now_ms() + ms;
    while datapath::now_ms() < end {
        (0..64).for_each(|_| {
            dp.step();
        });
        dp.poll(datapath::now_ms());
    }
}

/// Cycles per packet: all, parse, lookup, act and tx.
fn measure(dp: &mut Datapath) -> [f64; 4] {
    run(dp, 200);
    dp.stats_clear(None);
    let cpu = cpu_ns();
    run(dp, 300);
    let all = (cpu_ns() - cpu) as f64 * datapath::cycles_per_second() as f64 / 1e9;
    let perf = dp.perf();
    let p = &perf.iter().find(|(w, _)| *w != WorkerId::Kernel).expect("a worker").1;
    [all, p.parse_cycles as f64, p.lookup_cycles as f64, p.act_cycles as f64]
        .map(|c| c / p.passes as f64)
}

fn main() {
    let mut args = std::env::args().skip(1).map(|a| a.parse::<u32>().expect("a number"));
    let rules = args.next().unwrap_or(1000);
    let (percent, rounds) = (args.next().unwrap_or(100), args.next().unwrap_or(7));
    let pool: Arc<dyn Pool> = Arc::new(Borrowed(HeapPool::new()));
    let mut config = Config::new(pool.clone(), Domain::new(), Arc::new(Networks));
    config.manual = true;
    let mut dp = Datapath::new(config).expect("a datapath");
    dp.set_settings(Settings { flow_limit: 1 << 20, ..Settings::default() });
    dp.set_pmd_cores(&[0]).expect("a worker");
    let marks: Arc<[AtomicU32]> = (0..rules).map(|_| AtomicU32::new(0)).collect();
    let ring = (0..2048).map(|_| packet(&*pool)).collect();
    let source = Source { ring, next: 0, state: 1, marks: marks.clone() };
    dp.add_port(Mem::new(Some(Box::new(source)), 1), RxAffinity::default()).expect("a port");
    dp.add_port(Mem::new(None, 1), RxAffinity::default()).expect("a port");
    run(&mut dp, 1000);
    let bound = bind(&mut dp, rules * percent / 100);
    println!("{} of {rules} rules marked", bound.len());
    let mut rows = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        for (marked, rows) in rows.iter_mut().enumerate() {
            dp.ignore_marks(0, marked == 0);
            for (rule, mark) in &bound {
                marks[*rule as usize].store(mark * marked as u32, Ordering::Relaxed);
            }
            rows.push(measure(&mut dp));
        }
    }
    for (name, rows) in ["without", "with marks"].iter().zip(rows) {
        let text = ["all", "parse", "lookup", "act and tx"].iter().enumerate().map(|(i, step)| {
            let mut c: Vec<f64> = rows.iter().map(|r| r[i]).collect();
            c.sort_by(f64::total_cmp);
            format!("{step} {:.1} {:.1}", c[0], c[c.len() / 2])
        });
        println!("{name}: {}", text.collect::<Vec<_>>().join(", "));
    }
}
