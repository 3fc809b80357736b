//! The emulated adapter's flow rules (lab/generator/hw): testpmd and Debian's ovs-vswitchd set them,
//! counters and marks say what became of the packets.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use testkit::{Netns, Switch, SwitchConfig};

/// How long a condition may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Where the adapter's counters begin in a port's file.
const HW: usize = 34880;

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
        assert!(began.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
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
        let stats = Stats::new(name);
        let source = format!("net_weftgen0,{args},stats={}", stats.0.display());
        // Its output is buffered by blocks otherwise; errors in their places.
        let mut c = Command::new("sh");
        c.args(["-c", "exec stdbuf -oL dpdk-testpmd \"$@\" 2>&1", "sh"]);
        c.args(["--lcores=0@0,1@0", "--no-huge", "--no-shconf", "-m", "128", "--no-pci"]);
        c.args(["--no-telemetry", "-d"]).arg(generator());
        c.args(["--vdev", &source, "--vdev", "net_weftgen1,order=sink", "--", "-i"]);
        c.args(["--nb-cores=1", "--forward-mode=io", "--total-num-mbufs=8192"]);
        c.args(["--no-lsc-interrupt", "--no-mlockall", "--no-flush-rx"]);
        c.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = c.spawn().unwrap();
        let said = Arc::new(Mutex::new(String::new()));
        let (mut out, copy) = (child.stdout.take().unwrap(), said.clone());
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = out.read(&mut bytes) {
                copy.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..n]));
            }
        });
        Testpmd { child, said, asked: 0, stats }
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
    let args = "flows=6400,rules=100,limit=64000,hw=i40e,hw_lag=0,hw_check=1";
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
        "options:dpdk-devargs=\"vdev:net_weftgen0,flows=1000,rules=100,hw=i40e,rate=10000,stats={}\"",
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
