//! A container sends 64 kB frames that are to be cut into segments of one byte.

use crate::lab::*;
use crate::measure::*;
use testkit::{Frame, L4, Net, Netns, Raw, V4, privileged};

/// Frames a second.
const RATE: u32 = 10;
/// Packets that one frame may become: 64 kB in pieces of 48 bytes are fewer.
const SEGMENTS_MOST: u64 = 2048;

/// A virtio-net header, and a frame for which it says this segment size.
fn whole(size: u16) -> Vec<u8> {
    let tcp = L4::Tcp(1, 2, 3, 4, 0x10, vec![7; 63_960]);
    let net = Net::V4(V4::new([10, 0, 0, 3], [10, 0, 0, 4], tcp));
    let frame = Frame::new([2, 0, 0, 0, 0, 3], [2, 0, 0, 0, 0, 4], net).bytes();
    let mut out = vec![1, 1];
    [54, size, 34, 16].iter().for_each(|w: &u16| out.extend(w.to_ne_bytes()));
    out.extend(frame);
    out
}

#[test]
fn tiny_segments_are_no_flood() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    let (evil, _other) = (host_on(&ns, &sw, 3), host_on(&ns, &sw, 4));
    let victim = Victim::new(&ns, &sw);
    ofctl(&sw, "add-flow br0 priority=9,in_port=v3,tcp,actions=drop");
    let raw = || {
        let raw = Raw::open(&evil, "eth0").unwrap();
        raw.leave_work().unwrap();
        raw
    };
    // First by count: what one frame may become.
    let received = || coverage(&sw, "netdev_received");
    let (before, one) = (received(), raw());
    (0..4).for_each(|_| one.send(&whole(1)).expect("the kernel takes it"));
    std::thread::sleep(std::time::Duration::from_secs(1));
    let became = received() - before;
    println!("segments: 4 frames became {became} packets");
    assert!(became < 4 * SEGMENTS_MOST + 1000, "{became}");
    let (harmless, tiny) = (whole(1400), whole(1));
    judge(
        "segments of one byte",
        &victim,
        || {
            let f = harmless.clone();
            vec![Traffic::start(raw(), RATE, move |_| f.clone())]
        },
        || {
            let f = tiny.clone();
            vec![Traffic::start(raw(), RATE, move |_| f.clone())]
        },
    );
}
