//! One port sends from 60,000 source addresses.

use crate::lab::*;
use crate::measure::*;
use testkit::{Frame, Net, Netns, Raw, privileged};

/// Frames a second: each is a packet of a flow that was never seen, which costs a debug build far
/// more.
const RATE: u32 = if cfg!(debug_assertions) { 2000 } else { 12_000 };
/// How many sources they come from.
const SOURCES: u64 = 60_000;

fn frame(source: u64) -> Vec<u8> {
    let s = (source as u32).to_be_bytes();
    Frame::new([2, 9, s[0], s[1], s[2], s[3]], [0xff; 6], Net::Raw(0x88b5, vec![0; 46])).bytes()
}

#[test]
fn another_bridge_does_not_notice() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    let (evil, _other) = (host_on(&ns, &sw, 3), host_on(&ns, &sw, 4));
    let victim = Victim::new(&ns, &sw);
    let raw = || Raw::open(&evil, "eth0").unwrap();
    judge(
        "MAC flood",
        &victim,
        || vec![Traffic::start(raw(), RATE, |i| frame(i % 4))],
        || vec![Traffic::start(raw(), RATE, |i| frame(i % SOURCES))],
    );
}

/// Addresses of others on the same bridge stay, though they are silent; the flood's own ones make
/// room.
#[test]
fn addresses_of_other_ports_stay() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    let size = 2048;
    vsctl(&sw, &format!("set bridge br0 other-config:mac-table-size={size}"));
    let evil = host_on(&ns, &sw, 3);
    let (a, _b) = (host_on(&ns, &sw, 1), host_on(&ns, &sw, 2));
    ping(&a, 2);
    let learned = |n: u8| {
        let table = appctl(&sw, "fdb/show br0");
        table.contains(&format!("02:00:00:00:00:{n:02x}"))
    };
    wait_for("two addresses", || learned(1) && learned(2));
    let full = || appctl(&sw, "fdb/show br0").lines().count() > size - 16;
    let raw = Raw::open(&evil, "eth0").unwrap();
    let mut next = 0;
    wait_for("a full table", || {
        (next..next + 500).for_each(|i| drop(raw.send(&frame(i))));
        next += 500;
        full()
    });
    (next..next + 4000).for_each(|i| {
        _ = raw.send(&frame(i));
        if i % 100 == 0 {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    });
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert!(learned(1) && learned(2), "the flood's port has most and gives way");
}
