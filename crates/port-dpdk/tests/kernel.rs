//! Virtual devices that meet the kernel (af_packet, tap, AF_XDP), and memif, in a network namespace
//! of this thread's own. Needs to be root.

mod common;

use common::{config, devices, dir};
use packet::{Packet, Pool};
use port::{Port, PortError, RxQueue, TxQueue};
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split_whitespace()).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

fn open(name: &str, kind: &str, devargs: &str) -> Result<Box<dyn Port>, PortError> {
    devices().open(&config(name, kind, &[("dpdk-devargs", devargs)]))
}

/// Frames from `from` to `to`: each is sent once, none is lost, and they come in order.
fn carry(from: &mut dyn Port, to: &mut dyn Port) {
    const FRAMES: u8 = 100;
    let (mut tx, mut rx) = (from.take_tx(0).unwrap(), to.take_rx(0).unwrap());
    let (start, mut sent, mut got) = (Instant::now(), 0, 0);
    while got < FRAMES {
        assert!(start.elapsed() < Duration::from_secs(20), "{}\n{got} of {sent}", common::log());
        let packets: Vec<Packet> = (sent..FRAMES.min(got + 10)).filter_map(numbered).collect();
        let taken = tx.tx(&packets);
        sent += taken as u8;
        devices().pools.free(&packets[taken..]);
        for number in receive(&mut *rx) {
            assert_eq!(number, got, "of {sent}\n{}", common::log());
            got += 1;
        }
    }
}

/// Frames to a peer, which sends them back once it has begun to.
fn exchange(mut tx: Box<dyn TxQueue>, mut rx: Box<dyn RxQueue>) {
    let (start, mut got) = (Instant::now(), 0);
    while got < 10 {
        assert!(start.elapsed() < Duration::from_secs(20), "{}\n{got}", common::log());
        let packets: Vec<Packet> = numbered(0).into_iter().collect();
        let taken = tx.tx(&packets);
        devices().pools.free(&packets[taken..]);
        got += receive(&mut *rx).len();
    }
}

/// A frame with a number.
fn numbered(n: u8) -> Option<Packet> {
    let mut frame = vec![n; 64];
    frame[..6].fill(0xff);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    devices().pools.packet(&frame)
}

/// The numbers of frames that came within a millisecond.
fn receive(rx: &mut dyn RxQueue) -> Vec<u8> {
    std::thread::sleep(Duration::from_millis(1));
    let mut back = Vec::with_capacity(32);
    rx.rx(&mut back, 32);
    let ours = back.iter().map(|p| p.data()).filter(|data| data[12..14] == [0x88, 0xb5]);
    let numbers = ours.map(|data| data[63]).collect();
    devices().pools.free(&back);
    numbers
}

#[test]
fn kernel_devices() {
    let _cleanup = common::Cleanup(dir());
    // SAFETY: only this thread, and those it starts, move to a new network namespace.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0, "run as root");
    ip("link add v0 type veth peer name v1");
    ip("link set v0 up");
    ip("link set v1 up");
    let before = devices().pools.in_use();
    af_packet_and_af_packet();
    tap_comes_and_goes();
    for roles in [["server", "client"], ["client", "server"]] {
        memif_and_peer(roles);
    }
    for _ in 0..3 {
        afxdp();
    }
    afxdp_while_the_queue_is_another_sockets();
    assert_eq!(devices().pools.in_use(), before);
}

fn af_packet_and_af_packet() {
    let mut a = open("a", "dpdk", "eth_af_packet0,iface=v0").unwrap();
    let mut b = open("b", "dpdk", "eth_af_packet1,iface=v1").unwrap();
    assert!(a.link().up && b.link().up);
    carry(&mut *a, &mut *b);
}

/// The other end is DPDK's driver in a process of its own, which sends back what it gets.
fn memif_and_peer([own, peers]: [&str; 2]) {
    let socket = dir().join("memif.sock");
    let devargs = |role: &str| {
        format!("net_memif0,role={role},id=1,socket={},socket-abstract=no", socket.display())
    };
    let mut port = open("memif", "dpdk", &devargs(own)).unwrap();
    let mut peer = Command::new("dpdk-testpmd")
        .args(["--no-pci", "--no-huge", "-m", "256", "--no-shconf", "--no-telemetry"])
        .args(["-l", "0,1", "--file-prefix", &format!("weft-peer-{}", std::process::id())])
        .args(["--vdev", &devargs(peers), "--", "--forward-mode=io", "--port-topology=loop"])
        .args(["--auto-start", "--no-mlockall", "--total-num-mbufs=4096"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("dpdk-testpmd (Debian: dpdk-dev) starts");
    let start = Instant::now();
    while !port.link().up && start.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(5));
    }
    let up = port.link();
    if up.up {
        let (tx, rx) = (port.take_tx(0).unwrap(), port.take_rx(0).unwrap());
        exchange(tx, rx);
    }
    peer.kill().unwrap();
    peer.wait().unwrap();
    let _ = std::fs::remove_dir_all(format!("/var/run/dpdk/weft-peer-{}", std::process::id()));
    assert!(up.up && up.resets == 1, "{}", common::log());
}

fn tap_comes_and_goes() {
    let tap = || Command::new("ip").args(["link", "show", "weft-tap"]).output().unwrap().status;
    let port = open("tap", "dpdk", "net_tap0,iface=weft-tap").unwrap();
    assert!(tap().success());
    drop(port);
    assert!(!tap().success());
}

fn afxdp() {
    let mut a = match devices().open(&config("v0", "afxdp", &[])) {
        Ok(port) => port,
        Err(error) => panic!("{error}\n{}", common::log()),
    };
    let mut b = open("b", "dpdk", "eth_af_packet1,iface=v1").unwrap();
    assert_eq!(a.status()["driver_name"], "net_af_xdp");
    carry(&mut *b, &mut *a);
}

/// The first attempts to open the port fail, as they do until the kernel has freed the queue of a
/// socket that was closed.
fn afxdp_while_the_queue_is_another_sockets() {
    let other = xdp_socket("v0");
    let failed = || common::log().matches("Failed to create xsk socket").count();
    let (before, start) = (failed(), Instant::now());
    let freed = std::thread::spawn(move || {
        while failed() == before {
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "the port is open without the queue"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(other);
    });
    afxdp();
    freed.join().unwrap();
}

/// An AF_XDP socket of the device's first queue.
fn xdp_socket(dev: &str) -> (OwnedFd, Box<Page>) {
    let name = std::ffi::CString::new(dev).unwrap();
    let page = Box::new(Page([0; 4096]));
    let memory = libc::xdp_umem_reg {
        addr: &raw const *page as u64,
        len: 4096,
        chunk_size: 4096,
        headroom: 0,
        flags: 0,
        tx_metadata_len: 0,
    };
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: libc::XDP_COPY,
        // SAFETY: the string is NUL-terminated and only read.
        sxdp_ifindex: unsafe { libc::if_nametoindex(name.as_ptr()) },
        sxdp_queue_id: 0,
        sxdp_shared_umem_fd: 0,
    };
    // SAFETY: a socket of our own. The kernel reads the structures, which have the sizes that are
    // said, and writes to the page as long as the socket is open.
    unsafe {
        let fd = libc::socket(libc::AF_XDP, libc::SOCK_RAW, 0);
        assert!(fd >= 0);
        let set = |option, value: *const libc::c_void, size: usize| {
            assert_eq!(libc::setsockopt(fd, libc::SOL_XDP, option, value, size as u32), 0);
        };
        set(libc::XDP_UMEM_REG, (&raw const memory).cast(), size_of_val(&memory));
        let entries = 8u32;
        for ring in [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING] {
            set(ring, (&raw const entries).cast(), 4);
        }
        // The former port's socket may not be gone yet.
        while libc::bind(fd, (&raw const address).cast(), size_of_val(&address) as u32) < 0 {
            let error = std::io::Error::last_os_error();
            assert_eq!(error.raw_os_error(), Some(libc::EBUSY), "{error}");
            std::thread::sleep(Duration::from_millis(1));
        }
        (OwnedFd::from_raw_fd(fd), page)
    }
}

#[repr(align(4096))]
struct Page(#[allow(dead_code)] [u8; 4096]);
