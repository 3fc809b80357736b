//! Cycles per packet of connection tracking: `cargo run --release -p datapath --example ct --
//! [CONNECTIONS] [none | ct | v6 | zone | nat | services | masks | ended | nat-ended] [WINDOWS]
//! [SERVERS] [check]`.
//!
//! TCP connections between an in-memory source and a sink, both directions in turn, in an order
//! that no cache foresees. At first each is opened (SYN, SYN with ACK, data), which is what a new
//! connection costs; then all of them carry data, or (`ended`, `nat-ended`) are opened and reset by
//! four packets each, again and again. Rules are the usual three: what is not tracked
//! goes through `ct`, what is new is committed (`nat`: with a translated source) and sent, what is
//! established is sent. `none`: everything is sent. `v6`: IPv6. `zone`: rules behind `ct` look at
//! the zone, which is not in a key's first 64 bytes. `services`: what is established is sent by a
//! rule of its server, of which there are SERVERS (a power of two, by default 16); `masks`: each of
//! these rules has a mask of its own. The source says that checksums are right, as an adapter does;
//! with `check` it says nothing, as a guest does, and they are checked: of empty segments of 40
//! bytes. Figures are minima and medians of windows of 20 ms.

#[allow(dead_code)] // what other examples need
mod memory;

use action::{Ct, Decision, Nat, NatSide, Op, Pipeline, Request};
use datapath::{Config, Datapath, RxAffinity, WorkerId};
use flow::{Field, Key, at};
use memory::{Borrowed, Mem, packet};
use packet::{HeapPool, Packet, Pool};
use port::RxQueue;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use sync::{Domain, Guard};

/// RTE_MBUF_F_RX_IP_CKSUM_GOOD and L4_CKSUM_GOOD.
const SOUND: u64 = 1 << 7 | 1 << 8;
const WINDOW_MILLIS: u64 = 20;
/// Connections that are opened together: the answer to a SYN comes some vectors later, as a vector
/// commits nothing before all of its packets were tracked.
const OPENED_TOGETHER: u64 = 4096;
/// Steps between two looks at the clock.
const STEPS: usize = 16;

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    None,
    Ct,
    V6,
    Zone,
    Nat,
    Services,
    Masks,
}

/// What the source does: number of the next packet, and whether it opens connections.
#[derive(Default)]
struct Script {
    next: AtomicU64,
    established: AtomicU64,
}

struct Source {
    ring: Vec<Packet>,
    at: usize,
    connections: u64,
    nat: bool,
    v6: bool,
    /// Checksums are known to be right.
    sound: bool,
    /// Connections are opened and reset.
    ends: bool,
    script: Arc<Script>,
}

/// Sequence numbers and flags of a connection's packets: SYN, SYN with ACK, data, data that
/// answers, RST.
const PHASES: [(bool, u32, u32, u8); 5] = [
    (false, 1, 0, 2),
    (true, 1, 2, 0x12),
    (false, 2, 2, 0x10),
    (true, 2, 12, 0x10),
    (false, 12, 2, 0x14),
];
/// The phases of a connection that is opened and reset.
const ENDED_PHASES: [usize; 4] = [0, 1, 2, 4];

/// Packets that open so many connections, and those that fill the last block.
fn packets_to_open(connections: u64) -> u64 {
    3 * connections.next_multiple_of(OPENED_TOGETHER)
}

impl Source {
    fn write(&self, d: &mut [u8], connection: u64, phase: usize) {
        let (reply, seq, ack, flags) = PHASES[phase];
        let (low, high) = (connection as u32 & 0xffff, (connection >> 16) as u32);
        let client = (0x0a00_0000 | high, 1 + (low as u16).wrapping_mul(7) % 65535);
        let source = match self.nat {
            // Translated to one of as many addresses; ports stay.
            true => 0x0b00_0000 | high,
            false => client.0,
        };
        // Ports must differ where `low` does.
        let server = (0x1400_0000 | low, 80u16);
        let (src, dst, ports) = match reply {
            false => (client.0, server.0, u32::from(client.1) << 16 | u32::from(server.1)),
            true => (server.0, source, u32::from(server.1) << 16 | u32::from(client.1)),
        };
        let at = if self.v6 { 54 } else { 34 };
        if self.v6 {
            d[34..38].copy_from_slice(&src.to_be_bytes());
            d[50..54].copy_from_slice(&dst.to_be_bytes());
        } else {
            d[24..26].fill(0);
            d[26..30].copy_from_slice(&src.to_be_bytes());
            d[30..34].copy_from_slice(&dst.to_be_bytes());
        }
        let tcp = &mut d[at..at + 20];
        tcp[..4].copy_from_slice(&ports.to_be_bytes());
        tcp[4..8].copy_from_slice(&seq.to_be_bytes());
        tcp[8..12].copy_from_slice(&ack.to_be_bytes());
        tcp[12..14].copy_from_slice(&[0x50, flags]);
        tcp[14..16].copy_from_slice(&60000u16.to_be_bytes());
        if !self.sound {
            fill_checksums(d);
        }
    }
}

/// An empty segment of TCP over IPv6, to be given addresses and the rest.
fn headers_v6() -> Vec<u8> {
    let mut p = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x86, 0xdd];
    p.extend([0x60, 0, 0, 0, 0, 20, 6, 64]);
    p.resize(14 + 40 + 20, 0);
    p
}

/// Fills the checksums of an IPv4 packet that is an empty segment of TCP.
fn fill_checksums(d: &mut [u8]) {
    (d[16..18]).copy_from_slice(&40u16.to_be_bytes());
    d[24..26].fill(0);
    let sum = wire::checksum::internet(&d[14..34]);
    d[24..26].copy_from_slice(&sum.to_be_bytes());
    d[50..52].fill(0);
    let [src, dst] = [26, 30].map(|at| d[at..at + 4].try_into().expect("four bytes"));
    let pseudo = wire::checksum::pseudo_v4(src, dst, 6, 20);
    let sum = pseudo.bytes(&d[34..54]).finish();
    d[50..52].copy_from_slice(&sum.to_be_bytes());
}

impl RxQueue for Source {
    fn rx(&mut self, out: &mut Vec<Packet>, max: usize) -> usize {
        let from = self.script.next.load(Relaxed);
        let established = self.script.established.load(Relaxed) != 0;
        let end = if established { u64::MAX } else { packets_to_open(self.connections) };
        let n = (max as u64).min(end - from);
        for k in from..from + n {
            // SAFETY: the ring is longer than what is under way, and nothing frees its packets.
            let mut p = unsafe { self.ring[self.at].duplicate() };
            self.at = (self.at + 1) % self.ring.len();
            let (connection, phase) = match established {
                true if self.ends => {
                    let (block, k) = (k / (4 * OPENED_TOGETHER), k % (4 * OPENED_TOGETHER));
                    let connection = block * OPENED_TOGETHER + k % OPENED_TOGETHER;
                    let blocks = self.connections.next_multiple_of(OPENED_TOGETHER);
                    (connection % blocks, ENDED_PHASES[(k / OPENED_TOGETHER) as usize])
                }
                // Neighbours in time are not neighbours in memory, and directions are mixed.
                true => {
                    let mixed = (k ^ k >> 7).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    let direction = (mixed ^ mixed << 29).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 63;
                    (k.wrapping_mul(0x9e37_79b1) % self.connections, 2 + direction as usize)
                }
                false => {
                    let (block, k) = (k / (3 * OPENED_TOGETHER), k % (3 * OPENED_TOGETHER));
                    (block * OPENED_TOGETHER + k % OPENED_TOGETHER, (k / OPENED_TOGETHER) as usize)
                }
            };
            self.write(p.data_mut(), connection, phase);
            p.mbuf().ol_flags = if self.sound { SOUND } else { 0 };
            out.push(p);
        }
        self.script.next.store(from + n, Relaxed);
        n as usize
    }
}

/// The mode, and how many servers have rules of their own in it.
struct Rules(Mode, u32);

impl Rules {
    /// As a rule for each server does.
    fn look_at_server(&self, key: &Key, mask: &mut Key) {
        const REPLY: u8 = 1 << 3;
        let reply = key.u8(at::CT_STATE) & REPLY != 0;
        let field = if reply { at::IP_SRC } else { at::IP_DST };
        let servers = self.1 - 1;
        let server = key.u32(field) & servers;
        mask.set_u8(at::CT_STATE, 0x33 | REPLY);
        let own = if self.0 == Mode::Masks { 1 << (servers.count_ones() + server % 12) } else { 0 };
        mask.set_u32(field, servers | own);
    }
}

impl Pipeline for Rules {
    fn resolve(&self, _: Guard<'_>, request: &Request<'_>, out: &mut Decision) {
        Field::EthType.unwildcard(&mut out.mask);
        out.credits.push(1);
        if self.0 == Mode::None {
            out.mask.set_u32(at::RECIRC, u32::MAX);
            return out.ops.push(Op::Output(1));
        }
        let nat = self.0 == Mode::Nat;
        let (state, zone) = (request.key.u8(at::CT_STATE), 5);
        out.mask.set_u32(at::RECIRC, u32::MAX);
        match (request.key.u32(at::RECIRC), state & 1) {
            (0, _) => {
                out.mask.set_u8(at::CT_STATE, 0x20);
                let nat = nat.then(Nat::default);
                out.ops
                    .extend([Op::Ct(Box::new(Ct { zone, nat, ..Ct::default() })), Op::Recirc(1)]);
            }
            (_, 0) => {
                out.mask.set_u8(at::CT_STATE, 0x33);
                if self.0 == Mode::Zone {
                    out.mask.set_u16(at::CT_ZONE, u16::MAX);
                }
                if matches!(self.0, Mode::Services | Mode::Masks) {
                    self.look_at_server(request.key, &mut out.mask);
                }
                out.ops.push(Op::Output(1));
            }
            _ => {
                out.mask.set_u8(at::CT_STATE, 0x33);
                let mut ct = Ct { zone, commit: true, ..Ct::default() };
                if nat {
                    let source = u32::from_be_bytes(
                        *request.key.bytes()[at::IP_SRC..].first_chunk().expect("four bytes"),
                    );
                    // A decision for each client: as `ct(commit, nat(src=...))` of a rule each.
                    out.mask.set_u32(at::IP_SRC, u32::MAX);
                    let to = std::net::Ipv4Addr::from(source & 0xff_ffff | 0x0b00_0000).into();
                    ct.nat = Some(Nat {
                        side: Some(NatSide::Source),
                        addresses: Some((to, to)),
                        ..Nat::default()
                    });
                }
                out.ops.extend([Op::Ct(Box::new(ct)), Op::Output(1)]);
            }
        }
    }
}

fn datapath(
    connections: u64,
    rules: Rules,
    (sound, ends): (bool, bool),
    script: &Arc<Script>,
) -> Datapath {
    let pool: Arc<dyn Pool> = Arc::new(Borrowed(HeapPool::new()));
    let (mode, nat, v6) = (rules.0, rules.0 == Mode::Nat, rules.0 == Mode::V6);
    let mut config = Config::new(pool.clone(), Domain::new(), Arc::new(rules));
    config.manual = true;
    config.conntrack.limits.set_total(connections as u32 + (1 << 20));
    let mut dp = Datapath::new(config).expect("a datapath");
    dp.set_pmd_cores(&[0]).expect("a worker");
    let packets = (0..2048).map(|_| {
        if mode == Mode::V6 {
            return pool.packet(&headers_v6()).expect("a heap");
        }
        let mut p = packet(&*pool);
        p.data_mut()[23] = 6;
        p
    });
    let ring: Vec<Packet> = packets.collect();
    let source = Source { ring, at: 0, connections, nat, v6, sound, ends, script: script.clone() };
    dp.add_port(Mem::new(Some(Box::new(source)), 1), RxAffinity::default()).expect("a port");
    dp.add_port(Mem::new(None, 1), RxAffinity::default()).expect("a port");
    dp
}

/// Cycles per packet of some time; None: nothing came.
fn window(dp: &mut Datapath) -> Option<[f64; 5]> {
    dp.stats_clear(None);
    let end = datapath::now_ms() + WINDOW_MILLIS;
    while datapath::now_ms() < end {
        (0..STEPS).for_each(|_| {
            dp.step();
        });
        dp.poll(datapath::now_ms());
    }
    let perf = dp.perf();
    let p = &perf.iter().find(|(w, _)| *w != WorkerId::Kernel).expect("a worker").1;
    let per = |c: u64| c as f64 / p.rx_packets as f64;
    let stages = [p.busy_cycles, p.rx_cycles, p.parse_cycles, p.lookup_cycles, p.act_cycles];
    (p.rx_packets > 0).then(|| stages.map(per))
}

fn show(what: &str, mut windows: Vec<[f64; 5]>) -> f64 {
    windows.sort_by(|a, b| a[0].total_cmp(&b[0]));
    let (best, median) = (windows[0], windows[windows.len() / 2][0]);
    println!(
        "{what:12} {:7.1} cycles/packet (median {median:.1}): rx {:.1}  parse {:.1}  lookup {:.1}  \
         act+tx {:.1}",
        best[0], best[1], best[2], best[3], best[4]
    );
    median
}

fn resident_mib() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("statm");
    text.split(' ').nth(1).expect("a number").parse::<u64>().expect("a number") / 256
}

fn main() {
    let mut args = std::env::args().skip(1);
    let connections: u64 = args.next().map_or(10_000, |a| a.parse().expect("connections"));
    let mode = args.next();
    let ends = mode.as_ref().is_some_and(|mode| mode.contains("ended"));
    let mode = match mode.as_deref() {
        Some("none") => Mode::None,
        Some("v6") => Mode::V6,
        Some("zone") => Mode::Zone,
        Some("nat" | "nat-ended") => Mode::Nat,
        Some("services") => Mode::Services,
        Some("masks") => Mode::Masks,
        _ => Mode::Ct,
    };
    let windows: usize = args.next().map_or(40, |a| a.parse().expect("windows"));
    let servers: u32 = args.next().map_or(16, |a| a.parse().expect("servers"));
    let sound = args.next().is_none();
    assert!(sound || mode != Mode::V6, "checksums of IPv6 are not made");
    assert!(sound || !ends, "a RST is behind ten bytes of data");
    let script = Arc::new(Script::default());
    let mut dp = datapath(connections, Rules(mode, servers), (sound, ends), &script);
    window(&mut dp);
    let before = resident_mib();
    let mut opening = Vec::new();
    while script.next.load(Relaxed) < packets_to_open(connections) {
        opening.extend(window(&mut dp));
    }
    if !opening.is_empty() {
        let median = show("new", opening);
        let rate = datapath::cycles_per_second() as f64 / median / 3.0;
        println!("new connections per second, median: {:.0} k", rate / 1e3);
    }
    println!(
        "connections {}, MiB since the first window {}",
        dp.conntrack().len(),
        resident_mib() - before
    );
    if ends {
        script.next.store(0, Relaxed);
    }
    script.established.store(1, Relaxed);
    window(&mut dp);
    let from = script.next.load(Relaxed);
    show(
        if ends { "ended" } else { "established" },
        (0..windows).filter_map(|_| window(&mut dp)).collect(),
    );
    println!("packets in established: {}", script.next.load(Relaxed) - from);
}
