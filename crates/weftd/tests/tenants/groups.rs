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

/// A question for the address with this number.
fn packet(n: u64) -> Vec<u8> {
    let asked = (n as u32).to_be_bytes();
    testkit::Frame::arp_request([2, 0, 0, 0, 0, 3], [10, 0, 0, 3], asked).bytes()
}

fn attacked(what: &str, prepare: impl Fn(&Switch<'_>)) {
    attacked_by(what, RATE, |_| packet(4), prepare);
}

/// `rate`: frames a second, of which each has its number.
fn attacked_by(what: &str, rate: u32, frame: fn(u64) -> Vec<u8>, prepare: impl Fn(&Switch<'_>)) {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    let (evil, _other) = (host_on(&ns, &sw, 3), host_on(&ns, &sw, 4));
    let victim = Victim::new(&ns, &sw);
    let traffic = || vec![Traffic::start(Raw::open(&evil, "eth0").unwrap(), rate, frame)];
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

/// Packets of ever new flows meet chained groups: the pipeline takes long for each of them, and the
/// victim on another bridge keeps its share.
#[test]
fn fan_out_of_new_flows() {
    attacked_by("fan-out of groups, new flows", 1000, packet, |sw| {
        layers(sw);
        let copy = "move:NXM_OF_ARP_TPA[]->NXM_NX_REG1[]";
        try_ofctl(sw, &format!("add-flow br0 in_port=v3,arp,actions={copy},group:1"));
    });
}
