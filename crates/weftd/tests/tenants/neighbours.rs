//! Floods of ARP and Neighbour Advertisements at a tunnel's underlay.

use crate::lab::*;
use crate::measure::*;
use testkit::{Frame, L4, Net, Netns, Raw, Switch, V6, privileged};

/// Frames a second.
const RATE: u32 = 2000;
/// The bridge that has the underlay's addresses.
const OURS: [u8; 6] = [0xaa, 0x55, 0, 0, 0, 1];

fn underlay<'a>(ns: &'a Netns) -> (Switch<'a>, Netns) {
    let sw = start(ns);
    add_bridge(&sw, "br-phy");
    let (evil, mac) = (host(ns, 3), "aa:55:00:00:00:01");
    vsctl(&sw, &format!("set bridge br-phy other-config:hwaddr={mac} -- add-port br-phy v3"));
    ns.ip("addr add 10.0.0.9/24 dev br-phy").unwrap();
    ns.ip("-6 addr add fd00::9/64 dev br-phy").unwrap();
    ns.ip("link set br-phy up").unwrap();
    add_bridge(&sw, "br-int");
    vsctl(
        &sw,
        "add-port br-int vx -- set interface vx type=vxlan options:remote_ip=10.0.0.3 options:key=1 \
         -- add-port br-int vx6 -- set interface vx6 type=vxlan options:remote_ip=fd00::fe options:key=2",
    );
    (sw, evil)
}

/// Says that `fd00::N` is at a MAC address: to us, with this hop limit.
fn advertisement(n: u16, mac: [u8; 6], hops: u8) -> Vec<u8> {
    let address = |last: u16| {
        let mut a = [0; 16];
        (a[0], a[14], a[15]) = (0xfd, (last >> 8) as u8, last as u8);
        a
    };
    let l4 =
        L4::Nd { kind: 136, flags: 0x6000_0000, target: address(n), sll: None, tll: Some(mac) };
    let v6 = V6 { hops, ..V6::new(address(n), address(9), l4) };
    Frame::new(mac, OURS, Net::V6(v6)).bytes()
}

fn arp(n: u16, mac: [u8; 6]) -> Vec<u8> {
    let [hi, lo] = n.to_be_bytes();
    let own = (mac, [10, 0, hi, lo]);
    Frame::new(mac, [0xff; 6], Net::Arp(2, own, own)).bytes()
}

#[test]
fn floods_of_answers_that_were_not_asked_for() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let (sw, evil) = underlay(&ns);
    let victim = Victim::new(&ns, &sw);
    let flood = |changes: bool| {
        let raw = Raw::open(&evil, "eth0").unwrap();
        vec![Traffic::start(raw, RATE, move |i| {
            let n = if changes { 16 + (i % 8000) as u16 } else { 3 };
            let mac = [2, 7, 0, 0, if changes { (i / 8000) as u8 } else { 0 }, n as u8];
            if i % 2 == 0 { arp(n, mac) } else { advertisement(n, mac, 255) }
        })]
    };
    judge("neighbours", &victim, || flood(false), || flood(true));
}

/// A router lowers the hop limit, so an advertisement with 64 came from elsewhere (RFC 4861,
/// 7.1.2).
#[test]
fn an_advertisement_from_off_link_changes_nothing() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let (sw, evil) = underlay(&ns);
    let raw = Raw::open(&evil, "eth0").unwrap();
    let knows = |mac: &str| appctl(&sw, "tnl/neigh/show").contains(mac);
    // What is on the link is believed: something asks for it first.
    wait_for("an answer from the link", || {
        raw.send(&advertisement(0xfe, [2, 6, 6, 6, 6, 1], 255)).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(50));
        knows("02:06:06:06:06:01")
    });
    for _ in 0..20 {
        raw.send(&advertisement(0xfe, [2, 6, 6, 6, 6, 6], 64)).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(!knows("02:06:06:06:06:06"), "{}", appctl(&sw, "tnl/neigh/show"));
}
