//! Segments of TCP that follow each other reach the kernel as one frame, and the next switch as
//! the segments that they were. Needs root.

mod common;

use common::*;
use packet::{Packet, Pool};
use port::PortConfig;
use std::process::Command;
use testkit::tcp_stream;

/// Frames that the kernel has received on a device.
fn received(device: &str) -> u64 {
    counted(device, "rx")
}

/// Frames that the kernel has counted on a device, in direction `rx` or `tx`.
fn counted(device: &str, direction: &str) -> u64 {
    let args = ["-s", "-j", "link", "show", "dev", device];
    let out = Command::new("ip").args(args).output().expect("ip runs");
    let text = String::from_utf8(out.stdout).expect("text");
    let (_, rest) = text.split_once(&format!("\"{direction}\":{{")).expect("counters");
    let (_, number) = rest.split_once("\"packets\":").expect("packets");
    number[..number.find(|c: char| !c.is_ascii_digit()).unwrap()].parse().unwrap()
}

/// Sends segments and other frames; `to` gets exactly these, and the kernel counted them on
/// `device` as `frames`.
fn sends(from: &mut Open, to: &mut Open, device: &str, frames: u64) {
    let mut sent = tcp_stream(false, 1, &[1000; 20]);
    // The checksum of one is wrong: it goes alone.
    sent[12][100] ^= 1;
    sent.push(numbered(1, 60));
    let before = received(device);
    from.send(&sent);
    let got = to.receive(sent.len(), |f| is_numbered(f) || f[12..14] == [8, 0]);
    assert_eq!(received(device) - before, frames);
    assert!(got == sent, "frames changed, or their order");
    let counters = from.port.counters();
    assert_eq!(counters["tx_packets"], 21);
    assert_eq!(counters["tx_bytes"], sent.iter().map(|f| f.len() as u64).sum());
}

/// Sends over a veth pair that was prepared so; see [`sends`].
fn over_veth(prepare: impl FnOnce(), frames: u64) {
    if !namespace() {
        return;
    }
    veth();
    prepare();
    let (mut a, mut b) = (open("v0", "system"), open("v1", "system"));
    sends(&mut a, &mut b, "v1", frames);
    a.close();
    b.close();
}

#[test]
fn a_veth_gets_one_frame_of_many_segments() {
    // 12 segments, the damaged one, 7 segments, the other frame.
    over_veth(|| {}, 4);
}

#[test]
fn a_tap_gets_one_frame_of_many_segments() {
    if !namespace() {
        return;
    }
    let mut t = open("tp0", "tap");
    t.port.set_admin_up(true).unwrap();
    let mut other = open("tp0", "system");
    sends(&mut t, &mut other, "tp0", 4);
    other.close();
    t.close();
}

/// Sends 100 segments, ten of which are enough for one call: it makes one frame of as many as
/// possible, and the kernel counts two frames on `device`.
fn sends_whole_frames(from: &mut Open, to: &mut Open, device: &str) {
    let sent = tcp_stream(false, 1, &[900; 100]);
    let packets: Vec<Packet> = sent.iter().map(|f| from.pool.packet(f).unwrap()).collect();
    let before = received(device);
    assert_eq!(from.tx.tx_some(&packets, 10), 64);
    assert_eq!(from.tx.tx_some(&packets[64..], 36), 36);
    let got = to.receive(sent.len(), |f| f[12..14] == [8, 0]);
    assert_eq!(received(device) - before, 2);
    assert!(got == sent, "frames changed, or their order");
}

#[test]
fn a_frame_is_not_divided_where_enough_packets_were_sent() {
    if !namespace() {
        return;
    }
    veth();
    let (mut a, mut b) = (open("v0", "system"), open("v1", "system"));
    sends_whole_frames(&mut a, &mut b, "v1");
    a.close();
    b.close();
    let mut t = open("tp0", "tap");
    t.port.set_admin_up(true).unwrap();
    let mut other = open("tp0", "system");
    sends_whole_frames(&mut t, &mut other, "tp0");
    other.close();
    t.close();
}

/// A device without segmentation offload: the kernel divides what is left whole.
#[test]
fn a_device_without_offloads_gets_segments() {
    let off = || {
        let args = ["-K", "v0", "tso", "off", "gso", "off", "tx", "off"];
        let out = Command::new("ethtool").args(args).output().expect("ethtool runs");
        assert!(out.status.success());
    };
    over_veth(off, 21);
}

/// Sends segments through a bridge of the kernel from a TAP to another one; how many frames the
/// kernel gave the other one for them.
fn bridged(userspace_tso: bool) -> Option<u64> {
    if !namespace() {
        return None;
    }
    let with = |name| PortConfig { userspace_tso, ..config(name, "tap") };
    let (mut a, mut b) = (open_with(&with("tp0")), open_with(&with("tp1")));
    let ip = |args: &str| {
        let out = Command::new("ip").args(args.split(' ')).output().expect("ip runs");
        assert!(out.status.success(), "ip {args}: {out:?}");
    };
    ip("link add br0 type bridge mcast_snooping 0");
    ip("link set br0 up");
    for (port, name) in [(&mut a, "tp0"), (&mut b, "tp1")] {
        port.port.set_admin_up(true).unwrap();
        ip(&format!("link set {name} master br0"));
    }
    let ours = |f: &[u8]| f[12..14] == [8, 0];
    let sent = tcp_stream(false, 1, &[1000; 20]);
    // Until the bridge forwards.
    let forwards = (0..10).any(|_| {
        a.send(&sent[..1]);
        !b.receive(1, ours).is_empty()
    });
    assert!(forwards, "the bridge forwards nothing");
    while !b.receive(1, ours).is_empty() {}
    let before = counted("tp1", "tx");
    a.send(&sent);
    assert!(b.receive(sent.len(), ours) == sent, "frames changed, or their order");
    let frames = counted("tp1", "tx") - before;
    a.close();
    b.close();
    Some(frames)
}

#[test]
fn a_tap_leaves_segments_to_the_switch_if_that_is_asked_for() {
    assert!(bridged(true).is_none_or(|frames| (1..5).contains(&frames)));
}

#[test]
fn a_tap_sends_segments_otherwise() {
    assert!(bridged(false).is_none_or(|frames| frames >= 20));
}
