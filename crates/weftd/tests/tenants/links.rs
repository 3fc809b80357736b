//! One host takes its end of a cable up and down, as often as it can.

use crate::lab::*;
use crate::measure::*;
use std::io::Write;
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use testkit::{Netns, Switch, privileged};

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

/// Another program that gives a bridge's device other addresses all the time has that bridge's
/// controllers connect again, 50 times a second at most, and no other's; in the end the bridge has
/// the last address.
#[test]
fn addresses_that_change_all_the_time_disturb_no_other_bridge() {
    attacked(|ns, sw, _| {
        add_bridge(sw, "br1");
        ns.ip("link add w0 type veth peer name x0").unwrap();
        vsctl(sw, "add-port br1 w0");
        let heard = ["br0", "br1"].map(|bridge| {
            let path = sw.dir().join(format!("{bridge}.controller"));
            let controller = UnixListener::bind(&path).unwrap();
            vsctl(sw, &format!("set-controller {bridge} unix:{}", path.display()));
            let heard = Arc::new(AtomicUsize::new(0));
            let count = heard.clone();
            std::thread::spawn(move || {
                // Each stays open: only the switch ends one.
                let mut all = Vec::new();
                for connection in controller.incoming() {
                    all.push(connection);
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
            heard
        });
        let connections = || heard.each_ref().map(|n| n.load(Ordering::Relaxed));
        wait_for("both", || connections() == [1, 1]);
        let (start, inside) = (Instant::now(), ns.path());
        let changing = Traffic::run(200, move |i| {
            let mac = format!("00:11:22:33:{:02x}:{:02x}", i / 256 % 256, i % 256);
            let net = format!("--net={inside}");
            let words = ["ip", "link", "set", "w0", "address", &mac];
            let command = Command::new("nsenter").arg(&net).args(words).output();
            assert!(command.unwrap().status.success());
        });
        std::thread::sleep(Duration::from_secs(4));
        drop(changing);
        let looks = start.elapsed().as_millis() as u64 / 20 + 1;
        ns.ip("link set w0 address 00:11:22:33:ff:ff").unwrap();
        wait_for("the datapath id", || {
            vsctl(sw, "get bridge br1 datapath_id").trim() == "\"000000112233ffff\""
        });
        let log = std::fs::read_to_string(sw.dir().join("ovs-vswitchd.log")).unwrap();
        let followed = log.matches("bridge br1: using datapath ID").count() as u64;
        assert!(followed > 2 && followed <= looks + 2, "{followed} of {looks}");
        wait_for("the bridge's own controller", || connections()[1] > 1);
        assert_eq!(connections()[0], 1, "the other bridge's");
    });
}

/// Where the kernel has a thread that asks about a device, or makes or changes one, wait for its
/// lock; and one that closes a socket on it, for all CPUs.
const WAITS: [&str; 7] = [
    "rtnetlink",
    "dev_ethtool",
    "tun_chr_ioctl",
    "packet_setsockopt",
    "packet_do_bind",
    "synchronize_rcu",
    "rtnl_dumpit",
];

/// Where a thread waits that opens an AF_XDP device.
const DRIVER_WAITS: [&str; 4] = ["rtnetlink", "dev_ioctl", "xsk_bind", "bpf_xdp_link_attach"];
/// Whoever sleeps for so long pauses: before it tries something again.
const PAUSE: Duration = Duration::from_millis(50);

/// Whoever may make devices, in a namespace of its own, holds the kernel's lock for tenths of a
/// second, which everybody waits for who asks about a device: the control thread does not ask.
#[test]
fn control_does_not_wait_while_others_make_devices() {
    const PORTS: u32 = 60;
    attacked(|_, sw, _| {
        add_bridge(sw, "br1");
        let port = |i| format!("add-port br1 t{i} -- set interface t{i} type=internal");
        vsctl(sw, &(0..PORTS).map(port).collect::<Vec<_>>().join(" -- "));
        let making = [make_devices(), make_devices()];
        let all = while_others_wait(sw, || std::thread::sleep(Duration::from_secs(6)));
        drop(making);
        assert!(all > 0, "another thread waited instead");
    });
}

/// Nor does it wait for ports that come, change and go meanwhile, or that a controller takes up and
/// down.
#[test]
fn control_does_not_wait_for_ports_that_come_while_others_make_devices() {
    const ROUNDS: u32 = 8;
    attacked(|ns, sw, _| {
        add_bridge(sw, "br1");
        let making = [make_devices(), make_devices()];
        let all = while_others_wait(sw, || {
            for i in 0..ROUNDS {
                let (tap, veth, peer) = (format!("t{i}"), format!("w{i}"), format!("x{i}"));
                ns.ip(&format!("link add {veth} type veth peer name {peer}")).unwrap();
                let set = format!("set interface {tap} type=internal mtu_request=1400");
                vsctl(sw, &format!("add-port br1 {tap} -- {set} -- add-port br1 {veth}"));
                vsctl(sw, &format!("set interface {tap} mtu_request=1300"));
                vsctl(sw, &format!("set interface {veth} mtu_request=1280"));
                wait_for("the MTUs", || {
                    iface(sw, &tap, "mtu") == "1300" && iface(sw, &veth, "mtu") == "1280"
                });
                for state in ["up", "down"] {
                    ofctl(sw, &format!("mod-port br1 {veth} {state}"));
                }
                vsctl(sw, &format!("del-port {tap} -- del-port {veth}"));
            }
        });
        drop(making);
        assert!(all > 0, "another thread waited instead");
    });
}

/// Nor for traffic control, or addresses that controllers' rows ask for, or when such a port goes.
#[test]
fn control_does_not_wait_for_queues_and_addresses_while_others_make_devices() {
    const ROUNDS: u32 = 8;
    attacked(|ns, sw, _| {
        add_bridge(sw, "br1");
        ns.ip("link add w0 type veth peer name x0").unwrap();
        let making = [make_devices(), make_devices()];
        let all = while_others_wait(sw, || {
            for i in 0..ROUNDS {
                vsctl(sw, "add-port br1 w0");
                let queues: Vec<_> = (0..20).map(|id| format!("{id}=@q")).collect();
                let qos = format!("create qos type=linux-htb queues={}", queues.join(","));
                let all = format!("--id=@qos {qos} -- --id=@q create queue other_config:burst=1");
                vsctl(sw, &format!("set port w0 qos=@qos -- {all}"));
                let class = || ns.exec(&["tc", "class", "show", "dev", "w0"]).unwrap();
                wait_for("the queues", || class().lines().count() == 21);
                let address = format!("10.9.{i}.1");
                vsctl(sw, "set-controller br1 tcp:127.0.0.1:1");
                vsctl(sw, &format!("set controller br1 local_ip=\"{address}\""));
                let has = || ns.exec(&["ip", "addr", "show", "br1"]).unwrap().contains(&address);
                wait_for("the address", has);
                vsctl(sw, "del-controller br1 -- del-port w0");
                vsctl(sw, "--all destroy qos -- --all destroy queue");
                wait_for("the queues to go", || class().is_empty());
            }
        });
        drop(making);
        assert!(all > 0, "another thread waited instead");
    });
}

/// Nor for counters of queues, which controllers and users ask for.
#[test]
fn control_does_not_wait_for_counters_of_queues_while_others_make_devices() {
    const QUEUES: usize = 20;
    attacked(|ns, sw, _| {
        add_bridge(sw, "br1");
        ns.ip("link add w0 type veth peer name x0").unwrap();
        vsctl(sw, "add-port br1 w0");
        let queues: Vec<_> = (0..QUEUES).map(|id| format!("{id}=@q")).collect();
        let qos = format!("create qos type=linux-htb queues={}", queues.join(","));
        let all = format!("--id=@qos {qos} -- --id=@q create queue other_config:burst=1");
        vsctl(sw, &format!("set port w0 qos=@qos -- {all}"));
        let class = || ns.exec(&["tc", "class", "show", "dev", "w0"]).unwrap();
        wait_for("the queues", || class().lines().count() == QUEUES + 1);
        let making = [make_devices(), make_devices()];
        let all = while_others_wait(sw, || {
            for _ in 0..20 {
                assert_eq!(ofctl(sw, "queue-stats br1").matches("queue").count(), QUEUES + 1);
                let shown = appctl(sw, "qos/show w0");
                assert_eq!(shown.matches("tx_packets").count(), QUEUES, "{shown}");
            }
        });
        drop(making);
        assert!(all > 0, "another thread waited instead");
        vsctl(sw, "del-port w0");
        assert_eq!(ofctl(sw, "queue-stats br1").matches("queue").count(), 1);
    });
}

/// Nor for AF_XDP devices, nor until one that cannot be started was tried several times: another
/// port has the device's queue.
#[test]
fn control_does_not_wait_for_devices_of_dpdk() {
    const ROUNDS: u32 = 3;
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = &start_with_bridge(&ns);
    ns.ip("link add w0 type veth peer name x0").unwrap();
    ns.ip("link set x0 up").unwrap();
    let making = [make_devices(), make_devices()];
    let all = while_others_wait_in(sw, &DRIVER_WAITS, || {
        for _ in 0..ROUNDS {
            vsctl(sw, "add-port br0 w0 -- set interface w0 type=afxdp");
            assert_eq!(iface(sw, "w0", "error"), "[]");
            let second = "type=dpdk options:dpdk-devargs=net_af_xdp_two,iface=w0";
            let added = format!("--no-wait add-port br0 y0 -- set interface y0 {second}");
            vsctl(sw, &added);
            wait_for("the second one fails", || {
                iface(sw, "y0", "error").contains("cannot set up receive queue")
            });
            vsctl(sw, "del-port y0 -- del-port w0");
        }
    });
    drop(making);
    assert!(all > 0, "another thread waited instead");
}

/// A port whose type changes is opened when the one of the same name is closed, which takes the
/// kernel 10 to 25 ms: the control thread goes on meanwhile.
#[test]
fn control_does_not_wait_for_ports_of_the_same_name_that_close() {
    const ROUNDS: usize = 20;
    const LONG: Duration = Duration::from_millis(5);
    attacked(|_, sw, _| {
        let socket = |i| sw.dir().join(format!("sock{i}")).display().to_string();
        let guest = |i| format!("type=dpdkvhostuserclient options:vhost-server-path={}", socket(i));
        // A PMD thread that stays: that none starts and ends is not what is waited for here.
        vsctl(sw, &format!("add-port br0 g0 -- set interface g0 {}", guest(0)));
        vsctl(sw, "add-port br0 t0 -- set interface t0 type=internal");
        let wchan = format!("/proc/{0}/task/{0}/wchan", sw.daemon_pid().unwrap());
        let over = std::sync::atomic::AtomicBool::new(false);
        let waits = std::thread::scope(|scope| {
            let looking = scope.spawn(|| {
                let (mut long, mut since) = (0, None);
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    let at = std::fs::read_to_string(&wchan).unwrap();
                    match (at.contains("futex"), since) {
                        (true, None) => since = Some(Instant::now()),
                        (true, Some(_)) => {}
                        (false, _) => {
                            let waited = since.take().map(|begin: Instant| begin.elapsed());
                            long += usize::from(waited.is_some_and(|waited| waited > LONG));
                        }
                    }
                    std::thread::sleep(Duration::from_micros(500));
                }
                long
            });
            for _ in 0..ROUNDS {
                vsctl(sw, &format!("set interface t0 {}", guest(1)));
                vsctl(sw, "set interface t0 type=internal -- clear interface t0 options");
            }
            over.store(true, std::sync::atomic::Ordering::Relaxed);
            looking.join().unwrap()
        });
        assert!(waits < ROUNDS / 4, "control waited {waits} times in {ROUNDS} rounds");
    });
}

/// Says that something is over, also if it fails.
struct End<'a>(&'a std::sync::atomic::AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

/// Does something, and says how often threads other than the control thread waited for the kernel's
/// lock meanwhile. That one must not.
fn while_others_wait(sw: &Switch, work: impl FnOnce()) -> usize {
    while_others_wait_in(sw, &WAITS, work)
}

/// As [`while_others_wait`], for these functions of the kernel.
fn while_others_wait_in(sw: &Switch, waits: &[&str], work: impl FnOnce()) -> usize {
    let pid = sw.daemon_pid().unwrap();
    let over = std::sync::atomic::AtomicBool::new(false);
    let of =
        |thread: &str, what| std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/{what}"));
    let waiting = |thread: &str| {
        of(thread, "wchan").ok().filter(|at| waits.iter().any(|wait| at.contains(wait)))
    };
    std::thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let (mut all, mut control, name) = (0, Vec::new(), pid.to_string());
            let mut asleep = (String::new(), Instant::now());
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                control.extend(waiting(&name));
                // What it has run stays as long as it sleeps.
                let has_run = of(&name, "schedstat").unwrap();
                if !of(&name, "wchan").unwrap().contains("nanosleep") || asleep.0 != has_run {
                    asleep = (has_run, Instant::now());
                } else if asleep.1.elapsed() > PAUSE {
                    control.push("a pause".into());
                }
                let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
                let names = tasks.flatten().map(|task| task.file_name());
                all += names.filter(|name| waiting(&name.to_string_lossy()).is_some()).count();
                std::thread::sleep(Duration::from_micros(200));
            }
            (all, control)
        });
        {
            let _end = End(&over);
            work();
        }
        let (all, control) = looking.join().unwrap();
        assert!(control.is_empty(), "control waited in {control:?}");
        all
    })
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
