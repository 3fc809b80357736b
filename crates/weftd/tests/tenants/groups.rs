//! A controller's groups: liveness that asks itself, and fan-out without end.

use crate::lab::*;
use crate::measure::*;
use std::time::{Duration, Instant};
use testkit::{Netns, Raw, Switch, privileged};

/// Frames a second into the group, and how long a command may take that the switch refuses or
/// takes.
const RATE: u32 = 50;
const COMMAND: Duration = Duration::from_secs(10);

/// As a controller that does not wait for long.
fn try_ofctl(sw: &Switch<'_>, args: &str) -> bool {
    let mut c = sw.command("ovs-ofctl");
    c.args(["-O", "OpenFlow13", "--timeout=15"]).args(args.split(' '));
    c.output().is_ok_and(|o| o.status.success())
}

fn packet() -> Vec<u8> {
    testkit::Frame::arp_request([2, 0, 0, 0, 0, 3], [10, 0, 0, 3], [10, 0, 0, 4]).bytes()
}

fn attacked(what: &str, prepare: impl Fn(&Switch<'_>)) {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    let (evil, _other) = (host_on(&ns, &sw, 3), host_on(&ns, &sw, 4));
    let victim = Victim::new(&ns, &sw);
    let traffic = || {
        let frame = packet();
        vec![Traffic::start(Raw::open(&evil, "eth0").unwrap(), RATE, move |_| frame.clone())]
    };
    ofctl(&sw, "del-flows br0");
    let attack = || {
        let start = Instant::now();
        prepare(&sw);
        assert!(start.elapsed() < COMMAND, "{what}: {:?}", start.elapsed());
        traffic()
    };
    let harmless = || {
        try_ofctl(&sw, "del-groups br0");
        traffic()
    };
    judge(what, &victim, harmless, attack);
}

/// Group 1 leads to group 2 in each of many buckets, and that to group 3.
pub fn layers(sw: &Switch<'_>) {
    for (n, to) in [(3, "drop"), (2, "group:3"), (1, "group:2")] {
        let bucket = format!(",bucket=actions={to}").repeat(256);
        try_ofctl(sw, &format!("add-group br0 group_id={n},type=all{bucket}"));
    }
}

/// A group whose buckets live when the group itself does.
#[test]
fn liveness_that_asks_itself() {
    attacked("liveness of groups", |sw| {
        let bucket = ",bucket=watch_port:99,watch_group:7,actions=drop".repeat(5);
        try_ofctl(sw, &format!("add-group br0 group_id=7,type=ff{bucket}"));
        try_ofctl(sw, "add-flow br0 in_port=v3,actions=group:7");
    });
}

/// Three layers of groups whose buckets all lead to the next layer.
#[test]
fn fan_out() {
    attacked("fan-out of groups", |sw| {
        layers(sw);
        try_ofctl(sw, "add-flow br0 in_port=v3,actions=group:1");
    });
}
