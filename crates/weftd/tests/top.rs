//! `weft top` beside a running switch: its rates are those of the traffic, and it works in a small
//! terminal.

mod lab;

use lab::*;
use serde_json::Value;
use std::io::Write;
use std::process::{Command, Output, Stdio};
use testkit::{Netns, Switch, privileged};

/// Cargo builds it next to the daemon (with the workspace's tests, or `cargo build -p weft`).
fn weft() -> String {
    std::path::Path::new(env!("CARGO_BIN_EXE_weftd")).with_file_name("weft").display().to_string()
}

fn top(sw: &Switch, args: &str) -> Output {
    let mut c = sw.command(&weft());
    c.arg("top").args(args.split_whitespace()).env("COLUMNS", "100").output().unwrap()
}

fn view(sw: &Switch, interval: f64) -> Value {
    let out = top(sw, &format!("--once --json --interval {interval}"));
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

fn port<'v>(view: &'v Value, name: &str) -> &'v Value {
    let all = view["ports"].as_array().unwrap();
    all.iter().find(|p| p["name"] == name).unwrap_or_else(|| panic!("{view:#}"))
}

#[test]
fn rates_are_those_of_the_traffic() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    for (name, n) in [("src", 1), ("dst", 2)] {
        let kind = format!("{name} type=dpdk options:dpdk-devargs=net_null{n} ofport_request={n}");
        vsctl(&sw, &format!("add-port br0 {name} -- set interface {kind}"));
    }
    ofctl(&sw, "del-flows br0");
    ofctl(&sw, "add-flow br0 in_port=1,actions=2");
    wait_for("traffic", || appctl(&sw, "dpif-netdev/tx-show").contains("port: dst"));
    let sent = || -> u64 {
        let text = appctl(&sw, "weft/state ports/dst/traffic/tx_packets");
        text.trim().parse().unwrap()
    };
    let (before, v, after) = (sent(), view(&sw, 1.0), sent());
    let (seconds, tx) = (v["seconds"].as_f64().unwrap(), port(&v, "dst")["tx"].as_f64().unwrap());
    assert!((1.0..30.0).contains(&seconds), "{seconds}");
    assert!(tx > 0.0 && tx * seconds <= (after - before) as f64, "{tx} {seconds} {before} {after}");
    let pmd = &v["cores"][0];
    assert!(pmd["busy"].as_f64().unwrap() > 90.0 && pmd["polls"] == true, "{pmd:#}");
    let stages: f64 = ["rx", "parse", "lookup", "act_tx"]
        .iter()
        .map(|s| pmd["stages"][s].as_f64().unwrap())
        .sum();
    let each = pmd["cycles_per_packet"].as_f64().unwrap();
    // Stages are measured on samples: on a busy machine their sum is not exact.
    assert!(stages > 0.3 * each, "{stages} of {each}: {pmd:#}");
    // On a machine that is busy with something else, too, that is what limits it first.
    let limit = v["limit"].as_str().unwrap();
    let taken = pmd["waiting"].as_f64().expect("Linux counts it") >= 10.0;
    assert!(limit.ends_with(if taken { "[core-taken]" } else { "[full-core]" }), "{limit}");
    let flows = v["flows"].as_array().unwrap();
    assert!(flows.iter().any(|f| f["actions"] == "dst" && f["in_port"] == "src"), "{flows:#?}");
    let text = String::from_utf8(top(&sw, "--once --interval 0.2").stdout).unwrap();
    eprintln!("{text}");
    assert!(
        ["busiest core", "core", "port", "src", "dst"].iter().all(|w| text.contains(w))
            && (text.contains("is full: ") || text.contains("Other threads ran on core")),
        "{text}"
    );
    assert!(text.lines().all(|l| l.chars().count() <= 100), "{text}");
}

#[test]
fn a_terminal_of_40_columns_will_do() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    let _hosts = [host_on(&ns, &sw, 1), host_on(&ns, &sw, 2)];
    let line = format!("stty cols 40 rows 20; exec {} top -i 0.2", weft());
    // script(1) gives it a terminal of its own.
    let mut c: Command = sw.command("script");
    c.args(["-qec", &line, "/dev/null"]).env("TERM", "xterm");
    let mut child = c.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut keys = child.stdin.take().unwrap();
    // The ports' page, the second port's, back, sorted by name, help, the end; each key may be read
    // at any time.
    for key in ["3", "j", "\r", "\x1b[A", "?", "?", "s", "q"] {
        std::thread::sleep(std::time::Duration::from_millis(300));
        keys.write_all(key.as_bytes()).unwrap();
    }
    let out = child.wait_with_output().unwrap();
    let seen = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{seen}");
    for word in ["rx pps", "v1", "OpenFlow port", "PageDown", "ports]"] {
        assert!(seen.contains(word), "{word}: {seen}");
    }
    assert!(seen.contains("\x1b[?1049l"), "the screen is given back: {seen}");
}

#[test]
fn a_switch_that_is_not_there_is_one_sentence() {
    for command in [["top", "--once"], ["advise", "--json"], ["trace", "p0"]] {
        let mut c = Command::new(weft());
        let out = c.args(command).env("OVS_RUNDIR", "/nonesuch").output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && said.trim_end().lines().count() == 1, "{said}");
        let why = "no switch runs here: there is no /nonesuch/ovs-vswitchd.pid";
        assert!(said.contains(why), "{said}");
    }
}

#[test]
fn ovs_vswitchd_is_told_from_weft() {
    if !privileged() {
        return;
    }
    let ns = Netns::new().unwrap();
    let ovs = Switch::start(&ns, testkit::SwitchConfig::oracle()).unwrap();
    for command in ["top --once", "advise", "trace br0"] {
        let out = ovs.command(&weft()).args(command.split_whitespace()).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && said.trim_end().lines().count() == 1, "{said}");
        assert!(said.contains("it is ovs-vswitchd, or an older weftd"), "{said}");
    }
}
