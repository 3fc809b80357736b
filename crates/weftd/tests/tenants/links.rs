//! One host takes its end of a cable up and down, as often as it can.

use crate::lab::*;
use crate::measure::*;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use testkit::{Netns, privileged};

/// Changes a second: each is a command, which costs the machine more than the switch.
const RATE: u32 = 50;

/// Takes the link up and down all the time, or only asks for it.
fn flap(evil: &Netns, flaps: bool) -> Traffic {
    let evil = evil.path();
    Traffic::run(RATE, move |i| {
        let way = ["up", "down"][i as usize % 2];
        let words = if flaps { vec!["link", "set", "eth0", way] } else { vec!["link", "show"] };
        let net = format!("--net={evil}");
        let command = Command::new("nsenter").args([&net, "ip"]).args(words).output();
        assert!(command.unwrap().status.success());
    })
}

#[test]
fn another_bridge_does_not_notice() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    let evil = host_on(&ns, &sw, 3);
    let victim = Victim::new(&ns, &sw);
    judge("links", &victim, || vec![flap(&evil, false)], || vec![flap(&evil, true)]);
}

/// Controllers hear of some changes, and then of ten a second.
#[test]
fn changes_are_taken_over_at_their_rate() {
    const CHANGES_BURST: u64 = 16;
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    let evil = host_on(&ns, &sw, 3);
    let mut monitor = sw.command("ovs-ofctl");
    let monitor = monitor.args(["monitor", "br0", "65534"]).stderr(Stdio::piped()).spawn().unwrap();
    let (start, flapping) = (Instant::now(), flap(&evil, true));
    std::thread::sleep(Duration::from_secs(4));
    drop(flapping);
    evil.ip("link set eth0 up").unwrap();
    wait_for("the link is up", || iface(&sw, "v3", "link_state") == "up");
    let lasted = start.elapsed().as_millis() as u64;
    // SAFETY: sends a signal to a child that was not waited for.
    unsafe { libc::kill(monitor.id() as i32, libc::SIGTERM) };
    let heard = String::from_utf8(monitor.wait_with_output().unwrap().stderr).unwrap();
    let changes = heard.matches("OFPT_PORT_STATUS").count() as u64;
    assert!(changes > 2 && changes <= CHANGES_BURST + lasted / 100 + 1, "{changes} in {lasted} ms");
}
