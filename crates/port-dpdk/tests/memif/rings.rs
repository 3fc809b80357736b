//! Rings of clients that are connected: frames both ways, and memory in which anything may stand.

use super::client::{Client, Conn, REGION, RING, server_that_accepts_none};
use super::common::{self, config, devices, dir};
use super::{connected, wait};
use packet::{Packet, Pool};
use port::{Port, RxQueue, TxQueue};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use testkit::Noise;

type Queues = (Box<dyn RxQueue>, Box<dyn TxQueue>);

fn open(name: &str, devargs: &str, n_rxq: &str) -> Box<dyn Port> {
    let options = [("dpdk-devargs", devargs), ("n_rxq", n_rxq)];
    devices().open(&config(name, "dpdk", &options)).unwrap()
}

fn queues(port: &mut dyn Port, i: usize) -> Queues {
    (port.take_rx(i).unwrap(), port.take_tx(i).unwrap())
}

/// A server and a client of ours, with two queues each and buffers that hold no whole frame.
pub fn both_ends_are_ours() {
    let socket = dir().join("ours.sock");
    let devargs = |role: &str| {
        let socket = socket.display();
        format!(
            "net_memif9,role={role},socket={socket},socket-abstract=no,secret=s,bsize=128,rsize=5"
        )
    };
    let mut ends = ["server", "client"].map(|role| open(role, &devargs(role), "2"));
    wait("the link", || ends.iter_mut().all(|port| port.link().up));
    assert_eq!(ends[0].status()["peer"], "Weft");
    assert_eq!(ends.each_ref().map(|port| (port.n_rxq(), port.n_txq())), [(2, 2); 2]);
    for i in 0..2 {
        let (mut noise, [server, client]) = (Noise::default(), ends.each_mut());
        let (mut a, mut b) = (queues(&mut **server, i), queues(&mut **client, i));
        for _ in 0..2000 {
            carry(&mut *a.1, &mut *b.0, &mut noise);
            carry(&mut *b.1, &mut *a.0, &mut noise);
        }
    }
    for port in &mut ends {
        let counters = port.counters();
        assert_eq!([counters["rx_packets"], counters["tx_packets"]], [4000; 2], "{counters:?}");
        assert_eq!([counters["rx_q1_packets"], counters["rx_errors"]], [2000, 0], "{counters:?}");
    }
    let [server, mut client] = ends;
    drop(server);
    wait("the end", || !client.link().up);
    let _server = open("server", &devargs("server"), "2");
    wait("the link again", || client.link().up);
    let wrong = devargs("client").replace("secret=s", "secret=t");
    let mut wrong = open("wrong", &wrong, "2");
    drop(client);
    wait("a refusal", || common::warnings().contains("the server refuses: Incorrect secret"));
    assert!(!wrong.link().up);
}

/// Ports close at once though their server accepts no connection.
pub fn no_connection_is_accepted() {
    let socket = dir().join("deaf.sock");
    let _server = server_that_accepts_none(&socket);
    let devargs = |n| format!("net_memif{n},id={n},socket={},socket-abstract=no", socket.display());
    let ports = [0, 1, 2].map(|n| open("client", &devargs(n), "1"));
    std::thread::sleep(Duration::from_millis(300));
    let start = Instant::now();
    drop(ports);
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
}

/// One frame.
fn carry(tx: &mut dyn TxQueue, rx: &mut dyn RxQueue, noise: &mut Noise) {
    let bytes = 14 + noise.below(1505);
    let frame = noise.bytes(bytes);
    let packet = [devices().pools.packet(&frame).unwrap()];
    assert_eq!(tx.tx(&packet), 1);
    let mut got: Vec<Packet> = Vec::with_capacity(32);
    assert_eq!((rx.rx(&mut got, 32), got[0].data()), (1, &frame[..]));
    devices().pools.free(&got);
}

/// Clients that are connected write whatever comes to their minds, make their memory shorter, and
/// fill the eventfd, while a worker receives and sends.
pub fn wild_clients(path: &Path, port: &mut dyn Port, queues: &mut Queues) {
    let (end, buffers) = (AtomicBool::new(false), devices().pools.in_use());
    std::thread::scope(|scope| {
        scope.spawn(|| work(queues, &end));
        let _end = End(&end);
        let mut noise = Noise::default();
        let mut sent_away = 0;
        for i in 0..150 {
            let client = Client::unsealed();
            let conn = connected(path, &client);
            scribble(&client, &mut noise);
            if i % 3 == 0 {
                client.file().set_len(0).unwrap();
                client_is_gone(&conn);
                sent_away += 1;
            } else if noise.below(2) == 0 {
                // An index that cannot be: this one is noticed for sure.
                client.write(6, &0x4000u16.to_ne_bytes());
                client_is_gone(&conn);
                sent_away += 1;
            }
        }
        assert!(sent_away > 50, "{sent_away}");
        blocking_and_full(path);
    });
    wait("the end", || !port.link().up);
    let (rx, _) = queues;
    let mut rest = Vec::with_capacity(32);
    assert_eq!(rx.rx(&mut rest, 32), 0);
    // Those that the receive queue keeps ready.
    let kept = packet::BURST;
    wait("buffers", || devices().pools.in_use() <= buffers + kept);
}

/// Ends the worker when it is dropped, also by a test that fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Receives, and sends what came and what did not.
fn work((rx, tx): &mut Queues, end: &AtomicBool) {
    let pools = &devices().pools;
    while !end.load(Ordering::Relaxed) {
        let mut packets: Vec<Packet> = Vec::with_capacity(32);
        let start = Instant::now();
        rx.rx(&mut packets, 32);
        packets.extend(pools.packet(&[7; 1000]));
        let n = tx.tx(&packets);
        pools.free(&packets[n..]);
        assert!(start.elapsed() < Duration::from_secs(5), "a worker waited");
    }
}

/// Numbers in both rings, valid ones among them.
fn scribble(client: &Client, noise: &mut Noise) {
    for _ in 0..noise.below(200) {
        let ring = RING * noise.below(2) as u64;
        let slot = ring + 128 + 16 * noise.below(16) as u64;
        let near = [0u32, 1, 60, 2048, 4096, REGION as u32 - 1, REGION as u32, u32::MAX];
        let words = [noise.below(2) as u32, near[noise.below(8)], near[noise.below(8)]];
        client.write(slot, &words.map(u32::to_ne_bytes).concat());
        client.write(ring + 6, &(noise.below(17) as u16).to_ne_bytes());
        if noise.below(4) == 0 {
            let at = [0, 4, 64, 128][noise.below(4)] + ring + 2 * noise.below(30) as u64;
            client.write(at, &noise.bytes(4));
        }
    }
}

fn client_is_gone(conn: &Conn) {
    assert_eq!(conn.ended(), 8, "DISCONNECT\n{}", common::warnings());
}

/// A client whose eventfd blocks and is full: no worker waits for it.
fn blocking_and_full(path: &Path) {
    let client = Client::new();
    let signal = client.signals[1].as_raw_fd();
    let most = u64::MAX - 1;
    // SAFETY: flags of a descriptor of ours; eight bytes that live here.
    unsafe {
        libc::fcntl(signal, libc::F_SETFL, 0);
        assert_eq!(libc::write(signal, (&raw const most).cast(), 8), 8);
    }
    let conn = connected(path, &client);
    // Room for 16 frames in the ring that the server fills.
    for slot in 0..16 {
        let words = [0, 2048, 8192 + 2048 * slot as u32].map(u32::to_ne_bytes).concat();
        client.write(RING + 128 + 16 * slot, &words);
    }
    client.write(RING + 6, &16u16.to_ne_bytes());
    let mut tail = [0; 2];
    wait("frames", || {
        std::os::unix::fs::FileExt::read_exact_at(&client.file(), &mut tail, RING + 64).unwrap();
        u16::from_ne_bytes(tail) == 16
    });
    drop(conn);
}
