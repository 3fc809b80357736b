//! The systems under test: started by scripts of lab/systems, found again by their forwarding
//! thread.

use crate::counters::Counters;
use crate::experiment::{Case, Role, Tunnel};
use crate::measure::pause;
use crate::rules::RuleSet;
use anyhow::{Context, Result, bail};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const TESTPMD: &str = include_str!("../../../lab/systems/testpmd.sh");
const SWITCH: &str = include_str!("../../../lab/systems/switch.sh");

/// One system in one setting.
#[derive(Clone, Copy, Debug)]
pub struct System {
    /// As tables name it.
    pub name: &'static str,
    /// As experiments may name it and its like.
    group: &'static str,
    program: Program,
    /// testpmd: the forwarding mode. With an emulated engine: the threshold and its arguments.
    /// Others: `other_config`.
    setting: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    Testpmd,
    Ovs,
    OvsNative,
    Weft,
    /// Weft with an emulated copy engine, which gets every copy.
    WeftEmulated,
}

const PLAIN: &str = "emc-insert-inv-prob=0";
const SMC: &str = "smc-enable=true emc-insert-inv-prob=0";
const OFFLOAD: &str = "hw-offload=true emc-insert-inv-prob=0";
const FLUSH: &str = "emc-insert-inv-prob=0 tx-flush-interval=50";

const fn system(
    name: &'static str,
    group: &'static str,
    program: Program,
    setting: &'static str,
) -> System {
    System { name, group, program, setting }
}

const SYSTEMS: &[System] = &[
    system("testpmd-io", "testpmd", Program::Testpmd, "io"),
    system("testpmd-mac", "testpmd", Program::Testpmd, "mac"),
    system("ovs-emc", "ovs", Program::Ovs, ""),
    system("ovs-smc", "ovs", Program::Ovs, SMC),
    system("ovs-plain", "ovs", Program::Ovs, PLAIN),
    system("ovs-flush", "ovs-flush", Program::Ovs, FLUSH),
    system("ovs-native-emc", "ovs-native", Program::OvsNative, ""),
    system("ovs-native-smc", "ovs-native", Program::OvsNative, SMC),
    system("ovs-native-plain", "ovs-native", Program::OvsNative, PLAIN),
    system("ovs-native-flush", "ovs-flush", Program::OvsNative, FLUSH),
    system("weft", "weft", Program::Weft, ""),
    system("weft-emulated-null", "weft-emulated", Program::WeftEmulated, "0,mode=null"),
    system("weft-emulated-auto", "weft-emulated-auto", Program::WeftEmulated, "auto,mode=null"),
    system("weft-emulated-thread", "weft-emulated", Program::WeftEmulated, "0,mode=thread"),
    system(
        "weft-emulated-thread-auto",
        "weft-emulated-auto",
        Program::WeftEmulated,
        "auto,mode=thread",
    ),
    system("ovs-offload", "ovs-offload", Program::Ovs, OFFLOAD),
    system("weft-offload", "weft-offload", Program::Weft, "hw-offload=true"),
    system("weft-flush", "weft-flush", Program::Weft, "tx-flush-interval=50"),
];

/// The group of every build and setting of OVS without offload: what an experiment compares with,
/// so that the peer of each row is the one that is best on that row.
const EVERY_OVS: &str = "ovs-all";

/// The lookup and input functions of OVS for AVX-512; refused where the CPU has none.
const AVX512: &str = "dpif-netdev/subtable-lookup-prio-set avx512_gather 5\n\
                      dpif-netdev/dpif-impl-set dpif_avx512\n\
                      dpif-netdev/miniflow-parser-set study";

/// Where the programs are.
#[derive(Clone, Debug)]
pub struct Programs {
    /// `weftd`.
    pub weftd: PathBuf,
    /// The generator's shared object.
    pub generator: PathBuf,
    /// The emulated copy engine's shared object; none if it is not needed.
    pub engine: Option<PathBuf>,
    /// The process that plays guests.
    pub guests: PathBuf,
    /// ovs-vswitchd, built for this machine; none if it is not needed.
    pub native: Option<PathBuf>,
}

/// What a system is given.
pub struct Setup<'a> {
    /// Traffic and guests.
    pub case: &'a Case,
    /// Rules of the switch, and flows that hit them.
    pub rules: &'a RuleSet,
    /// The cores that forward.
    pub cores: Range<usize>,
    /// What to start.
    pub programs: &'a Programs,
    /// Weft compares what it does with its twins.
    pub validate: bool,
}

impl System {
    /// The systems of these names or groups, each once. The group [`EVERY_OVS`] has every build and
    /// setting of OVS.
    ///
    /// # Errors
    /// One of them does not exist.
    pub fn choose(names: &[String]) -> Result<Vec<System>> {
        let is_called = |s: &System, name: &str| {
            s.name == name || s.group == name || (name == EVERY_OVS && s.is_ovs() && !s.offloads())
        };
        for name in names {
            if !SYSTEMS.iter().any(|s| is_called(s, name)) {
                let known: Vec<_> = SYSTEMS.iter().map(|s| s.name).collect();
                bail!("no system '{name}'; there are: {}", known.join(", "));
            }
        }
        let chosen = |s: &&System| names.iter().any(|name| is_called(s, name));
        Ok(SYSTEMS.iter().filter(chosen).copied().collect())
    }

    /// True if the system is OVS-DPDK, of either build, in any setting.
    pub fn is_ovs(&self) -> bool {
        matches!(self.program, Program::Ovs | Program::OvsNative)
    }

    /// Not counted among the peers: it forwards without looking.
    pub fn ceiling(&self) -> bool {
        self.program == Program::Testpmd
    }

    /// Weft without further settings.
    pub fn is_weft(&self) -> bool {
        self.program == Program::Weft && self.setting.is_empty()
    }

    /// True if the system uses the rules of the source's adapter.
    pub fn offloads(&self) -> bool {
        self.setting.contains("hw-offload=true")
    }

    /// True if the system tells cycles per stage.
    pub fn has_stages(&self) -> bool {
        matches!(self.program, Program::Weft | Program::WeftEmulated)
    }

    /// True if the system has an emulated copy engine.
    pub fn has_engine(&self) -> bool {
        self.program == Program::WeftEmulated
    }

    /// True if the system is the build of OVS for this machine.
    pub fn is_native(&self) -> bool {
        self.program == Program::OvsNative
    }

    /// True if the system can do this case. testpmd has no rules that change or that deliver to
    /// guests: it forwards to one guest at most.
    pub fn can(&self, case: &Case) -> bool {
        let one_guest = case.guests == 1 && case.tunnel == Tunnel::None && self.setting == "io";
        let plain = case.guests == 0 && case.functions == 0 && case.tunnel == Tunnel::None;
        let copies = !self.has_engine() || case.guests > 0;
        let rules = !self.offloads() || case.source.contains(",hw=");
        copies && rules && (!self.ceiling() || (case.churn == 0 && (plain || one_guest)))
    }

    /// What has to be on this machine for it.
    pub fn path(&self, programs: &Programs) -> PathBuf {
        match self.program {
            Program::Testpmd => "/usr/bin/dpdk-testpmd".into(),
            Program::Ovs => "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk".into(),
            Program::OvsNative => programs.native.clone().unwrap_or_default(),
            Program::Weft | Program::WeftEmulated => programs.weftd.clone(),
        }
    }

    /// The script in namespaces of its own, with its environment.
    fn command(&self, setup: &Setup) -> Command {
        let mut c = Command::new("unshare");
        c.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
        let script = if self.ceiling() { TESTPMD } else { SWITCH };
        c.args(["bash", "-c", script]);
        c.env("DAEMON", self.path(setup.programs));
        c.env("GENERATOR", &setup.programs.generator);
        let cores: Vec<_> = setup.cores.clone().map(|core| core.to_string()).collect();
        c.env("CORES", cores.join(",")).env("HELPER_CORE", helper(&setup.cores).to_string());
        if self.ceiling() {
            c.env("MODE", self.setting);
        } else if let (true, Some(engine)) = (self.has_engine(), &setup.programs.engine) {
            let (engine, helper) = (engine.display(), helper(&setup.cores));
            let (threshold, engine_args) = self.setting.split_once(',').unwrap_or_default();
            let device = format!("dma_weftemu0,{engine_args},lcore={helper}");
            c.env("DPDK_EXTRA", format!("-d {engine} --vdev {device}"));
            c.env("OTHER_CONFIG", "vhost-async-support=true");
            c.env("APPCTL", format!("netdev-dpdk/set-vhost-async-thresh {threshold}"));
        } else {
            c.env("OTHER_CONFIG", self.setting);
            let wide = self.program == Program::OvsNative && has_avx512();
            c.env("APPCTL", if wide { AVX512 } else { "" });
        }
        c.env("FUNCTIONS", setup.case.functions.to_string());
        c.env("ADAPTER", adapter(&setup.case.source));
        c.env("WEFT_VALIDATE", if setup.validate { "1" } else { "" });
        c.env("GUESTS", setup.case.guests.to_string());
        c.env("GUEST_PROGRAM", &setup.programs.guests);
        c.env("TUNNEL", setup.case.tunnel.name());
        c.env("PACKED", if setup.case.guest.packed { "1" } else { "0" });
        c.env("WEFT_GUEST_PAGES", setup.case.guest.pages.name());
        c.env("ROLE", setup.case.guest.role.name()).env("MTU", setup.case.mtu.to_string());
        if setup.case.mtu > 0 {
            // Headroom, and headers around the MTU.
            c.env("WEFT_GUEST_BUFFER", (setup.case.mtu + 256).to_string());
        }
        c
    }

    /// Starts it; returns when both ports are there.
    ///
    /// # Errors
    /// What it said.
    pub fn start(&self, setup: &Setup, dir: PathBuf) -> Result<Running> {
        fs::create_dir(&dir).with_context(|| dir.display().to_string())?;
        fs::write(dir.join("rules"), rules_text(setup.case, setup.rules))?;
        let mut source = setup.case.source.clone();
        if let Some(flows) = &setup.rules.flows {
            flows.write(&dir.join("flows"))?;
            source = format!("{source},table={}", dir.join("flows").display());
        }
        if setup.case.sets_rate() {
            // More than any system forwards; the search sets it.
            source.push_str(",rate=500000000");
        }
        let [source_side, sink_side, guests_side] =
            ["source", "sink", "guests"].map(|who| dir.join(format!("{who}.counters")));
        let (made, mut taken) = match (setup.case.guests, setup.case.guest.role) {
            (1.., Role::Sink) => (source_side.clone(), vec![guests_side]),
            (1.., Role::Source) => (guests_side, vec![sink_side.clone()]),
            // testpmd forwards between two ports: what comes back leaves where it came from.
            (1.., Role::Echo) if self.ceiling() => (source_side.clone(), vec![source_side.clone()]),
            _ => (source_side.clone(), vec![sink_side.clone()]),
        };
        if setup.case.functions > 0 {
            taken =
                (0..setup.case.functions).map(|i| dir.join(format!("vf{i}.counters"))).collect();
            source.push_str(",adapter=lab");
        }
        let mut c = self.command(setup);
        c.env("RULES", dir.join("rules"));
        c.env("SOURCE", format!("net_weftgen0,{source},stats={}", source_side.display()));
        c.env("SINK", format!("net_weftgen1,order=sink,stats={}", sink_side.display()));
        c.current_dir(&dir).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        end_with_us(&mut c);
        let child = c.spawn().context("unshare")?;
        let mut running = Running { child, dir, made, taken, threads: Vec::new() };
        running.wait_until_ready()?;
        let thread = if self.ceiling() { "rte-worker" } else { "pmd-c" };
        running.threads = find_threads(running.child.id() as i32, thread);
        if running.threads.len() != setup.cores.len() {
            bail!("{} threads {thread}* in {}", running.threads.len(), self.name);
        }
        Ok(running)
    }
}

/// What a port's arguments say of its adapter; empty: it has none.
fn adapter(source: &str) -> String {
    let all: Vec<_> = source.split(',').filter(|word| word.starts_with("hw")).collect();
    all.join(",")
}

/// What sends a packet off by the tunnel, with VNI `vni`.
fn by_tunnel(vni: u32) -> String {
    format!("set_field:{vni}->tun_id,set_field:172.16.0.1->tun_dst,output:3")
}

/// The rules; with guests, rule i delivers to guest i mod n, and what guests send leaves, by the
/// tunnel if there is one. To a sink behind a tunnel rule i sends with the i mod 10th VNI.
fn rules_text(case: &Case, rules: &RuleSet) -> String {
    if case.tunnel == Tunnel::Sink {
        let push = |(i, line): (u32, &String)| line.replace("output:2", &by_tunnel(100 + i % 10));
        return (0..).zip(&rules.lines).map(push).collect::<Vec<_>>().join("\n") + "\n";
    }
    let receivers = case.guests + case.functions;
    if receivers == 0 {
        return rules.text();
    }
    let deliver = |(i, line): (u32, &String)| {
        line.replace("output:2", &format!("output:{}", 10 + i % receivers))
    };
    let mut lines: Vec<_> = (0..).zip(&rules.lines).map(deliver).collect();
    let out: String = match case.tunnel {
        Tunnel::None => "output:2".into(),
        _ => by_tunnel(100),
    };
    let back = |i| match case.guest.role {
        Role::Chain if i + 1 < case.guests => {
            format!("priority=65535,in_port={},actions=output:{}", 10 + i, 11 + i)
        }
        _ => format!("priority=65535,in_port={},actions={out}", 10 + i),
    };
    lines.extend((0..case.guests).map(back));
    lines.join("\n") + "\n"
}

fn has_avx512() -> bool {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    info.contains(" avx512f ") && info.contains(" avx512vbmi ")
}

/// The core for everything that does not forward; the first one where all do.
fn helper(cores: &Range<usize>) -> usize {
    match cores.start {
        0 if !cores.contains(&1) => 1,
        _ => 0,
    }
}

/// The child is not reached by Ctrl-C (we clean up), and is killed if we are.
fn end_with_us(c: &mut Command) {
    c.process_group(0);
    // SAFETY: prctl is async-signal-safe and touches no memory.
    unsafe {
        c.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
}

/// A system that forwards; it and everything it made is gone after drop.
pub struct Running {
    child: Child,
    /// Its sockets and files.
    pub dir: PathBuf,
    /// Counters of the port that makes packets.
    pub made: PathBuf,
    /// Counters of the ports that take them.
    taken: Vec<PathBuf>,
    threads: Vec<PathBuf>,
}

impl Running {
    /// Waits for the script's first line; loading a million rules takes OVS minutes.
    fn wait_until_ready(&mut self) -> Result<()> {
        let limit = Instant::now() + Duration::from_secs(300);
        while !self.has_spoken() {
            if Instant::now() > limit {
                bail!("did not start in five minutes");
            }
            pause(0.01)?;
        }
        let mut line = String::new();
        if let Some(out) = self.child.stdout.as_mut() {
            BufReader::new(out).read_line(&mut line)?;
        }
        if line.trim() == "ready" {
            return Ok(());
        }
        let mut said = String::new();
        self.end();
        if let Some(err) = self.child.stderr.as_mut() {
            err.read_to_string(&mut said)?;
        }
        bail!("did not start: {} {}", line.trim(), said.trim())
    }

    /// True if there is something to read, or the end.
    fn has_spoken(&self) -> bool {
        let Some(out) = &self.child.stdout else { return true };
        let mut poll = libc::pollfd { fd: out.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid pollfd, which outlives the call; it does not wait.
        unsafe { libc::poll(&raw mut poll, 1, 0) != 0 }
    }

    /// CPU time of all forwarding threads, ns.
    pub fn cpu_ns(&self) -> Result<u64> {
        self.threads.iter().map(|t| cpu_ns_of(t)).sum()
    }

    /// CPU time of the daemon's other threads, ns.
    pub fn others_ns(&self) -> Result<u64> {
        let all = self.threads.first().and_then(|t| t.parent()).context("no forwarding thread")?;
        let tasks = fs::read_dir(all)?.flatten().map(|t| t.path());
        // A thread may end meanwhile.
        let others =
            tasks.filter(|t| !self.threads.contains(t)).map(|t| cpu_ns_of(&t).unwrap_or(0));
        Ok(others.sum())
    }

    /// Counters of the ports that take packets, together; latency is the first one's.
    pub fn taken(&self) -> Result<Counters> {
        let mut all = self.taken.iter().map(|file| Counters::read(file));
        let mut sum = all.next().context("no port takes packets")??;
        for more in all {
            let more = more?;
            sum.taken += more.taken;
            sum.lost += more.lost;
            sum.reordered += more.reordered;
        }
        Ok(sum)
    }
}

impl Running {
    /// Ends the namespace's first process, by its closed input or else by force. The kernel reaps
    /// it after all others of the namespace, so that when unshare returns their memory is free.
    fn end(&mut self) {
        drop(self.child.stdin.take());
        let limit = Instant::now() + Duration::from_secs(3);
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < limit {
            std::thread::sleep(Duration::from_millis(10));
        }
        if let Ok(None) = self.child.try_wait() {
            for first in children(Path::new(&format!("/proc/{0}/task/{0}", self.child.id()))) {
                // SAFETY: no memory; it is the child of our child, which has not been waited for.
                unsafe { libc::kill(first, libc::SIGKILL) };
            }
            let _ = self.child.wait();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// A thread's CPU time, ns.
fn cpu_ns_of(thread: &Path) -> Result<u64> {
    let text = fs::read_to_string(thread.join("schedstat"))?;
    text.split(' ').next().and_then(|n| n.parse::<u64>().ok()).context("schedstat")
}

/// Process ids of a task's children.
fn children(task: &Path) -> Vec<i32> {
    let text = fs::read_to_string(task.join("children")).unwrap_or_default();
    text.split_whitespace().filter_map(|c| c.parse().ok()).collect()
}

/// The /proc directories of threads so named among a process and its descendants.
fn find_threads(pid: i32, name: &str) -> Vec<PathBuf> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    let of = |task: PathBuf| {
        let comm = fs::read_to_string(task.join("comm")).unwrap_or_default();
        let below = children(&task).into_iter().flat_map(|c| find_threads(c, name));
        let below: Vec<_> = below.collect();
        comm.starts_with(name).then_some(task).into_iter().chain(below)
    };
    tasks.flatten().map(|t| t.path()).flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rules;

    #[test]
    fn systems_are_chosen_by_name_and_group() {
        let names = |words: &[&str]| {
            let words: Vec<_> = words.iter().map(|w| w.to_string()).collect();
            System::choose(&words).map(|all| all.iter().map(|s| s.name).collect::<Vec<_>>())
        };
        assert_eq!(
            names(&["weft", "ovs", "ovs-emc"]).unwrap(),
            ["ovs-emc", "ovs-smc", "ovs-plain", "weft"]
        );
        assert_eq!(names(&["ovs-flush"]).unwrap(), ["ovs-flush", "ovs-native-flush"]);
        let all = names(&["ovs-all"]).unwrap();
        assert_eq!((all.len(), all[0], all[7]), (8, "ovs-emc", "ovs-native-flush"));
        assert!(names(&["vpp"]).unwrap_err().to_string().contains("testpmd-io"));
    }

    #[test]
    fn rules_deliver_to_guests_in_turn_and_what_comes_back_leaves() {
        let mut case = crate::Experiment::load("002-pvp", true).unwrap().cases[0].clone();
        case.guests = 2;
        let rules = Rules { kind: crate::RuleKind::Dmac, count: 3, ..Rules::default() };
        let text = rules_text(&case, &rules.build().unwrap());
        let ports: Vec<_> = text.lines().map(|l| l.rsplit(':').next().unwrap()).collect();
        assert_eq!(ports, ["10", "11", "10", "2", "2"]);
        case.guest.role = Role::Chain;
        let text = rules_text(&case, &rules.build().unwrap());
        assert!(text.contains("in_port=10,actions=output:11\n"), "{text}");
        assert!(text.ends_with("in_port=11,actions=output:2\n"), "{text}");
        case.guest.role = Role::Echo;
        (case.guests, case.functions) = (0, 2);
        let text = rules_text(&case, &rules.build().unwrap());
        assert!(text.ends_with("output:10\n") && text.contains("output:11\n"), "{text}");
        assert_eq!(adapter("flows=9,hw=full,rate=7,hw_pps=8"), "hw=full,hw_pps=8");
        case.functions = 0;
        (case.guests, case.tunnel) = (0, Tunnel::Sink);
        let text = rules_text(&case, &rules.build().unwrap());
        assert!(
            text.ends_with(
                "actions=set_field:102->tun_id,set_field:172.16.0.1->tun_dst,output:3\n"
            )
        );
    }
}
