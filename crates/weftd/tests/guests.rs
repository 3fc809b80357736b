//! vhost-user guests behind the switch: `dpdk-testpmd` on virtio-user, frames from a namespace to
//! the guest and back, guests that are killed and come again.

mod lab;

use lab::*;
use std::cell::Cell;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use testkit::{Frame, Net, Netns, Raw, Switch, privileged, veth};

const A: [u8; 6] = [2, 0, 0, 0, 2, 1];
const B: [u8; 6] = [2, 0, 0, 0, 2, 2];
/// Frames under way at once.
const WINDOW: usize = 64;
/// How long an answer that need not come is waited for.
const MOMENT: Duration = Duration::from_millis(500);

/// A switch with a cable `far` on port 1 and a guest's port `vhu` on port 2, joined by flows.
struct Bench<'a> {
    sw: Switch<'a>,
    far: Raw,
    socket: PathBuf,
    next: Cell<u32>,
}

fn bench<'a>(ns: &'a Netns, host: &Netns, ring: Ring) -> Bench<'a> {
    veth((ns, "v1"), (host, "far")).unwrap();
    ns.ipv6_off("v1").unwrap();
    host.ipv6_off("far").unwrap();
    let sw = start_with_bridge(ns);
    let_pmd_threads_sleep(&sw);
    let socket = sw.dir().join("vhu");
    vsctl(&sw, "add-port br0 v1 -- set interface v1 ofport_request=1");
    let kind = match ring.server {
        true => format!("dpdkvhostuserclient options:vhost-server-path={}", socket.display()),
        false => "dpdkvhostuser".to_string(),
    };
    let kind = if ring.library { kind + " options:vhost-rings=library" } else { kind };
    vsctl(&sw, &format!("add-port br0 vhu -- set interface vhu ofport_request=2 type={kind}"));
    ofctl(&sw, "del-flows br0");
    ofctl(&sw, "add-flow br0 in_port=1,actions=2");
    ofctl(&sw, "add-flow br0 in_port=2,actions=1");
    let far = Raw::open(host, "far").unwrap();
    Bench { sw, far, socket, next: Cell::new(0) }
}

impl Bench<'_> {
    fn connected(&self) -> bool {
        iface(&self.sw, "vhu", "link_state") == "up"
    }

    fn wait_for_guest(&self) {
        // The guest's process has nice 15: with two busy processes beside it, it takes 2 s to make
        // its socket (0.2 s alone), with a dozen of them 20 s. The port is up at most 1 s later.
        wait_within("the guest", 3 * WAIT_TIME_MAX, || self.connected());
        assert_eq!(iface(&self.sw, "vhu", "status:status"), "connected");
    }

    /// Sends numbered frames of this size and returns the numbers of those that came back, as they
    /// came. A guest on a busy machine has time.
    fn exchange(&self, n: u32, size: usize) -> Vec<u32> {
        self.exchange_within(n, size, WAIT_TIME_MAX / 2)
    }

    /// The same, where answers may be missing: never more under way than the smallest queue holds.
    fn exchange_within(&self, n: u32, size: usize, wait_max: Duration) -> Vec<u32> {
        let (first, mut back) = (self.next.get(), Vec::new());
        self.next.set(first + n);
        for number in first..first + n {
            self.send(number, size);
            let under_way = (number + 1 - first) as usize - back.len();
            if under_way >= WINDOW {
                back.extend(self.receive(first, under_way - WINDOW / 2, wait_max));
            }
        }
        back.extend(self.receive(first, n as usize - back.len(), wait_max));
        back
    }

    fn send(&self, number: u32, size: usize) {
        let mut body = number.to_be_bytes().to_vec();
        body.resize(size - 14, 0x55);
        self.far.send(&Frame::new(A, B, Net::Raw(0x88b5, body)).bytes()).unwrap();
    }

    /// Up to `n` answers of number `first` or later.
    fn receive(&self, first: u32, n: usize, wait_max: Duration) -> Vec<u32> {
        let number = |f: &[u8]| u32::from_be_bytes(f[14..18].try_into().unwrap());
        let mine = |f: &[u8]| f.len() > 18 && f[12..14] == [0x88, 0xb5] && number(f) >= first;
        let frames = self.far.collect(n, Instant::now() + wait_max, mine);
        assert!(frames.iter().all(|f| f[..12] == [A, B].concat() || f[..12] == [B, A].concat()));
        frames.iter().map(|f| number(f)).collect()
    }

    /// Where packets may have gone, for whoever reads of a failure.
    fn traces(&self) -> String {
        let drops = appctl(&self.sw, "coverage/show");
        let drops: Vec<_> = drops.lines().filter(|l| l.contains("drop")).collect();
        let of = |name| iface(&self.sw, name, "statistics");
        let queues = appctl(&self.sw, "dpif-netdev/pmd-rxq-show");
        format!("{drops:#?}\nvhu {}\nv1 {}\n{queues}", of("vhu"), of("v1"))
    }

    /// Until the guest answers; how long that took.
    fn wait_for_answers(&self) -> Duration {
        let start = Instant::now();
        while self.exchange_within(1, 64, MOMENT).is_empty() {
            assert!(
                start.elapsed() < 3 * WAIT_TIME_MAX,
                "the guest does not answer: {}",
                self.traces()
            );
        }
        start.elapsed()
    }
}

fn round_trip(ring: Ring, mode: &str) {
    if !privileged() {
        return;
    }
    let (_turn, ns, host) = (turn(), Netns::new().unwrap(), Netns::new().unwrap());
    let b = bench(&ns, &host, ring);
    assert_eq!(iface(&b.sw, "vhu", "link_state"), "down");
    assert_eq!(iface(&b.sw, "vhu", "status:status"), "disconnected");
    let idle = buffers(&b.sw);
    for life in 0..2 {
        let guest = Guest::start(&b.socket, ring, mode);
        b.wait_for_guest();
        b.wait_for_answers();
        check_status(&b.sw, ring);
        for size in [64, 1514] {
            let back = b.exchange(300, size);
            // Order holds within a queue.
            assert_eq!(back.len(), 300, "{ring:?} {mode} {size} life {life}: {}", b.traces());
            assert!(ring.queues > 1 || back.is_sorted(), "{back:?}");
        }
        if life == 0 {
            // Killed in the middle of it.
            for _ in 0..200 {
                b.send(0, 100);
            }
        }
        guest.kill();
        wait_for("the guest is gone", || !b.connected());
        assert!(b.exchange_within(20, 64, MOMENT).is_empty());
        if ring.server {
            let _ = std::fs::remove_file(&b.socket);
        }
    }
    wait_for("statistics", || {
        statistic(&b.sw, "vhu", "tx_dropped") >= Some(40)
            && statistic(&b.sw, "vhu", "rx_packets") >= Some(1200)
    });
    wait_for("no buffer is kept", || buffers(&b.sw) <= idle);
}

fn check_status(sw: &Switch, ring: Ring) {
    let mode = if ring.server { "client" } else { "server" };
    assert_eq!(iface(sw, "vhu", "status:mode"), mode);
    assert_eq!(iface(sw, "vhu", "status:num_of_vrings"), (2 * ring.queues).to_string());
    assert_eq!(iface(sw, "vhu", "status:vring_0_size"), "256");
    let rings = if ring.library { "library" } else { "own" };
    assert_eq!(iface(sw, "vhu", "status:rings"), rings);
    let features = iface(sw, "vhu", "status:features");
    let features = u64::from_str_radix(features.trim_start_matches("0x"), 16).unwrap();
    assert_eq!(features >> 34 & 1 == 1, ring.packed);
    let rxqs = || appctl(sw, "dpif-netdev/pmd-rxq-show").matches("port: vhu ").count();
    wait_for("a place for every queue", || rxqs() == ring.queues);
}

#[test]
fn split_client() {
    round_trip(Ring { packed: false, queues: 1, server: true, ..Ring::default() }, "macswap");
}

#[test]
fn packed_client_two_queues() {
    round_trip(Ring { packed: true, queues: 2, server: true, ..Ring::default() }, "io");
}

#[test]
fn split_server_two_queues() {
    round_trip(Ring { packed: false, queues: 2, server: false, ..Ring::default() }, "io");
}

#[test]
fn packed_server() {
    round_trip(Ring { packed: true, queues: 1, server: false, ..Ring::default() }, "macswap");
}

/// Without what testpmd asks for otherwise: buffers that may be joined, and used in their order.
const PLAIN: &str = "mrg_rxbuf=0,in_order=0";

#[test]
fn split_plain() {
    round_trip(Ring { queues: 1, server: true, device: PLAIN, ..Ring::default() }, "io");
}

#[test]
fn packed_plain() {
    let ring = Ring { packed: true, queues: 1, server: true, device: PLAIN, ..Ring::default() };
    round_trip(ring, "io");
}

#[test]
fn split_in_order_not_mergeable() {
    let device = "mrg_rxbuf=0,in_order=1";
    round_trip(Ring { queues: 2, server: true, device, ..Ring::default() }, "io");
}

#[test]
fn packed_mergeable_out_of_order() {
    let device = "mrg_rxbuf=1,in_order=0";
    round_trip(Ring { packed: true, queues: 1, server: true, device, ..Ring::default() }, "io");
}

#[test]
fn split_by_the_library() {
    let ring = Ring { queues: 2, server: true, library: true, ..Ring::default() };
    round_trip(ring, "io");
}

#[test]
fn packed_by_the_library() {
    let ring = Ring { packed: true, queues: 1, library: true, ..Ring::default() };
    round_trip(ring, "macswap");
}

#[test]
fn the_daemon_is_killed_and_the_guest_stays() {
    if !privileged() {
        return;
    }
    let (_turn, ns, host) = (turn(), Netns::new().unwrap(), Netns::new().unwrap());
    let ring = Ring { packed: false, queues: 1, server: true, ..Ring::default() };
    let b = bench(&ns, &host, ring);
    let _guest = Guest::start(&b.socket, ring, "macswap");
    b.wait_for_guest();
    b.wait_for_answers();
    for _ in 0..2 {
        for _ in 0..100 {
            b.send(0, 100);
        }
        b.sw.kill_daemon();
        let start = Instant::now();
        b.sw.start_daemon().unwrap();
        let ready = start.elapsed();
        // The flows went with the daemon; NORMAL is back.
        b.wait_for_answers();
        eprintln!("guest: daemon ready after {ready:?}, answers after {:?}", start.elapsed());
        assert_eq!(iface(&b.sw, "vhu", "ofport"), "2");
        b.wait_for_guest();
        assert_eq!(b.exchange(200, 500).len(), 200);
    }
}

#[test]
fn frames_longer_than_the_mtu_are_named_drops() {
    if !privileged() {
        return;
    }
    let (_turn, ns, host) = (turn(), Netns::new().unwrap(), Netns::new().unwrap());
    let ring = Ring { packed: false, queues: 1, server: true, ..Ring::default() };
    let b = bench(&ns, &host, ring);
    vsctl(&b.sw, "add-port br0 t3 -- set interface t3 type=tap ofport_request=3 mtu_request=1300");
    ns.ipv6_off("t3").unwrap();
    ns.ip("link set t3 up").unwrap();
    let _guest = Guest::start(&b.socket, ring, "io");
    b.wait_for_answers();
    for dev in [(&ns, "v1"), (&host, "far")] {
        dev.0.ip(&format!("link set {} mtu 3000", dev.1)).unwrap();
    }
    assert_eq!(b.exchange(10, 1514).len(), 10, "{}", b.traces());
    assert_eq!(b.exchange_within(10, 1600, MOMENT).len(), 0);
    wait_for("the drop's name", || coverage(&b.sw, "datapath_drop_too_long") == 10);
    wait_for("the port's counter", || statistic(&b.sw, "vhu", "tx_dropped") >= Some(10));
    ofctl(&b.sw, "add-flow br0 in_port=1,actions=3");
    let tap = Raw::open(&ns, "t3").unwrap();
    for size in [1314, 1400, 500] {
        b.exchange_within(1, size, MOMENT);
    }
    let frames = tap.collect(3, Instant::now() + QUIET, |f| f[12..14] == [0x88, 0xb5]);
    assert_eq!(frames.iter().map(Vec::len).collect::<Vec<_>>(), [1314, 500]);
    assert_eq!(coverage(&b.sw, "datapath_drop_too_long"), 11);
    // A larger MTU counts at once.
    vsctl(&b.sw, "set interface t3 mtu_request=1490");
    b.exchange_within(1, 1400, MOMENT);
    assert_eq!(tap.collect(1, Instant::now() + QUIET, |f| f.len() == 1400).len(), 1);
}
