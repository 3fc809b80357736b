//! `weft advise` beside a running switch: a PMD thread that is full is seen, and nothing changes.

mod lab;

use lab::*;
use serde_json::Value;
use std::process::Command;
use testkit::{Netns, Switch, privileged};

/// What it says, as a program reads it. Cargo builds it next to the daemon (with the workspace's
/// tests, or `cargo build -p weft`).
fn advise(sw: &Switch, args: &str) -> String {
    let weft = std::path::Path::new(env!("CARGO_BIN_EXE_weftd")).with_file_name("weft");
    let mut c: Command = sw.command(weft.to_str().unwrap());
    c.arg("advise").args(args.split_whitespace());
    let out = c.output().unwrap_or_else(|e| panic!("{}: {e}", weft.display()));
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

fn rules(report: &Value) -> Vec<&str> {
    report["advice"].as_array().unwrap().iter().map(|a| a["rule"].as_str().unwrap()).collect()
}

#[test]
fn a_full_thread_is_seen() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    let idle: Value = serde_json::from_str(&advise(&sw, "--json --seconds 0.5")).unwrap();
    assert!(!rules(&idle).contains(&"full-core"), "{idle}");
    // A device that has a packet for everybody who asks, and one that takes all.
    for (name, n) in [("src", 1), ("dst", 2)] {
        let port = format!("{name} type=dpdk options:dpdk-devargs=net_null{n} ofport_request={n}");
        vsctl(&sw, &format!("add-port br0 {name} -- set interface {port}"));
    }
    ofctl(&sw, "del-flows br0");
    ofctl(&sw, "add-flow br0 in_port=1,actions=2");
    wait_for("traffic", || appctl(&sw, "dpif-netdev/tx-show").contains("port: dst"));
    let before = vsctl(&sw, "get Open_vSwitch . other_config") + &vsctl(&sw, "list-ports br0");
    let report: Value = serde_json::from_str(&advise(&sw, "--json --seconds 1")).unwrap();
    let all = report["advice"].as_array().unwrap();
    let full = all.iter().find(|a| a["rule"] == "full-core").unwrap_or_else(|| panic!("{report}"));
    let figure = |name: &str| full["figures"][name].as_f64().unwrap();
    assert!(figure("busy_percent") >= 90.0 && figure("kpps") > 1.0, "{full}");
    assert!(figure("cycles_per_packet") > 1.0, "{full}");
    let text = advise(&sw, "--seconds 1");
    eprintln!("{text}");
    assert!(text.contains("is full: ") && text.contains("[full-core]"), "{text}");
    assert!(text.contains("queue 0 of src"), "{text}");
    let after = vsctl(&sw, "get Open_vSwitch . other_config") + &vsctl(&sw, "list-ports br0");
    assert_eq!(before, after, "it only looks");
}

#[test]
fn without_a_switch_it_says_so() {
    let weft = std::path::Path::new(env!("CARGO_BIN_EXE_weftd")).with_file_name("weft");
    let out = Command::new(&weft).arg("advise").env("OVS_RUNDIR", "/nonesuch").output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && said.starts_with("weft: no switch runs here: "), "{said}");
}
