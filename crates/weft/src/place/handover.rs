//! Handing a running switch's configuration to the next one: the database stays; what the database
//! has not (OpenFlow flows and groups, addresses and routes of internal ports) is saved and
//! restored by Open vSwitch's own script, as `ovs-ctl restart` does it.

use super::choice::Choice;
use super::record::Folder;
use super::{has_systemd, say, systemctl};
use crate::dirs::Dirs;
use crate::run::{quietly, run};
use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const SAVE: &str = "/usr/share/openvswitch/scripts/ovs-save";
/// How long one switch may take to go, and the next one to have all interfaces.
const WAIT_TIME_MAX: Duration = Duration::from_secs(30);

/// A running switch: what has to be there afterwards, too.
#[derive(Serialize, Deserialize)]
pub struct Running {
    /// Interfaces that work.
    interfaces: Vec<String>,
    /// Flows by bridge, those of bridges without controllers, which no controller would bring back.
    flows: BTreeMap<String, u64>,
    /// Shell commands that restore flows, and addresses; their data is in the folder.
    scripts: [String; 2],
}

impl Running {
    /// What runs, with data in a folder that is made for it; None if no switch does.
    pub fn look(dirs: &Dirs, folder: &Folder) -> Result<Option<Running>> {
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
        folder.make()?;
        let script = |what: &str, names: &[String]| save(dirs, folder.path(), what, names);
        let scripts = [script("save-flows", &bridges)?, script("save-interfaces", &internal)?];
        Ok(Some(Running { interfaces: working(dirs)?, flows, scripts }))
    }

    /// In a few words.
    pub fn about(&self) -> String {
        let flows: u64 = self.flows.values().sum();
        let some = |n: u64, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
        format!("{}, {}", some(self.interfaces.len() as u64, "interface"), some(flows, "flow"))
    }

    /// Stops what runs and starts weftd, or what was there before, as `choice` has it then, with
    /// the same configuration. Done again from the beginning when it was interrupted anywhere.
    pub fn hand_over(&self, dirs: &Dirs, choice: &Choice, to_weft: bool) -> Result<()> {
        choice.set(to_weft)?;
        if to_weft {
            get_ready(dirs);
        }
        hold(dirs)?;
        let done = self.replace(dirs);
        // Whatever happened: packets must flow again.
        release(dirs)?;
        done?;
        // The new switch has looked at the database, and written there what it found.
        run(dirs, "ovs-vsctl", &["--timeout=30", "init"]).context("it does not answer")?;
        // ovs-vswitchd takes a bridge's port down to give it its Ethernet address, with which its
        // routes go. Those that are there are refused.
        shell(dirs, &routes(&self.scripts[1]));
        self.check(dirs)
    }

    fn replace(&self, dirs: &Dirs) -> Result<()> {
        stop(dirs)?;
        start(dirs)?;
        shell(dirs, &self.scripts[1]);
        self.restore_flows(dirs);
        Ok(())
    }

    /// Gives a switch that was started with [`hold`] its flows.
    pub fn restore_flows(&self, dirs: &Dirs) {
        shell(dirs, &self.scripts[0]);
    }

    /// Every interface that worked works, every flow is there.
    fn check(&self, dirs: &Dirs) -> Result<()> {
        let end = Instant::now() + WAIT_TIME_MAX;
        loop {
            let now = working(dirs)?;
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
            let now = count_flows(dirs, bridge)?;
            ensure!(now >= *before, "bridge {bridge} had {before} flows and has {now}");
        }
        Ok(())
    }
}

/// Makes a weftd get ready beside the switch that runs: the next start makes it the switch, which
/// interrupts packets for less time. If it cannot, the next start takes longer.
pub fn get_ready(dirs: &Dirs) {
    let unit = "weft-standby.service";
    let done = if has_systemd() {
        systemctl(&["start", unit])
    } else {
        start_program(dirs, &["--standby"])
    };
    if done.is_err() {
        say("weft: weftd cannot get ready beforehand (its log says why): packets stop for longer");
        let _ = systemctl(&["reset-failed", unit]);
    }
}

/// A switch that is started from now on forwards nothing before its flows are there.
pub fn hold(dirs: &Dirs) -> Result<()> {
    let wait = "other_config:flow-restore-wait=true";
    vsctl(dirs, &["set", "Open_vSwitch", ".", wait]).map(drop)
}

/// Lets the switch forward, as its flows are there.
pub fn release(dirs: &Dirs) -> Result<()> {
    let clear = ["remove", "Open_vSwitch", ".", "other_config", "flow-restore-wait"];
    vsctl(dirs, &clear).map(drop)
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

/// Makes Open vSwitch's script save something; returns the commands that restore it, as often as
/// one wants.
fn save(dirs: &Dirs, into: &Path, what: &str, names: &[String]) -> Result<String> {
    if names.is_empty() {
        return Ok(String::new());
    }
    let out = Command::new(SAVE)
        .arg(what)
        .args(names)
        .envs(dirs.env())
        .env("TMPDIR", into)
        .output()
        .with_context(|| format!("{SAVE}: is openvswitch-switch installed?"))?;
    ensure!(out.status.success(), "{SAVE}: {}", String::from_utf8_lossy(&out.stderr).trim());
    let text = String::from_utf8(out.stdout)?;
    // Its data is needed again if we have to go back; the firewall is none of our business.
    let own = text.lines().take_while(|l| *l != "# global").filter(|l| !l.starts_with("rm -rf "));
    Ok(own.map(|l| l.to_string() + "\n").collect())
}

/// The commands among those that restore interfaces that add routes.
fn routes(script: &str) -> String {
    script
        .lines()
        .filter(|l| l.starts_with("ip route add "))
        .map(|l| l.to_string() + "\n")
        .collect()
}

/// Runs the commands one after the other: some fail where there is nothing to restore, and what is
/// missing in the end is seen by `check`.
fn shell(dirs: &Dirs, script: &str) {
    quietly(dirs, "sh", &["-c", script]);
}

/// Ends the switch with everything that it has in the kernel, so that the next one finds devices
/// free.
fn stop(dirs: &Dirs) -> Result<()> {
    let pidfile = dirs.run.join("ovs-vswitchd.pid");
    // It may have ended by itself, or not have started.
    if pidfile.exists() {
        run(dirs, "ovs-appctl", &["-T", "20", "exit", "--cleanup"])?;
    }
    let end = Instant::now() + WAIT_TIME_MAX;
    while pidfile.exists() {
        ensure!(Instant::now() < end, "the switch that runs does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Starts the unit that has the place. Not by `restart`: that would stop
/// openvswitch-switch.service, and with it the database, when the unit does not start.
fn start_unit() -> Result<()> {
    let unit = "ovs-vswitchd.service";
    let end = Instant::now() + WAIT_TIME_MAX;
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
    start_program(dirs, &[]).map(drop)
}

/// Starts the program that has the place, as ovs-ctl does.
fn start_program(dirs: &Dirs, more: &[&str]) -> Result<String> {
    let database = format!("unix:{}", dirs.db_sock().display());
    let log = ["-vconsole:emer", "-vsyslog:err", "-vfile:info", "--mlockall", "--no-chdir"];
    let all = ["--log-file", "--pidfile", "--detach"];
    run(dirs, "ovs-vswitchd", &[&[&*database], &log[..], &all[..], more].concat())
}
