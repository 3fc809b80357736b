//! Virtual devices that meet the kernel (af_packet, tap, AF_XDP), and memif, in a network namespace
//! of this thread's own. Needs to be root.

mod common;

use common::{config, devices, dir};
use packet::{Packet, Pool};
use port::{Port, PortError, RxQueue, TxQueue};
use std::process::Command;
use std::time::{Duration, Instant};

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split_whitespace()).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

fn open(name: &str, kind: &str, devargs: &str) -> Result<Box<dyn Port>, PortError> {
    devices().open(&config(name, kind, &[("dpdk-devargs", devargs)]))
}

/// Packets that start like ours do, from `from` to `to`.
fn carry(from: &mut dyn Port, to: &mut dyn Port) {
    exchange(from.take_tx(0).unwrap(), to.take_rx(0).unwrap());
}

fn exchange(mut tx: Box<dyn TxQueue>, mut rx: Box<dyn RxQueue>) {
    let mut frame = vec![0u8; 64];
    frame[..6].fill(0xff);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    let (start, mut got) = (Instant::now(), 0);
    while got < 10 {
        assert!(start.elapsed() < Duration::from_secs(5), "{}\n{got}", common::log());
        let packets: Vec<Packet> = devices().pools.packet(&frame).into_iter().collect();
        let taken = tx.tx(&packets);
        devices().pools.free(&packets[taken..]);
        let mut back = Vec::with_capacity(32);
        rx.rx(&mut back, 32);
        got += back.iter().filter(|p| p.data()[12..14] == [0x88, 0xb5]).count();
        devices().pools.free(&back);
        std::thread::sleep(Duration::from_millis(1));
    }
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
    if devices().pools.eal().hugepages() {
        let refused = devices().open(&config("v0", "afxdp", &[])).map(drop).unwrap_err();
        assert!(refused.to_string().contains("hugepages"), "{refused}");
        return;
    }
    let mut a = match devices().open(&config("v0", "afxdp", &[])) {
        Ok(port) => port,
        Err(error) => panic!("{error}\n{}", common::log()),
    };
    let mut b = open("b", "dpdk", "eth_af_packet1,iface=v1").unwrap();
    assert_eq!(a.status()["driver_name"], "net_af_xdp");
    carry(&mut *b, &mut *a);
}
