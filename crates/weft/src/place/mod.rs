//! `weft enable` and `weft disable`: who is started as `ovs-vswitchd` on this machine, and handing a
//! running configuration from one to the other.
//!
//! Two things of Debian's decide it: the alternative `ovs-vswitchd`, which scripts start (ovs-ctl),
//! and a link that puts our unit into the place of Debian's `ovs-vswitchd.service`. Each of them
//! alone starts a complete switch, so that there is no state in between in which none is started.

mod choice;
mod handover;

use crate::dirs::Dirs;
use crate::run::run;
use anyhow::{Context, Result, bail, ensure};
use choice::Choice;
use handover::Running;

/// weftd from now on: what runs is handed over; if that fails, all is as before.
pub fn enable(dirs: &Dirs) -> Result<()> {
    let choice = Choice::lock()?;
    ensure!(!choice.is_weft()?, "weftd has ovs-vswitchd's place already; `weft disable` goes back");
    change(dirs, &choice, true)
}

/// What was there before from now on.
pub fn disable(dirs: &Dirs) -> Result<()> {
    let choice = Choice::lock()?;
    if !choice.is_touched() && !choice.is_weft()? {
        println!("weftd does not have ovs-vswitchd's place: there is nothing to go back from");
        return Ok(());
    }
    change(dirs, &choice, false)
}

fn change(dirs: &Dirs, choice: &Choice, to_weft: bool) -> Result<()> {
    let now = if to_weft { "weftd" } else { "ovs-vswitchd" };
    let Some(running) = Running::look(dirs)? else {
        choice.set(to_weft)?;
        println!("{now} has the place: it is started where a switch is started next");
        return Ok(());
    };
    // Half of a handover is worse than one that cannot be interrupted.
    ignore_signals();
    let moved = running.hand_over(|| choice.set(to_weft));
    let Err(why) = moved else {
        println!("{now} has the place, and has taken over: {}", running.about());
        return Ok(());
    };
    eprintln!("weft: {why:#}; going back");
    running
        .hand_over(|| choice.set(!to_weft))
        .context("going back failed, too: see the log in /var/log/openvswitch")?;
    bail!("nothing has changed: {why:#}")
}

fn ignore_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: no handler is installed, the signal is ignored from now on.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Does systemd run this machine (sd_booted(3))?
fn has_systemd() -> bool {
    std::path::Path::new("/run/systemd/system").is_dir()
}

/// `systemctl ARGS`.
fn systemctl(args: &[&str]) -> Result<String> {
    run(&Dirs::from_env(), "systemctl", args)
}
