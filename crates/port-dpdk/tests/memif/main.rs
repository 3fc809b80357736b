//! The socket of a memif server under fire: noise, pieces of conversations, wild numbers, wrong
//! descriptors. Whatever comes, the process stays, nothing stays open, and a client that says the
//! right thing is served.

#[path = "../common/mod.rs"]
mod common;

use common::{config, devices, dir};
use packet::Packet;
use port::{Port, PortError, RxQueue, TxQueue};
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};
use testkit::Noise;

const SIZE: usize = 128;
const REGION: u64 = 1 << 20;
const COOKIE: u32 = 0x3E3_1F20;
const LOG2: u8 = 4;
const RING: u64 = 128 + (16 << LOG2);

/// One message to send.
struct Said {
    bytes: Vec<u8>,
    fds: Vec<RawFd>,
}

fn fd(ret: i32) -> OwnedFd {
    assert!(ret >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: just made by a call that returned it.
    unsafe { OwnedFd::from_raw_fd(ret) }
}

/// Shared memory of this size.
fn memory(size: u64, sealed: bool) -> OwnedFd {
    // SAFETY: plain calls with valid arguments.
    unsafe {
        let memory = fd(libc::memfd_create(c"test".as_ptr(), libc::MFD_ALLOW_SEALING));
        assert_eq!(libc::ftruncate(memory.as_raw_fd(), size as i64), 0);
        if sealed {
            libc::fcntl(memory.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK);
        }
        memory
    }
}

fn eventfd() -> OwnedFd {
    // SAFETY: makes a descriptor.
    fd(unsafe { libc::eventfd(0, libc::EFD_NONBLOCK) })
}

/// A client that has what it takes.
struct Client {
    memory: OwnedFd,
    signals: [OwnedFd; 2],
}

impl Client {
    /// Two rings at the start of a region.
    fn new() -> Client {
        let client = Client { memory: memory(REGION, true), signals: [eventfd(), eventfd()] };
        for at in [0, RING] {
            client.write(at, &COOKIE.to_ne_bytes());
        }
        client
    }

    fn file(&self) -> std::fs::File {
        self.memory.try_clone().unwrap().into()
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        std::os::unix::fs::FileExt::write_all_at(&self.file(), bytes, at).unwrap();
    }

    /// All it says until it is connected.
    fn speech(&self) -> Vec<Said> {
        let said = |kind: u16, parts: &[&[u8]], fds: &[&OwnedFd]| {
            let mut bytes = [&kind.to_ne_bytes()[..], &parts.concat()].concat();
            bytes.resize(SIZE, 0);
            Said { bytes, fds: fds.iter().map(|fd| fd.as_raw_fd()).collect() }
        };
        let ring = |flags: u16, offset: u32, signal: &OwnedFd| {
            let words = [flags, 0, 0].map(u16::to_ne_bytes).concat();
            said(5, &[&words, &offset.to_ne_bytes(), &[LOG2, 0, 0]], &[signal])
        };
        vec![
            said(3, &[&0x200u16.to_ne_bytes(), &7u32.to_ne_bytes(), &[0]], &[]),
            said(4, &[&0u16.to_ne_bytes(), &REGION.to_ne_bytes()], &[&self.memory]),
            ring(1, 0, &self.signals[0]),
            ring(0, RING as u32, &self.signals[1]),
            said(6, &[b"test"], &[]),
        ]
    }
}

/// A connection to the server.
struct Conn(OwnedFd);

impl Conn {
    fn open(path: &Path) -> Conn {
        // SAFETY: the address is initialised and its length right.
        unsafe {
            let socket = fd(libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0));
            let mut to: libc::sockaddr_un = std::mem::zeroed();
            to.sun_family = libc::AF_UNIX as u16;
            let path = path.to_str().unwrap().as_bytes();
            to.sun_path.iter_mut().zip(path).for_each(|(to, from)| *to = *from as i8);
            let len = size_of_val(&to) as u32;
            let ret = libc::connect(socket.as_raw_fd(), (&raw const to).cast(), len);
            assert_eq!(ret, 0, "{}", std::io::Error::last_os_error());
            let limit = libc::timeval { tv_sec: 8, tv_usec: 0 };
            let (value, len) = ((&raw const limit).cast(), size_of_val(&limit) as u32);
            libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVTIMEO, value, len);
            Conn(socket)
        }
    }

    /// Does the server still take it?
    fn say(&self, said: &Said) -> bool {
        let mut control = [0u64; 16];
        let mut part = libc::iovec {
            iov_base: said.bytes.as_ptr().cast_mut().cast(),
            iov_len: said.bytes.len(),
        };
        // SAFETY: the header points to valid memory of the lengths it says.
        unsafe {
            let mut header: libc::msghdr = std::mem::zeroed();
            (header.msg_iov, header.msg_iovlen) = (&mut part, 1);
            let len = 4 * said.fds.len() as u32;
            if len > 0 {
                header.msg_control = control.as_mut_ptr().cast();
                header.msg_controllen = libc::CMSG_SPACE(len) as usize;
                let item = libc::CMSG_FIRSTHDR(&header);
                ((*item).cmsg_level, (*item).cmsg_type) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
                (*item).cmsg_len = libc::CMSG_LEN(len) as usize;
                let data = libc::CMSG_DATA(item);
                std::ptr::copy_nonoverlapping(said.fds.as_ptr().cast(), data, len as usize);
            }
            libc::sendmsg(self.0.as_raw_fd(), &header, libc::MSG_NOSIGNAL) >= 0
        }
    }

    /// The type of the next message; 0 at the end.
    fn hear(&self) -> u16 {
        let mut bytes = [0u8; SIZE];
        // A message of ours that was not read is an error once; what was said to us comes after it.
        // SAFETY: the buffer is that long.
        let mut hear =
            || unsafe { libc::recv(self.0.as_raw_fd(), bytes.as_mut_ptr().cast(), SIZE, 0) };
        let mut n = hear();
        if n < 0 && errno() == libc::ECONNRESET {
            n = hear();
        }
        assert!(n >= 0, "{}", std::io::Error::last_os_error());
        if n == 0 { 0 } else { u16::from_ne_bytes([bytes[0], bytes[1]]) }
    }

    /// Hears until the server has closed; the last that it said.
    fn ended(&self) -> u16 {
        let mut last = 0;
        loop {
            match self.hear() {
                0 => return last,
                kind => last = kind,
            }
        }
    }
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// What is open, by what it is, numbers aside.
fn descriptors() -> BTreeMap<String, usize> {
    let mut open = BTreeMap::new();
    for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
        let Ok(target) = std::fs::read_link(entry.path()) else { continue };
        let target = target.display().to_string();
        *open.entry(target.split(":[").next().unwrap_or("").into()).or_default() += 1;
    }
    // EAL's own, one for each hugepage.
    open.retain(|what: &String, _| !what.starts_with("/memfd:seg_"));
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
    let conn = Conn::open(path);
    assert_eq!(conn.hear(), 2, "HELLO");
    for (i, said) in client.speech().iter().enumerate() {
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
    let conn = connected(&path, &client);
    drop((rx, tx, port));
    assert_eq!(conn.ended(), 8, "the port closes");
    assert!(!path.exists() && devices().pools.in_use() == buffers);
    drop(conn);
    (0..3).for_each(|_| drop(open()));
    let _port = open();
    closed(&unconnected);
}

/// Whoever may connect is trusted with the rings, so the modes of files are what keeps others out.
fn only_the_owner_and_the_group_get_in(
    path: &Path,
    open: impl Fn() -> Result<Box<dyn Port>, PortError>,
) {
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    // SAFETY: this process has one test, and no other thread of it makes files.
    let umask = unsafe { libc::umask(0) };
    // Another user prepared the directory where the driver's own socket is to be.
    let private = dir().join("weftd.memif");
    std::fs::create_dir(&private).unwrap();
    let error = open().err().expect("a directory that others may enter is refused").to_string();
    assert!(error.contains("only this user may enter"), "{error}");
    std::fs::remove_dir(&private).unwrap();
    let _port = open().unwrap();
    assert_eq!((mode(path), mode(&private)), (0o770, 0o700));
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

fn wrong_descriptors(path: &Path, client: &Client) {
    let null = std::fs::File::open("/dev/null").unwrap();
    let (short, shrinks, sealed) =
        (memory(4096, true), memory(REGION, false), memory(REGION, true));
    // SAFETY: only adds seals; opens what is open.
    unsafe { libc::fcntl(sealed.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_FUTURE_WRITE) };
    let readable =
        std::fs::File::open(format!("/proc/self/fd/{}", client.memory.as_raw_fd())).unwrap();
    let (good, signal) = (client.memory.as_raw_fd(), client.signals[0].as_raw_fd());
    let wrong: [(usize, &[RawFd]); 12] = [
        (0, &[good]),
        (1, &[]),
        (1, &[good, good]),
        (1, &[good; 9]),
        (1, &[null.as_raw_fd()]),
        (1, &[short.as_raw_fd()]),
        (1, &[shrinks.as_raw_fd()]),
        (1, &[sealed.as_raw_fd()]),
        (1, &[readable.as_raw_fd()]),
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
