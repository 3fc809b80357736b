//! A switch under test: a private ovsdb-server, a daemon started as ovs-vswitchd is, and the stock
//! tools pointed at them.

use crate::netns::output;
use crate::{Netns, Result};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
/// Seconds that a tool or the start of a daemon may take: 60,000 flow-mods cost a debug build four
/// seconds of a core, of which a busy machine gives it a tenth.
const TOOL_SECONDS_MAX: u32 = 120;
static NEXT: AtomicU32 = AtomicU32::new(0);

/// What is to be started.
#[derive(Clone, Debug)]
pub struct SwitchConfig {
    /// The daemon: `weftd`, or ovs-vswitchd as the oracle.
    pub daemon: PathBuf,
    /// Arguments besides the usual ones.
    pub args: Vec<String>,
    /// Environment besides the usual one.
    pub env: Vec<(String, String)>,
    /// The database schema.
    pub schema: PathBuf,
}

impl SwitchConfig {
    /// A daemon with nothing out of the ordinary.
    pub fn new(daemon: impl Into<PathBuf>) -> Self {
        let args = vec!["--disable-system".into()];
        SwitchConfig { daemon: daemon.into(), args, env: Vec::new(), schema: SCHEMA.into() }
    }

    /// Debian's ovs-vswitchd, to compare with.
    pub fn oracle() -> Self {
        Self::new("/usr/lib/openvswitch-switch/ovs-vswitchd")
    }
}

/// A running switch in a directory of its own; both are gone after drop.
pub struct Switch<'a> {
    ns: &'a Netns,
    config: SwitchConfig,
    dir: PathBuf,
}

impl<'a> Switch<'a> {
    /// Starts database and daemon in a namespace; returns when both are ready.
    ///
    /// # Errors
    /// Says which part failed and what it wrote.
    pub fn start(ns: &'a Netns, config: SwitchConfig) -> Result<Self> {
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("weft-test-{}-{n}", std::process::id()));
        fs::create_dir(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        let switch = Switch { ns, config, dir };
        let mut create = switch.command("ovsdb-tool");
        create.arg("create").arg(switch.dir.join("conf.db")).arg(&switch.config.schema);
        output(create)?;
        switch.start_db()?;
        switch.tool("ovs-vsctl", &["--no-wait", "init"])?;
        switch.start_daemon()?;
        Ok(switch)
    }

    /// The program that [`Self::start_daemon`] starts.
    pub fn daemon(&self) -> &Path {
        &self.config.daemon
    }

    /// Another program for [`Self::start_daemon`], on the same database.
    pub fn set_daemon(&mut self, program: &Path) {
        self.config.daemon = program.into();
    }

    /// The directory of sockets, pidfiles, logs and database.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Starts ovsdb-server (again).
    ///
    /// # Errors
    /// What it wrote.
    pub fn start_db(&self) -> Result<()> {
        let mut c = self.limited("ovsdb-server");
        c.args(["--detach", "--no-chdir", "--pidfile", "-vconsole:off", "--log-file"]);
        c.arg(format!("--remote=punix:{}", self.dir.join("db.sock").display()));
        c.arg(self.dir.join("conf.db"));
        self.detach(c)
    }

    /// Starts the daemon (again); returns when it says that it is ready.
    ///
    /// # Errors
    /// What it wrote.
    pub fn start_daemon(&self) -> Result<()> {
        let mut c = self.limited(&self.config.daemon.to_string_lossy());
        c.args(["--detach", "--no-chdir", "--pidfile", "-vconsole:off", "--log-file"]);
        c.args(&self.config.args).envs(self.config.env.iter().cloned());
        c.arg(format!("unix:{}", self.dir.join("db.sock").display()));
        self.detach(c)
    }

    /// Runs what detaches itself. Its output goes to a file: a pipe would stay open in the daemon.
    fn detach(&self, mut c: Command) -> Result<()> {
        let path = self.dir.join("start.txt");
        let file = File::create(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let twin = file.try_clone().map_err(|e| e.to_string())?;
        c.stdin(Stdio::null()).stdout(file).stderr(twin);
        let status = c.status().map_err(|e| format!("{c:?}: {e}"))?;
        if status.success() {
            return Ok(());
        }
        let said = fs::read_to_string(&path).unwrap_or_default();
        Err(format!("{c:?}: {status}: {}", said.trim()))
    }

    /// A command in the switch's namespace and environment.
    pub fn command(&self, program: &str) -> Command {
        let mut c = self.ns.command(program);
        for var in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
            c.env(var, &self.dir);
        }
        c
    }

    fn limited(&self, program: &str) -> Command {
        let mut c = self.command("timeout");
        c.arg(TOOL_SECONDS_MAX.to_string()).arg(program);
        c
    }

    fn tool(&self, program: &str, args: &[&str]) -> Result<String> {
        let mut c = self.limited(program);
        c.args(args);
        output(c)
    }

    /// `ovs-vsctl ARGS`; its standard output.
    ///
    /// # Errors
    /// What it wrote, or that it took too long.
    pub fn vsctl(&self, args: &[&str]) -> Result<String> {
        self.tool("ovs-vsctl", args)
    }

    /// `ovs-ofctl ARGS`; its standard output.
    ///
    /// # Errors
    /// What it wrote, or that it took too long.
    pub fn ofctl(&self, args: &[&str]) -> Result<String> {
        self.tool("ovs-ofctl", args)
    }

    /// `ovs-appctl ARGS`; its standard output.
    ///
    /// # Errors
    /// What it wrote, or that it took too long.
    pub fn appctl(&self, args: &[&str]) -> Result<String> {
        self.tool("ovs-appctl", args)
    }

    /// `ovs-ofctl COMMAND BRIDGE -` with text on standard input (flows, bundles).
    ///
    /// # Errors
    /// What it wrote, or that it took too long.
    pub fn ofctl_stdin(&self, args: &[&str], text: &str) -> Result<String> {
        let path = self.dir.join("stdin.txt");
        fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))?;
        let mut c = self.limited("ovs-ofctl");
        c.args(args).stdin(File::open(&path).map_err(|e| e.to_string())?);
        output(c)
    }

    /// The daemon's process id, if it runs.
    pub fn daemon_pid(&self) -> Option<i32> {
        self.pid("ovs-vswitchd.pid")
    }

    /// ovsdb-server's process id, if it runs.
    pub fn db_pid(&self) -> Option<i32> {
        self.pid("ovsdb-server.pid")
    }

    fn pid(&self, file: &str) -> Option<i32> {
        let pid = fs::read_to_string(self.dir.join(file)).ok()?.trim().parse().ok()?;
        alive(pid).then_some(pid)
    }

    /// Kills the daemon on the spot (SIGKILL) and waits until it is gone.
    pub fn kill_daemon(&self) {
        self.daemon_pid().into_iter().for_each(|pid| kill(pid, libc::SIGKILL));
    }

    /// Kills ovsdb-server on the spot (SIGKILL) and waits until it is gone.
    pub fn kill_db(&self) {
        self.db_pid().into_iter().for_each(|pid| kill(pid, libc::SIGKILL));
    }

    /// Asks the daemon to end (`ovs-appctl exit`) and waits until it is gone.
    ///
    /// # Errors
    /// When it does not take the command or does not end in time.
    pub fn stop_daemon(&self) -> Result<()> {
        let Some(pid) = self.daemon_pid() else { return Ok(()) };
        self.appctl(&["exit", "--cleanup"])?;
        if ended(pid) { Ok(()) } else { Err(format!("process {pid} did not end")) }
    }

    /// The daemon's log so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.join("ovs-vswitchd.log")).unwrap_or_default()
    }
}

impl Drop for Switch<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<_> = log.lines().collect();
            let tail = &lines[lines.len().saturating_sub(40)..];
            eprintln!("the daemon's log ends with:\n{}", tail.join("\n"));
        }
        for pid in [self.daemon_pid(), self.db_pid()].into_iter().flatten() {
            kill(pid, libc::SIGTERM);
            kill(pid, libc::SIGKILL);
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// True if the process exists, and is not a zombie. As long as one of its threads is left it holds
/// its files and their locks.
fn alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let Some((_, state)) = stat.rsplit_once(") ") else { return false };
    let threads = || fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    !state.starts_with(['Z', 'X']) || threads() > 1
}

fn ended(pid: i32) -> bool {
    let end = Instant::now() + Duration::from_secs(5);
    while alive(pid) {
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

fn kill(pid: i32, signal: i32) {
    if alive(pid) {
        // SAFETY: no memory; the pid is that of a daemon which we started.
        unsafe { libc::kill(pid, signal) };
        ended(pid);
    }
}
