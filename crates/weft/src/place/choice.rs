//! Who is started as `ovs-vswitchd`: Debian's alternative of that name and our unit's link.

use super::{has_systemd, systemctl};
use crate::dirs::Dirs;
use crate::run::run;
use anyhow::{Context, Result, bail, ensure};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::Path;

const NAME: &str = "ovs-vswitchd";
/// Our daemon, as the package installs it.
const WEFTD: &str = "/usr/sbin/weftd";
/// Our unit, outside of systemd's folders: installing it changes nothing.
const UNIT: &str = "/usr/lib/weft/ovs-vswitchd.service";
/// The administrator's folder, whose units go before Debian's.
const LINK: &str = "/etc/systemd/system/ovs-vswitchd.service";
/// What the alternative was before: `auto`, or a path.
const BEFORE: &str = "/var/lib/weft/alternative-before";
const STATE: &str = "/var/lib/weft";

/// The right to change it; one process has it at a time.
pub struct Choice(#[allow(dead_code)] File);

impl Choice {
    /// Takes the right, if the package is installed; waits while another process has it.
    pub fn lock() -> Result<Choice> {
        // SAFETY: geteuid only returns a number.
        ensure!(unsafe { libc::geteuid() } == 0, "only root may say which switch is started");
        ensure!(
            Path::new(WEFTD).exists() && Path::new(UNIT).exists(),
            "{WEFTD} is not installed: `make deb` makes the package (apt install ./weft_*.deb)"
        );
        fs::create_dir_all(STATE).context(STATE)?;
        let file = File::create(format!("{STATE}/lock")).context("the lock")?;
        if file.try_lock().is_err() {
            super::say("weft: waiting for another `weft enable` or `weft disable`");
            file.lock().context("the lock")?;
        }
        Ok(Choice(file))
    }

    /// True if systemd and scripts start weftd.
    pub fn is_weft(&self) -> Result<bool> {
        let linked = fs::read_link(LINK).is_ok_and(|to| to == Path::new(UNIT));
        let (_, value) = alternative()?;
        Ok(value == WEFTD && (linked || !has_systemd()))
    }

    /// True if the choice was changed and not put back; it may be changed in part.
    pub fn is_touched(&self) -> bool {
        Path::new(BEFORE).exists() || fs::read_link(LINK).is_ok_and(|to| to == Path::new(UNIT))
    }

    /// Makes weftd, or what was there before, the one that is started.
    pub fn set(&self, weft: bool) -> Result<()> {
        if weft { self.to_weft() } else { self.back() }
    }

    fn to_weft(&self) -> Result<()> {
        let (mode, value) = alternative()?;
        if value != WEFTD {
            let before = if mode == "auto" { mode } else { value };
            fs::write(BEFORE, before).context(BEFORE)?;
        }
        alternatives(&["--set", NAME, WEFTD])?;
        match fs::read_link(LINK) {
            Ok(to) if to == Path::new(UNIT) => {}
            Ok(_) => bail!("{LINK} is not ours: remove it first"),
            Err(e) if e.kind() == ErrorKind::NotFound => {
                fs::create_dir_all("/etc/systemd/system")?;
                std::os::unix::fs::symlink(UNIT, LINK).context(LINK)?;
            }
            Err(_) => bail!("{LINK} is a file of the administrator's: remove it first"),
        }
        reload()
    }

    fn back(&self) -> Result<()> {
        if fs::read_link(LINK).is_ok_and(|to| to == Path::new(UNIT)) {
            fs::remove_file(LINK).context(LINK)?;
        }
        if alternative()?.1 != WEFTD {
            // A process was interrupted here, or the administrator chose.
            let _ = fs::remove_file(BEFORE);
            return reload();
        }
        match fs::read_to_string(BEFORE).unwrap_or_default().trim() {
            before if before.is_empty() || before == "auto" => alternatives(&["--auto", NAME])?,
            before => alternatives(&["--set", NAME, before])?,
        }
        reload()?;
        let _ = fs::remove_file(BEFORE);
        Ok(())
    }
}

fn reload() -> Result<()> {
    if has_systemd() { systemctl(&["daemon-reload"]).map(drop) } else { Ok(()) }
}

fn alternatives(args: &[&str]) -> Result<()> {
    run(&Dirs::from_env(), "update-alternatives", &[&["--quiet"], args].concat()).map(drop)
}

/// `auto` or `manual`, and the program.
fn alternative() -> Result<(String, String)> {
    let text = run(&Dirs::from_env(), "update-alternatives", &["--query", NAME])
        .context("is openvswitch-switch installed?")?;
    ensure!(
        text.lines().any(|l| l == format!("Alternative: {WEFTD}")),
        "{WEFTD} is no alternative for {NAME}: install the package again"
    );
    let field = |name: &str| {
        text.lines()
            .find_map(|l| Some(l.strip_prefix(name)?.trim().to_string()))
            .unwrap_or_default()
    };
    Ok((field("Status:"), field("Value:")))
}
