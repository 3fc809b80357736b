//! Cycles per packet of programs that rewrite: `cargo run --release -p datapath --example act --
//! [MILLISECONDS]`.
//!
//! For each list of operations a source of packets that it is about, one after the other; step 4
//! (act and tx) is what differs. Packets are as they were again when they are received.

#[allow(dead_code)] // what other examples need
mod memory;

use action::{Decision, Op, Pipeline, Request, Rewrite};
use datapath::{Config, Datapath, RxAffinity, WorkerId};
use flow::{Field, Key, at};
use memory::{Borrowed, Mem};
use packet::{HeapPool, Packet, Pool};
use port::RxQueue;
use std::sync::Arc;
use sync::{Domain, Guard};

struct Source {
    ring: Vec<Packet>,
    next: usize,
    bytes: Vec<u8>,
}

impl RxQueue for Source {
    fn rx(&mut self, out: &mut Vec<Packet>, max: usize) -> usize {
        for _ in 0..max {
            // SAFETY: the ring is longer than what is under way, and nothing frees its packets.
            let mut p = unsafe { self.ring[self.next].duplicate() };
            self.next = (self.next + 1) % self.ring.len();
            let (len, want) = (p.len(), self.bytes.len());
            let fits = match len < want {
                true => p.push_front(want - len),
                false => p.pull_front(len - want),
            };
            assert!(fits, "there was room before");
            p.data_mut()[..96].copy_from_slice(&self.bytes[..96]);
            out.push(p);
        }
        max
    }
}

struct Always(Vec<Op>);

impl Pipeline for Always {
    fn resolve(&self, _: Guard<'_>, _: &Request<'_>, out: &mut Decision) {
        Field::EthType.unwildcard(&mut out.mask);
        out.ops.extend(self.0.iter().cloned());
    }
}

/// A frame of 110 bytes: addresses, perhaps a tag, what is behind it.
fn frame(tag: bool, rest: &[u8]) -> Vec<u8> {
    let mut d = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    if tag {
        d.extend([0x81, 0, 0, 7]);
    }
    d.extend(rest);
    d.resize(110, 3);
    d
}

fn ipv4(protocol: u8) -> Vec<u8> {
    let mut h =
        vec![8, 0, 0x45, 0, 0, 80, 0, 1, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    h.extend([8, 0, 0, 2, 0, 60, 1, 1, 0, 0, 0, 0, 0x50, 0x10]);
    h
}

fn ipv6(protocol: u8) -> Vec<u8> {
    let mut h = vec![0x86, 0xdd, 0x60, 0, 0, 0, 0, 50, protocol, 64];
    h.extend([0x20; 32]);
    h.extend([128, 0, 0, 2, 0, 50, 1, 1, 0, 0, 0, 0, 0x50, 0x10]);
    h
}

fn arp() -> Vec<u8> {
    let mut h = vec![8, 6, 0, 1, 8, 0, 6, 4, 0, 1];
    h.extend([1; 20]);
    h
}

/// A set of whole fields, as translation writes it.
fn set(eth_type: u16, protocol: u8, fields: &[(usize, usize)]) -> Op {
    let mut rw = Rewrite { key: Key::ZERO, mask: Key::ZERO };
    for (at, n) in fields {
        rw.key.bytes_mut()[*at..at + n].fill(9);
        rw.mask.bytes_mut()[*at..at + n].fill(0xff);
    }
    if fields[0].0 != at::ETH_DST {
        rw.key.set_u16(at::ETH_TYPE, eth_type);
        rw.key.set_u8(at::PROTO, protocol);
    }
    Op::Set(Box::new(rw))
}

type Case = (&'static str, Vec<u8>, Vec<Op>);

fn cases() -> Vec<Case> {
    const MACS: [(usize, usize); 1] = [(at::ETH_DST, 12)];
    const V4: [(usize, usize); 1] = [(at::IP_SRC, 8)];
    const V6: [(usize, usize); 1] = [(at::IPV6_SRC, 32)];
    const PORTS: [(usize, usize); 1] = [(at::TP_SRC, 4)];
    const TTL: [(usize, usize); 1] = [(at::TTL, 1)];
    const ICMP: [(usize, usize); 2] = [(at::TP_SRC + 1, 1), (at::TP_DST + 1, 1)];
    const ARP: [(usize, usize); 4] =
        [(at::PROTO, 1), (at::ARP_SHA, 12), (at::IP_SRC, 4), (at::IP_DST, 4)];
    const CLASS: [(usize, usize); 2] = [(at::TOS, 1), (at::IPV6_LABEL, 4)];
    let macs = || set(0, 0, &MACS);
    let push = || Op::PushVlan { tpid: 0x8100, tci: 0x1005 };
    let v4 = |tag| frame(tag, &ipv4(17));
    let (v6, nd) = (|tag| frame(tag, &ipv6(6)), frame(false, &ipv6(58)));
    let mut all: Vec<Case> = vec![
        ("out", v4(false), vec![]),
        ("addresses of Ethernet", v4(false), vec![macs()]),
        ("IPv4: route", v4(false), vec![macs(), set(0x800, 0, &TTL)]),
        ("IPv4: UDP NAT", v4(false), vec![set(0x800, 0, &V4), set(0x800, 17, &PORTS)]),
        ("IPv4: ICMP type and code", frame(false, &ipv4(1)), vec![set(0x800, 1, &ICMP)]),
        ("IPv4: addresses of ICMP", frame(false, &ipv4(1)), vec![set(0x800, 0, &V4)]),
        ("IPv6: route", v6(false), vec![macs(), set(0x86dd, 0, &TTL)]),
        ("IPv6: TCP NAT", v6(false), vec![set(0x86dd, 0, &V6), set(0x86dd, 6, &PORTS)]),
        ("IPv6: class and label", v6(false), vec![set(0x86dd, 0, &CLASS)]),
        ("IPv6: ICMPv6 type and code", nd, vec![set(0x86dd, 58, &ICMP)]),
        ("ARP: answer", frame(false, &arp()), vec![macs(), set(0x806, 0, &ARP)]),
        ("tag: push", v4(false), vec![push()]),
        ("tag: pop", v4(true), vec![Op::PopVlan]),
        ("tag: set", v4(true), vec![Op::PopVlan, push()]),
        ("tag: push two", v4(false), vec![push(), push()]),
        ("route and push", v4(false), vec![macs(), set(0x800, 0, &TTL), push()]),
        (
            "IPv6: pop, NAT, push",
            v6(true),
            vec![set(0x86dd, 0, &V6), set(0x86dd, 6, &PORTS), Op::PopVlan, push()],
        ),
    ];
    all.iter_mut().for_each(|(_, _, ops)| ops.push(Op::Output(1)));
    all
}

fn measure((name, bytes, ops): Case, ms: u64) {
    let pool: Arc<dyn Pool> = Arc::new(Borrowed(HeapPool::new()));
    let mut config = Config::new(pool.clone(), Domain::new(), Arc::new(Always(ops)));
    config.manual = true;
    let mut dp = Datapath::new(config).expect("a datapath");
    dp.set_pmd_cores(&[0]).expect("a worker");
    let ring = (0..512).map(|_| pool.packet(&bytes).expect("a heap")).collect();
    let source = Source { ring, next: 0, bytes };
    dp.add_port(Mem::new(Some(Box::new(source)), 1), RxAffinity::default()).expect("a port");
    dp.add_port(Mem::new(None, 1), RxAffinity::default()).expect("a port");
    let mut best = f64::MAX;
    for _ in 0..5 {
        dp.stats_clear(None);
        let end = datapath::now_ms() + ms;
        while datapath::now_ms() < end {
            (0..64).for_each(|_| {
                dp.step();
            });
            dp.poll(datapath::now_ms());
        }
        let perf = dp.perf();
        let p = &perf.iter().find(|(w, _)| *w != WorkerId::Kernel).expect("a worker").1;
        best = best.min(p.act_cycles as f64 / p.passes as f64);
    }
    println!("{name:30} {best:6.1} cycles per packet in step 4, best of five");
}

fn main() {
    let ms = std::env::args().nth(1).map_or(100, |a| a.parse().expect("milliseconds"));
    cases().into_iter().for_each(|case| measure(case, ms));
}
