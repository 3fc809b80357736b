//! `weft enable` and `weft disable`: who is started as `ovs-vswitchd` on this machine, and handing
//! a running configuration from one to the other; and what weftd's unit does so that a restart
//! keeps flows.
//!
//! Two things of Debian's decide it: the alternative `ovs-vswitchd`, which scripts start (ovs-ctl),
//! and a link that puts our unit into the place of Debian's `ovs-vswitchd.service`. Each of them
//! alone starts a complete switch, so that there is no state in between in which none is started.
//!
//! A handover is written down before it begins. Where systemd runs the machine a unit of its own
//! does it: it goes on when the command that asked for it is killed, and begins again when it is
//! killed itself. Elsewhere the next `weft enable` or `weft disable` goes on.

mod choice;
mod handover;
mod record;
mod unit;

use crate::dirs::Dirs;
use crate::run::run;
use anyhow::{Context, Result, bail};
use choice::Choice;
use handover::Running;
use record::Folder;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::process::Command;
pub use unit::{Moment, at};

/// The handover that is under way.
const UNDER_WAY: Folder = Folder("/run/weft/handover");
/// Where `systemd-run --wait` reaches systemd.
const BUS: &str = "/run/dbus/system_bus_socket";

/// Arguments of `weft enable` and `weft disable`.
#[derive(clap::Args)]
pub struct PlaceArgs {
    /// Do it in this process, and not in a unit of systemd.
    #[arg(long, hide = true)]
    here: bool,
}

/// A handover that has begun.
#[derive(Serialize, Deserialize)]
struct Handover {
    to_weft: bool,
    /// Some: it goes back, for this reason.
    back: Option<String>,
    running: Running,
}

/// weftd from now on: what runs is handed over; if that fails, all is as before.
pub fn enable(dirs: &Dirs, options: &PlaceArgs) -> Result<()> {
    change(dirs, true, options.here)
}

/// What was there before from now on.
pub fn disable(dirs: &Dirs, options: &PlaceArgs) -> Result<()> {
    change(dirs, false, options.here)
}

fn change(dirs: &Dirs, to_weft: bool, here: bool) -> Result<()> {
    let choice = Choice::lock()?;
    if !here && has_systemd() && Path::new(BUS).exists() {
        drop(choice);
        return in_unit(dirs, to_weft);
    }
    // Half of a handover is worse than one that cannot be interrupted.
    ignore_signals();
    if let Some(begun) = UNDER_WAY.load::<Handover>()? {
        say("weft: going on with what was interrupted");
        let same = begun.to_weft == to_weft;
        let done = begun.finish(dirs, &choice);
        if same || done.is_err() {
            return done;
        }
    }
    match (to_weft, choice.is_weft()?) {
        (true, true) => {
            say("weftd has ovs-vswitchd's place already; `weft disable` goes back");
            return Ok(());
        }
        (false, false) if !choice.is_touched() => {
            say("weftd does not have ovs-vswitchd's place: there is nothing to go back from");
            return Ok(());
        }
        _ => {}
    }
    let Some(running) = Running::look(dirs, &UNDER_WAY)? else {
        choice.set(to_weft)?;
        say(&format!(
            "{} has the place: it is started where a switch is started next",
            name(to_weft)
        ));
        return Ok(());
    };
    let handover = Handover { to_weft, back: None, running };
    UNDER_WAY.store(&handover)?;
    handover.finish(dirs, &choice)
}

impl Handover {
    /// Hands over, or goes back, from the beginning.
    fn finish(mut self, dirs: &Dirs, choice: &Choice) -> Result<()> {
        let to = self.to_weft;
        if self.back.is_none() {
            let Err(why) = self.running.hand_over(dirs, choice, to) else {
                UNDER_WAY.remove();
                let (now, about) = (name(to), self.running.about());
                say(&format!("{now} has the place, and has taken over: {about}"));
                return Ok(());
            };
            say(&format!("weft: {why:#}; going back"));
            self.back = Some(format!("{why:#}"));
            UNDER_WAY.store(&self)?;
        }
        let back = self.running.hand_over(dirs, choice, !to);
        UNDER_WAY.remove();
        back.context("going back failed, too: see the log in /var/log/openvswitch")?;
        bail!("nothing has changed: {}", self.back.unwrap_or_default())
    }
}

fn name(weft: bool) -> &'static str {
    if weft { "weftd" } else { "ovs-vswitchd" }
}

/// Runs the handover in a unit, and returns what the unit says.
fn in_unit(dirs: &Dirs, to_weft: bool) -> Result<()> {
    let unit = format!("weft-handover-{}", std::process::id());
    let places = dirs.env().map(|(name, path)| format!("--setenv={name}={}", path.display()));
    let status = Command::new("systemd-run")
        .args(["--quiet", "--collect", "--wait", "--pipe", "--unit", &unit])
        .args(["--property=Restart=on-abnormal", "--description=Handing over the virtual switch"])
        .args(places)
        .arg(std::env::current_exe().context("weft")?)
        .args([if to_weft { "enable" } else { "disable" }, "--here"])
        .status()
        .context("systemd-run")?;
    if !status.success() {
        // What is wrong was said.
        std::process::exit(1);
    }
    Ok(())
}

/// A handover goes on whether its lines are read or not.
fn say(text: &str) {
    let _ = crate::say::say(text);
}

fn ignore_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: no handler is installed, the signal is ignored from now on.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// True if systemd runs this machine (sd_booted(3)).
fn has_systemd() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

/// `systemctl ARGS`.
fn systemctl(args: &[&str]) -> Result<String> {
    run(&Dirs::from_env(), "systemctl", args)
}
