//! One host takes its end of a cable up and down, as often as it can.

use crate::lab::*;
use crate::measure::*;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use testkit::{Netns, Switch};

/// Changes a second: each is a command, which costs the machine more than the switch.
const RATE: u32 = 50;
/// Changes of an interface's link that are taken over at once.
const CHANGES_BURST: u64 = 16;

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
    attacked(|ns, sw, evil| {
        let victim = Victim::new(ns, sw);
        judge("links", &victim, || vec![flap(evil, false)], || vec![flap(evil, true)]);
    });
}

/// Controllers hear of 16 changes, and then of ten a second.
#[test]
fn changes_are_taken_over_at_their_rate() {
    attacked(|_, sw, evil| {
        let (changes, ms) = heard_of(sw, evil);
        assert!(changes > 2 && changes <= CHANGES_BURST + ms / 100 + 1, "{changes} in {ms} ms");
    });
}

/// However many ports other bridges have: at one that flaps only itself is looked at, besides the
/// look of each second, and 32 interfaces a turn are reported to the database, 10,000 a second.
#[test]
fn many_ports_of_others_are_looked_at_in_few_steps() {
    const PORTS: u32 = 300;
    attacked(|_, sw, evil| {
        add_bridge(sw, "br1");
        let port = |i| format!("add-port br1 t{i} -- set interface t{i} type=internal");
        vsctl(sw, &(0..PORTS).map(port).collect::<Vec<_>>().join(" -- "));
        let count = || {
            let read = |name: &&str| appctl(sw, &format!("coverage/read-counter {name}"));
            let all = ["link_look", "status_interface", "status_turn"];
            all.map(|name| read(&name).trim().parse::<u64>().unwrap())
        };
        let (before, start, flapping) = (count(), Instant::now(), flap(evil, true));
        std::thread::sleep(Duration::from_secs(4));
        drop(flapping);
        let (now, ms) = (count(), start.elapsed().as_millis() as u64);
        let [looks, interfaces, turns] = std::array::from_fn(|i| now[i] - before[i]);
        let each_second = u64::from(PORTS + 4) * (ms / 1000 + 1);
        assert!(looks <= each_second + 2 * ms / 20, "{looks} in {ms} ms");
        assert!(interfaces >= u64::from(PORTS) && turns >= interfaces / 32, "{interfaces} {turns}");
        assert!(interfaces <= 10 * ms + u64::from(PORTS + 4), "{interfaces} in {ms} ms");
    });
}

/// How many changes a controller hears of while the host takes its link up and down for four
/// seconds, and how many milliseconds it listened.
fn heard_of(sw: &Switch<'_>, evil: &Netns) -> (u64, u64) {
    let mut monitor = sw.command("ovs-ofctl");
    let monitor = monitor.args(["monitor", "br0", "65534"]).stderr(Stdio::piped());
    let monitor = monitor.spawn().unwrap();
    let (start, flapping) = (Instant::now(), flap(evil, true));
    std::thread::sleep(Duration::from_secs(4));
    drop(flapping);
    evil.ip("link set eth0 up").unwrap();
    wait_for("the link is up", || iface(sw, "v3", "link_state") == "up");
    let lasted = start.elapsed().as_millis() as u64;
    // SAFETY: sends a signal to a child that was not waited for.
    unsafe { libc::kill(monitor.id() as i32, libc::SIGTERM) };
    let heard = String::from_utf8(monitor.wait_with_output().unwrap().stderr).unwrap();
    (heard.matches("OFPT_PORT_STATUS").count() as u64, lasted)
}

/// Where the kernel has a thread that asks about a device, or changes one, wait for its lock.
const WAITS: [&str; 3] = ["rtnetlink", "dev_ethtool", "tun_chr_ioctl"];

/// Whoever may make devices, in a namespace of its own, holds the kernel's lock for tenths of a
/// second, which everybody waits for who asks about a device: the control thread does not ask.
#[test]
fn control_does_not_wait_while_others_make_devices() {
    const PORTS: u32 = 60;
    attacked(|_, sw, _| {
        add_bridge(sw, "br1");
        let port = |i| format!("add-port br1 t{i} -- set interface t{i} type=internal");
        vsctl(sw, &(0..PORTS).map(port).collect::<Vec<_>>().join(" -- "));
        let pid = sw.daemon_pid().unwrap();
        let wchan = |thread: &str| {
            std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/wchan")).unwrap_or_default()
        };
        let threads = || std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let waits = |thread: &str| WAITS.iter().any(|w| wchan(thread).contains(w));
        let making = [make_devices(), make_devices()];
        let (start, main, mut all) = (Instant::now(), pid.to_string(), 0);
        while start.elapsed() < Duration::from_secs(6) {
            assert!(!waits(&main), "control waits in {}", wchan(&main));
            let names = threads().flatten().map(|t| t.file_name());
            all += names.filter(|t| waits(&t.to_string_lossy())).count();
            std::thread::sleep(Duration::from_micros(200));
        }
        drop(making);
        assert!(all > 0, "another thread waited instead");
    });
}

/// Makes devices, in namespaces that come and go.
fn make_devices() -> Traffic {
    let commands: String =
        (0..300).map(|i| format!("link add a{i} up type veth peer name b{i}\n")).collect();
    Traffic::run(1000, move |_| {
        let mut made = Command::new("unshare");
        made.args(["--net", "ip", "-batch", "-"]).stdin(Stdio::piped());
        let mut made = made.spawn().unwrap();
        let _ = made.stdin.take().unwrap().write_all(commands.as_bytes());
        assert!(made.wait().unwrap().success());
    })
}
