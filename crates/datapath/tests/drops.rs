//! Every reason for which the packet side itself ends a packet, provoked. (`too_long`, `tx_full`,
//! `no_port`, `policy` and `recirc_limit` are in `forward.rs`, `miss_time` in `costly.rs`,
//! `action_time` in `long.rs`.)
mod common;

use action::{
    BandConfig, BandKind, Decision, Meter, Op, Pipeline, Punt, PuntClass, Request, Rewrite,
};
use common::{Rule, Rules, rule, udp};
use datapath::testing::{Peer, ring_port};
use datapath::{
    Config, Datapath, EgressPolicer, Policing, PuntRate, RxAffinity, Settings, WorkerId,
};
use flow::{Field, Key};
use packet::{HeapPool, Packet, Pool};
use port::Service;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use sync::{Domain, Guard};
use telemetry::Drop;

/// A pool that can run dry, or make chains.
#[derive(Default)]
struct Moody {
    heap: HeapPool,
    dry: AtomicBool,
    chains: AtomicBool,
}

impl Pool for Moody {
    fn alloc(&self, out: &mut Vec<Packet>, n: usize) -> bool {
        !self.dry.load(Ordering::Relaxed) && self.heap.alloc(out, n)
    }
    fn packet(&self, bytes: &[u8]) -> Option<Packet> {
        let mut p = (!self.dry.load(Ordering::Relaxed)).then(|| self.heap.packet(bytes))??;
        p.mbuf().nb_segs += self.chains.load(Ordering::Relaxed) as u16;
        Some(p)
    }
    fn copy(&self, packet: &Packet) -> Option<Packet> {
        self.packet(packet.data())
    }
    fn free(&self, packets: &[Packet]) {
        self.heap.free(packets);
    }
    fn room(&self) -> usize {
        self.heap.room()
    }
}

/// Says that the pipeline itself gave up.
struct Deep;
impl Pipeline for Deep {
    fn resolve(&self, _: Guard<'_>, _: &Request<'_>, out: &mut Decision) {
        out.drop = Some(Drop::DepthLimit);
    }
}

struct Lab {
    dp: Datapath,
    pool: Arc<Moody>,
    ends: Vec<Peer>,
}

/// Two polled ports 0 and 1 and a kernel port 2, everything stepped.
fn lab(pipeline: Arc<dyn Pipeline>, domain: Domain, settings: Settings) -> Lab {
    let pool = Arc::new(Moody::default());
    let mut config = Config::new(pool.clone(), domain, pipeline);
    (config.manual, config.max_flows) = (true, 1 << 10);
    let mut dp = Datapath::new(config).unwrap();
    dp.set_settings(settings);
    dp.set_pmd_cores(&[0]).unwrap();
    let services = [Service::Poll, Service::Poll, Service::Kernel];
    let mut ends = Vec::new();
    for (i, service) in services.into_iter().enumerate() {
        let (port, end) = ring_port(&format!("p{i}"), service, 1, 2, pool.clone());
        dp.add_port(port, RxAffinity::default()).unwrap();
        ends.push(end);
    }
    Lab { dp, pool, ends }
}

/// With every packet treated alike.
fn always(ops: Vec<Op>, settings: Settings) -> Lab {
    let domain = Domain::new();
    let rules = Rules::new(&domain);
    rules.list.publish(vec![Rule { ops, ..rule(&[], vec![], 1) }]);
    lab(rules, domain, settings)
}

impl Lab {
    fn run(&mut self) {
        let mut quiet = 0;
        while quiet < 4 {
            quiet = if self.dp.step() == 0 { quiet + 1 } else { 0 };
            self.dp.poll(datapath::now_ms());
        }
    }
    /// All `n` packets (`frame`) into port 0, and how many ended for that reason; nothing is lost
    /// or leaked beside.
    fn ends_as(mut self, frame: &[u8], n: usize, why: Drop) -> u64 {
        (0..n).for_each(|_| self.ends[0].send(frame));
        self.run();
        self.count(why)
    }
    fn count(&mut self, why: Drop) -> u64 {
        self.ends.iter().for_each(|e| drop(e.drain()));
        let totals = self.dp.totals();
        let (came, went) = totals.balance();
        assert_eq!(came, went, "{totals:?}");
        assert_eq!(self.pool.heap.in_use(), 0);
        totals.drops[why as usize]
    }
}

fn frame() -> Vec<u8> {
    udp(1, 2, 3, 4, 64)
}

fn punt() -> Op {
    punt_of(PuntClass::Controller)
}

fn punt_of(class: PuntClass) -> Op {
    Op::Punt(Arc::new(Punt { class, max_len: 64, wanted: None, context: Box::new(()) }))
}

#[test]
fn truncated_and_segmented() {
    let out = || always(vec![Op::Output(1)], Settings::default());
    assert_eq!(out().ends_as(&[1; 13], 3, Drop::Truncated), 3);
    let lab = out();
    lab.pool.chains.store(true, Ordering::Relaxed);
    assert_eq!(lab.ends_as(&frame(), 3, Drop::Segmented), 3);
}

#[test]
fn service_headers_that_cannot_be_removed() {
    let pop = || always(vec![Op::PopNsh { framed: true }, Op::Output(1)], Settings::default());
    assert_eq!(pop().ends_as(&frame(), 3, Drop::NshDecap), 3);
    let mut nsh = [&[2; 12][..], &[0x89, 0x4f, 0x0f, 0xc2, 2, 5], &[9; 40]].concat();
    assert_eq!(pop().ends_as(&nsh, 3, Drop::NshDecap), 3, "MPLS is inside");
    nsh[17] = 1;
    assert_eq!(pop().ends_as(&nsh, 3, Drop::NshDecap), 0);
}

#[test]
fn punts_by_rate_and_by_queue() {
    let slow = Settings { punts: PuntRate { per_second: 1, burst: 2 }, ..Settings::default() };
    assert_eq!(always(vec![punt()], slow).ends_as(&frame(), 10, Drop::PuntRate), 8);
    let fast =
        Settings { punts: PuntRate { per_second: 1 << 30, burst: 1 << 20 }, ..Settings::default() };
    let full = always(vec![punt()], fast).ends_as(&frame(), 5_000, Drop::PuntFull);
    assert!((1..5_000).contains(&full), "{full}");
}

#[test]
fn samples_by_rate_and_by_queue() {
    let all = || {
        let ops = Box::new([punt_of(PuntClass::Sample)]);
        vec![Op::Sample { chance: u32::MAX, ops }, Op::Output(1)]
    };
    let slow = Settings { punts: PuntRate { per_second: 1, burst: 2 }, ..Settings::default() };
    assert_eq!(always(all(), slow).ends_as(&frame(), 10, Drop::SampleRate), 8);
    let fast =
        Settings { punts: PuntRate { per_second: 1 << 30, burst: 1 << 20 }, ..Settings::default() };
    let full = always(all(), fast).ends_as(&frame(), 5_000, Drop::SampleFull);
    assert!((1..5_000).contains(&full), "{full}");
}

#[test]
fn no_buffer_for_copies_and_injections() {
    let mut lab = always(vec![Op::Output(1), Op::Output(2)], Settings::default());
    (0..4).for_each(|_| lab.ends[0].send(&frame()));
    lab.pool.dry.store(true, Ordering::Relaxed);
    lab.dp.execute(&frame(), 0, &[Op::Output(1)]).unwrap();
    lab.run();
    assert_eq!(lab.count(Drop::NoBuffer), 5);
}

#[test]
fn actions_that_do_not_fit() {
    let tag = || Op::PushVlan { tpid: 0x8100, tci: 0x1005 };
    let mut many: Vec<Op> = (0..40).map(|_| tag()).collect();
    many.push(Op::Output(1));
    assert_eq!(always(many, Settings::default()).ends_as(&frame(), 2, Drop::NoHeadroom), 2);
    // A UDP port of something that is not even IP.
    let mut set = Rewrite { key: Key::ZERO, mask: Key::ZERO };
    Field::EthType.set(&mut set.key, 0x0800);
    Field::IpProto.set(&mut set.key, 17);
    Field::UdpDst.set(&mut set.key, 9);
    Field::UdpDst.unwildcard(&mut set.mask);
    let ops = vec![Op::Set(Box::new(set)), Op::Output(1)];
    let mut arp = frame();
    (arp[12], arp[13]) = (8, 6);
    assert_eq!(always(ops, Settings::default()).ends_as(&arp, 2, Drop::BadAction), 2);
}

#[test]
fn meters_and_the_pipelines_own_reasons() {
    let metered = |burst| {
        let meter = Arc::new(Meter::new(0));
        let band = BandConfig { rate: 1, burst, kind: BandKind::Drop };
        // Nothing is added for an hour.
        meter.set(&[band], true, datapath::now_ms() + 3_600_000);
        (always(vec![Op::Meter(meter.clone()), Op::Output(1)], Settings::default()), meter)
    };
    for (burst, dropped) in [(5, 0), (2, 3)] {
        let (lab, meter) = metered(burst);
        assert_eq!(lab.ends_as(&frame(), 5, Drop::Meter), dropped);
        let bytes = frame().len() as u64;
        assert_eq!(meter.counted(), ((5, 5 * bytes), vec![(dropped, dropped * bytes)]));
    }
    let deep = lab(Arc::new(Deep), Domain::new(), Settings::default());
    assert_eq!(deep.ends_as(&frame(), 5, Drop::DepthLimit), 5);
}

#[test]
fn more_than_a_port_may_bring() {
    let policed = |limits: Policing| {
        let mut lab = always(vec![Op::Output(1)], Settings::default());
        lab.dp.set_policing(0, limits).unwrap();
        lab
    };
    let bytes = Policing { kbit_rate: 1, kbit_burst: 8, ..Policing::default() };
    // Twenty packets of fifty bytes at once, and five more in two seconds, should the test take as
    // long.
    let lost = policed(bytes).ends_as(&frame(), 300, Drop::Policed);
    assert!((200..=280).contains(&lost), "{lost}");
    assert_eq!(policed(bytes).ends_as(&udp(1, 2, 3, 4, 1400), 300, Drop::Policed), 300);
    let mut lab = policed(bytes);
    let seen = |lab: &mut Lab| {
        (0..300).for_each(|_| lab.ends[0].send(&udp(1, 2, 3, 4, 1400)));
        lab.run();
        let stats = lab.dp.port_stats(0).unwrap();
        (stats.rx_packets, stats.rx_bytes, stats.drops[Drop::Policed as usize])
    };
    assert_eq!(seen(&mut lab), (300, 300 * 1400, 300), "received, and dropped on its port");
    lab.dp.set_policing(1, bytes).unwrap();
    lab.dp.set_policing(0, Policing::default()).unwrap();
    assert_eq!(seen(&mut lab), (600, 600 * 1400, 300), "another port's limit is not its own");
    lab.dp.set_policing(0, bytes).unwrap();
    lab.dp.set_policing(0, bytes).unwrap();
    assert_eq!(seen(&mut lab), (900, 900 * 1400, 600), "set again");
    // A queue that moves to another worker takes the limit along.
    lab.dp.set_pmd_cores(&[1]).unwrap();
    assert_eq!(seen(&mut lab), (1200, 1200 * 1400, 900), "on another core");
    assert_eq!(lab.count(Drop::Policed), 900);
    assert!(lab.dp.set_policing(7, bytes).is_err());
}

/// Packets that are refused count against what a port may bring to a vector: others have their
/// turn.
#[test]
fn refused_packets_are_attempts() {
    let mut lab = always(vec![Op::Output(1)], Settings::default());
    let nothing = Policing { kbit_rate: 1, kbit_burst: 1, ..Policing::default() };
    lab.dp.set_policing(0, nothing).unwrap();
    lab.run();
    (0..10_000).for_each(|_| lab.ends[0].send(&udp(1, 2, 3, 4, 1400)));
    lab.dp.step();
    let refused = lab.dp.port_stats(0).unwrap().drops[Drop::Policed as usize];
    assert!((1..=2 * packet::VECTOR as u64).contains(&refused), "{refused} in one step");
    lab.run();
    assert_eq!(lab.count(Drop::Policed), 10_000);
}

/// As many packets of 64 bytes at once; not one more within the time of a test.
fn packets_at_once(n: u64) -> Option<EgressPolicer> {
    Some(EgressPolicer { cir: 1, cbs: n * (64 - 14) })
}

#[test]
fn more_than_a_port_may_be_sent() {
    for (to, limited, lost) in [(1, 1, 290), (2, 2, 290), (1, 0, 0), (1, 2, 0)] {
        let mut lab = always(vec![Op::Output(to)], Settings::default());
        lab.dp.set_egress(limited, packets_at_once(10)).unwrap();
        (0..300).for_each(|_| lab.ends[0].send(&frame()));
        lab.run();
        let stats = lab.dp.port_stats(to).unwrap();
        assert_eq!(stats.drops[Drop::TxPoliced as usize], lost, "to {to}, {limited} is limited");
        assert_eq!((stats.tx_packets, stats.tx_bytes), (300 - lost, (300 - lost) * 64));
        assert!(lost == 0 || stats.tx_bursts == 1, "{} bursts", stats.tx_bursts);
        assert_eq!(lab.count(Drop::TxPoliced), lost);
    }
    let mut lab = always(vec![Op::Output(1)], Settings::default());
    assert!(lab.dp.set_egress(7, None).is_err());
    let mut sent = |limit, packets: std::ops::Range<u16>| {
        lab.dp.set_egress(1, limit).unwrap();
        packets.clone().for_each(|i| lab.ends[0].send(&udp(1, 2, i, 4, 64)));
        lab.run();
        let sent = lab.ends[1].drain();
        let first: Vec<_> = packets.take(sent.len()).map(|i| udp(1, 2, i, 4, 64)).collect();
        assert_eq!(sent, first);
        sent.len()
    };
    assert_eq!(sent(packets_at_once(10), 0..300), 10);
    assert_eq!(sent(packets_at_once(10), 0..300), 0, "set again");
    assert_eq!(sent(packets_at_once(20), 0..300), 20, "another limit begins with a full bucket");
    assert_eq!(sent(None, 0..300), 300);
    let too_long = Some(EgressPolicer { cir: 1 << 40, cbs: 49 });
    assert_eq!(sent(too_long, 0..300), 0, "longer than the burst");
    assert_eq!(lab.count(Drop::TxPoliced), 290 + 300 + 280 + 300);
}

#[test]
fn workers_share_what_a_port_may_be_sent() {
    let mut lab = always(vec![Op::Output(1)], Settings::default());
    lab.dp.set_egress(1, packets_at_once(10)).unwrap();
    // One thread for each polled port.
    lab.dp.set_pmd_cores(&[1, 2]).unwrap();
    for _ in 0..2 {
        [0, 1].iter().for_each(|from| (0..100).for_each(|_| lab.ends[*from].send(&frame())));
        lab.run();
    }
    let threads: Vec<_> = lab.dp.rxq_info().iter().filter_map(|q| q.worker).collect();
    assert!(threads.contains(&WorkerId::Pmd(1)) && threads.contains(&WorkerId::Pmd(2)));
    assert_eq!(lab.dp.port_stats(1).unwrap().tx_packets, 10);
    assert_eq!(lab.count(Drop::TxPoliced), 390);
}

/// Packets that wait for a busy queue were charged when they were first tried.
#[test]
fn waiting_packets_are_charged_once() {
    let mut lab = always(vec![Op::Output(1)], Settings::default());
    lab.dp.set_egress(1, packets_at_once(40)).unwrap();
    lab.ends[1].make_tx_busy(true);
    for _ in 0..4 {
        (0..10).for_each(|_| lab.ends[0].send(&frame()));
        (0..5).for_each(|_| _ = lab.dp.step());
    }
    assert_eq!(lab.dp.port_stats(1).unwrap().tx_packets, 0);
    lab.ends[1].make_tx_busy(false);
    lab.run();
    assert_eq!(lab.ends[1].drain().len(), 40);
    (0..10).for_each(|_| lab.ends[0].send(&frame()));
    lab.run();
    assert_eq!(lab.count(Drop::TxPoliced), 10);
}

#[test]
fn handoffs_overflow_and_shutdown_lets_go() {
    // One vector of a PMD thread makes more copies for a kernel port than the ring has room for.
    let copies = vec![Op::Output(2); 12];
    let full = always(copies, Settings::default()).ends_as(&frame(), 256, Drop::RingFull);
    assert!(full > 0 && full < 12 * 256, "{full}");
    // One miss per vector: the others wait, and are still waiting when the thread ends.
    let one = Settings { miss_budget: 1, ..Settings::default() };
    let domain = Domain::new();
    let rules = Rules::new(&domain);
    let by_port = rule(&[(Field::UdpDst, 999)], vec![], 0);
    rules.list.publish(vec![by_port, rule(&[], vec![Op::Output(1)], 1)]);
    let mut lab = lab(rules, domain, one);
    (0..200).for_each(|i| lab.ends[0].send(&udp(1, 2, 3, i, 64)));
    lab.dp.step();
    lab.dp.set_pmd_cores(&[]).unwrap();
    lab.dp.shutdown();
    let lost = lab.count(Drop::Shutdown);
    assert!((1..200).contains(&lost), "{lost}");
}

/// The two halves of a datagram; both have their port's share of bytes.
fn halves() -> [Vec<u8>; 2] {
    const FIRST_BYTES: usize = 1400;
    let whole = udp(1, 2, 3, 4, 14 + 20 + FIRST_BYTES + 100);
    let half = |range: std::ops::Range<usize>, frag: u16| {
        let mut p = whole[..34].to_vec();
        p.extend(&whole[34 + range.start..34 + range.end]);
        p[16..18].copy_from_slice(&(20 + range.len() as u16).to_be_bytes());
        p[20..22].copy_from_slice(&frag.to_be_bytes());
        p[24..26].fill(0);
        let c = !common::sum(&p[14..34], 0);
        p[24..26].copy_from_slice(&c.to_be_bytes());
        p
    };
    let last = FIRST_BYTES as u16 / 8;
    [half(0..FIRST_BYTES, 0x2000), half(FIRST_BYTES..FIRST_BYTES + 100, last)]
}

fn tracked() -> Lab {
    let ct = action::Ct { commit: true, ..Default::default() };
    always(vec![Op::Clone([Op::Ct(Box::new(ct)), Op::Output(1)].into())], Settings::default())
}

#[test]
fn a_fragment_without_the_rest_of_its_datagram() {
    let mut lab = tracked();
    lab.dp.conntrack().fragments.set_wait_millis(1);
    let [first, _] = halves();
    lab.ends[0].send(&first);
    lab.run();
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while lab.dp.conntrack().fragments.waiting() > 0 {
        assert!(std::time::Instant::now() < end, "it still waits");
        lab.run();
    }
    lab.run();
    assert_eq!(lab.count(Drop::FragmentTimeout), 1);
}

#[test]
fn fragments_of_a_whole_datagram_go_on_as_they_came() {
    let mut lab = tracked();
    let [first, last] = halves();
    lab.ends[0].send(&last);
    lab.run();
    assert!(lab.ends[1].drain().is_empty(), "it waits for the first one");
    assert_eq!(lab.dp.conntrack().fragments.waiting(), 1);
    lab.ends[0].send(&first);
    lab.run();
    assert_eq!(lab.ends[1].drain(), [first, last]);
    assert_eq!(lab.dp.conntrack().len(), 1, "one connection, with the ports of the first one");
    assert_eq!(lab.count(Drop::FragmentTimeout), 0);
}

/// The first half of a datagram has come.
fn half_there() -> (Lab, [Vec<u8>; 2]) {
    let (mut lab, halves) = (tracked(), halves());
    lab.ends[0].send(&halves[0]);
    lab.run();
    (lab, halves)
}

/// Replaces a port by another one, which gets the number.
fn replace(lab: &mut Lab, no: u16) {
    drop(lab.dp.del_port(no).unwrap());
    let (port, end) = ring_port("new", Service::Poll, 1, 2, lab.pool.clone());
    lab.dp.add_port_at(no, port, RxAffinity::default()).unwrap();
    lab.ends[usize::from(no)].drain();
    lab.ends[usize::from(no)] = end;
}

/// A fragment waits with the operations that were decided when it came.
#[test]
fn fragments_of_and_for_a_removed_port_are_not_those_of_the_next_one() {
    for (no, from) in [(1, 0), (0, 2)] {
        let (mut lab, [_, last]) = half_there();
        replace(&mut lab, no);
        lab.ends[from].send(&last);
        lab.run();
        assert!(lab.ends[1].drain() == [last], "port {no} is another one");
        assert_eq!(lab.count(Drop::NoPort), 1);
    }
}

/// A fragment whose ports stay waits through changes of others.
#[test]
fn fragments_wait_while_other_ports_come_and_go() {
    let (mut lab, [first, last]) = half_there();
    replace(&mut lab, 2);
    lab.dp.set_pmd_cores(&[1]).unwrap();
    lab.ends[0].send(&last);
    lab.run();
    assert!(lab.ends[1].drain() == [first, last]);
    assert_eq!(lab.count(Drop::NoPort), 0);
}

/// Packets beyond the budget of misses wait for the next vectors.
#[test]
fn packets_that_wait_leave_with_their_port() {
    let one = Settings { miss_budget: 1, ..Settings::default() };
    let domain = Domain::new();
    let rules = Rules::new(&domain);
    let by_port = rule(&[(Field::UdpDst, 999)], vec![], 0);
    rules.list.publish(vec![by_port, rule(&[], vec![Op::Output(1)], 1)]);
    let mut lab = lab(rules, domain, one);
    (0..200).for_each(|i| lab.ends[0].send(&udp(1, 2, 3, i, 64)));
    lab.dp.step();
    replace(&mut lab, 0);
    let came = lab.ends[1].drain().len();
    lab.run();
    assert_eq!(lab.ends[1].drain().len(), 0, "after {came} packets");
    assert_eq!(lab.count(Drop::NoPort), 200 - came as u64);
}
