//! What cached flows cost in memory and in time of control: `cargo run --release -p datapath
//! --example fill -- [FLOWS]`.
//!
//! One thread is worker and control in turn. FLOWS UDP flows come, each a rule of its own, every
//! 256 of them twice; a line per tenth of them, then two seconds of control alone, with the longest
//! calls of `poll`.

mod memory;

use action::{Decision, Op, Pipeline, Request};
use datapath::{Config, Datapath, RxAffinity, Settings, Tri, cycles, cycles_per_second, now_ms};
use flow::Field;
use memory::{Borrowed, Mem, cpu_ns, packet};
use packet::{HeapPool, Packet, Pool};
use port::RxQueue;
use std::sync::Arc;
use sync::{Domain, Guard};

/// Packets per round.
const BLOCK: u32 = 256;

struct Source {
    ring: Vec<Packet>,
    sent: u32,
}

impl RxQueue for Source {
    fn rx(&mut self, out: &mut Vec<Packet>, max: usize) -> usize {
        for _ in 0..max {
            // SAFETY: the ring is longer than what is under way, and nothing frees its packets.
            let mut p = unsafe { self.ring[self.sent as usize % self.ring.len()].duplicate() };
            let flow = self.sent / (2 * BLOCK) * BLOCK + self.sent % BLOCK;
            p.data_mut()[30..34].copy_from_slice(&flow.wrapping_mul(0x9e37_79b1).to_be_bytes());
            self.sent += 1;
            out.push(p);
        }
        max
    }
}

/// A rule for each destination.
struct Each;

impl Pipeline for Each {
    fn resolve(&self, _: Guard<'_>, _: &Request<'_>, out: &mut Decision) {
        Field::EthType.unwildcard(&mut out.mask);
        Field::Ipv4Dst.unwildcard(&mut out.mask);
        out.ops.push(Op::Output(1));
        out.credits.push(1);
    }
}

fn resident_mb() -> f64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|n| n.parse::<f64>().ok()).unwrap_or(0.0) / 256.0
}

fn flows(dp: &Datapath) -> u32 {
    dp.pmd_info().iter().map(|i| i.flows).sum()
}

fn main() {
    let most = std::env::args().nth(1).map_or(10_000_000, |n| n.parse().expect("a number"));
    let pool: Arc<dyn Pool> = Arc::new(Borrowed(HeapPool::new()));
    let ring = (0..2048).map(|_| packet(&*pool)).collect();
    let mut config = Config::new(pool, Domain::new(), Arc::new(Each));
    config.manual = true;
    let mut dp = Datapath::new(config).expect("a datapath");
    let cache = Tri::On;
    let s = Settings { flow_limit: 1 << 24, max_idle_ms: 3_600_000, ..Settings::default() };
    dp.set_settings(Settings { signature_cache: cache, ..s });
    dp.set_pmd_cores(&[0]).expect("a worker");
    let source = Source { ring, sent: 0 };
    dp.add_port(Mem::new(Some(Box::new(source)), 1), RxAffinity::default()).expect("a port");
    dp.add_port(Mem::new(None, 1), RxAffinity::default()).expect("a port");
    let (before, start) = (resident_mb(), cpu_ns());
    let mut shown = 0;
    while flows(&dp) < most {
        for _ in 0..4 {
            dp.step();
        }
        dp.poll(now_ms());
        let now = flows(&dp);
        if now / (most / 10).max(1) > shown {
            shown = now / (most / 10).max(1);
            let mb = resident_mb() - before;
            println!("{now} flows: {mb:.0} MB, {:.0} bytes each", mb * 1048576.0 / f64::from(now));
        }
    }
    println!("{} ns of CPU time each", (cpu_ns() - start) / u64::from(most));
    rest(&mut dp);
}

/// Two seconds in which nothing comes.
fn rest(dp: &mut Datapath) {
    let (start, mut longest, mut all, mut polls) = (now_ms(), [0; 4], 0, 0u32);
    while now_ms() < start + 2000 {
        std::thread::sleep(std::time::Duration::from_millis(1));
        let at = cycles();
        dp.poll(now_ms());
        let took = cycles() - at;
        (all, polls) = (all + took, polls + 1);
        longest[0] = longest[0].max(took);
        longest.sort_unstable();
    }
    let at = cycles();
    let mut packets = 0;
    dp.collect(&mut |u| packets += u.packets);
    let collect = cycles() - at;
    let ms = |c: u64| c as f64 * 1e3 / cycles_per_second() as f64;
    println!(
        "{polls} polls, the longest {:.2?} ms, together {:.0} ms of 2 s; collect {:.2} ms, {packets} packets",
        longest.map(ms),
        ms(all),
        ms(collect)
    );
}
