//! What a switch has cached: megaflows and their masks, as its control socket says.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How much is cached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cached {
    /// Megaflows.
    pub megaflows: u64,
    /// Their masks.
    pub masks: u64,
}

impl Cached {
    /// Asks the daemon whose sockets are in `dir`. OVS does not say how many masks there are, so
    /// its megaflows are gone through; Weft says.
    ///
    /// # Errors
    /// There is no daemon, or it does not answer.
    pub fn ask(dir: &Path) -> Result<Self> {
        let socket = control_socket(dir)?;
        let show = appctl(&socket, &["upcall/show"])?;
        let megaflows = megaflows_in(&show)?;
        // Of several workers, the one with the most.
        let masks = show.lines().filter_map(|l| number_after(l, "(masks ")).max();
        let masks = match masks {
            Some(masks) => masks,
            None => count_masks(&appctl(&socket, &["dpctl/dump-flows"])?),
        };
        Ok(Cached { megaflows, masks })
    }

    /// Only how many megaflows there are, which costs the daemon little.
    ///
    /// # Errors
    /// There is no daemon, or it does not answer.
    pub fn megaflows_of(dir: &Path) -> Result<u64> {
        megaflows_in(&appctl(&control_socket(dir)?, &["upcall/show"])?)
    }
}

fn megaflows_in(show: &str) -> Result<u64> {
    number_after(show, "(current ").context("upcall/show: no megaflows")
}

/// `*.ctl` of the switch; the database server has one, too.
pub(crate) fn control_socket(dir: &Path) -> Result<PathBuf> {
    let entries = std::fs::read_dir(dir)?.flatten().map(|e| e.path());
    let is_switch = |p: &PathBuf| {
        let name = p.file_name().unwrap_or_default().to_string_lossy();
        name.ends_with(".ctl") && !name.starts_with("ovsdb")
    };
    entries.into_iter().find(is_switch).context("no control socket")
}

pub(crate) fn appctl(socket: &Path, words: &[&str]) -> Result<String> {
    let out = Command::new("timeout")
        .args(["20", "ovs-appctl", "-t"])
        .arg(socket)
        .args(words)
        .output()
        .context("ovs-appctl")?;
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

fn number_after(text: &str, mark: &str) -> Option<u64> {
    let at = text.find(mark)? + mark.len();
    text[at..].split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Different masks among the lines of `dpctl/dump-flows`: field names, and masks where there is
/// one.
fn count_masks(dump: &str) -> u64 {
    let lines = dump.lines().filter_map(|l| Some(l.split_once(", packets:")?.0));
    lines.map(mask_of).collect::<HashSet<_>>().len() as u64
}

fn mask_of(line: &str) -> String {
    let mut mask = String::new();
    // A value goes from '=' (or the bracket of a field without names) to the next separator;
    // "/mask" is kept.
    let mut in_value = false;
    for c in line.chars() {
        match c {
            '=' | '(' => in_value = true,
            ',' | ')' | '/' => in_value = false,
            _ => {}
        }
        if !in_value || c == '(' {
            mask.push(c);
        }
    }
    mask
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_counted_without_values() {
        let dump = "\
flow-dump from pmd on cpu core: 1
recirc_id(0),in_port(1),eth_type(0x0800),ipv4(dst=16.0.0.0/255.255.255.0,frag=no), packets:9, bytes:1, actions:2
recirc_id(0),in_port(1),eth_type(0x0800),ipv4(dst=16.0.1.0/255.255.255.0,frag=no), packets:5, bytes:1, actions:2
recirc_id(0),in_port(1),eth_type(0x0800),ipv4(dst=16.0.1.0/255.255.0.0,frag=no), packets:5, bytes:1, actions:2
recirc_id(0),in_port(1),eth_type(0x0800),ipv4(dst=16.0.1.1,frag=no),udp(dst=80), packets:5, bytes:1, actions:2
";
        assert_eq!(count_masks(dump), 3);
        assert_eq!(number_after("  flows : (current 1024) (avg 3)", "(current "), Some(1024));
        assert_eq!(number_after("pmd 1: (keys 5) (masks 17) ", "(masks "), Some(17));
    }
}
