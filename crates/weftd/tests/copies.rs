//! Copies to and from guests by engines: real guests (`dpdk-testpmd` on virtio-user) and the lab's
//! emulated engine, which is slow, fails and hangs on demand. Every packet arrives, in order.

mod lab;

use lab::*;
use std::cell::Cell;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};
use testkit::{Frame, Net, Netns, Raw, Switch, privileged, veth};

const A: [u8; 6] = [2, 0, 0, 0, 2, 1];
const B: [u8; 6] = [2, 0, 0, 0, 2, 2];
/// Frames under way at once.
const WINDOW: usize = 64;
/// How long an answer that need not come is waited for.
const MOMENT: Duration = Duration::from_millis(300);

const SPLIT: Ring = Ring { packed: false, queues: 1, server: true, device: "", library: false };
const PACKED: Ring = Ring { packed: true, ..SPLIT };

/// A switch with engines, a cable `far` on port 1 and guests on ports 2 and 3. What comes from
/// `far` goes to the one guest, what that sends to the other, and what that sends back: from the
/// first guest on it is the PMD thread, with its engine, that takes and gives.
struct Bench<'a> {
    sw: Switch<'a>,
    far: Raw,
    sockets: [PathBuf; 2],
    next: Cell<u32>,
}

/// The emulated engine's shared object.
fn engine() -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../lab/engine/build.sh");
    let out = Command::new(script).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).trim().to_string()
}

/// `engines`: arguments of each emulated engine; `env`: variables of the daemon's environment.
fn bench<'a>(ns: &'a Netns, host: &Netns, engines: &[&str], env: &[(&str, &str)]) -> Bench<'a> {
    veth((ns, "v1"), (host, "far")).unwrap();
    ns.ipv6_off("v1").unwrap();
    host.ipv6_off("far").unwrap();
    let sw = start_with_bridge_in(ns, env);
    let devices = engines.iter().enumerate();
    let devices: String =
        devices.map(|(i, args)| format!(" --vdev dma_weftemu{i},check=1,{args}")).collect();
    let extra = format!("other_config:dpdk-extra=-d {}{devices}", engine());
    // A thread that never sleeps would leave the guests, which poll too, a small part of its core.
    let sleep = "other_config:pmd-sleep-max=100";
    let on = "other_config:vhost-async-support=true";
    let set = ["set", "Open_vSwitch", ".", &extra, sleep, on];
    sw.vsctl(&set).unwrap();
    sw.stop_daemon().unwrap();
    sw.start_daemon().unwrap();
    vsctl(&sw, "add-port br0 v1 -- set interface v1 ofport_request=1");
    let sockets = [2, 3].map(|n| {
        let socket = sw.dir().join(format!("vhu{n}"));
        let kind = format!("dpdkvhostuserclient options:vhost-server-path={}", socket.display());
        let set = format!("-- set interface vhu{n} ofport_request={n} type={kind}");
        vsctl(&sw, &format!("add-port br0 vhu{n} {set}"));
        socket
    });
    ofctl(&sw, "del-flows br0");
    for (from, to) in [(1, 2), (2, 3), (3, 1)] {
        ofctl(&sw, &format!("add-flow br0 in_port={from},actions={to}"));
    }
    let far = Raw::open(host, "far").unwrap();
    Bench { sw, far, sockets, next: Cell::new(0) }
}

/// Frames of all sizes, long beside short.
fn size_of(number: u32) -> usize {
    64 + number as usize * 617 % 1451
}

impl Bench<'_> {
    /// Two guests; returns when packets come back from them.
    fn guests(&self, ring: Ring) -> [Guest; 2] {
        let guests = self.sockets.each_ref().map(|socket| Guest::start(socket, ring, "io"));
        self.wait_for_answer();
        guests
    }

    /// Two guests whose memory has all its pages from the beginning, otherwise like
    /// [`Bench::guests`].
    fn guests_with_memory(&self) -> BareGuests {
        let guests = BareGuests::start(&self.sockets, false);
        self.wait_for_answer();
        guests
    }

    fn wait_for_answer(&self) {
        let start = Instant::now();
        while self.exchange(1, MOMENT).is_empty() {
            assert!(start.elapsed() < 3 * WAIT_TIME_MAX, "no answer: {}", self.traces());
        }
    }

    fn send(&self, number: u32) {
        let mut body = number.to_be_bytes().to_vec();
        body.extend((4..size_of(number) - 14).map(|i| (i as u32 ^ number) as u8));
        self.far.send(&Frame::new(A, B, Net::Raw(0x88b5, body)).bytes()).unwrap();
    }

    /// Up to `n` answers of number `first` or later, each whole and as it was sent.
    fn receive(&self, first: u32, n: usize, wait_max: Duration) -> Vec<u32> {
        let number = |f: &[u8]| u32::from_be_bytes(f[14..18].try_into().unwrap());
        let mine = |f: &[u8]| f.len() > 18 && f[12..14] == [0x88, 0xb5] && number(f) >= first;
        let frames = self.far.collect(n, Instant::now() + wait_max, mine);
        for f in &frames {
            let n = number(f);
            assert_eq!(f.len(), size_of(n));
            assert!((4..f.len() - 14).all(|i| f[14 + i] == (i as u32 ^ n) as u8), "{n}: {f:x?}");
        }
        frames.iter().map(|f| number(f)).collect()
    }

    /// Sends numbered frames; the numbers of those that came back, as they came.
    fn exchange(&self, n: u32, wait_max: Duration) -> Vec<u32> {
        let (first, mut back) = (self.next.get(), Vec::new());
        self.next.set(first + n);
        for number in first..first + n {
            self.send(number);
            let under_way = (number + 1 - first) as usize - back.len();
            if under_way >= WINDOW {
                back.extend(self.receive(first, under_way - WINDOW / 2, wait_max));
            }
        }
        back.extend(self.receive(first, n as usize - back.len(), wait_max));
        back
    }

    /// All of `n` frames come back in order.
    fn works(&self, n: u32) {
        let first = self.next.get();
        let back = self.exchange(n, WAIT_TIME_MAX / 2);
        assert_eq!(back, (first..first + n).collect::<Vec<_>>(), "{}", self.traces());
    }

    /// Where packets may have gone, for whoever reads of a failure.
    fn traces(&self) -> String {
        let all = appctl(&self.sw, "coverage/show");
        let some: Vec<_> =
            all.lines().filter(|l| l.contains("drop") || l.contains("async")).collect();
        let of = |name| iface(&self.sw, name, "statistics");
        format!("{some:#?}\n2: {}\n3: {}\nv1: {}", of("vhu2"), of("vhu3"), of("v1"))
    }

    fn threshold(&self, bytes: usize) {
        let said = appctl(&self.sw, &format!("netdev-dpdk/set-vhost-async-thresh {bytes}"));
        assert_eq!(said.trim(), "OK");
    }

    fn logged(&self, text: &str) -> bool {
        self.sw.log().contains(text)
    }
}

/// Runs with namespaces of its own.
fn with_bench(engines: &[&str], run: impl FnOnce(&Bench)) {
    with_bench_in(&[], engines, run);
}

fn with_bench_in(env: &[(&str, &str)], engines: &[&str], run: impl FnOnce(&Bench)) {
    if !privileged() {
        return;
    }
    let (_turn, ns, host) = (turn(), Netns::new().unwrap(), Netns::new().unwrap());
    run(&bench(&ns, &host, engines, env));
}

/// Both directions, all sizes, at several thresholds, with a guest that is killed in the middle of
/// it.
fn round_trip(engine: &str, ring: Ring, lives: usize) {
    with_bench(&[engine], |b| {
        let idle = buffers(&b.sw);
        for life in 0..lives {
            let guests = b.guests(ring);
            for threshold in [128, 0, 700] {
                b.threshold(threshold);
                let names = ["vhost_async_copy", "vhost_async_ring_full"];
                let before = names.map(|name| coverage(&b.sw, name));
                b.works(200);
                let [copies, full] = names.map(|name| coverage(&b.sw, name));
                let (copies, full) = (copies - before[0], full - before[1]);
                // From, to, from a guest; by the engine as far as it has room.
                let long = if threshold == 700 { 300 } else { 550 };
                let all = format!("life {life} threshold {threshold}: {copies}, {full}");
                assert!(copies >= 50 && copies + full >= long, "{all}");
            }
            (0..200).for_each(|_| b.send(0));
            drop(guests);
            wait_for("the guests are gone", || {
                ["vhu2", "vhu3"].iter().all(|name| iface(&b.sw, name, "link_state") != "up")
            });
            b.sockets.iter().for_each(|socket| drop(std::fs::remove_file(socket)));
        }
        wait_for("no buffer is kept", || buffers(&b.sw) <= idle);
        assert_eq!(coverage(&b.sw, "vhost_async_error"), 0);
    });
}

#[test]
fn split_rings_and_a_thread_that_copies() {
    round_trip("mode=thread", SPLIT, 2);
}

#[test]
fn packed_rings_and_a_slow_engine() {
    round_trip("mode=lazy,latency=1000000", PACKED, 1);
}

#[test]
fn plain_buffers_out_of_order_and_a_small_engine() {
    let ring = Ring { device: "mrg_rxbuf=0,in_order=0", ..SPLIT };
    round_trip("mode=thread,desc=32,wq=2,batch=5,latency=100000", ring, 1);
}

/// Now and then a copy fails: the CPU makes it.
#[test]
fn copies_that_fail_are_made_again() {
    with_bench(&["mode=lazy,error=300,latency=200000"], |b| {
        let _guests = b.guests(PACKED);
        b.threshold(0);
        b.works(1000);
        wait_for("failures are counted", || coverage(&b.sw, "vhost_async_error") >= 4);
        assert!(!b.logged("fail too often"));
    });
}

/// Every third copy fails: the CPU makes all copies of both ports, and nothing is lost.
#[test]
fn an_engine_that_fails_too_often_makes_no_copies() {
    with_bench(&["mode=thread,error=3"], |b| {
        let _guests = b.guests(SPLIT);
        b.threshold(0);
        b.works(600);
        let ports = ["vhu2': copies by DMA device dma_weftemu0 fail too often", "vhu3': copies by"];
        while !ports.iter().all(|port| b.logged(port)) {
            b.works(100);
        }
        let copies = coverage(&b.sw, "vhost_async_copy");
        b.works(100);
        assert_eq!(coverage(&b.sw, "vhost_async_copy"), copies);
    });
}

/// The engine stops in the middle of it: it is stopped for good, the CPU makes what it had, and
/// nothing is lost.
#[test]
fn an_engine_that_hangs_is_stopped() {
    with_bench(&["mode=thread,hang=100"], |b| {
        let _guests = b.guests(SPLIT);
        b.threshold(0);
        b.works(300);
        wait_for("the log says so", || b.logged("made nothing for too long"));
        assert!(coverage(&b.sw, "vhost_async_redone") > 0);
        b.works(100);
    });
}

/// An engine like those on vfio-pci reaches only what is mapped for it: guests' memory is mapped,
/// and unmapped before they go. The CPU copies for a guest whose memory is not there yet.
#[test]
fn memory_is_mapped_for_an_engine_on_vfio() {
    if !privileged() {
        return;
    }
    with_bench_in(&[("LD_PRELOAD", &engine())], &["mode=thread,sva=0"], |b| {
        b.threshold(0);
        let guests = b.guests(SPLIT);
        b.works(200);
        assert!(b.logged("memory that is not allocated yet is not mapped for DMA"));
        assert_eq!(coverage(&b.sw, "vhost_async_copy"), 0);
        drop(guests);
        b.sockets.iter().for_each(|socket| drop(std::fs::remove_file(socket)));
        let guests = b.guests_with_memory();
        wait_for("guests' memory is mapped", || {
            b.works(100);
            coverage(&b.sw, "vhost_async_copy") > 500
        });
        assert_eq!(coverage(&b.sw, "vhost_async_error"), 0);
        let mapped = || appctl(&b.sw, "weft/state engines/mapped_bytes").trim().to_string();
        assert_ne!(mapped(), "0");
        let perf = appctl(&b.sw, "dpif-netdev/pmd-perf-show");
        assert!(perf.contains("of unmapped memory"), "{perf}");
        vsctl(&b.sw, "set Open_vSwitch . other_config:vhost-async-support=false");
        wait_for("it is unmapped when there is no engine", || mapped() == "0");
        vsctl(&b.sw, "set Open_vSwitch . other_config:vhost-async-support=true");
        let before = coverage(&b.sw, "vhost_async_copy");
        wait_for("guests' memory is mapped again", || {
            b.works(100);
            coverage(&b.sw, "vhost_async_copy") > before + 500
        });
        drop(guests);
        wait_for("it is unmapped when guests go", || mapped() == "0");
        assert!(!b.logged("cannot be unmapped"));
    });
}

/// Without VFIO the CPU makes all copies, and the log says why.
#[test]
fn an_engine_that_reaches_no_guest_is_not_used() {
    with_bench(&["mode=thread,sva=0"], |b| {
        b.threshold(0);
        let _guests = b.guests_with_memory();
        b.works(200);
        assert!(b.logged("memory cannot be mapped for DMA"));
        assert_eq!(coverage(&b.sw, "vhost_async_copy"), 0);
    });
}

#[test]
fn engines_are_assigned_and_asked_as_printed() {
    with_bench(&["mode=lazy"], |b| {
        let get = || appctl(&b.sw, "netdev-dpdk/get-vhost-async-thresh");
        assert_eq!(get().trim(), "Current vhost async threshold is: 128");
        let said = appctl(&b.sw, "netdev-dpdk/set-vhost-async-thresh 9729");
        let refused = "9729 is not a valid threshold.Threshold must be >= 0 and <= 9728";
        assert_eq!(said.trim(), refused);
        assert_eq!(appctl(&b.sw, "netdev-dpdk/set-vhost-async-thresh auto").trim(), "OK");
        assert_eq!(get().trim(), "Current vhost async threshold is: 128");
        b.threshold(9728);
        assert_eq!(get().trim(), "Current vhost async threshold is: 9728");
        b.threshold(0);
        assert!(b.logged("vhost_async_threshold set to: 0"));
        assert!(b.logged("Async support enabled for vhost-user-client."));
        wait_for("the thread has it", || {
            b.logged("DMA device dma_weftemu0 with dev id: 0 on NUMA: 0 assigned to pmd ")
        });
        let _guests = b.guests(SPLIT);
        b.works(100);
        assert_eq!(appctl(&b.sw, "netdev-dpdk/set-vhost-async-thresh auto").trim(), "OK");
        b.works(300);
        b.threshold(0);
        b.works(100);
        let perf = appctl(&b.sw, "dpif-netdev/pmd-perf-show");
        assert!(perf.contains("Work deferred:") && perf.contains("(dma_weftemu0, "), "{perf}");
        let engine = appctl(&b.sw, "weft/state engines/devices/dma_weftemu0/state");
        assert_eq!(engine.trim(), "\"working\"");
        // Two threads, one engine.
        vsctl(&b.sw, "set Open_vSwitch . other_config:pmd-cpu-mask=0x3");
        wait_for("the other thread goes without", || {
            b.logged("No available DMA device found for vhost async copy offload for this pmd.")
        });
        b.works(100);
        // It goes and comes while packets do.
        for on in ["false", "true", "false"] {
            vsctl(&b.sw, &format!("set Open_vSwitch . other_config:vhost-async-support={on}"));
            b.works(100);
        }
        let said = b.sw.appctl(&["netdev-dpdk/get-vhost-async-thresh"]).unwrap_err();
        assert!(said.contains("vhost async feature not enabled."), "{said}");
        wait_for("it is back", || b.logged("used for vhost async copy offload released from pmd."));
        let copies = coverage(&b.sw, "vhost_async_copy");
        b.works(100);
        assert_eq!(coverage(&b.sw, "vhost_async_copy"), copies);
    });
}
