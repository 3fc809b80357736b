//! Debian's OVN over two hypervisors: its databases and ovn-northd, of each hypervisor a switch and
//! ovn-controller, and virtual machines on cables.

use super::lab::{vsctl, wait_for};
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use testkit::{Netns, Switch, SwitchConfig, veth};

/// Where Debian's packages have the schemas.
const SCHEMAS: &str = "/usr/share/ovn";
/// Seconds until every hypervisor has followed a change.
const SYNC_SECONDS: &str = "--timeout=30";

/// A program that ends with this value, and with the thread that started it.
pub struct Daemon(Child);

impl Daemon {
    pub fn start(mut c: Command, log: &Path) -> Daemon {
        let file = File::create(log).expect("a log");
        c.stdin(Stdio::null()).stdout(file.try_clone().expect("a log")).stderr(file);
        // SAFETY: a plain system call between fork and exec.
        unsafe {
            c.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        Daemon(c.spawn().unwrap_or_else(|e| panic!("{c:?}: {e}")))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// OVN's databases and ovn-northd.
pub struct Central {
    dir: PathBuf,
    daemons: Vec<Daemon>,
}

impl Central {
    pub fn start(name: &str) -> Central {
        let dir = std::env::temp_dir().join(format!("weft-ovn-{}-{name}", std::process::id()));
        fs::create_dir(&dir).expect("a directory");
        let mut central = Central { dir, daemons: Vec::new() };
        for db in ["nb", "sb"] {
            central.database(db);
        }
        let mut northd = central.command("ovn-northd");
        for db in ["nb", "sb"] {
            northd.arg(format!("--ovn{db}-db={}", central.remote(db)));
        }
        northd.arg("-vconsole:warn").arg(format!("--unixctl={}", central.path("northd.ctl")));
        let log = central.dir.join("northd.log");
        central.daemons.push(Daemon::start(northd, &log));
        central
    }

    fn database(&mut self, db: &str) {
        let file = self.path(&format!("{db}.db"));
        let schema = format!("{SCHEMAS}/ovn-{db}.ovsschema");
        let made = self.command("ovsdb-tool").args(["create", &file, &schema]).status();
        assert!(made.is_ok_and(|s| s.success()), "{schema}");
        let mut server = self.command("ovsdb-server");
        let socket = self.path(&format!("{db}.sock"));
        server.args([&format!("--remote=p{}", self.remote(db)), "-vconsole:warn", &file]);
        server.arg(format!("--unixctl={}", self.path(&format!("{db}.ctl"))));
        self.daemons.push(Daemon::start(server, &self.dir.join(format!("{db}.log"))));
        wait_for("a database of OVN", || Path::new(&socket).exists());
    }

    fn path(&self, file: &str) -> String {
        self.dir.join(file).display().to_string()
    }

    fn command(&self, program: &str) -> Command {
        let mut c = Command::new(program);
        for var in ["OVN_RUNDIR", "OVN_DBDIR", "OVN_LOGDIR", "OVS_RUNDIR", "OVS_LOGDIR"] {
            c.env(var, &self.dir);
        }
        c
    }

    /// `nb` or `sb` for clients.
    fn remote(&self, db: &str) -> String {
        format!("unix:{}", self.path(&format!("{db}.sock")))
    }

    fn tool(&self, program: &str, db: &str, args: &[&str]) -> String {
        let mut c = self.command(program);
        c.arg(SYNC_SECONDS).arg(format!("--db={}", self.remote(db))).args(args);
        let out = c.output().unwrap_or_else(|e| panic!("{c:?}: {e}"));
        assert!(out.status.success(), "{c:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).trim().to_string()
    }

    /// `ovn-nbctl WORDS`.
    pub fn nbctl(&self, words: &[&str]) -> String {
        self.tool("ovn-nbctl", "nb", words)
    }

    /// One `ovn-nbctl` for all lines, each a command with words between blanks.
    pub fn nb(&self, lines: &str) {
        let lines = lines.lines().map(str::trim).filter(|l| !l.is_empty());
        let words: Vec<&str> =
            lines.flat_map(|l| std::iter::once("--").chain(l.split_whitespace())).collect();
        self.nbctl(&words);
    }

    /// Until every hypervisor has followed.
    pub fn sync(&self) {
        self.nbctl(&["--wait=hv", "sync"]);
    }

    /// `ovn-sbctl WORDS`.
    pub fn sbctl(&self, words: &[&str]) -> String {
        self.tool("ovn-sbctl", "sb", words)
    }
}

impl Drop for Central {
    fn drop(&mut self) {
        self.daemons.clear();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// A switch with `br-phy`, whose address is the end of tunnels, `br-ex`, and OVN's `br-int`.
pub struct Hypervisor<'a> {
    pub sw: Switch<'a>,
    ns: &'a Netns,
    name: String,
    controller: Option<Daemon>,
}

impl<'a> Hypervisor<'a> {
    /// Number `n`, from 1 on, whose cable to the other is `eth0`.
    pub fn start(
        ns: &'a Netns,
        config: SwitchConfig,
        n: u8,
        central: &Central,
        encap: &str,
    ) -> Hypervisor<'a> {
        let sw = Switch::start(ns, config).unwrap();
        // The kernel would answer for br-phy's address from eth0, too, with eth0's MAC.
        let arp = || std::fs::write("/proc/sys/net/ipv4/conf/all/arp_ignore", "1");
        ns.run(arp).unwrap();
        for (bridge, more) in [("br-phy", ""), ("br-ex", ""), ("br-int", " fail-mode=secure")] {
            vsctl(
                &sw,
                &format!("add-br {bridge} -- set bridge {bridge} datapath_type=netdev{more}"),
            );
            ns.ip(&format!("link set {bridge} up")).unwrap();
        }
        // The other hypervisor remembers it, whichever daemon has it.
        let mac = format!("other-config:hwaddr=aa:55:00:00:00:{n:02x}");
        vsctl(&sw, &format!("set bridge br-phy {mac} -- add-port br-phy eth0"));
        ns.ip(&format!("addr add 172.20.0.{n}/24 dev br-phy")).unwrap();
        ns.offloads_off("br-phy").unwrap();
        let name = format!("hv{n}");
        let set = format!(
            "external-ids:system-id={name} external-ids:ovn-remote={} external-ids:ovn-encap-type={encap} \
             external-ids:ovn-encap-ip=172.20.0.{n} external-ids:ovn-bridge-mappings=physnet:br-ex",
            central.remote("sb")
        );
        vsctl(&sw, &format!("set Open_vSwitch . {set}"));
        let mut hv = Hypervisor { sw, ns, name, controller: None };
        hv.start_controller();
        hv
    }

    /// Starts ovn-controller (again).
    pub fn start_controller(&mut self) {
        let dir = self.sw.dir().to_path_buf();
        let mut c = self.sw.command("ovn-controller");
        for var in ["OVN_RUNDIR", "OVN_LOGDIR", "OVN_SYSCONFDIR"] {
            c.env(var, &dir);
        }
        c.args(["-vconsole:off", "--pidfile", "--log-file"]);
        c.arg(format!("unix:{}", dir.join("db.sock").display()));
        self.controller = Some(Daemon::start(c, &dir.join("controller.txt")));
    }

    /// Kills ovn-controller on the spot.
    pub fn kill_controller(&mut self) {
        self.controller = None;
    }

    /// What ovn-controller logged.
    pub fn controller_log(&self) -> String {
        fs::read_to_string(self.sw.dir().join("ovn-controller.log")).unwrap_or_default()
    }

    /// A machine whose cable is a port of `br-int` for the logical port of the same name.
    pub fn machine(&self, name: &str, mac: &str) -> Netns {
        let ns = Netns::new().unwrap();
        let cable = format!("c-{name}");
        veth((self.ns, &cable), (&ns, "eth0")).unwrap();
        ns.ip(&format!("link set eth0 address {mac}")).unwrap();
        ns.offloads_off("eth0").unwrap();
        vsctl(
            &self.sw,
            &format!(
                "add-port br-int {cable} -- set interface {cable} external-ids:iface-id={name}"
            ),
        );
        ns
    }

    /// ovn-controller met no OpenFlow error.
    pub fn assert_no_errors(&self) {
        let log = self.controller_log();
        let errors: Vec<_> = log
            .lines()
            .filter(|l| l.contains("OpenFlow error") || l.contains("OFPT_ERROR"))
            .collect();
        assert!(errors.is_empty(), "{}: {errors:#?}", self.name);
    }
}
