//! Running the stock tools.

use crate::dirs::Dirs;
use anyhow::{Context, Result, bail};
use std::process::{Command, Stdio};

/// Runs a program with the switch's environment; its output, or an error with what it said.
pub fn run(dirs: &Dirs, program: &str, args: &[&str]) -> Result<String> {
    let out = Command::new(program)
        .args(args)
        .envs(dirs.env())
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("{program}: is it installed? (scripts/deps.sh run)"))?;
    if !out.status.success() {
        bail!("{program} {}: {}", args.join(" "), String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Runs and forgets the result: for clean-up.
pub fn quietly(dirs: &Dirs, program: &str, args: &[&str]) {
    let _ = run(dirs, program, args);
}
