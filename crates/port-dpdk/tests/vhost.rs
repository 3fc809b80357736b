//! vhost-user ports with a real guest: `dpdk-testpmd` on virtio-user, which sends back what it
//! gets. One test function: EAL starts once, and the leak checks need quiet.

mod common;

use common::{config, devices, dir};
use packet::{Packet, Pool};
use port::{Port, RxQueue, TxQueue};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Ports that are deleted at once, and how often.
const LEAVING_PORTS: usize = 40;
const LEAVING_ROUNDS: usize = 2;

/// A guest may have hardly any of a busy machine's cores: alone it starts in 0.2 s, with a dozen of
/// other processes in 20.
const WAIT_TIME_MAX: Duration = Duration::from_secs(120);

/// So that a guest does not outlive a test that is killed.
fn die_with_parent() -> std::io::Result<()> {
    // SAFETY: sets a flag of the calling process.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    Ok(())
}

/// A guest; killed when dropped.
struct Guest(Child);

impl Guest {
    fn start(socket: &Path, vdev: &str, queues: usize) -> Guest {
        let vdev = format!("net_virtio_user0,path={},queues={queues}{vdev}", socket.display());
        let prefix = format!("weft-guest-{}", std::process::id());
        let mut command = Command::new("dpdk-testpmd");
        // SAFETY: only makes a system call, which a child may.
        unsafe { command.pre_exec(die_with_parent) };
        let child = command
            .args(["--no-pci", "--no-huge", "-m", "256", "--no-shconf", "--no-telemetry"])
            .args(["-l", "0,1", "--file-prefix", &prefix, "--vdev", &vdev, "--"])
            .args(["--forward-mode=io", "--port-topology=loop", "--auto-start", "--no-mlockall"])
            .args(["--no-flush-rx", "--total-num-mbufs=4096", "--rxd=256", "--txd=256"])
            .args([format!("--rxq={queues}"), format!("--txq={queues}")])
            .stdin(Stdio::piped())
            .stdout(std::fs::File::create(dir().join("guest.log")).unwrap())
            .stderr(Stdio::null())
            .spawn()
            .expect("dpdk-testpmd (Debian: dpdk-dev) starts");
        Guest(child)
    }

    /// SIGKILL, whatever it is doing.
    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        let _ = std::fs::remove_dir_all(format!("/var/run/dpdk/weft-guest-{}", std::process::id()));
    }
}

fn wait(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        let log = || std::fs::read_to_string(dir().join("guest.log")).unwrap_or_default();
        if start.elapsed() > WAIT_TIME_MAX {
            panic!("{what}: timeout\n{}\n{}", common::log(), log());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn frames(first: u64, n: usize, size: usize) -> Vec<Packet> {
    let frame = |i: usize| {
        let mut bytes = vec![0u8; size];
        bytes[14..22].copy_from_slice(&(first + i as u64).to_be_bytes());
        bytes[22..24].copy_from_slice(&(size as u16).to_be_bytes());
        devices().pools.packet(&bytes).expect("a buffer")
    };
    (0..n).map(frame).collect()
}

fn number(packet: &Packet) -> u64 {
    u64::from_be_bytes(packet.data()[14..22].try_into().unwrap())
}

/// The two ends of a port as a datapath uses them.
struct Ends {
    rx: Box<dyn RxQueue>,
    tx: Box<dyn TxQueue>,
    next: u64,
}

impl Ends {
    fn of(port: &mut dyn Port) -> Ends {
        Ends { rx: port.take_rx(0).unwrap(), tx: port.take_tx(0).unwrap(), next: 0 }
    }

    /// Sends a burst (dropping what does not fit) and receives what is there.
    fn step(&mut self, n: usize, size: usize) -> Vec<u64> {
        let packets = frames(self.next, n, size);
        self.next += n as u64;
        let taken = self.tx.tx(&packets);
        devices().pools.free(&packets[taken..]);
        let mut back = Vec::with_capacity(64);
        self.rx.rx(&mut back, 64);
        let numbers = back.iter().map(number).collect();
        for p in &back {
            let size = u16::from_be_bytes(p.data()[22..24].try_into().unwrap());
            assert_eq!((p.segments(), p.len()), (1, size as usize));
        }
        devices().pools.free(&back);
        numbers
    }

    /// Until `n` packets that were sent from now on came back, in order.
    fn exchange(&mut self, n: usize, size: usize) {
        let (first, mut seen) = (self.next, Vec::new());
        wait("packets come back", || {
            let back = self.step(16, size);
            seen.extend(back.into_iter().filter(|number| *number >= first));
            std::thread::yield_now();
            seen.len() >= n
        });
        assert!(seen.is_sorted(), "packets changed order");
    }

    /// Receives until the guest has nothing more.
    fn drain(&mut self) {
        let mut quiet = 0;
        while quiet < 20 {
            let back = self.step(0, 64);
            quiet = if back.is_empty() { quiet + 1 } else { 0 };
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

#[test]
fn guests() {
    let _cleanup = common::Cleanup(dir());
    let before = devices().pools.in_use();
    front_ends_that_leave_at_once_are_few();
    for ring in ["", ",packed_vq=1", ",mrg_rxbuf=0", ",in_order=1", ",in_order=1,packed_vq=1"] {
        guest_makes_the_socket(ring, "own");
    }
    for (ring, way) in [("", "library"), (",packed_vq=1", "library"), (",packed_vq=1", "own")] {
        guest_makes_the_socket(ring, way);
        we_make_the_socket(ring, way);
    }
    queues_follow_the_guest();
    sockets_are_exclusive();
    garbage_disturbs_nobody();
    front_ends_leave_while_their_ports_go();
    assert_eq!(devices().pools.in_use(), before, "packets leaked");
}

fn open_client(socket: &Path, way: &str) -> Box<dyn Port> {
    let path = socket.to_str().unwrap();
    let options = [("vhost-server-path", path), ("vhost-rings", way)];
    let config = config("client", "dpdkvhostuserclient", &options);
    devices().open(&config).unwrap()
}

fn guest_makes_the_socket(ring: &str, way: &str) {
    let socket = dir().join("guest.sock");
    let mut port = open_client(&socket, way);
    assert_eq!(port.status()["status"], "disconnected");
    assert!(!port.link().up);
    let mut ends = Ends::of(&mut *port);
    assert!(ends.step(8, 64).is_empty());
    assert_eq!(port.counters()["tx_dropped"], 8, "without a guest packets are dropped and counted");

    let options = format!("{ring},server=1");
    for life in 0..3u64 {
        let guest = Guest::start(&socket, &options, 1);
        wait("the guest connects", || port.link().up);
        ends.exchange(5000, 64);
        ends.exchange(200, 1514);
        check_status(&mut *port, "client", ring, way);
        // Killed in the middle of a burst.
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            guest.kill();
        });
        while !killer.is_finished() || port.link().up {
            ends.step(32, 64);
        }
        killer.join().unwrap();
        assert_eq!(port.status()["status"], "disconnected");
        assert_eq!(port.link().resets, 2 * (life + 1));
        let _ = std::fs::remove_file(&socket);
    }
    let counters = port.counters();
    assert!(counters.keys().all(|name| !name.starts_with("guest_")), "{counters:?}");
    assert!(counters["rx_packets"] >= 15_600 && counters["tx_packets"] >= 15_600);
    assert!(counters["rx_bytes"] >= counters["rx_packets"] * 64);
}

fn check_status(port: &mut dyn Port, mode: &str, ring: &str, way: &str) {
    let status = port.status();
    assert_eq!((status["mode"].as_str(), status["status"].as_str()), (mode, "connected"));
    assert_eq!((status["num_of_vrings"].as_str(), status["vring_0_size"].as_str()), ("2", "256"));
    let features = u64::from_str_radix(&status["features"][2..], 16).unwrap();
    assert_eq!(status["rings"], way);
    assert_eq!(features >> 34 & 1 == 1, ring.contains("packed"), "{}", status["features"]);
    assert_eq!(features & 1, 0, "checksum offload is not offered");
}

fn we_make_the_socket(ring: &str, way: &str) {
    let socket: PathBuf = devices().vhost_sock_dir.join("server");
    // A stale socket, as a killed daemon leaves it.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let mut port =
        devices().open(&config("server", "dpdkvhostuser", &[("vhost-rings", way)])).unwrap();
    assert!(socket.exists());
    let mut ends = Ends::of(&mut *port);
    for _ in 0..2 {
        let guest = Guest::start(&socket, ring, 1);
        wait("the guest connects", || port.link().up);
        ends.exchange(2000, 64);
        check_status(&mut *port, "server", ring, way);
        ends.drain();
        guest.kill();
        wait("the guest is gone", || !port.link().up);
    }
    // The port goes with a guest on it; its queues outlive it and find nothing.
    let _guest = Guest::start(&socket, ring, 1);
    wait("the guest connects", || port.link().up);
    ends.exchange(100, 64);
    drop(port);
    assert!(!socket.exists());
    assert!(ends.step(8, 64).is_empty());
}

fn queues_follow_the_guest() {
    let socket = dir().join("queues.sock");
    let mut port = open_client(&socket, "own");
    let mut ends = Ends::of(&mut *port);
    assert_eq!(port.n_rxq(), 1);
    let guest = Guest::start(&socket, ",server=1", 2);
    wait("both queues are on", || port.n_rxq() == 2);
    // Two senders spread over both guest queues; receive queue 0 serves both.
    let mut second = port.take_tx(1).unwrap();
    assert!(port.take_tx(1).is_none() && port.take_tx(2).is_none());
    let one = frames(1 << 40, 1, 64);
    assert_eq!(second.tx(&one), 1);
    wait("queue 0 serves the other as well", || ends.step(0, 64).contains(&(1 << 40)));
    // A handle of its own takes it over.
    let mut rx1 = port.take_rx(1).unwrap();
    assert!(port.take_rx(1).is_none() && port.take_rx(64).is_none());
    let one = frames(2 << 40, 1, 64);
    assert_eq!(second.tx(&one), 1);
    let mut back = Vec::with_capacity(4);
    wait("queue 1 serves its own", || {
        assert!(ends.step(0, 64).is_empty());
        rx1.rx(&mut back, 4) == 1
    });
    assert_eq!(number(&back[0]), 2 << 40);
    devices().pools.free(&back);
    drop(rx1);
    assert!(port.take_rx(1).is_some(), "a returned queue can be taken again");
    guest.kill();
    wait("the guest is gone", || !port.link().up);
    assert_eq!(port.n_rxq(), 1);
}

fn sockets_are_exclusive() {
    let socket = dir().join("exclusive.sock");
    let port = open_client(&socket, "own");
    let path = socket.to_str().unwrap();
    let error = |kind, options: &[(&str, &str)]| {
        devices().open(&config("second", kind, options)).err().expect("refused").to_string()
    };
    let client = "dpdkvhostuserclient";
    assert!(error(client, &[("vhost-server-path", path)]).contains("another port"));
    assert!(error(client, &[]).contains("vhost-server-path"));
    let long = format!("/{}", "x".repeat(120));
    assert!(error(client, &[("vhost-server-path", &long)]).contains("107"));
    drop(port);
    drop(open_client(&socket, "own"));
    let taken = devices().vhost_sock_dir.join("second");
    std::fs::write(&taken, "a file").unwrap();
    assert!(error("dpdkvhostuser", &[]).contains("not a socket"));
    assert_eq!(std::fs::read_to_string(&taken).unwrap(), "a file");
    std::fs::remove_file(&taken).unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(&taken).unwrap();
    assert!(error("dpdkvhostuser", &[]).contains("another process"));
}

/// Front-ends that close their connection at the moment their port is deleted. DPDK 22.11 by itself
/// would now and then connect to their sockets again, a second later and with memory that is freed.
fn front_ends_leave_while_their_ports_go() {
    use std::os::unix::net::{UnixListener, UnixStream};
    let path = |i: usize| dir().join(format!("leaving-{i}.sock"));
    for _ in 0..LEAVING_ROUNDS {
        let (sender, leaving) = std::sync::mpsc::channel::<UnixStream>();
        let thread = std::thread::spawn(move || leaving.into_iter().for_each(drop));
        for i in 0..LEAVING_PORTS {
            let listener = UnixListener::bind(path(i)).unwrap();
            let port = open_client(&path(i), "library");
            let (front_end, _) = listener.accept().unwrap();
            std::fs::remove_file(path(i)).unwrap();
            sender.send(front_end).unwrap();
            std::thread::sleep(Duration::from_micros(5 * i as u64));
            drop(port);
        }
        drop(sender);
        thread.join().unwrap();
        let again: Vec<_> =
            (0..LEAVING_PORTS).map(|i| UnixListener::bind(path(i)).unwrap()).collect();
        std::thread::sleep(Duration::from_millis(1500));
        for (i, listener) in again.into_iter().enumerate() {
            listener.set_nonblocking(true).unwrap();
            assert!(listener.accept().is_err(), "port {i} is gone and connects");
            std::fs::remove_file(path(i)).unwrap();
        }
    }
}

/// A socket whose front-ends leave at once is tried once a second, however often they come.
fn front_ends_that_leave_at_once_are_few() {
    use std::os::unix::net::UnixListener;
    const TIME: Duration = Duration::from_millis(3500);
    let path = dir().join("brief.sock");
    let listener = UnixListener::bind(&path).unwrap();
    listener.set_nonblocking(true).unwrap();
    let begin = std::time::Instant::now();
    let port = open_client(&path, "library");
    let mut tries = 0;
    while begin.elapsed() < TIME || tries < 2 {
        tries += u64::from(listener.accept().is_ok());
        std::thread::sleep(Duration::from_millis(1));
    }
    let most = begin.elapsed().as_secs() + 1;
    assert!(tries <= most, "{tries} tries, more than {most}");
    drop(port);
    std::fs::remove_file(&path).unwrap();
}

/// Random messages, some with a valid header, while a guest is served.
fn garbage_disturbs_nobody() {
    use std::io::Write;
    let socket: PathBuf = devices().vhost_sock_dir.join("garbage");
    let mut port = devices().open(&config("garbage", "dpdkvhostuser", &[])).unwrap();
    let mut ends = Ends::of(&mut *port);
    let _guest = Guest::start(&socket, "", 1);
    wait("the guest connects", || port.link().up);
    let mut noise = testkit::Noise::default();
    for _ in 0..300 {
        let mut stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
        let mut message = noise.bytes(64);
        if noise.below(4) > 0 {
            let size = noise.below(60);
            message[..4].copy_from_slice(&(noise.below(45) as u32).to_le_bytes());
            message[4..8].copy_from_slice(&1u32.to_le_bytes());
            message[8..12].copy_from_slice(&(size as u32).to_le_bytes());
            message.truncate(12 + size);
        }
        let _ = stream.write_all(&message);
        ends.step(4, 64);
    }
    assert!(port.link().up, "the guest that was there is still served");
    ends.exchange(1000, 64);
    ends.drain();
}
