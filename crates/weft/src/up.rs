//! `weft up` and `weft down`.

use crate::dirs::Dirs;
use crate::run::{quietly, run};
use crate::say::say;
use anyhow::{Context, Result, bail};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
/// Left in the run directory when the database is ours to stop.
const OWN_DB: &str = "weft-started-ovsdb";

/// Starts what is not running yet.
pub fn up(dirs: &Dirs) -> Result<()> {
    for d in [&dirs.run, &dirs.log, &dirs.db] {
        std::fs::create_dir_all(d).with_context(|| format!("creating {}", d.display()))?;
    }
    if UnixStream::connect(dirs.db_sock()).is_err() {
        start_database(dirs)?;
    }
    if run(dirs, "ovs-appctl", &["-T", "2", "version"]).is_ok() {
        let _ = say(&format!("a switch is already running in {}", dirs.run.display()));
        return Ok(());
    }
    let sock = format!("unix:{}", dirs.db_sock().display());
    let weftd = sibling("weftd")?;
    let weftd = weftd.to_str().context("path of weftd")?;
    let args = ["--pidfile", "--detach", "--no-chdir", "--log-file", "-vconsole:off", &sock];
    run(dirs, weftd, &args)?;
    let _ = say("the switch is up; ovs-vsctl, ovs-ofctl and ovs-appctl reach it as usual");
    Ok(())
}

/// Stops the switch and, when `up` started it, the database.
pub fn down(dirs: &Dirs) -> Result<()> {
    let switch = run(dirs, "ovs-appctl", &["-T", "10", "exit", "--cleanup"]);
    wait_gone(&dirs.run.join("ovs-vswitchd.pid"))?;
    let own = dirs.run.join(OWN_DB);
    if own.exists() {
        run(dirs, "ovs-appctl", &["-T", "10", "-t", "ovsdb-server", "exit"])?;
        wait_gone(&dirs.run.join("ovsdb-server.pid"))?;
        std::fs::remove_file(own)?;
    }
    let _ = match switch {
        Ok(_) => say("the switch is down"),
        Err(_) => say(&format!("no switch was running in {}", dirs.run.display())),
    };
    Ok(())
}

fn start_database(dirs: &Dirs) -> Result<()> {
    let file = dirs.db.join("conf.db");
    let file = file.to_str().context("path of conf.db")?;
    if !Path::new(file).exists() {
        run(dirs, "ovsdb-tool", &["create", file, SCHEMA])?;
    }
    let remote = format!("--remote=punix:{}", dirs.db_sock().display());
    let managers = "--remote=db:Open_vSwitch,Open_vSwitch,manager_options";
    let detach = ["--detach", "--no-chdir", "--pidfile", "--log-file", "-vconsole:off"];
    let mut args = vec![file, &remote, managers];
    args.extend(detach);
    run(dirs, "ovsdb-server", &args)?;
    std::fs::write(dirs.run.join(OWN_DB), "")?;
    run(dirs, "ovs-vsctl", &["--no-wait", "init"])?;
    Ok(())
}

/// A program of ours in the same directory as this one.
fn sibling(name: &str) -> Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name(name);
    if !path.exists() {
        bail!("{} is not built: run `make build`", path.display());
    }
    Ok(path)
}

fn wait_gone(file: &Path) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(10);
    while file.exists() {
        if Instant::now() > end {
            bail!("{} is still there after 10 s", file.display());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Stops everything in `dirs`, whatever state it is in.
pub fn down_quietly(dirs: &Dirs) {
    let _ = down(dirs);
    quietly(dirs, "ovs-appctl", &["-T", "2", "-t", "ovsdb-server", "exit"]);
}
