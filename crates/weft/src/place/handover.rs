//! Handing a running switch's configuration to the next one: the database stays; what the database
//! has not (OpenFlow flows and groups, addresses and routes of internal ports) is saved and restored
//! by Open vSwitch's own script, as `ovs-ctl restart` does it.

use super::{has_systemd, systemctl};
use crate::dirs::Dirs;
use crate::run::{quietly, run};
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const SAVE: &str = "/usr/share/openvswitch/scripts/ovs-save";
/// How long one switch may take to go, and the next one to have all interfaces.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running switch: what has to be there afterwards, too.
pub struct Running {
    dirs: Dirs,
    /// Interfaces that work.
    interfaces: Vec<String>,
    /// Flows by bridge, those of bridges without controllers, which nobody else would bring back.
    flows: BTreeMap<String, u64>,
    /// Shell commands that restore flows, and addresses.
    scripts: [String; 2],
    /// Where the scripts' data is.
    _saved: TempDir,
}

impl Running {
    /// What runs; None if no switch does.
    pub fn look(dirs: &Dirs) -> Result<Option<Running>> {
        if run(dirs, "ovs-appctl", &["-T", "5", "version"]).is_err() {
            return Ok(None);
        }
        let bridges = words(&vsctl(dirs, &["list-br"])?);
        let internal = ["--bare", "--columns=name", "find", "interface", "type=internal"];
        let mut internal = words(&vsctl(dirs, &internal)?);
        internal.extend(bridges.iter().cloned());
        internal.sort();
        internal.dedup();
        internal.retain(|name| std::path::Path::new("/sys/class/net").join(name).exists());
        let mut flows = BTreeMap::new();
        for bridge in &bridges {
            if vsctl(dirs, &["get-controller", bridge])?.trim().is_empty() {
                flows.insert(bridge.clone(), count_flows(dirs, bridge)?);
            }
        }
        let saved = tempfile::tempdir().context("a folder for flows")?;
        let script = |what: &str, names: &[String]| save(dirs, &saved, what, names);
        let scripts = [script("save-flows", &bridges)?, script("save-interfaces", &internal)?];
        let interfaces = working(dirs)?;
        Ok(Some(Running { dirs: dirs.clone(), interfaces, flows, scripts, _saved: saved }))
    }

    /// In a few words.
    pub fn about(&self) -> String {
        let flows: u64 = self.flows.values().sum();
        format!("{} interfaces, {flows} flows", self.interfaces.len())
    }

    /// Stops what runs and starts what is started after `choose`, with the same configuration.
    pub fn hand_over(&self, choose: impl FnOnce() -> Result<()>) -> Result<()> {
        choose()?;
        vsctl(&self.dirs, &["set", "Open_vSwitch", ".", "other_config:flow-restore-wait=true"])?;
        let done = self.replace();
        let clear = ["remove", "Open_vSwitch", ".", "other_config", "flow-restore-wait"];
        // Whatever happened: packets must flow again.
        vsctl(&self.dirs, &clear)?;
        done?;
        // The new switch has looked at the database, and written there what it found.
        run(&self.dirs, "ovs-vsctl", &["--timeout=30", "init"]).context("it does not answer")?;
        self.check()
    }

    fn replace(&self) -> Result<()> {
        stop(&self.dirs)?;
        start(&self.dirs)?;
        let [flows, interfaces] = &self.scripts;
        shell(&self.dirs, interfaces);
        shell(&self.dirs, flows);
        Ok(())
    }

    /// Every interface that worked works, every flow is there.
    fn check(&self) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        loop {
            let now = working(&self.dirs)?;
            let missing: Vec<&str> =
                self.interfaces.iter().filter(|i| !now.contains(i)).map(String::as_str).collect();
            if missing.is_empty() {
                break;
            }
            if Instant::now() > end {
                bail!("these interfaces do not work any more: {}", missing.join(", "));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        for (bridge, before) in &self.flows {
            let now = count_flows(&self.dirs, bridge)?;
            ensure!(now >= *before, "bridge {bridge} had {before} flows and has {now}");
        }
        Ok(())
    }
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(String::from).collect()
}

fn vsctl(dirs: &Dirs, args: &[&str]) -> Result<String> {
    run(dirs, "ovs-vsctl", &[&["--no-wait", "--timeout=20"], args].concat())
}

/// Interfaces that have an OpenFlow port.
fn working(dirs: &Dirs) -> Result<Vec<String>> {
    let args = ["--bare", "--columns=name", "find", "interface", "ofport>0"];
    Ok(words(&vsctl(dirs, &args)?))
}

fn count_flows(dirs: &Dirs, bridge: &str) -> Result<u64> {
    let text = run(
        dirs,
        "ovs-ofctl",
        &["-O", "OpenFlow10,OpenFlow13,OpenFlow14", "dump-aggregate", bridge],
    )?;
    let count = text.split_whitespace().find_map(|w| w.strip_prefix("flow_count="));
    count.and_then(|n| n.parse().ok()).context("ovs-ofctl dump-aggregate tells no flow_count")
}

/// Has Open vSwitch's script save something; the commands that restore it, as often as one wants.
fn save(dirs: &Dirs, into: &TempDir, what: &str, names: &[String]) -> Result<String> {
    if names.is_empty() {
        return Ok(String::new());
    }
    let out = Command::new(SAVE)
        .arg(what)
        .args(names)
        .envs(dirs.env())
        .env("TMPDIR", into.path())
        .output()
        .with_context(|| format!("{SAVE}: is openvswitch-switch installed?"))?;
    ensure!(out.status.success(), "{SAVE}: {}", String::from_utf8_lossy(&out.stderr).trim());
    let text = String::from_utf8(out.stdout)?;
    // Its data is needed again if we have to go back; the firewall is none of our business.
    let own = text.lines().take_while(|l| *l != "# global").filter(|l| !l.starts_with("rm -rf "));
    Ok(own.map(|l| l.to_string() + "\n").collect())
}

/// Runs the commands one after the other: some fail where there is nothing to restore, and what is
/// missing in the end is seen by `check`.
fn shell(dirs: &Dirs, script: &str) {
    quietly(dirs, "sh", &["-c", script]);
}

/// Ends the switch with everything that it has in the kernel, so that the next one finds devices free.
fn stop(dirs: &Dirs) -> Result<()> {
    let pidfile = dirs.run.join("ovs-vswitchd.pid");
    // It may have ended by itself, or not have started.
    if pidfile.exists() {
        run(dirs, "ovs-appctl", &["-T", "20", "exit", "--cleanup"])?;
    }
    let end = Instant::now() + PATIENCE;
    while pidfile.exists() {
        ensure!(Instant::now() < end, "the switch that runs does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Starts the unit that has the place. Not by `restart`: that would stop openvswitch-switch.service,
/// and with it the database, when the unit does not start.
fn start_unit() -> Result<()> {
    let unit = "ovs-vswitchd.service";
    let end = Instant::now() + PATIENCE;
    // Until systemd has noticed that the old one has ended, a start would do nothing.
    while systemctl(&["is-active", "--quiet", unit]).is_ok() {
        ensure!(Instant::now() < end, "systemd does not notice that the switch has ended");
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = systemctl(&["reset-failed", unit]);
    systemctl(&["start", unit]).map(drop)
}

/// Starts the one that has the place.
fn start(dirs: &Dirs) -> Result<()> {
    if has_systemd() {
        return start_unit();
    }
    let database = format!("unix:{}", dirs.db_sock().display());
    // As ovs-ctl starts it.
    let log = ["-vconsole:emer", "-vsyslog:err", "-vfile:info", "--mlockall", "--no-chdir"];
    let all = ["--log-file", "--pidfile", "--detach"];
    run(dirs, "ovs-vswitchd", &[&[&*database], &log[..], &all[..]].concat()).map(drop)
}
