//! A private directory with an ovsdb-server and daemons of its own, driven by the stock tools.

#![allow(dead_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
const WAIT_TIME_MAX: Duration = Duration::from_secs(20);

/// Everything in it ends with it.
pub struct Sandbox {
    pub dir: PathBuf,
    server: Option<Child>,
    daemons: Vec<Child>,
}

impl Sandbox {
    /// A directory with an initialized database; the server runs.
    pub fn new() -> Self {
        let mut sandbox = Self::without_server();
        sandbox.start_server();
        sandbox.vsctl("--no-wait init");
        sandbox
    }

    /// A directory with an empty database and no server.
    pub fn without_server() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("weftd-{}-{number}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let sandbox = Self { dir, server: None, daemons: Vec::new() };
        let created = sandbox.command("ovsdb-tool").args(["create", "conf.db", SCHEMA]).output();
        assert!(created.unwrap().status.success(), "ovsdb-tool create {SCHEMA}");
        sandbox
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// A program with the directory as its place for everything.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.dir).stdin(Stdio::null());
        for name in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR"] {
            command.env(name, &self.dir);
        }
        command
    }

    pub fn start_server(&mut self) {
        self.start_server_with(&[]);
    }

    /// With more arguments than the usual ones.
    pub fn start_server_with(&mut self, args: &[&str]) {
        let mut command = self.command("ovsdb-server");
        command.args(["conf.db", "--remote=punix:db.sock", "-vconsole:off"]);
        command.arg(format!("--unixctl={}", self.path("server.ctl").display())).args(args);
        self.server = Some(command.spawn().expect("ovsdb-server of openvswitch-common"));
        let socket = self.path("db.sock");
        wait_for("the server's socket", || {
            std::os::unix::net::UnixStream::connect(&socket).is_ok()
        });
    }

    pub fn kill_server(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.kill().unwrap();
            server.wait().unwrap();
        }
    }

    /// The daemon with the usual options.
    pub fn weftd(&self, options: &str) -> Command {
        let mut command = self.command(env!("CARGO_BIN_EXE_weftd"));
        command.args(["--pidfile", "--log-file", "--no-chdir", "-vconsole:off", "-vsyslog:off"]);
        command.args(["--enable-dummy", "--disable-system", "--disable-system-route"]);
        command.args(options.split_whitespace());
        command
    }

    /// Starts the daemon in the background and returns its process once it is ready.
    pub fn start_detached(&self, options: &str) -> u32 {
        let output = self.weftd(options).arg("--detach").output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "nothing unexpected on stderr");
        self.pid()
    }

    /// Starts the daemon in the foreground; killed with the sandbox.
    pub fn start(&mut self, options: &str) -> u32 {
        let child = self.weftd(options).spawn().unwrap();
        let pid = child.id();
        self.daemons.push(child);
        pid
    }

    /// The process named by the pidfile.
    pub fn pid(&self) -> u32 {
        fs::read_to_string(self.path("ovs-vswitchd.pid")).unwrap().trim().parse().unwrap()
    }

    pub fn vsctl(&self, words: &str) -> String {
        let output = self.try_vsctl(words);
        assert!(output.status.success(), "ovs-vsctl {words}: {output:?}\n{}", self.log());
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    pub fn try_vsctl(&self, words: &str) -> Output {
        let mut command = self.command("ovs-vsctl");
        command.arg(format!("--db=unix:{}", self.path("db.sock").display())).arg("--timeout=15");
        command.args(words.split_whitespace()).output().unwrap()
    }

    pub fn appctl(&self, words: &str) -> Output {
        let mut command = self.command("ovs-appctl");
        command.arg("--timeout=15").args(words.split_whitespace()).output().unwrap()
    }

    pub fn appctl_ok(&self, words: &str) -> String {
        let output = self.appctl(words);
        assert!(output.status.success(), "ovs-appctl {words}: {output:?}\n{}", self.log());
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.path("ovs-vswitchd.log")).unwrap_or_default()
    }

    pub fn wait_for_log(&self, text: &str) {
        wait_for(text, || self.log().contains(text));
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        for daemon in &mut self.daemons {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        if let Ok(text) = fs::read_to_string(self.path("ovs-vswitchd.pid"))
            && let Ok(pid) = text.trim().parse::<u32>()
            && is_weftd(pid)
        {
            kill(pid, libc::SIGKILL);
        }
        self.kill_server();
        if std::thread::panicking() {
            eprintln!("log of the daemon:\n{}", self.log());
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn is_weftd(pid: u32) -> bool {
    fs::read_link(format!("/proc/{pid}/exe"))
        .is_ok_and(|exe| exe == Path::new(env!("CARGO_BIN_EXE_weftd")))
}

pub fn kill(pid: u32, signal: i32) {
    // SAFETY: takes numbers only.
    unsafe { libc::kill(pid as i32, signal) };
}

/// Whether anything of a process runs: other threads of a zombie may still hold its locks.
pub fn is_alive(pid: u32) -> bool {
    let zombie = |stat: String| stat.contains(") Z ");
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    let mut stats = threads.flatten().map(|t| fs::read_to_string(t.path().join("stat")));
    stats.any(|stat| stat.is_ok_and(|stat| !zombie(stat)))
}

pub fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < WAIT_TIME_MAX, "still waiting for: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
