//! The daemon and ovsdb-server are killed and come back, under load: everything is as it was.

mod lab;

use lab::*;
use std::time::{Duration, Instant};
use testkit::{Netns, Switch, privileged};

/// Longest pause from the daemon's start to the first answer; more where others want the cores.
fn pause_allowed() -> Duration {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: f64 = text.split(' ').next().and_then(|l| l.parse().ok()).unwrap_or(0.0);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Duration::from_secs_f64(2.0 * (load / cores as f64).clamp(1.0, 5.0))
}

/// Numbers of all interfaces.
fn numbers(sw: &Switch) -> String {
    sw.vsctl(&["--format=csv", "--columns=name,ofport", "list", "interface"]).unwrap()
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
fn the_daemon_is_killed_under_load() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    // Numbers that do not follow from the order of names.
    let (_c, a) = (host_on(&ns, &sw, 3), host_on(&ns, &sw, 1));
    let _b = host_on(&ns, &sw, 2);
    vsctl(&sw, "add-port br0 a0 -- set interface a0 type=internal");
    vsctl(&sw, "del-port v3 -- set port v1 tag=5 -- set port v2 tag=5");
    ns.ip("addr add 10.0.0.9/24 dev br0").unwrap();
    ns.ip("link set br0 up").unwrap();
    ns.ip("addr add 10.9.9.9/24 dev a0").unwrap();
    let before = numbers(&sw);
    assert!(before.contains("v1,2") && before.contains("v2,3") && before.contains("a0,4"));
    ping(&a, 2);
    let index = iface(&sw, "a0", "ifindex");
    let pinger = Pinger::start(&a, addr(2));
    for _ in 0..2 {
        std::thread::sleep(Duration::from_millis(200));
        let old = sw.daemon_pid().unwrap();
        sw.kill_daemon();
        // Addresses are there even while no switch serves them.
        assert!(ns.ip("addr show br0").unwrap().contains("10.0.0.9/24"));
        let start = Instant::now();
        sw.start_daemon().unwrap();
        let ready = start.elapsed();
        a.ping(addr(2), WAIT_TIME_MAX).unwrap();
        let pause = start.elapsed();
        eprintln!("restart: daemon ready after {ready:?}, ping answered after {pause:?}");
        assert!(pause < pause_allowed(), "{pause:?}");
        assert_ne!(sw.daemon_pid(), Some(old));
        wait_for("the same numbers", || sorted(&numbers(&sw)) == sorted(&before));
        assert!(ns.ip("addr show br0").unwrap().contains("10.0.0.9/24"));
        assert!(ns.ip("addr show a0").unwrap().contains("10.9.9.9/24"));
        assert_eq!(iface(&sw, "a0", "ifindex"), index, "the same device");
        assert!(ofctl(&sw, "show br0").contains(" 3(v2): addr:"));
        assert_eq!(
            vsctl(&sw, "get open_vswitch . cur_cfg"),
            vsctl(&sw, "get open_vswitch . next_cfg")
        );
    }
    let (sent, answered) = pinger.stop();
    assert!(answered > 0 && answered <= sent);
    // What is deleted while the daemon is away does not come back.
    sw.kill_daemon();
    vsctl(&sw, "--no-wait del-port a0 -- add-port br0 b0 -- set interface b0 type=internal");
    sw.start_daemon().unwrap();
    wait_for("b0", || ns.ip("link show b0").is_ok());
    ping(&a, 2);
    assert!(numbers(&sw).contains("v2,3"));
}

#[test]
fn the_database_server_is_killed_and_the_switch_goes_on() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    let (a, _b, _c) = (host_on(&ns, &sw, 1), host_on(&ns, &sw, 2), host(&ns, 3));
    ofctl(&sw, "add-flow br0 priority=7,in_port=77,actions=drop");
    ping(&a, 2);
    let pid = sw.daemon_pid();
    let pinger = Pinger::start(&a, addr(2));
    sw.kill_db();
    std::thread::sleep(Duration::from_millis(300));
    sw.start_db().unwrap();
    vsctl(&sw, "--timeout=20 add-port br0 v3");
    ping(&a, 3);
    let (sent, answered) = pinger.stop();
    assert!(sent > 20 && answered + 1 >= sent, "{answered} of {sent}");
    assert_eq!(sw.daemon_pid(), pid);
    assert!(ofctl(&sw, "dump-flows br0").contains("priority=7"), "flows stay");
    // Both die; the daemon is back first.
    let before = numbers(&sw);
    sw.kill_db();
    sw.kill_daemon();
    std::thread::scope(|s| {
        let daemon = s.spawn(|| sw.start_daemon());
        std::thread::sleep(Duration::from_millis(500));
        sw.start_db().unwrap();
        daemon.join().unwrap().unwrap();
    });
    ping(&a, 3);
    wait_for("the same numbers", || sorted(&numbers(&sw)) == sorted(&before));
    // The other order.
    sw.kill_daemon();
    sw.kill_db();
    sw.start_db().unwrap();
    sw.start_daemon().unwrap();
    ping(&a, 3);
    wait_for("the same numbers", || sorted(&numbers(&sw)) == sorted(&before));
}
