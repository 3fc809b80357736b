//! What a sender can make a kernel port do is bounded by counts: refused frames per receive call,
//! segments per call and per frame, packet buffers held. Each test has a network namespace of its
//! own.

mod common;

use common::{Open, RawSender, config, ip, namespace, numbered, open, veth, wait};
use packet::{BURST, HeapPool, Packet, Pool};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use wire::checksum::pseudo_v4;
use wire::{Ipv4, Tcp};

/// A pool that has packets of one size only, and can run dry.
#[derive(Default)]
struct OneSize(HeapPool, AtomicBool);

impl Pool for OneSize {
    fn alloc(&self, out: &mut Vec<Packet>, n: usize) -> bool {
        !self.1.load(Relaxed) && self.0.alloc(out, n)
    }
    fn free(&self, packets: &[Packet]) {
        self.0.free(packets);
    }
    fn room(&self) -> usize {
        2048
    }
    fn provide(&self, mtu: u32) -> Result<(), String> {
        if mtu > 2000 { Err("no memory".into()) } else { Ok(()) }
    }
}

#[test]
fn refused_frames_count_as_attempts() {
    if !namespace() {
        return;
    }
    veth();
    for (name, kind, far) in [("v0", "system", "v1"), ("tp0", "tap", "tp0")] {
        let pool = Arc::new(OneSize::default());
        let mut port = port::open(&config(name, kind), pool.clone()).unwrap();
        port.set_admin_up(true).unwrap();
        for dev in [name, far] {
            ip(&format!("link set {dev} mtu 4000"));
        }
        let (mut rx, raw) = (port.take_rx(0).unwrap(), RawSender::new(far));
        (0..200).for_each(|n| raw.send(&numbered(n, 3000)));
        raw.send(&numbered(200, 100));
        let refused = |port: &mut dyn port::Port| {
            port.counters().get("rx_drop_too_long").copied().unwrap_or(0)
        };
        let (mut before, mut calls, mut got) = (0, 0, 0);
        let end = Instant::now() + Duration::from_secs(10);
        while got == 0 {
            assert!(Instant::now() < end, "{:?}", port.counters());
            let mut out = Vec::new();
            rx.rx(&mut out, 8);
            let now = refused(&mut *port);
            assert!(now - before <= 8, "{kind}: one call refused {}", now - before);
            (before, calls) = (now, calls + 1);
            got += out.iter().filter(|p| p.data() == numbered(200, 100)).count();
            pool.free(&out);
        }
        assert!(before == 200 && calls >= 25, "{before} frames in {calls} calls");
        assert_eq!(port.counters()["rx_dropped"], 200, "each once");
        let complaint = port.complaint();
        port.link();
        let complaint = complaint.or_else(|| port.complaint()).expect("the log hears of it");
        assert!(complaint.contains("no packet buffers for MTU 4000: no memory"), "{complaint}");
        drop((rx, port));
        assert_eq!(pool.0.in_use(), 0);
    }
}

/// Thousands of ports share a pool: those that wait for frames hold none of its buffers.
#[test]
fn ports_that_wait_hold_no_buffers() {
    if !namespace() {
        return;
    }
    veth();
    for (name, kind, far) in [("v0", "system", "v1"), ("tp0", "tap", "tp0")] {
        let mut o = open(name, kind);
        o.port.set_admin_up(true).unwrap();
        for n in 0..3 {
            RawSender::new(far).send(&numbered(n, 100));
            assert_eq!(o.receive(1, common::is_numbered).len(), 1);
            let mut rest = Vec::new();
            while o.rx.rx(&mut rest, BURST) > 0 {}
            o.pool.free(&rest);
            assert_eq!(o.pool.in_use(), 0, "{kind}");
        }
        o.close();
    }
}

/// A TCP frame with `payload` bytes that is to be cut into segments of `size` bytes, behind its
/// offload header.
fn uncut(payload: usize, size: u16) -> Vec<u8> {
    let mut f = vec![2; 12];
    f.extend([8, 0]);
    f.resize(54, 0);
    f.extend((0..payload).map(|i| i as u8));
    let mut ip = Ipv4::init(&mut f[14..], 20).unwrap();
    ip.set_total_len((payload + 40) as u16);
    ip.set_ttl(64);
    ip.set_proto(wire::IP_TCP);
    ip.set_src([10, 0, 0, 1]);
    ip.set_dst([10, 0, 0, 2]);
    ip.fill_checksum();
    f[46] = 0x50;
    let mut tcp = Tcp::new(&mut f[34..]).unwrap();
    tcp.set_ctl(0x5010);
    tcp.set_checksum(pseudo_v4([10, 0, 0, 1], [10, 0, 0, 2], wire::IP_TCP, payload + 20).fold());
    let mut header = vec![1u8, 1];
    for field in [54, size, 34, 16] {
        header.extend(field.to_ne_bytes());
    }
    [header, f].concat()
}

/// Payload of a frame as long as Linux delivers uncut (less than 65,536 bytes with all headers).
const PAYLOAD: usize = 65_535 - 54;
/// Packets that a port may hold: received frames, empty packets, and what one call returns.
const HELD_MAX: usize = 3 * BURST;

/// Receives in bursts until nothing came for a while; how many packets each call brought. Payloads
/// come in order and whole.
fn drain(o: &mut Open, size: usize) -> Vec<usize> {
    let (mut calls, mut next, mut silent) = (Vec::new(), 0, 0);
    while silent < 3 {
        let mut out = Vec::new();
        let n = o.rx.rx(&mut out, BURST);
        for p in &out {
            let f = p.data();
            assert!(f.len() <= 54 + size && f.len() > 54, "{} bytes", f.len());
            let ip = Ipv4::new(&f[14..]).unwrap();
            let sum = pseudo_v4(ip.src(), ip.dst(), wire::IP_TCP, f.len() - 34);
            assert!(ip.checksum_ok() && sum.bytes(&f[34..]).finish() == 0);
            let at = Tcp::new(&f[34..]).unwrap().seq() as usize;
            assert_eq!(at, next % PAYLOAD, "a segment is missing");
            assert!(f[54..].iter().enumerate().all(|(i, b)| *b == (at + i) as u8));
            next += f.len() - 54;
        }
        o.pool.free(&out);
        if n > 0 {
            (calls, silent) = ([calls, vec![n]].concat(), 0);
        } else {
            silent += 1;
            wait(o.rx.fd().unwrap(), 100);
        }
    }
    calls
}

#[test]
fn tiny_segments_are_refused_by_name() {
    if !namespace() {
        return;
    }
    veth();
    for size in [1, 2, 31] {
        let mut v0 = open("v0", "system");
        let raw = RawSender::offloading("v1");
        (0..40).for_each(|_| raw.send(&uncut(PAYLOAD, size)));
        assert_eq!(drain(&mut v0, size.into()).len(), 0, "calls that brought segments");
        let c = v0.port.counters();
        assert_eq!((c["rx_drop_bad_offload"], c["rx_dropped"], c["rx_packets"]), (40, 40, 0));
        assert!(v0.pool.peak() <= HELD_MAX, "held {} buffers", v0.pool.peak());
        v0.close();
    }
}

#[test]
fn segments_are_made_as_they_are_asked_for() {
    if !namespace() {
        return;
    }
    veth();
    for (frames, size) in [(4, 36), (8, 536), (40, 1448)] {
        let mut v0 = open("v0", "system");
        let raw = RawSender::offloading("v1");
        (0..frames).for_each(|_| raw.send(&uncut(PAYLOAD, size)));
        let calls = drain(&mut v0, size.into());
        let segments = PAYLOAD.div_ceil(size.into()) * frames;
        assert_eq!(calls.iter().sum::<usize>(), segments, "all of {frames} frames, cut to {size}");
        assert!(v0.pool.peak() <= HELD_MAX, "held {} buffers", v0.pool.peak());
        let c = v0.port.counters();
        assert_eq!((c["rx_dropped"], c["rx_packets"]), (0, segments as u64));
        v0.close();
    }
}

#[test]
fn every_segment_of_a_half_cut_frame_is_accounted_for() {
    if !namespace() {
        return;
    }
    veth();
    let pool = Arc::new(OneSize::default());
    let mut port = port::open(&config("v0", "system"), pool.clone()).unwrap();
    let (mut rx, raw) = (port.take_rx(0).unwrap(), RawSender::offloading("v1"));
    let mut burst = |n: usize| {
        let mut out = Vec::new();
        let got = rx.rx(&mut out, n);
        pool.free(&out);
        got
    };
    (0..3).for_each(|_| raw.send(&uncut(PAYLOAD, 536)));
    assert_eq!(burst(5), 5, "the first frame is half cut, others wait");
    pool.1.store(true, Relaxed);
    while burst(BURST) > 0 {}
    let c = port.counters();
    assert_eq!(c["rx_drop_no_buffer"], c["rx_dropped"], "{c:?}");
    assert_eq!(c["rx_packets"] + c["rx_dropped"], 3 * PAYLOAD.div_ceil(536) as u64);
    pool.1.store(false, Relaxed);
    (0..2).for_each(|_| raw.send(&uncut(PAYLOAD, 536)));
    assert_eq!(burst(5), 5, "it goes on when there are buffers again");
    drop((rx, port));
    assert_eq!(pool.0.in_use(), 0, "what a queue held came back when it was closed");
}

#[test]
fn frames_up_to_the_mtu_come_and_go_whole() {
    if !namespace() {
        return;
    }
    veth();
    let mut v0 = open("v0", "system");
    let mut tap = open("tp0", "tap");
    tap.port.set_admin_up(true).unwrap();
    for (mtu, len) in [(1500, 1514), (4000, 4014), (9000, 9014), (2100, 2114)] {
        // The device changes while the port is open.
        for dev in ["v0", "v1", "tp0"] {
            ip(&format!("link set {dev} mtu {mtu}"));
        }
        for (o, far) in [(&mut v0, "v1"), (&mut tap, "tp0")] {
            o.port.link();
            assert_eq!(usize::from(o.port.mtu()), mtu);
            let frames: Vec<_> = [len, 60, len - 1, len].map(|n| numbered(7, n)).into();
            let raw = RawSender::new(far);
            frames.iter().for_each(|f| raw.send(f));
            assert_eq!(o.receive(4, common::is_numbered), frames, "from {far}");
            let mut other = open(far, "system");
            o.send(&frames);
            assert_eq!(other.receive(4, common::is_numbered), frames, "to {far}");
            other.close();
            assert_eq!(o.port.counters()["rx_dropped"], 0);
        }
    }
    // Segments as long as the device's MTU allows, and a tag that the kernel took out.
    let raw = RawSender::offloading("v1");
    ip("link set v0 mtu 9000");
    ip("link set v1 mtu 9000");
    v0.port.link();
    raw.send(&uncut(PAYLOAD, 8960));
    assert_eq!(drain(&mut v0, 8960), [8]);
    let mut tagged = numbered(9, 9014);
    tagged.splice(12..12, [0x81, 0, 0, 5]);
    raw.send(&[&[0; 10], &tagged[..]].concat());
    assert_eq!(v0.receive(1, |f| f[12..14] == [0x81, 0]), [tagged]);
    v0.close();
    tap.close();
}
