//! The systems under test: started by scripts of lab/systems, found again by their forwarding thread.

use crate::rules::RuleSet;
use anyhow::{Context, Result, bail};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const TESTPMD: &str = include_str!("../../../lab/systems/testpmd.sh");
const SWITCH: &str = include_str!("../../../lab/systems/switch.sh");
const OVS: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";

/// One system in one setting.
#[derive(Clone, Copy, Debug)]
pub struct System {
    /// As experiments and tables name it.
    pub name: &'static str,
    /// Not counted among the peers: it forwards without looking.
    pub ceiling: bool,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Testpmd { mode: &'static str },
    Ovs { other_config: &'static str },
    Weft,
}

const SYSTEMS: &[System] = &[
    System { name: "testpmd-io", ceiling: true, kind: Kind::Testpmd { mode: "io" } },
    System { name: "testpmd-mac", ceiling: true, kind: Kind::Testpmd { mode: "mac" } },
    System { name: "ovs-emc", ceiling: false, kind: Kind::Ovs { other_config: "" } },
    System {
        name: "ovs-smc",
        ceiling: false,
        kind: Kind::Ovs { other_config: "smc-enable=true emc-insert-inv-prob=0" },
    },
    System {
        name: "ovs-plain",
        ceiling: false,
        kind: Kind::Ovs { other_config: "emc-insert-inv-prob=0" },
    },
    System { name: "weft", ceiling: false, kind: Kind::Weft },
];

/// What a system is given.
pub struct Setup<'a> {
    /// The generator's shared object.
    pub generator: &'a Path,
    /// Arguments of the port that makes packets.
    pub source: &'a str,
    /// Rules of the switch, and flows that hit them.
    pub rules: &'a RuleSet,
    /// The core that forwards.
    pub core: usize,
    /// `weftd`.
    pub weftd: &'a Path,
}

impl System {
    /// The system of that name.
    ///
    /// # Errors
    /// There is none.
    pub fn named(name: &str) -> Result<System> {
        SYSTEMS.iter().find(|s| s.name == name).copied().with_context(|| {
            let known: Vec<_> = SYSTEMS.iter().map(|s| s.name).collect();
            format!("no system '{name}'; there are: {}", known.join(", "))
        })
    }

    /// What has to be on this machine for it.
    pub fn program(&self, weftd: &Path) -> PathBuf {
        match self.kind {
            Kind::Testpmd { .. } => "/usr/bin/dpdk-testpmd".into(),
            Kind::Ovs { .. } => OVS.into(),
            Kind::Weft => weftd.into(),
        }
    }

    /// Starts it; returns when both ports are there.
    ///
    /// # Errors
    /// What it said.
    pub fn start(&self, setup: &Setup, dir: PathBuf) -> Result<Running> {
        fs::create_dir(&dir).with_context(|| dir.display().to_string())?;
        fs::write(dir.join("rules"), setup.rules.text())?;
        let mut source = setup.source.to_string();
        if let Some(flows) = &setup.rules.flows {
            flows.write(&dir.join("flows"))?;
            source = format!("{source},table={}", dir.join("flows").display());
        }
        let (made, taken) = (dir.join("source.counters"), dir.join("sink.counters"));
        let mut c = Command::new("unshare");
        c.args([
            "--net",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "bash",
            "-c",
        ]);
        let thread = match self.kind {
            Kind::Testpmd { mode } => {
                c.arg(TESTPMD).env("MODE", mode).env("HELPER_CORE", helper(setup.core).to_string());
                "rte-worker"
            }
            Kind::Ovs { other_config } => {
                c.arg(SWITCH).env("OTHER_CONFIG", other_config);
                "pmd-c"
            }
            Kind::Weft => {
                c.arg(SWITCH).env("OTHER_CONFIG", "");
                "pmd-c"
            }
        };
        c.env("DAEMON", self.program(setup.weftd)).env("RULES", dir.join("rules"));
        c.env("GENERATOR", setup.generator).env("CORE", setup.core.to_string());
        c.env("SOURCE", format!("net_weftgen0,{source},stats={}", made.display()));
        c.env("SINK", format!("net_weftgen1,order=sink,stats={}", taken.display()));
        c.current_dir(&dir).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        end_with_us(&mut c);
        let child = c.spawn().context("unshare")?;
        let mut running = Running { child, dir, made, taken, thread: PathBuf::new() };
        running.wait_until_ready()?;
        running.thread = find_thread(running.child.id() as i32, thread)
            .with_context(|| format!("no thread {thread}* in {}", self.name))?;
        Ok(running)
    }
}

/// The core for everything that does not forward.
fn helper(core: usize) -> usize {
    usize::from(core == 0)
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
    /// Counters of the port that takes them.
    pub taken: PathBuf,
    thread: PathBuf,
}

impl Running {
    fn wait_until_ready(&mut self) -> Result<()> {
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

    /// CPU time of the forwarding thread, ns.
    pub fn cpu_ns(&self) -> Result<u64> {
        let text = fs::read_to_string(self.thread.join("schedstat"))?;
        text.split(' ').next().and_then(|n| n.parse().ok()).context("schedstat")
    }
}

impl Running {
    /// Ends the namespace's first process, by its closed input or else by force. The kernel reaps it after all
    /// others of the namespace, so that when unshare returns their memory is free.
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

/// Process ids of a task's children.
fn children(task: &Path) -> Vec<i32> {
    let text = fs::read_to_string(task.join("children")).unwrap_or_default();
    text.split_whitespace().filter_map(|c| c.parse().ok()).collect()
}

/// The /proc directory of the first thread so named among a process's descendants.
fn find_thread(pid: i32, name: &str) -> Option<PathBuf> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    for task in tasks.flatten().map(|t| t.path()) {
        let comm = fs::read_to_string(task.join("comm")).unwrap_or_default();
        if comm.starts_with(name) {
            return Some(task);
        }
        let found = children(&task).into_iter().find_map(|c| find_thread(c, name));
        if found.is_some() {
            return found;
        }
    }
    None
}
