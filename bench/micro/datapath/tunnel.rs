//! Cycles per packet of decapsulation and encapsulation: an in-memory source, 64 rules, a sink, one
//! thread.
//!
//! `cargo run --release -p datapath --example tunnel -- [seconds]` 64-byte UDP packets in VXLAN,
//! Geneve and Geneve with eight bytes of options, from 2048 buffers that rotate as in a NIC's ring,
//! 4,096 flows; and such packets put into the three.

mod memory;

use action::{Decision, Op, Payload, Pipeline, Request, TunnelKind, TunnelPush};
use datapath::{Config, Datapath, RxAffinity, Settings, WorkerId};
use flow::{Field, at};
use memory::{Borrowed, Mem, cpu_ns, packet};
use packet::{HEADROOM, HeapPool, Packet, Pool};
use port::RxQueue;
use std::sync::Arc;
use sync::{Domain, Guard};

const FLOWS: u32 = 4096;
const RULES: u32 = 64;
/// Datapath numbers: the source and sink, the tunnels.
const PHY: u16 = 0;
const TUNNEL: u16 = 7;

/// Packets whose inner destination differs; `outer` in front of them.
struct Source {
    ring: Vec<Packet>,
    next: usize,
    flow: u32,
    outer: usize,
    len: usize,
}

impl RxQueue for Source {
    fn rx(&mut self, out: &mut Vec<Packet>, max: usize) -> usize {
        for _ in 0..max {
            // SAFETY: the ring is longer than what is under way, and nothing frees its packets.
            let mut p = unsafe { self.ring[self.next].duplicate() };
            self.next = (self.next + 1) % self.ring.len();
            p.mbuf().data_off = HEADROOM as u16;
            assert!(p.set_len(self.len));
            p.data_mut()[self.outer + 30..][..4].copy_from_slice(&self.flow.to_be_bytes());
            self.flow = (self.flow + 1) % FLOWS;
            out.push(p);
        }
        max
    }
}

/// Outer packets are decapsulated, inner ones go back; or all are encapsulated.
struct Tunnels {
    kind: TunnelKind,
    push: Option<Vec<Arc<TunnelPush>>>,
}

impl Pipeline for Tunnels {
    fn resolve(&self, _: Guard<'_>, request: &Request<'_>, out: &mut Decision) {
        let port = request.key.bytes()[at::IN_PORT..].first_chunk().expect("two bytes");
        let (port, n) = (u16::from_be_bytes(*port), request.key.bytes()[at::IP_DST + 3]);
        Field::EthType.unwildcard(&mut out.mask);
        out.mask.set_u16(at::IN_PORT, 0xffff);
        out.credits.push(1);
        let push = self.push.as_ref().map(|all| all[usize::from(n) % all.len()].clone());
        if push.is_some() || port == TUNNEL {
            Field::Ipv4Dst.set(&mut out.mask, u128::from(RULES - 1));
            if port == TUNNEL {
                out.mask.set_u64(at::TUN_OPTIONS, !0);
            }
            out.ops.extend(push.map(Op::TunnelPush));
            out.ops.push(Op::Output(PHY));
        } else {
            Field::UdpDst.unwildcard(&mut out.mask);
            out.ops.push(Op::TunnelPop {
                port: TUNNEL,
                kind: self.kind,
                options: [0x0001_0280].into(),
            });
        }
    }
}

/// An outer header as a template, with `words` words of options.
fn header(kind: TunnelKind, words: u8, vni: u8) -> Vec<u8> {
    let mut h =
        vec![2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 8, 0, 0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17];
    h.extend([0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0xc0, 0, 0x12, 0xb5, 0, 0, 0, 0]);
    match kind {
        TunnelKind::Geneve => h.extend([words, 0, 0x65, 0x58, 0, 0, vni, 0]),
        _ => h.extend([8, 0, 0, 0, 0, 0, vni, 0]),
    }
    if words > 0 {
        h.extend([1, 2, 0x80, words - 1]);
        h.extend((1..words).flat_map(|n| [0, 0, 0, n]));
    }
    h
}

/// A packet with the outer header in front.
fn tunnelled(pool: &dyn Pool, header: &[u8]) -> Packet {
    let inner = packet(pool);
    let mut bytes = [header, inner.data()].concat();
    let total = (bytes.len() - 14) as u16;
    bytes[16..18].copy_from_slice(&total.to_be_bytes());
    bytes[38..40].copy_from_slice(&(total - 20).to_be_bytes());
    let sum = wire::checksum::internet(&bytes[14..34]);
    bytes[24..26].copy_from_slice(&sum.to_be_bytes());
    pool.packet(&bytes).expect("memory")
}

fn datapath(kind: TunnelKind, words: u8, push: bool, one_pass: bool) -> Datapath {
    let pool: Arc<dyn Pool> = Arc::new(Borrowed(HeapPool::new()));
    let template = |n: u8| TunnelPush {
        payload: Payload::Frame,
        kind,
        tunnel_port: TUNNEL,
        out_port: PHY,
        header: header(kind, words, n).into(),
        source_ports: (32768, 61000),
    };
    let pushes = push.then(|| (0..10).map(|n| Arc::new(template(n))).collect());
    let rules = Arc::new(Tunnels { kind, push: pushes });
    let mut config = Config::new(pool.clone(), Domain::new(), rules);
    config.manual = true;
    let mut dp = Datapath::new(config).unwrap();
    dp.set_settings(Settings { one_pass, ..Settings::default() });
    dp.set_pmd_cores(&[0]).unwrap();
    let outer = if push { Vec::new() } else { header(kind, words, 42) };
    let make = || if push { packet(&*pool) } else { tunnelled(&*pool, &outer) };
    let ring: Vec<_> = (0..2048).map(|_| make()).collect();
    let len = ring[0].len();
    let source = Source { ring, next: 0, flow: 0, outer: outer.len(), len };
    dp.add_port(Mem::new(Some(Box::new(source)), 2), RxAffinity([(0, 0)].into())).unwrap();
    dp
}

fn run(dp: &mut Datapath, ms: u64) {
    let end = datapath::now_ms() + ms;
    while datapath::now_ms() < end {
        for _ in 0..64 {
            dp.step();
        }
        dp.poll(datapath::now_ms());
    }
}

fn main() {
    let ms = std::env::args().nth(1).map_or(500, |a| a.parse::<u64>().expect("a number") * 1000);
    for (name, kind, words) in [
        ("VXLAN", TunnelKind::Vxlan, 0),
        ("Geneve", TunnelKind::Geneve, 0),
        ("Geneve, options", TunnelKind::Geneve, 2),
    ] {
        for (what, push, one_pass) in [
            ("out of, two steps", false, false),
            ("out of, one pass", false, true),
            ("into", true, true),
        ] {
            let mut dp = datapath(kind, words, push, one_pass);
            run(&mut dp, 200);
            dp.stats_clear(None);
            let cpu = cpu_ns();
            run(&mut dp, ms);
            let hz = u128::from(datapath::cycles_per_second());
            let own = (u128::from(cpu_ns() - cpu) * hz / 1_000_000_000) as u64;
            for (_, p) in dp.perf().into_iter().filter(|(w, _)| *w != WorkerId::Kernel) {
                let per = |c: u64| c as f64 / p.rx_packets as f64;
                println!(
                    "{name:<16}{what:<18}{:6.1} cycles/packet: rx {:.1}  parse {:.1}  lookup {:.1}  act+tx {:.1}; \
                     {:.2} passes, {:.3} misses/packet",
                    per(own),
                    per(p.rx_cycles),
                    per(p.parse_cycles),
                    per(p.lookup_cycles),
                    per(p.act_cycles),
                    per(p.passes),
                    per(p.misses)
                );
            }
        }
    }
}
