//! The emulated adapter's flow rules (lab/generator/hw): testpmd and Debian's ovs-vswitchd set
//! them, counters and marks say what became of the packets. With SANITIZE=1 in the environment
//! testpmd runs it under AddressSanitizer and UBSan (packaged programs that do not preload them are
//! left out).

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use testkit::{Netns, Switch, SwitchConfig};

/// How long a condition may take on a busy machine.
const WAIT_TIME_MAX: Duration = Duration::from_secs(60);
/// Where the adapter's counters and its faults begin in a port's file.
const HW: usize = 34880;
const FAULTS: usize = HW + 256;

fn generator() -> PathBuf {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../lab/generator/build.sh");
    let out = Command::new(script).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    PathBuf::from(String::from_utf8_lossy(&out.stdout).trim())
}

/// The n-th counter of the adapter.
#[derive(Clone, Copy)]
enum Hw {
    Rules = 0,
    Created = 1,
    Refused = 2,
    Checked = 5,
    CheckFailed = 6,
    Passed = 7,
    Delivered = 9,
    DeliveredBytes = 10,
    Dropped = 11,
    LostMarks = 12,
    WrongMarks = 13,
}

/// The n-th thing that can go wrong.
#[derive(Clone, Copy)]
enum Fault {
    RefuseAbove = 0,
    FailEvery = 1,
    CreateErrno = 2,
    DestroyErrno = 3,
    LosePerMille = 5,
    WrongPerMille = 6,
    Widen = 8,
    Count = 9,
    Reset = 10,
    Gone = 11,
}

/// The file that is a port's counters; gone when dropped.
struct Stats(PathBuf);

impl Stats {
    fn new(name: &str) -> Self {
        let name = format!("adapter-{name}-{}", std::process::id());
        Stats(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name))
    }

    fn word(&self, at: usize) -> u64 {
        let bytes = std::fs::read(&self.0).unwrap_or_default();
        bytes.get(at..at + 8).map_or(0, |b| u64::from_ne_bytes(b.try_into().unwrap()))
    }

    fn made(&self) -> u64 {
        self.word(64)
    }

    fn no_buffer(&self) -> u64 {
        self.word(64 + 16)
    }

    fn missed(&self) -> u64 {
        self.word(64 + 24)
    }

    fn set(&self, fault: Fault, value: u64) {
        let file = std::fs::File::options().write(true).open(&self.0).unwrap();
        file.write_all_at(&value.to_ne_bytes(), (FAULTS + 8 * fault as usize) as u64).unwrap();
    }

    fn hw(&self, counter: Hw) -> u64 {
        self.word(HW + 8 * counter as usize)
    }
}

impl Drop for Stats {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn wait_for(what: &str, done: impl Fn() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < WAIT_TIME_MAX, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// With SANITIZE=1 the plug-in is built with sanitizers (lab/plugin.sh), and what they find ends
/// testpmd.
fn preload_sanitizer(c: &mut Command) {
    if std::env::var_os("SANITIZE").is_none() {
        return;
    }
    let out = Command::new("gcc").arg("-print-file-name=libasan.so").output().unwrap();
    c.env("LD_PRELOAD", String::from_utf8_lossy(&out.stdout).trim());
    // EAL's memory is never given back.
    c.env("ASAN_OPTIONS", "detect_leaks=0:abort_on_error=1:log_path=stderr");
}

/// testpmd with a command line; ends when dropped.
struct Testpmd {
    child: Child,
    said: Arc<Mutex<String>>,
    asked: usize,
    stats: Stats,
}

impl Testpmd {
    /// Port 0 makes packets and is an adapter with these arguments, port 1 takes them.
    fn start(name: &str, args: &str) -> Self {
        Self::with_more(name, args, &[])
    }

    /// [`Testpmd::start`] with more ports.
    fn with_more(name: &str, args: &str, more: &[String]) -> Self {
        let stats = Stats::new(name);
        let source = format!("net_weftgen0,{args},stats={}", stats.0.display());
        // Its output is buffered by blocks otherwise; errors in their places.
        let mut c = Command::new("sh");
        c.args(["-c", "exec stdbuf -oL dpdk-testpmd \"$@\" 2>&1", "sh"]);
        c.args(["--lcores=0@0,1@0", "--no-huge", "--no-shconf", "-m", "128", "--no-pci"]);
        c.args(["--no-telemetry", "-d"]).arg(generator());
        c.args(["--vdev", &source, "--vdev", "net_weftgen1,order=sink"]);
        c.args(more.iter().flat_map(|vdev| ["--vdev", vdev]));
        c.args(["--", "-i"]);
        c.args(["--nb-cores=1", "--forward-mode=io", "--total-num-mbufs=16384"]);
        c.args(["--no-lsc-interrupt", "--no-mlockall", "--no-flush-rx"]);
        c.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        preload_sanitizer(&mut c);
        let mut child = c.spawn().unwrap();
        let said = Arc::new(Mutex::new(String::new()));
        let (mut out, copy) = (child.stdout.take().unwrap(), said.clone());
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = out.read(&mut bytes) {
                copy.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..n]));
            }
        });
        let mut pmd = Testpmd { child, said, asked: 0, stats };
        pmd.run("");
        pmd
    }

    /// Runs commands; what testpmd wrote meanwhile.
    fn run(&mut self, commands: &str) -> String {
        const DONE: &str = "Change verbose level from 0 to 0";
        let before = self.said.lock().unwrap().len();
        let input = self.child.stdin.as_mut().unwrap();
        writeln!(input, "{commands}\nset verbose 0").unwrap();
        self.asked += 1;
        wait_for(commands, || self.said.lock().unwrap().matches(DONE).count() >= self.asked);
        self.said.lock().unwrap()[before..].to_string()
    }

    /// Packets and bytes of a rule that counts.
    fn hits(&mut self, rule: u32) -> (u64, u64) {
        let said = self.run(&format!("flow query 0 {rule} count"));
        let number = |name: &str| {
            let rest = said.split(name).nth(1).unwrap_or_else(|| panic!("{said}"));
            rest.lines().next().unwrap().trim().parse().unwrap()
        };
        (number(" hits: "), number(" bytes: "))
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn rules_are_listed_counted_and_destroyed() {
    let args = "flows=6400,rules=100,limit=64000,hw=full,hw_lag=0,hw_check=1";
    let mut pmd = Testpmd::start("count", args);
    let create = "flow create 0 ingress pattern eth / ipv4 dst";
    let said = pmd.run(&format!(
        "flow validate 0 ingress pattern eth / ipv4 dst is 16.0.5.5 / end actions drop / end\n\
         {create} spec 16.0.5.0 dst mask 255.255.255.0 / end actions mark id 5 / count / rss / end\n\
         {create} is 16.0.6.6 / udp / end actions mark id 6 / count / rss / end\n\
         {create} is 16.0.7.7 / udp dst is 5001 / end actions drop / count / end\n\
         {create} is 16.0.7.7 / tcp / end actions drop / count / end\n\
         flow list 0"
    ));
    for line in
        ["Flow rule validated", "Flow rule #3 created", "0\t0\t0\ti--\tETH IPV4 => MARK COUNT RSS"]
    {
        assert!(said.contains(line), "{line}: {said}");
    }
    pmd.run("start");
    // Flow f is of rule f mod 100 and ends in f mod 256: of 6,400, one is 16.0.6.6.
    wait_for("packets", || pmd.stats.made() == 64000 - 10);
    assert_eq!(pmd.hits(0), (640, 640 * 60));
    assert_eq!(pmd.hits(1), (10, 600));
    assert_eq!(pmd.hits(2), (10, 600));
    assert_eq!(pmd.hits(3), (0, 0));
    let said =
        pmd.run("stop\nflow destroy 0 rule 0\nflow query 0 0 count\nflow flush 0\nflow list 0");
    assert!(said.contains("Flow rule #0 destroyed"), "{said}");
    assert_eq!(pmd.stats.hw(Hw::Rules), 0);
    assert_eq!(pmd.stats.hw(Hw::CheckFailed), 0);
    assert!(pmd.stats.hw(Hw::Checked) > 60000);
}

#[test]
fn what_the_adapter_cannot_do_is_refused_with_a_reason() {
    let mut pmd = Testpmd::start("refuse", "flows=10,hw=i40e,hw_rules=2,hw_full_error=ENOBUFS");
    let create = "flow create 0";
    for (rule, type_, message) in [
        ("transfer pattern eth / end actions drop / end", 7, "no transfer rules"),
        ("ingress group 1 pattern eth / end actions drop / end", 3, "no such group"),
        ("ingress priority 1 pattern eth / end actions drop / end", 4, "no such priority"),
        ("ingress pattern gre / end actions drop / end", 13, "does not know this item"),
        ("ingress pattern ipv4 / eth / end actions drop / end", 13, "cannot follow"),
        (
            "ingress pattern eth / ipv4 version_ihl is 5 / end actions drop / end",
            12,
            "such a field",
        ),
        ("ingress pattern eth / end actions queue index 3 / end", 15, "no such queue"),
        ("ingress pattern eth / end actions dec_ttl / end", 16, "does not know this action"),
        ("ingress pattern eth / end actions drop / rss / end", 16, "one fate"),
    ] {
        let said = pmd.run(&format!("{create} {rule}"));
        let error = format!("error type {type_} ");
        assert!(said.contains(&error) && said.contains(message), "{rule}: {said}");
    }
    let rule = |n| {
        format!(
            "{create} ingress pattern eth / ipv4 dst is 16.0.0.{n} / end actions mark id {n} / rss / end"
        )
    };
    let said = pmd.run(&[rule(1), rule(2), rule(3)].join("\n"));
    assert!(said.contains("the adapter's table is full: No buffer space available"), "{said}");
    let said = pmd.run(&format!("flow destroy 0 rule 0\n{}", rule(3)));
    assert!(said.contains("Flow rule #2 created"), "{said}");
    assert_eq!((pmd.stats.hw(Hw::Created), pmd.stats.hw(Hw::Refused)), (3, 10));
}

/// Rules at random, of which many overlap, while packets come: every packet's mark is compared with
/// what its bytes say.
#[test]
fn marks_are_what_the_bytes_say() {
    let mut random = 7u64;
    let mut draw = move |n: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) % n
    };
    let l3 = [
        "kind=udp4",
        "kind=tcp4,order=uniform",
        "kind=vlan,order=zipf",
        "kind=udp4,dmacs=7,order=burst",
    ];
    for (i, kind) in l3.iter().enumerate() {
        let args = format!("flows=5000,rules=60,{kind},hw=full,hw_check=1,hw_lag=100,rate=40000");
        let mut pmd = Testpmd::start(&format!("bytes{i}"), &args);
        pmd.run("start");
        let mut commands = String::new();
        for n in 0..60 {
            let rule = draw(60);
            let l3 = match draw(4) {
                0 => format!("ipv4 dst spec 16.0.{rule}.0 dst mask 255.255.255.0"),
                1 => format!("ipv4 dst spec 16.0.{}.0 dst mask 255.255.240.0", rule & 0xf0),
                2 => format!("ipv4 dst is 16.0.{rule}.{}", draw(256)),
                _ => format!("ipv4 src spec 48.0.{}.0 src mask 255.255.255.0", draw(20)),
            };
            let l4 = ["", "/ udp", "/ tcp src is 1030", "/ udp src is 1029"][draw(4) as usize];
            let eth = ["eth", "eth dst is 02:00:00:00:00:03", "eth / vlan"][draw(3) as usize];
            let (priority, more) = (draw(3), ["", "count /"][draw(2) as usize]);
            writeln!(
                commands,
                "flow create 0 ingress priority {priority} pattern {eth} / {l3} {l4} / end \
                 actions mark id {} / {more} rss / end",
                n + 1
            )
            .unwrap();
            if n % 3 == 0 {
                writeln!(commands, "flow destroy 0 rule {}", n / 2).unwrap();
            }
        }
        pmd.run(&commands);
        let before = pmd.stats.hw(Hw::Checked);
        wait_for("packets", || pmd.stats.hw(Hw::Checked) > before + 10000);
        assert_eq!(pmd.stats.hw(Hw::CheckFailed), 0, "{kind}");
        assert!(pmd.stats.hw(Hw::Created) > 50, "{kind}");
    }
}

/// Two virtual functions of the adapter of port 0, which are ports 2 and 3.
struct Vfs([Stats; 2]);

impl Vfs {
    fn new(name: &str) -> Self {
        Vfs([0, 1].map(|vf| Stats::new(&format!("{name}-vf{vf}"))))
    }

    fn vdevs(&self, adapter: &str) -> Vec<String> {
        let vdev = |(i, stats): (usize, &Stats)| {
            let more = format!("adapter={adapter},role=vf,vf={i},order=sink");
            format!("net_weftgen{},hw=cx5,{more},stats={}", i + 2, stats.0.display())
        };
        self.0.iter().enumerate().map(vdev).collect()
    }

    fn delivered(&self) -> u64 {
        self.0.iter().map(|stats| stats.hw(Hw::Delivered)).sum()
    }
}

fn forward(rule: usize, to: usize) -> String {
    format!(
        "flow create 0 transfer pattern eth type is 0x0800 has_vlan is 0 / \
         ipv4 dst spec 16.0.{rule}.0 dst mask 255.255.255.0 fragment_offset spec 0 \
         fragment_offset mask 0x3fff / end \
         actions count / port_id id {to} / end\n"
    )
}

#[test]
fn forwarded_packets_are_counted_and_never_seen() {
    let vfs = Vfs::new("forward");
    let args = "flows=6400,rules=100,limit=640000,rate=2000000,hw=cx5,adapter=forward";
    let mut pmd = Testpmd::with_more("forward", args, &vfs.vdevs("forward"));
    pmd.run(&(0..100).map(|rule| forward(rule, 2 + rule % 2)).collect::<String>());
    assert_eq!(pmd.stats.hw(Hw::Created), 100);
    pmd.run("start");
    wait_for("packets", || vfs.delivered() == 640_000);
    assert_eq!((pmd.stats.made(), pmd.stats.hw(Hw::Passed)), (0, 640_000));
    assert_eq!(vfs.0[0].hw(Hw::DeliveredBytes), 320_000 * 60);
    for rule in [0, 1, 57, 99] {
        assert_eq!(pmd.hits(rule), (6400, 6400 * 60));
    }
    let said = pmd.run("flow query 0 1 count\nflow destroy 0 rule 1\nflow query 0 2 count");
    assert!(said.contains("Flow rule #1 destroyed"), "{said}");
}

/// Rules come and go while packets come: each packet is the host's, a virtual function's, dropped
/// or missed, once.
#[test]
fn packets_are_conserved_when_rules_change() {
    const LIMIT: u64 = 3_000_000;
    for order in ["seq", "uniform", "zipf"] {
        let vfs = Vfs::new(order);
        let args = format!(
            "flows=6400,rules=100,order={order},limit={LIMIT},rate=1500000,hw=cx5,adapter=c{order}"
        );
        let mut pmd = Testpmd::with_more(order, &args, &vfs.vdevs(&format!("c{order}")));
        // Half of the flows are forwarded and a hundredth dropped, however late the changes are.
        let drop = |rule: usize| {
            format!(
                "flow create 0 transfer pattern eth / ipv4 dst is 16.0.{rule}.{rule} / end \
                 actions drop / end\n"
            )
        };
        let forwarded = (0..50).map(|rule| forward(rule, 2 + rule % 2));
        pmd.run(&forwarded.chain([drop(99)]).collect::<String>());
        pmd.run("start");
        for change in 0..15 {
            pmd.run(&format!("flow destroy 0 rule {change}"));
            let rule = 50 + change;
            pmd.run(&if change % 2 == 0 { forward(rule, 2) } else { drop(rule) });
        }
        let stats = &pmd.stats;
        let host = || stats.made() + stats.no_buffer();
        // Packets that are looked up one by one are those that found room in the ring.
        let missed = || if order == "zipf" { 0 } else { stats.missed() };
        let all = || host() + missed() + vfs.delivered() + stats.hw(Hw::Dropped);
        let began = Instant::now();
        while all() != LIMIT && began.elapsed() < WAIT_TIME_MAX {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(all(), LIMIT, "{order}");
        assert!(vfs.delivered() > 0 && stats.hw(Hw::Dropped) > 0, "{order}");
    }
}

#[test]
fn real_limits_are_there() {
    let mut pmd = Testpmd::start("limits", "flows=10,hw=i40e");
    let mut rule = |fields: &str, n| {
        let actions = format!("end actions mark id {n} / rss / end");
        pmd.run(&format!("flow create 0 ingress pattern eth / ipv4 {fields} / {actions}"))
    };
    assert!(rule("dst is 16.0.0.1", 1).contains("Flow rule #0 created"));
    let said = rule("dst is 16.0.0.1", 2);
    assert!(said.contains("there is such a rule already: File exists"), "{said}");
    let said = rule("src is 48.0.0.1", 3);
    assert!(said.contains("another mask is in use for packets of this type"), "{said}");
    assert!(rule("dst is 16.0.0.2 / udp", 4).contains("Flow rule #1 created"));
}

#[test]
fn faults_do_what_they_say() {
    let mut pmd = Testpmd::start("faults", "flows=1000,rules=10,hw=full,hw_lag=0,rate=100000");
    let rule = |n| {
        let dst = format!("ipv4 dst spec 16.0.{n}.0 dst mask 255.255.255.0");
        let pattern = format!("pattern eth / {dst} / end");
        format!("flow create 0 ingress {pattern} actions mark id {n} / count / rss / end")
    };
    pmd.stats.set(Fault::RefuseAbove, 2);
    pmd.stats.set(Fault::CreateErrno, 11);
    let said = pmd.run(&[rule(1), rule(2), rule(3)].join("\n"));
    assert!(said.contains("asked for: Resource temporarily unavailable"), "{said}");
    assert_eq!(pmd.stats.hw(Hw::Rules), 2);
    pmd.stats.set(Fault::RefuseAbove, 0);
    pmd.stats.set(Fault::FailEvery, 2);
    pmd.run(&[rule(4), rule(5), rule(6), rule(7)].join("\n"));
    assert_eq!(pmd.stats.hw(Hw::Rules), 4);
    pmd.stats.set(Fault::FailEvery, 0);
    pmd.stats.set(Fault::DestroyErrno, 16);
    let said = pmd.run("flow destroy 0 rule 0");
    assert!(said.contains("asked for: Device or resource busy"), "{said}");
    pmd.stats.set(Fault::DestroyErrno, 0);

    pmd.run("start");
    let (made, lost) = (pmd.stats.made(), pmd.stats.hw(Hw::LostMarks));
    pmd.stats.set(Fault::LosePerMille, 1000);
    wait_for("lost marks", || pmd.stats.hw(Hw::LostMarks) > lost + 1000);
    pmd.stats.set(Fault::LosePerMille, 0);
    pmd.stats.set(Fault::WrongPerMille, 100);
    wait_for("wrong marks", || pmd.stats.hw(Hw::WrongMarks) > 100);
    pmd.stats.set(Fault::WrongPerMille, 0);
    // Four of ten packets have a mark; a tenth of these are wrong.
    assert!(pmd.stats.hw(Hw::WrongMarks) < pmd.stats.made() - made);

    pmd.stats.set(Fault::Count, 2);
    let half = pmd.hits(0);
    pmd.stats.set(Fault::Count, 0);
    assert!(pmd.hits(0).0 >= 2 * half.0);

    pmd.stats.set(Fault::Widen, 1);
    let said = pmd.run(
        "flow create 0 ingress priority 1 pattern eth / ipv4 dst spec 99.0.0.0 \
         dst mask 255.255.255.0 / end actions drop / count / end",
    );
    assert!(said.contains("created"), "{said}");
    pmd.stats.set(Fault::Widen, 0);
    let rules = pmd.stats.hw(Hw::Rules);
    assert_eq!(rules, 5);
    let began = Instant::now();
    while pmd.hits(4).0 == 0 {
        assert!(began.elapsed() < WAIT_TIME_MAX, "no packets of a widened rule");
    }

    pmd.stats.set(Fault::Reset, 1);
    wait_for("a reset", || pmd.stats.hw(Hw::Rules) == 0);
    let said = pmd.run("flow destroy 0 rule 0");
    assert!(said.contains("no such rule"), "{said}");
    pmd.stats.set(Fault::Gone, 1);
    wait_for("no packets", || {
        let made = pmd.stats.made();
        std::thread::sleep(Duration::from_millis(50));
        made == pmd.stats.made()
    });
    let said = pmd.run(&rule(8));
    assert!(said.contains("the adapter does not answer"), "{said}");
}

#[test]
fn rules_without_packets_age() {
    let mut pmd = Testpmd::start("age", "flows=100,rules=10,hw=cx5,rate=10000");
    let rule = |n| {
        let pattern =
            format!("pattern eth / ipv4 dst spec 16.0.{n}.0 dst mask 255.255.255.0 / end");
        format!("flow create 0 ingress {pattern} actions mark id 7 / age timeout 1 / rss / end")
    };
    pmd.run(&format!("start\n{}\n{}", rule(3), rule(99)));
    let began = Instant::now();
    let mut said = String::new();
    while !said.contains("1\t0\t0\ti--") && began.elapsed() < WAIT_TIME_MAX {
        said = pmd.run("flow aged 0");
        std::thread::sleep(Duration::from_millis(100));
    }
    // The one that has packets is not among them.
    assert!(said.contains("Port 0 total aged flows: 1"), "{said}");
}

/// The binary that Weft is compared with takes its rules to the adapter, unchanged.
#[test]
fn ovs_offloads_partially() {
    let daemon = Path::new("/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk");
    if !testkit::privileged() || !testkit::available(daemon.exists(), "openvswitch-switch-dpdk") {
        return;
    }
    // Its files are named after the name that it is called by.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let name = dir.path().join("ovs-vswitchd");
    std::os::unix::fs::symlink(daemon, &name).unwrap();
    let (ns, stats) = (Netns::new().unwrap(), Stats::new("ovs"));
    let switch =
        Switch::start(&ns, SwitchConfig { args: Vec::new(), ..SwitchConfig::new(name) }).unwrap();
    let extra = format!(
        "other_config:dpdk-extra=--no-pci --no-huge --legacy-mem -m 256 --no-telemetry --no-shconf -d {}",
        generator().display()
    );
    let more = ["other_config:hw-offload=true", "other_config:per-port-memory=true"];
    switch.vsctl(&["set", "Open_vSwitch", ".", &extra, more[0], more[1]]).unwrap();
    switch.vsctl(&["set", "Open_vSwitch", ".", "other_config:dpdk-init=true"]).unwrap();
    switch.vsctl(&["add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev"]).unwrap();
    let flows: String = (0..100)
        .fold(String::new(), |all, i| format!("{all}ip,nw_dst=16.0.{i}.0/24,actions=output:2\n"));
    switch.ofctl_stdin(&["add-flows", "br0", "-"], &flows).unwrap();
    let source = format!(
        "options:dpdk-devargs=\"vdev:net_weftgen0,flows=1000,rules=100,hw=ice,rate=10000,stats={}\"",
        stats.0.display()
    );
    let sink = "options:dpdk-devargs=\"vdev:net_weftgen1,order=sink\"";
    for (port, number, args) in [("snk", 2, sink), ("src", 1, source.as_str())] {
        let number = format!("ofport_request={number}");
        switch
            .vsctl(&[
                "add-port",
                "br0",
                port,
                "--",
                "set",
                "interface",
                port,
                "type=dpdk",
                &number,
                args,
            ])
            .unwrap();
    }
    let partial = || {
        let all = switch.appctl(&["dpctl/dump-flows", "-m", "type=partially-offloaded"]);
        all.unwrap().matches("offloaded:partial, dp:ovs, actions:snk").count()
    };
    wait_for("100 flows", || partial() == 100);
    assert!((100..=101).contains(&stats.hw(Hw::Rules)), "{}", stats.hw(Hw::Rules));
    let marked = || {
        let all = switch.appctl(&["dpif-netdev/pmd-stats-show"]).unwrap();
        let hits = all.lines().find_map(|l| l.trim().strip_prefix("phwol hits: "));
        hits.unwrap().parse::<u64>().unwrap()
    };
    let (made, hits) = (stats.made(), marked());
    wait_for("marked packets", || stats.made() > made + 20000);
    assert!(marked() - hits > (stats.made() - made) * 9 / 10);
}
