//! A container raises the MTU of the internal port it was given, and sends frames that the switch
//! refuses. It is compared with one whose port has that MTU in the switch too, so that both senders
//! cost the machine the same.

use crate::lab::*;
use crate::measure::*;
use testkit::{Frame, Net, Netns, Raw, privileged};

/// Senders, and frames a second of each: as fast as they can.
const SENDERS: usize = 2;
const RATE: u32 = 1_000_000;
/// Bytes of a frame.
const BYTES: usize = 4000;

#[test]
fn frames_that_are_too_long_cost_their_port_only() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    vsctl(&sw, "add-port br0 int3 -- set interface int3 type=internal");
    vsctl(&sw, "add-port br0 int4 -- set interface int4 type=internal mtu_request=9000");
    let inside = Netns::new().unwrap();
    for name in ["int3", "int4"] {
        ns.ip(&format!("link set {name} netns {}", inside.path())).unwrap();
        inside.ip(&format!("link set {name} mtu 9000 up")).unwrap();
    }
    let victim = Victim::new(&ns, &sw);
    let mut frame =
        Frame::new([2, 0, 0, 0, 0, 3], [0xff; 6], Net::Raw(0x88b5, vec![0; 46])).bytes();
    frame.resize(BYTES, 0);
    let traffic = |port: &str| {
        let sender = |_| {
            let frame = frame.clone();
            Traffic::start(Raw::open(&inside, port).unwrap(), RATE, move |_| frame.clone())
        };
        (0..SENDERS).map(sender).collect()
    };
    ofctl(&sw, "add-flow br0 priority=9,dl_type=0x88b5,actions=drop");
    judge("oversize frames of a TAP", &victim, || traffic("int4"), || traffic("int3"));
    let dropped = || statistic(&sw, "int3", "rx_dropped").or(statistic(&sw, "int3", "rx_errors"));
    wait_for("a counter of the port", || dropped() > Some(0));
}
