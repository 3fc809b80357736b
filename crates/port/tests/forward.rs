//! Two hosts talk TCP and UDP through two ports and a loop that only carries packets over. The
//! hosts use every software offload that the kernel has. Needs root; says so without it.

use packet::{BURST, HeapPool, Packet, Pool};
use port::{Port, PortConfig, RxQueue, TxQueue};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use testkit::{Netns, privileged, veth};

const BYTES: usize = 20 << 20;
const WAIT_TIME_MAX: Duration = Duration::from_secs(10);

fn open(ns: &Netns, name: &str, kind: &str, pool: &Arc<HeapPool>) -> Box<dyn Port> {
    let config =
        PortConfig { name: name.into(), kind: kind.into(), n_txq: 1, ..Default::default() };
    ns.run(|| port::open(&config, pool.clone())).expect("the port opens")
}

/// One direction of the wire between two ports.
struct Carrier {
    rx: Box<dyn RxQueue>,
    tx: Box<dyn TxQueue>,
    held: Vec<Packet>,
}

impl Carrier {
    /// Carries one burst; true if there was one.
    fn carry(&mut self) -> bool {
        let got = if self.held.is_empty() { self.rx.rx(&mut self.held, BURST) } else { 0 };
        let sent = self.tx.tx(&self.held);
        self.held.drain(..sent);
        got > 0
    }
}

/// Carries both ways until it is stopped, then gives back what is under way.
fn carry(a: &mut dyn Port, b: &mut dyn Port, pool: &dyn Pool, stop: &AtomicBool) {
    let mut ways = [(a.take_rx(0), b.take_tx(0)), (b.take_rx(0), a.take_tx(0))]
        .map(|(rx, tx)| Carrier { rx: rx.unwrap(), tx: tx.unwrap(), held: Vec::new() });
    let mut fds = [0, 1].map(|i| libc::pollfd {
        fd: ways[i].rx.fd().unwrap(),
        events: libc::POLLIN,
        revents: 0,
    });
    while !stop.load(Ordering::Relaxed) {
        let busy = ways.each_mut().map(Carrier::carry);
        if busy == [false; 2] {
            // SAFETY: two pollfds.
            unsafe { libc::poll(fds.as_mut_ptr(), 2, 10) };
        }
    }
    ways.iter().for_each(|w| pool.free(&w.held));
}

fn pattern(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i ^ i >> 8 ^ i >> 16) as u8).collect()
}

/// Sends the pattern from one namespace to a listener in the other and compares.
fn tcp(from: &Netns, to: &Netns, addr: &str) {
    let listener = to.run(|| TcpListener::bind(addr)).unwrap();
    let sent = pattern(BYTES);
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut c = from
                .run(|| TcpStream::connect_timeout(&addr.parse().unwrap(), WAIT_TIME_MAX))
                .unwrap();
            c.set_write_timeout(Some(WAIT_TIME_MAX)).unwrap();
            c.write_all(&sent).unwrap();
        });
        let (mut c, _) = listener.accept().unwrap();
        c.set_read_timeout(Some(WAIT_TIME_MAX)).unwrap();
        let mut got = Vec::with_capacity(BYTES);
        c.read_to_end(&mut got).unwrap();
        assert!(got == sent, "{} of {BYTES} bytes came, or changed", got.len());
    });
}

fn udp(from: &Netns, to: &Netns, a: &str, b: &str) {
    let (a, b) = (from.run(|| UdpSocket::bind(a)).unwrap(), to.run(|| UdpSocket::bind(b)).unwrap());
    b.set_read_timeout(Some(WAIT_TIME_MAX)).unwrap();
    for n in [0usize, 1, 1400, 1472, 9000] {
        a.send_to(&pattern(n), b.local_addr().unwrap()).unwrap();
        let mut got = vec![0; 10_000];
        let (len, _) = b.recv_from(&mut got).unwrap();
        assert!(got[..len] == pattern(n), "{n} bytes");
    }
}

/// Nothing was dropped, with one exception: the kernel's own queue in front of a TAP is short, and
/// a busy machine overruns it; that is counted, and TCP sends again.
fn accounts(name: &str, p: &mut dyn Port) {
    let mut c = p.counters();
    if p.kind() == "internal" {
        c.remove("rx_dropped");
    }
    for (key, n) in &c {
        let lost = key.ends_with("_errors") || key.ends_with("_dropped");
        assert!(!lost || *n == 0, "{name}: {key}={n} in {c:?}");
    }
}

fn hosts_talk(a: &Netns, b: &Netns) {
    for (from, to) in [(a, b), (b, a)] {
        let last = if std::ptr::eq(to, b) { 2 } else { 1 };
        tcp(from, to, &format!("10.6.0.{last}:500{last}"));
        tcp(from, to, &format!("[fd06::{last}]:500{last}"));
        udp(from, to, &format!("10.6.0.{}:0", 3 - last), &format!("10.6.0.{last}:700{last}"));
    }
}

fn address(ns: &Netns, dev: &str, last: u8) {
    ns.ip(&format!("link set {dev} up")).unwrap();
    ns.ip(&format!("addr add 10.6.0.{last}/24 dev {dev}")).unwrap();
    ns.ip(&format!("addr add fd06::{last}/64 dev {dev} nodad")).unwrap();
}

fn run(
    host: &Netns,
    mut a: Box<dyn Port>,
    mut b: Box<dyn Port>,
    pool: Arc<HeapPool>,
    talk: impl FnOnce(),
) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        let thread = s.spawn(|| carry(&mut *a, &mut *b, &*pool, &stop));
        let talked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(talk));
        stop.store(true, Ordering::Relaxed);
        thread.join().unwrap();
        talked.unwrap_or_else(|e| std::panic::resume_unwind(e));
    });
    accounts("a", &mut *a);
    accounts("b", &mut *b);
    drop((a, b));
    assert_eq!(pool.in_use(), 0, "buffers leaked");
    host.ip("link show").unwrap();
}

#[test]
fn veth_to_veth() {
    if !privileged() {
        return;
    }
    let [host, a, b] = [0; 3].map(|_| Netns::new().unwrap());
    veth((&host, "pa"), (&a, "ea")).unwrap();
    veth((&host, "pb"), (&b, "eb")).unwrap();
    host.ipv6_off("pa").unwrap();
    host.ipv6_off("pb").unwrap();
    let pool = Arc::new(HeapPool::new());
    let (pa, pb) = (open(&host, "pa", "system", &pool), open(&host, "pb", "system", &pool));
    address(&a, "ea", 1);
    address(&b, "eb", 2);
    run(&host, pa, pb, pool, || hosts_talk(&a, &b));
}

#[test]
fn internal_to_veth() {
    if !privileged() {
        return;
    }
    let [host, b] = [0; 2].map(|_| Netns::new().unwrap());
    veth((&host, "pb"), (&b, "eb")).unwrap();
    host.ipv6_off("pb").unwrap();
    let pool = Arc::new(HeapPool::new());
    let (br, pb) = (open(&host, "br0", "internal", &pool), open(&host, "pb", "system", &pool));
    address(&host, "br0", 1);
    address(&b, "eb", 2);
    run(&host, br, pb, pool, || hosts_talk(&host, &b));
}
