//! The direction of the arrows: a crate may use only crates of rows below its own.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Rows from top to bottom, as drawn in ARCHITECTURE.md between the `layers` marks.
const ROWS: &[(&str, &[&str])] = &[
    ("programs", &["weftd", "weft"]),
    ("control", &["control"]),
    ("packet half", &["datapath"]),
    ("switch half", &["ofproto"]),
    ("protocols", &["openflow", "ovsdb", "export", "stp"]),
    ("classifier", &["classifier"]),
    ("offload", &["offload"]),
    ("connections", &["conntrack"]),
    ("action", &["action"]),
    ("flow", &["flow"]),
    ("drivers", &["port-dpdk"]),
    ("dpdk", &["dpdk"]),
    ("port", &["port", "dpdk-sys"]),
    ("front-ends", &["vhost-user"]),
    ("virtqueues", &["vhost"]),
    ("packet", &["packet"]),
    ("ground", &["wire", "sync", "telemetry"]),
];
/// Free to be used by, and to use, any crate (tests and tools).
const SUPPORT: &[&str] = &["testkit", "lab", "fuzz", "xtask"];
/// Pairs that must not meet although the rows would allow it, with the rule they keep.
const FORBIDDEN: &[(&str, &str)] = &[
    ("datapath", "ofproto"),
    ("datapath", "openflow"),
    ("datapath", "ovsdb"),
    ("datapath", "port-dpdk"),
    ("datapath", "dpdk"),
    ("ofproto", "port"),
    ("ofproto", "packet"),
    ("ofproto", "ovsdb"),
];

/// Fails with every arrow that points up, and every crate without a row.
pub fn check(root: &Path) -> Result<()> {
    let rows: BTreeMap<&str, usize> =
        ROWS.iter().enumerate().flat_map(|(i, r)| r.1.iter().map(move |c| (*c, i))).collect();
    let mut bad = Vec::new();
    for (name, deps) in dependencies(root)? {
        if SUPPORT.contains(&name.as_str()) {
            continue;
        }
        let Some(row) = rows.get(name.as_str()) else {
            bad.push(format!("crate {name} has no row"));
            continue;
        };
        for dep in deps {
            match rows.get(dep.as_str()) {
                Some(below) if below > row => {}
                _ => bad.push(format!("{name} must not use {dep}: it is not in a row below")),
            }
            if FORBIDDEN.contains(&(name.as_str(), dep.as_str())) {
                bad.push(format!("{name} must not know {dep}"));
            }
        }
    }
    bad.extend(drawing(root)?);
    if !bad.is_empty() {
        bail!("layers:\n  {}", bad.join("\n  "));
    }
    println!("layers: ok");
    Ok(())
}

/// Normal (not dev) dependencies between workspace members.
fn dependencies(root: &Path) -> Result<BTreeMap<String, Vec<String>>> {
    let out = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version=1", "--offline"])
        .current_dir(root)
        .output()?;
    let meta: Value = serde_json::from_slice(&out.stdout).context("cargo metadata")?;
    let packages = meta["packages"].as_array().context("packages")?;
    let members: Vec<&str> = packages.iter().filter_map(|p| p["name"].as_str()).collect();
    let mut all = BTreeMap::new();
    for p in packages {
        let deps = p["dependencies"].as_array().context("dependencies")?;
        let used = deps
            .iter()
            .filter(|d| d["kind"].is_null())
            .filter_map(|d| d["name"].as_str())
            .filter(|d| members.contains(d) && !SUPPORT.contains(d));
        all.insert(p["name"].as_str().unwrap_or("").to_string(), used.map(Into::into).collect());
    }
    Ok(all)
}

/// ARCHITECTURE.md names the same crates in the same rows.
fn drawing(root: &Path) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(root.join("ARCHITECTURE.md")).context("ARCHITECTURE.md")?;
    let table =
        text.split("<!-- layers -->").nth(1).context("no layers table in ARCHITECTURE.md")?;
    let drawn: Vec<(String, Vec<String>)> = table
        .lines()
        .filter(|l| l.starts_with("| ") && l.contains('`'))
        .map(|l| {
            let cells: Vec<&str> = l.split('|').map(str::trim).collect();
            let crates = cells[2].split_whitespace().map(|c| c.trim_matches('`').to_string());
            (cells[1].to_string(), crates.collect())
        })
        .collect();
    let want: Vec<(String, Vec<String>)> = ROWS
        .iter()
        .map(|(row, crates)| (row.to_string(), crates.iter().map(|c| c.to_string()).collect()))
        .collect();
    let missing = want.iter().filter(|r| !drawn.contains(r));
    Ok(missing.map(|r| format!("ARCHITECTURE.md does not draw row {} as {:?}", r.0, r.1)).collect())
}
