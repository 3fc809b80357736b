//! Everything comes and goes under traffic: iperf3 between hosts and guests (split and packed
//! rings) that forward at full speed, while flows, ports of every type, bridges, controllers,
//! guests and the database server are changed at random. In the end the books are level and nothing
//! has grown.
//!
//! `make test` runs half a minute of it; `WEFT_SOAK_SECONDS=600 cargo test --release -p weftd
//! --test soak` a long one. `WEFT_SOAK_SEED=n` picks another order of changes.

mod books;
mod changes;
mod connections;
#[path = "../lab/mod.rs"]
mod lab;
#[allow(dead_code)]
#[path = "../peer/mod.rs"]
mod peer;

use books::Process;
use changes::Changes;
use lab::*;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use testkit::{Netns, Switch, privileged};

const SECONDS: u64 = 25;
/// What the daemon's memory may grow between the first changes and the last, KiB.
const GROWTH: u64 = 24 << 10;

/// A number from the environment.
fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

/// One iperf3 run between the hosts; both ends go with it.
struct Iperf {
    server: Child,
    client: Child,
}

impl Iperf {
    fn start(from: &Netns, to: &Netns, port: u16, seconds: u64, how: &str) -> Iperf {
        let port = port.to_string();
        let mut server = to.command("iperf3");
        server.args(["-s", "-1", "-p", &port]).stdout(Stdio::null()).stderr(Stdio::null());
        let server = server.spawn().expect("iperf3");
        wait_for("iperf3's server", || to.exec(&["ss", "-tln"]).unwrap().contains(&port));
        let mut client = from.command("iperf3");
        client.args(["-c", "10.0.0.2", "-p", &port, "-i", "0", "-t", &seconds.to_string()]);
        client.args(how.split_whitespace()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Iperf { server, client: client.spawn().expect("iperf3") }
    }

    /// Waits for its end, which is near; megabits per second that arrived.
    fn end(mut self) -> f64 {
        wait_within("the end of iperf3", Duration::from_secs(60), || {
            self.client.try_wait().expect("iperf3").is_some()
        });
        let client = std::mem::replace(&mut self.client, Command::new("true").spawn().unwrap());
        let out = client.wait_with_output().expect("iperf3");
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success(), "{text}{}", String::from_utf8_lossy(&out.stderr));
        let line = text.lines().find(|l| l.trim_end().ends_with("receiver"));
        let words: Vec<&str> = line.unwrap_or("").split_whitespace().collect();
        let at = words.iter().position(|w| *w == "Mbits/sec");
        at.and_then(|i| words[i - 1].parse().ok()).unwrap_or_else(|| panic!("{text}"))
    }
}
impl Drop for Iperf {
    fn drop(&mut self) {
        for child in [&mut self.client, &mut self.server] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The two guests; each life has another kind of ring.
pub struct Guests {
    dir: PathBuf,
    lives: u32,
    now: [Option<Guest>; 2],
}

/// Their ports and what they do.
const GUESTS: [(&str, &str); 2] = [("gs", "flowgen"), ("gp", "macswap")];

impl Guests {
    fn new(sw: &Switch) -> Guests {
        for (i, (name, _)) in GUESTS.iter().enumerate() {
            let path = sw.dir().join(name);
            vsctl(
                sw,
                &format!(
                    "add-port br0 {name} -- set interface {name} type=dpdkvhostuserclient \
                     ofport_request={} options:vhost-server-path={}",
                    i + 3,
                    path.display()
                ),
            );
        }
        Guests { dir: sw.dir().to_path_buf(), lives: 0, now: [None, None] }
    }

    /// Kills a guest, on the spot, and starts another in its place.
    pub fn replace(&mut self, which: usize) {
        self.kill(which);
        let (name, mode) = GUESTS[which];
        let path = self.dir.join(name);
        let packed = (self.lives + which as u32) % 2 == 1;
        self.now[which] = Some(Guest::start(
            &path,
            Ring { packed, queues: 1, server: true, ..Ring::default() },
            mode,
        ));
        self.lives += 1;
    }

    fn kill(&mut self, which: usize) {
        drop(self.now[which].take());
        let _ = std::fs::remove_file(self.dir.join(GUESTS[which].0));
    }
}

/// Hosts 1 and 2 talk to each other, guests 3 and 4 too.
const FLOWS: &str = "priority=10,in_port=1,actions=2\npriority=10,in_port=2,actions=1\n\
    priority=40,in_port=3,actions=resubmit(,5)\ntable=5,priority=1,actions=4\n\
    priority=40,in_port=4,actions=resubmit(,6)\ntable=6,priority=1,actions=3\n\
    priority=20,udp,in_port=1,tp_dst=5202,actions=group:1,2\n";

/// What came in at a guest's port, by the counter of its flow.
fn packets(sw: &Switch, port: u32) -> u64 {
    let text = ofctl(sw, &format!("dump-aggregate br0 table=0,in_port={port}"));
    text.split("packet_count=").nth(1).and_then(|t| t.split(' ').next()?.parse().ok()).unwrap()
}

#[test]
fn everything_comes_and_goes_under_traffic() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let (seconds, seed) = (number("WEFT_SOAK_SECONDS", SECONDS), number("WEFT_SOAK_SEED", 1));
    let sw = start_with_bridge(&ns);
    // Idle PMD threads sleep: the machine has other work.
    vsctl(&sw, "set open . other_config:pmd-sleep-max=200 other_config:pmd-cpu-mask=1");
    let (a, b) = (host(&ns, 1), host(&ns, 2));
    for n in [1, 2] {
        vsctl(&sw, &format!("add-port br0 v{n} -- set interface v{n} ofport_request={n}"));
    }
    let mut guests = Guests::new(&sw);
    ofctl(&sw, "del-flows br0");
    ofctl(&sw, "-OOpenFlow13 add-group br0 group_id=1,type=all");
    sw.ofctl_stdin(&["-OOpenFlow13", "add-flows", "br0", "-"], FLOWS).unwrap();
    ping(&a, 2);
    let mut changes = Changes::new(&sw, &ns, seed);
    // Once through all of it before anything is measured: what is made once stays.
    (0..2).for_each(|i| guests.replace(i));
    changes.each_once(&mut guests);
    let first = books::at_rest(&sw, &mut changes, &mut guests);
    let tcp = Iperf::start(&a, &b, 5201, seconds, "-b 300M");
    let udp = Iperf::start(&a, &b, 5202, seconds, "-u -b 3M -l 700");
    (0..2).for_each(|i| guests.replace(i));
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut middle: Option<Process> = None;
    while Instant::now() < end {
        changes.one(&mut guests);
        if middle.is_none() && end - Instant::now() < Duration::from_secs(seconds / 2) {
            middle = Some(Process::of(&sw));
        }
    }
    let rates = (tcp.end(), udp.end());
    let last = books::at_rest(&sw, &mut changes, &mut guests);
    eprintln!("{} changes, {} guests, {rates:?} Mbit/s", changes.done(), guests.lives);
    eprintln!("process: first {first:?}\n  middle {middle:?}\n  last {last:?}");
    eprintln!("{}", books::text(&sw));
    let busy = [3, 4].map(|port| packets(&sw, port));
    assert!(busy.iter().all(|n| *n > 1000), "guests sent {busy:?}");
    assert!(rates.0 > 1.0 && rates.1 > 0.1, "{rates:?} Mbit/s");
    books::check_growth(&sw, &first, &last, GROWTH);
    books::check_log(&sw);
    ping(&a, 2);
}
