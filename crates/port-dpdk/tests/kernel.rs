//! Virtual devices that meet the kernel (af_packet, tap, AF_XDP), in a network namespace of this
//! thread's own. Needs to be root.

mod common;

use common::{config, devices, dir};
use packet::{Packet, Pool};
use port::{Port, PortError};
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
    let (mut tx, mut rx) = (from.take_tx(0).unwrap(), to.take_rx(0).unwrap());
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
