//! Steady traffic while flows, ports and PMD threads come and go. After every acknowledged change
//! no packet may meet the rules before it; afterwards every packet is accounted for and no buffer
//! leaked. Needs root; without it the test says so.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::{Scope, sleep};
use std::time::{Duration, Instant};
use testkit::{Frame, Netns, Raw, Switch, SwitchConfig, privileged, veth};

/// Rounds of one change each. More (`WEFT_CHURN_ROUNDS`) for a soak.
const ROUNDS: u32 = 36;
/// Marked packets after each change and at each input.
const MARKS: usize = 8;
/// Kernel ports 1..=4 and DPDK ports (af_packet) 5, 6: OpenFlow number, and far end's device.
const KERNEL: [(u8, &str); 3] = [(1, "h1"), (2, "h2"), (3, "h3")];
const POLLED: [(u8, &str); 2] = [(5, "h5"), (6, "h6")];
/// Packets of the steady traffic that are under way from one input.
const STEADY: u64 = 4;
/// The longest wait for them. A machine may take a core away for tenths of a second; if traffic did
/// not wait, what comes all at once afterwards would be more than rings and sockets hold.
const STEADY_WAIT_MAX: Duration = Duration::from_millis(100);
/// UDP port of all traffic that is looked at.
const PORT: u16 = 7777;

/// What comes out where: (kind, input, round, output) -> packets.
type Seen = Mutex<BTreeMap<(u8, u8, u32, u8), u32>>;

/// A packet that says where it came in and in which round.
fn frame(kind: u8, input: u8, round: u32) -> Vec<u8> {
    let [a, b, c, d] = round.to_be_bytes();
    let body = [b'W', kind, input, a, b, c, d];
    let macs = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, input]);
    Frame::udp4(macs, ([10, 0, 0, input], [10, 0, 0, 99]), (4000, PORT), &body).bytes()
}

/// (kind, input, round) of such a packet.
fn marks(f: &[u8]) -> Option<(u8, u8, u32)> {
    let body = f.get(42..49)?;
    let port = u16::from_be_bytes([f[36], f[37]]);
    (port == PORT && body[0] == b'W')
        .then(|| (body[1], body[2], u32::from_be_bytes([body[3], body[4], body[5], body[6]])))
}

struct Lab<'a> {
    sw: Switch<'a>,
    hosts: &'a Netns,
    round: AtomicU32,
    stop: AtomicBool,
    seen: Seen,
    /// Packets of the steady traffic that came out, by input.
    steady: [AtomicU64; 8],
}

impl<'a> Lab<'a> {
    fn new(net: &'a Netns, hosts: &'a Netns) -> Self {
        let sw = Switch::start(net, SwitchConfig::new(env!("CARGO_BIN_EXE_weftd"))).unwrap();
        let lab = Lab {
            sw,
            hosts,
            round: AtomicU32::new(0),
            stop: AtomicBool::new(false),
            seen: Mutex::default(),
            steady: Default::default(),
        };
        // Idle PMD threads sleep a little: the machine has other work.
        lab.vsctl("set open . other_config:pmd-sleep-max=100 other_config:pmd-cpu-mask=1");
        lab.vsctl("add-br br0 -- set bridge br0 datapath_type=netdev fail_mode=secure");
        for (no, far) in KERNEL.iter().chain(&POLLED).chain(&[(4, "h4")]) {
            veth((net, &format!("p{no}")), (hosts, far)).unwrap();
            net.ipv6_off(&format!("p{no}")).unwrap();
            hosts.ipv6_off(far).unwrap();
        }
        for (no, _) in KERNEL {
            lab.vsctl(&format!("add-port br0 p{no} -- set interface p{no} ofport_request={no}"));
        }
        for (no, _) in POLLED {
            lab.vsctl(&format!(
                "add-port br0 d{no} -- set interface d{no} ofport_request={no} type=dpdk \
                 options:dpdk-devargs=net_af_packet{no},iface=p{no}"
            ));
        }
        lab
    }

    fn vsctl(&self, words: &str) -> String {
        let words: Vec<&str> = words.split_whitespace().collect();
        self.sw.vsctl(&words).unwrap()
    }

    fn ofctl(&self, command: &str, flow: &str) {
        self.sw.ofctl(&[command, "br0", flow]).unwrap();
    }

    /// Flow-mods in one bundle.
    fn bundle(&self, lines: &str) {
        let path = self.sw.dir().join("bundle.txt");
        std::fs::write(&path, lines).unwrap();
        self.sw.ofctl(&["--bundle", "add-flows", "br0", path.to_str().unwrap()]).unwrap();
    }

    /// A counter of `coverage/show`; 0 when it never counted.
    fn counter(&self, name: &str) -> u64 {
        let text = self.sw.appctl(&["coverage/read-counter", name]).unwrap();
        text.trim().parse().unwrap()
    }

    /// Buffers that are not in their pool.
    fn buffers(&self) -> u64 {
        let text = self.sw.appctl(&["memory/show"]).unwrap();
        let n = text.split_whitespace().find_map(|w| w.strip_prefix("packets:")).unwrap();
        n.parse().unwrap()
    }

    /// Waits until the marked packets of a round came out: the next change is none of theirs.
    fn arrived(&self, round: u32, n: u32) {
        let end = Instant::now() + Duration::from_secs(10);
        let came = || -> u32 {
            let seen = self.seen.lock().unwrap();
            seen.iter().filter(|((k, _, r, _), _)| (*k, *r) == (1, round)).map(|(_, n)| n).sum()
        };
        while came() < n && Instant::now() < end {
            sleep(Duration::from_millis(1));
        }
    }

    /// Counts what comes out of the far ends, until the end.
    fn collect<'s>(&'s self, scope: &'s Scope<'s, '_>, no: u8, far: &str) {
        let raw = Raw::open(self.hosts, far).unwrap();
        scope.spawn(move || {
            while !self.stop.load(Ordering::Relaxed) {
                let Some(f) = raw.receive(Instant::now() + Duration::from_millis(50)) else {
                    continue;
                };
                if let Some((kind, input, round)) = marks(&f) {
                    if kind == 0 {
                        self.steady[usize::from(input)].fetch_add(1, Ordering::Relaxed);
                    }
                    *self.seen.lock().unwrap().entry((kind, input, round, no)).or_default() += 1;
                }
            }
        });
    }

    /// Keeps the decisions cached: the same packet headers, all the time.
    fn steady<'s>(&'s self, scope: &'s Scope<'s, '_>, no: u8, far: &str, quit: &'s AtomicBool) {
        let raw = Raw::open(self.hosts, far).unwrap();
        scope.spawn(move || {
            while !quit.load(Ordering::Relaxed) {
                let f = frame(0, no, self.round.load(Ordering::Relaxed));
                let (came, sent) = (&self.steady[usize::from(no)], Instant::now());
                let before = came.load(Ordering::Relaxed);
                (0..STEADY).for_each(|_| raw.send(&f).unwrap());
                sleep(Duration::from_millis(1));
                while came.load(Ordering::Relaxed) < before + STEADY
                    && sent.elapsed() < STEADY_WAIT_MAX
                {
                    sleep(Duration::from_millis(1));
                }
            }
        });
    }

    /// Makes packets of both inputs go to `to` in one of several ways.
    fn redirect(&self, round: u32) -> u8 {
        let high = |no: u8| format!("priority=100,udp,tp_dst={PORT},in_port={no}");
        let ins = [KERNEL[0].0, POLLED[0].0];
        match round % 6 {
            0 | 4 => ins.iter().for_each(|i| {
                self.ofctl("add-flow", &format!("{},actions=output:2", high(*i)));
            }),
            1 => ins.iter().for_each(|i| {
                self.ofctl("mod-flows", &format!("udp,in_port={i},actions=output:3"));
            }),
            2 => {
                let mut lines = String::new();
                for i in ins {
                    lines += &format!("delete udp,in_port={i}\n");
                    lines += &format!("add {},actions=output:2\n", high(i));
                    lines += &format!("add priority=50,udp,in_port={i},actions=output:3\n");
                }
                self.bundle(&lines);
            }
            3 => ins.iter().for_each(|i| {
                self.sw.ofctl(&["--strict", "del-flows", "br0", &high(*i)]).map(drop).unwrap()
            }),
            _ => {
                let mut lines = String::new();
                for i in ins {
                    (0..50).for_each(|n| {
                        lines +=
                            &format!("add priority=90,udp,in_port={i},tp_dst={n},actions=drop\n");
                    });
                    lines += &format!("modify udp,in_port={i},tp_dst={PORT},actions=output:6\n");
                }
                self.bundle(&lines);
            }
        }
        [2, 3, 2, 3, 2, 6][round as usize % 6]
    }

    /// Changes that should not matter to the packets that are looked at.
    fn unrelated<'s>(&'s self, scope: &'s Scope<'s, '_>, quit: &'s AtomicBool) {
        scope.spawn(move || {
            let flows = |n: u32| -> String {
                (0..300)
                    .map(|i| format!("udp,tp_dst={},actions=drop\n", 9000 + n % 7 * 300 + i))
                    .collect()
            };
            let file = self.sw.dir().join("flows.txt");
            for n in 0.. {
                if quit.load(Ordering::Relaxed) {
                    return;
                }
                std::fs::write(&file, flows(n)).unwrap();
                self.sw.ofctl(&["add-flows", "br0", file.to_str().unwrap()]).unwrap();
                match n % 5 {
                    0 => drop(self.vsctl("add-port br0 p4 -- set interface p4 ofport_request=4")),
                    1 => drop(self.vsctl("set open . other_config:pmd-cpu-mask=3")),
                    2 => drop(self.vsctl("del-port br0 p4")),
                    3 => drop(self.vsctl("set open . other_config:pmd-cpu-mask=2")),
                    _ => self.ofctl("del-flows", "udp,tp_dst=9000/0xfff8"),
                }
            }
        });
    }
}

fn check(lab: &Lab, expected: &[u8]) {
    let seen = lab.seen.lock().unwrap();
    for (round, to) in expected.iter().enumerate() {
        for input in [KERNEL[0].0, POLLED[0].0] {
            let out: Vec<(u8, u32)> = seen
                .iter()
                .filter(|((k, i, r, _), _)| (*k, *i, *r as usize) == (1, input, round))
                .map(|((.., o), n)| (*o, *n))
                .collect();
            assert_eq!(
                out,
                [(*to, MARKS as u32)],
                "round {round}, from port {input}: (out, packets)\n{}\n{}",
                lab.sw.appctl(&["coverage/show"]).unwrap(),
                lab.sw.appctl(&["dpctl/show", "-s"]).unwrap()
            );
        }
    }
}

/// In and out of the whole datapath, packets that wait aside.
fn balance(lab: &Lab) -> (u64, u64) {
    let sum = |names: &[&str]| names.iter().map(|n| lab.counter(n)).sum::<u64>();
    let drops =
        telemetry_names().iter().map(|n| lab.counter(&format!("datapath_drop_{n}"))).sum::<u64>();
    let inward = sum(&["netdev_received", "datapath_injected", "datapath_copies"]);
    (inward, sum(&["netdev_sent", "datapath_punted"]) + drops)
}

fn telemetry_names() -> Vec<&'static str> {
    telemetry::Drop::ALL.iter().map(|d| d.name()).collect()
}

#[test]
fn changes_under_traffic_are_exact_and_everything_is_accounted_for() {
    if !privileged() {
        return;
    }
    let rounds =
        std::env::var("WEFT_CHURN_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(ROUNDS);
    let (net, hosts) = (Netns::new().unwrap(), Netns::new().unwrap());
    let lab = Lab::new(&net, &hosts);
    let (quit, mut expected) = (AtomicBool::new(false), Vec::new());
    let inputs = [KERNEL[0], POLLED[0]].map(|(no, far)| (no, Raw::open(&hosts, far).unwrap()));
    std::thread::scope(|scope| {
        KERNEL.iter().chain(&POLLED).for_each(|(no, far)| lab.collect(scope, *no, far));
        lab.redirect(0);
        lab.steady(scope, KERNEL[0].0, KERNEL[0].1, &quit);
        lab.steady(scope, POLLED[0].0, POLLED[0].1, &quit);
        sleep(Duration::from_millis(300));
        let idle = lab.buffers();
        lab.unrelated(scope, &quit);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for round in 0..rounds {
                expected.push(lab.redirect(round));
                lab.round.store(round, Ordering::Relaxed);
                for (no, raw) in &inputs {
                    (0..MARKS).for_each(|_| raw.send(&frame(1, *no, round)).unwrap());
                }
                lab.arrived(round, 2 * MARKS as u32);
            }
        }));
        quit.store(true, Ordering::Relaxed);
        sleep(Duration::from_millis(500));
        lab.stop.store(true, Ordering::Relaxed);
        if let Err(e) = result {
            std::panic::resume_unwind(e);
        }
        // What waits in receive queues to be used: at most a burst or two per port.
        let now = lab.buffers();
        assert!(now <= idle + 4 * 64, "buffers: {idle} at first, {now} after");
    });
    let (came, went) = balance(&lab);
    assert_eq!(came, went, "packets in and out\n{}", lab.sw.appctl(&["coverage/show"]).unwrap());
    check(&lab, &expected);
    assert!(came > u64::from(rounds) * 2 * MARKS as u64, "there was traffic: {came}");
    assert!(!lab.sw.log().contains("panic"), "{}", lab.sw.log());
}
