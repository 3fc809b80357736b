//! Frames that go to very many ports, as fast as they can be sent.

use crate::lab::*;
use crate::measure::*;
use testkit::{Frame, Net, Netns, Raw, Switch};

/// Frames a second, and ports of the attacker's bridge.
const RATE: u32 = 20_000;
const PORTS: u32 = 100;

fn traffic(evil: &Netns, to: [u8; 6]) -> Vec<Traffic> {
    let frame = Frame::new([2, 0, 0, 0, 0, 3], to, Net::Raw(0x88b5, vec![0; 46])).bytes();
    vec![Traffic::start(Raw::open(evil, "eth0").unwrap(), RATE, move |_| frame.clone())]
}

fn dropped(sw: &Switch<'_>) -> u64 {
    let count = appctl(sw, "coverage/read-counter datapath_drop_action_time");
    count.trim().parse().unwrap()
}

/// A vector of frames to all is 10,000 frames and more.
#[test]
fn a_flood_of_frames_to_all_is_its_ports_loss() {
    attacked(|ns, sw, evil| {
        let add = |i| format!("add-port br0 t{i} -- set interface t{i} type=internal");
        vsctl(sw, &(0..PORTS).map(add).collect::<Vec<_>>().join(" -- "));
        (0..PORTS).for_each(|i| drop(ns.ip(&format!("link set t{i} up")).unwrap()));
        let victim = Victim::new(ns, sw);
        let harmless = || traffic(evil, [2, 0, 0, 0, 0, 9]);
        ofctl(sw, "add-flow br0 priority=9,dl_dst=02:00:00:00:00:09,actions=drop");
        judge("frames to all", &victim, harmless, || traffic(evil, [0xff; 6]));
        assert!(dropped(sw) > 0);
    });
}

/// Six tables that each look up four copies of a packet in the next one.
#[test]
fn packets_that_are_looked_up_again_in_many_copies_are_their_ports_loss() {
    attacked(|ns, sw, evil| {
        let victim = Victim::new(ns, sw);
        let again = |t| {
            let copies = vec![format!("ct(table={})", t + 1); 4].join(",");
            ofctl(sw, &format!("add-flow br0 table={t},priority=9,ip,actions={copies}"));
        };
        (0..6).for_each(again);
        ofctl(sw, "add-flow br0 table=6,actions=in_port");
        ofctl(sw, "add-flow br0 priority=10,dl_dst=02:00:00:00:00:09,actions=drop");
        let traffic = |to| {
            let addresses = ([10, 0, 0, 3], [10, 0, 0, 9]);
            let frame = Frame::udp4(([2, 0, 0, 0, 0, 3], to), addresses, (1, 2), &[0; 18]).bytes();
            vec![Traffic::start(Raw::open(evil, "eth0").unwrap(), RATE, move |_| frame.clone())]
        };
        let [harmless, attack] = [9, 8].map(|n| move || traffic([2, 0, 0, 0, 0, n]));
        judge("copies that are looked up again", &victim, harmless, attack);
        assert!(dropped(sw) > 0);
    });
}
