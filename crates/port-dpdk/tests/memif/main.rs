//! The socket of a memif server under fire: noise, pieces of conversations, wild numbers, wrong
//! descriptors. Whatever comes, the process stays, nothing stays open, and a client that says the
//! right thing is served.

mod client;
#[path = "../common/mod.rs"]
mod common;
mod rings;

use client::{Client, Conn, REGION, RING, SIZE, Said, memory};
use common::{config, devices, dir};
use packet::Packet;
use port::{Port, PortError, RxQueue, TxQueue};
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};
use testkit::Noise;

/// As the server has it.
const CONNECTING_CLIENTS_MAX: usize = 64;
/// More messages than a socket's buffer of 208 KiB holds.
const QUEUED_MESSAGES_MAX: u64 = 400;

/// What is open, by what it is, numbers aside.
fn descriptors() -> BTreeMap<String, usize> {
    let mut open = BTreeMap::new();
    for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
        let Ok(target) = std::fs::read_link(entry.path()) else { continue };
        let target = target.display().to_string();
        *open.entry(target.split(":[").next().unwrap_or("").into()).or_default() += 1;
    }
    // EAL's own, one for each hugepage; and what a thread that signals opens once.
    open.retain(|what: &String, _| !what.starts_with("/memfd:seg_") && what != "/dev/null");
    open
}

/// What stays open: the least of what several looks find, as sockets of what ended before, and of
/// others, are open for a moment.
fn stays_open() -> BTreeMap<String, usize> {
    let mut least = descriptors();
    for _ in 0..50 {
        std::thread::sleep(Duration::from_millis(2));
        let now = descriptors();
        least.retain(|what, n| {
            now.get(what).is_some_and(|now| {
                *n = *now.min(n);
                true
            })
        });
    }
    least
}

/// Waits until no more is open than was. One look decides: others open a socket for a moment now
/// and then.
fn closed(before: &BTreeMap<String, usize>) {
    let start = Instant::now();
    loop {
        let now = descriptors();
        if now.iter().all(|(what, n)| before.get(what).is_some_and(|before| n <= before)) {
            return;
        }
        if start.elapsed() > Duration::from_secs(20) {
            assert_eq!(now, *before, "left open\n{}", common::log());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn wait(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(20), "waited for {what}\n{}", common::log());
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn say_all(conn: &Conn, speech: &[Said]) {
    for said in speech {
        conn.say(said);
    }
}

/// Says all of it; the connection, which is established.
fn connected(path: &Path, client: &Client) -> Conn {
    connected_to(path, client, client::PORT)
}

fn connected_to(path: &Path, client: &Client, port: u32) -> Conn {
    let conn = Conn::open(path);
    assert_eq!(conn.hear(), 2, "HELLO");
    for (i, said) in client.speech_to(port).iter().enumerate() {
        assert!(conn.say(said));
        assert_eq!(conn.hear(), if i == 4 { 7 } else { 1 }, "{i}\n{}", common::log());
    }
    conn
}

#[test]
fn clients_of_all_kinds() {
    let _cleanup = common::Cleanup(dir());
    let path = dir().join("memif.sock");
    let devargs =
        format!("net_memif0,role=server,id=7,socket={},socket-abstract=no", path.display());
    let open = || devices().open(&config("m", "dpdk", &[("dpdk-devargs", &devargs)]));
    only_the_owner_and_the_group_get_in(&path, open);
    let open = || open().unwrap();
    let (client, mut port) = (Client::new(), open());
    let unconnected = stays_open();
    let buffers = devices().pools.in_use();
    let (mut rx, mut tx) = (port.take_rx(0).unwrap(), port.take_tx(0).unwrap());
    traffic(&mut *port, (&mut *rx, &mut *tx), &client, connected(&path, &client));
    let before = descriptors();
    let mut noise = Noise::default();

    for _ in 0..100 {
        drop(Conn::open(&path));
    }
    for _ in 0..200 {
        let n = noise.below(300);
        let conn = Conn::open(&path);
        conn.say(&Said { bytes: noise.bytes(n), fds: Vec::new() });
        assert!([2, 8].contains(&conn.ended()));
    }
    hang_up_at_each_point(&path, &client);
    short_and_long_messages(&path, &client);
    too_many_messages(&path);
    clients_that_say_nothing_make_room(&path, &client);
    many_clients_are_connected_at_once();
    a_connected_client_that_talks_is_heard_slowly(&path, &client);
    wrong_descriptors(&path, &client);
    wild_numbers(&path, &client, &mut noise);
    closed(&before);

    // A connected client that says nonsense goes; another one that connects meanwhile is refused.
    let conn = connected(&path, &client);
    let second = Conn::open(&path);
    client.speech().iter().for_each(|said| assert!(second.say(said)));
    assert_eq!(second.ended(), 8);
    assert!(conn.say(&Said { bytes: noise.bytes(SIZE), fds: vec![client.memory.as_raw_fd()] }));
    assert_eq!(conn.ended(), 8);
    drop((conn, second));
    closed(&before);

    traffic(&mut *port, (&mut *rx, &mut *tx), &client, connected(&path, &client));
    let mut queues = (rx, tx);
    rings::wild_clients(&path, &mut *port, &mut queues);
    let (mut rx, mut tx) = queues;
    traffic(&mut *port, (&mut *rx, &mut *tx), &client, connected(&path, &client));
    rings::both_ends_are_ours();
    rings::no_connection_is_accepted();
    let conn = connected(&path, &client);
    drop((rx, tx, port));
    assert_eq!(conn.ended(), 8, "the port closes");
    assert!(!path.exists() && devices().pools.in_use() == buffers);
    drop(conn);
    (0..3).for_each(|_| drop(open()));
    let _port = open();
    closed(&unconnected);
}

/// The file's mode is what keeps other users out.
fn only_the_owner_and_the_group_get_in(
    path: &Path,
    open: impl Fn() -> Result<Box<dyn Port>, PortError>,
) {
    // SAFETY: this process has one test, and no other thread of it makes files.
    let umask = unsafe { libc::umask(0) };
    let _port = open().unwrap();
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o770);
    // SAFETY: as above.
    unsafe { libc::umask(umask) };
}

fn hang_up_at_each_point(path: &Path, client: &Client) {
    for end in 0..=5 {
        for waits in [true, false] {
            let conn = Conn::open(path);
            for said in &client.speech()[..end] {
                assert!(conn.say(said));
                if waits {
                    conn.hear();
                }
            }
        }
    }
}

fn short_and_long_messages(path: &Path, client: &Client) {
    for (i, length) in [(0, 1), (0, 127), (1, 12), (2, 2), (3, 129), (4, 127), (4, 4000)] {
        let (conn, mut speech) = (Conn::open(path), client.speech());
        speech[i].bytes.resize(length, 0);
        say_all(&conn, &speech);
        assert_eq!(conn.ended(), 8, "message {i} of {length} bytes");
    }
}

/// A client that answers for ever is sent away.
fn too_many_messages(path: &Path) {
    let conn = Conn::open(path);
    let ack = Said { bytes: [&[1, 0][..], &[0; SIZE - 2]].concat(), fds: Vec::new() };
    let taken = (0..100_000).take_while(|_| conn.say(&ack)).count();
    assert!((1024..100_000).contains(&taken), "{taken}");
    assert_eq!(conn.ended(), 8);
}

/// More clients than may be connecting at once, of which the first ones are sent away; then one
/// that says all it has to.
fn clients_that_say_nothing_make_room(path: &Path, client: &Client) {
    let silent: Vec<_> = (0..CONNECTING_CLIENTS_MAX + 10).map(|_| Conn::open(path)).collect();
    let conn = connected(path, client);
    for (i, silent) in silent.iter().enumerate().take(10) {
        assert_eq!(silent.ended(), 8, "client {i}\n{}", common::log());
    }
    assert_eq!(silent.last().unwrap().hear(), 2, "HELLO: the last one stays");
    drop(conn);
}

/// Clients of one socket, each with a port, are connected, as many as there are ports.
fn many_clients_are_connected_at_once() {
    let path = dir().join("many.sock");
    let open = |id: u32| {
        let devargs = format!(
            "net_memif{id},id={id},role=server,socket={},socket-abstract=no",
            path.display()
        );
        let name = format!("many{id}");
        devices().open(&config(&name, "dpdk", &[("dpdk-devargs", &devargs)])).unwrap()
    };
    let ids = || (100..).take(CONNECTING_CLIENTS_MAX + 6);
    let mut ports: Vec<_> = ids().map(open).collect();
    let clients: Vec<_> = ids().map(|_| Client::new()).collect();
    let conns: Vec<_> =
        ids().zip(&clients).map(|(id, client)| connected_to(&path, client, id)).collect();
    wait("all links", || ports.iter_mut().all(|port| port.link().up));
    drop(conns);
    wait("no link", || ports.iter_mut().all(|port| !port.link().up));
}

/// A client that is connected may say a message each millisecond.
fn a_connected_client_that_talks_is_heard_slowly(path: &Path, client: &Client) {
    let conn = connected(path, client);
    let ack = Said { bytes: [&[1, 0][..], &[0; SIZE - 2]].concat(), fds: Vec::new() };
    let start = Instant::now();
    (0..2 * QUEUED_MESSAGES_MAX).for_each(|_| assert!(conn.say(&ack)));
    assert!(start.elapsed() >= Duration::from_millis(QUEUED_MESSAGES_MAX), "{:?}", start.elapsed());
}

fn wrong_descriptors(path: &Path, client: &Client) {
    let null = std::fs::File::open("/dev/null").unwrap();
    let (short, sealed) = (memory(4096, true), memory(REGION, true));
    // SAFETY: only adds seals; opens what is open.
    unsafe { libc::fcntl(sealed.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_FUTURE_WRITE) };
    let readable =
        std::fs::File::open(format!("/proc/self/fd/{}", client.memory.as_raw_fd())).unwrap();
    let (good, signal) = (client.memory.as_raw_fd(), client.signals[0].as_raw_fd());
    let disk = Client::on_disk().memory;
    let wrong: [(usize, &[RawFd]); 12] = [
        (0, &[good]),
        (1, &[]),
        (1, &[good, good]),
        (1, &[good; 9]),
        (1, &[null.as_raw_fd()]),
        (1, &[short.as_raw_fd()]),
        (1, &[sealed.as_raw_fd()]),
        (1, &[readable.as_raw_fd()]),
        (1, &[disk.as_raw_fd()]),
        (2, &[]),
        (3, &[null.as_raw_fd()]),
        (4, &[signal]),
    ];
    for (i, fds) in wrong {
        let (conn, mut speech) = (Conn::open(path), client.speech());
        speech[i].fds = fds.to_vec();
        say_all(&conn, &speech);
        assert_eq!(conn.ended(), 8, "{fds:?} with message {i}");
    }
}

/// Any byte that means something, changed; then all of them at random. Some of it is right by
/// chance.
fn wild_numbers(path: &Path, client: &Client, noise: &mut Noise) {
    let lengths = [9, 12, 15, 15, 2];
    for (i, length) in lengths.into_iter().enumerate() {
        for at in 0..length {
            for value in [0xff, 0x80, 0x01] {
                let (conn, mut speech) = (Conn::open(path), client.speech());
                speech[i].bytes[at] ^= value;
                say_all(&conn, &speech);
            }
        }
    }
    for _ in 0..300 {
        let (conn, mut speech) = (Conn::open(path), client.speech());
        let i = noise.below(5);
        for _ in 0..1 + noise.below(3) {
            speech[i].bytes[noise.below(lengths[i])] = noise.next() as u8;
        }
        let other = noise.below(5);
        if noise.below(3) == 0 {
            speech.swap(i, other);
        }
        say_all(&conn, &speech);
    }
}

/// A packet each way through the client's memory.
fn traffic(
    port: &mut dyn Port,
    (rx, tx): (&mut dyn RxQueue, &mut dyn TxQueue),
    client: &Client,
    conn: Conn,
) {
    wait("the link", || port.link().up);
    // One frame in the first ring, one free place in the second.
    client.write(4096, &[7; 60]);
    for (ring, length, offset) in [(0, 60u32, 4096u32), (RING, 2048, 8192)] {
        let words = [0, length, offset].map(u32::to_ne_bytes).concat();
        client.write(ring + 128, &words);
        client.write(ring + 6, &1u16.to_ne_bytes());
    }
    let mut got: Vec<Packet> = Vec::with_capacity(32);
    assert_eq!(rx.rx(&mut got, 32), 1);
    assert_eq!(got[0].data(), [7; 60]);
    assert_eq!(tx.tx(&got), 1, "{}", common::log());
    let mut back = [0; 60];
    std::os::unix::fs::FileExt::read_exact_at(&client.file(), &mut back, 8192).unwrap();
    assert_eq!(back, [7; 60]);
    let mut tail = [0; 2];
    std::os::unix::fs::FileExt::read_exact_at(&client.file(), &mut tail, RING + 64).unwrap();
    assert_eq!(u16::from_ne_bytes(tail), 1);
    drop(conn);
    wait("the link", || !port.link().up);
    assert_eq!(rx.rx(&mut got, 32), 0);
}
