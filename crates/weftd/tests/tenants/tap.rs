//! A container raises the MTU of the internal port it was given, and sends frames that the switch
//! refuses.

use crate::lab::*;
use crate::measure::*;
use testkit::{Frame, Net, Netns, Raw, privileged};

/// Senders, and frames a second of each: as fast as they can.
const SENDERS: usize = 2;
const RATE: u32 = 1_000_000;

#[test]
fn frames_that_are_too_long_cost_their_port_only() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    vsctl(&sw, "add-port br0 int3 -- set interface int3 type=internal");
    let inside = Netns::new().unwrap();
    ns.ip(&format!("link set int3 netns {}", inside.path())).unwrap();
    inside.ip("link set int3 mtu 9000 up").unwrap();
    let victim = Victim::new(&ns, &sw);
    let frame = |bytes: usize| {
        let mut f =
            Frame::new([2, 0, 0, 0, 0, 3], [0xff; 6], Net::Raw(0x88b5, vec![0; 46])).bytes();
        f.resize(bytes, 0);
        f
    };
    let traffic = |bytes: usize| {
        let sender = |_| {
            let f = frame(bytes);
            Traffic::start(Raw::open(&inside, "int3").unwrap(), RATE, move |_| f.clone())
        };
        (0..SENDERS).map(sender).collect()
    };
    ofctl(&sw, "add-flow br0 priority=9,dl_type=0x88b5,actions=drop");
    judge("oversize frames of a TAP", &victim, || traffic(1000), || traffic(4000));
    let dropped = || statistic(&sw, "int3", "rx_dropped").or(statistic(&sw, "int3", "rx_errors"));
    wait_for("a counter of the port", || dropped() > Some(0));
}
