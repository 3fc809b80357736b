//! ARP requests from ever new senders for a bridge's own address: the kernel's table of neighbours
//! is full, and each frame that is written to the bridge's port takes it 100 us.

use crate::lab::*;
use crate::measure::*;
use testkit::{Frame, Net, Raw};

/// Frames a second.
const RATE: u32 = 8000;

/// A request of this sender for 10.0.0.9.
fn request(sender: u16) -> Vec<u8> {
    let [hi, lo] = sender.to_be_bytes();
    let mac = [2, 0, 0, 0, 0, 3];
    Frame::new(mac, [0xff; 6], Net::Arp(1, (mac, [10, 0, hi, lo]), ([0; 6], [10, 0, 0, 9]))).bytes()
}

#[test]
fn another_bridge_does_not_notice() {
    attacked(|ns, sw, evil| {
        ns.ip("addr add 10.0.0.9/16 dev br0").unwrap();
        ns.ip("link set br0 up").unwrap();
        ping(evil, 9);
        let victim = Victim::new(ns, sw);
        let flood = |senders: u64| {
            let raw = Raw::open(evil, "eth0").unwrap();
            vec![Traffic::start(raw, RATE, move |i| request(256 + (i % senders) as u16))]
        };
        judge("ARP for a bridge's address", &victim, || flood(1), || flood(60_000));
    });
}
