//! What `dpif-netdev/pmd-*` and its neighbours print about PMD threads, with Weft and with
//! ovs-vswitchd behind them: all but the numbers.

use std::collections::BTreeSet;
use testkit::{Netns, Switch, SwitchConfig, privileged};

/// Starts a daemon with a PMD thread and two inert ports that it polls.
fn start<'a>(ns: &'a Netns, mut config: SwitchConfig, other: &str) -> Switch<'a> {
    config.args.push("--enable-dummy".into());
    let sw = Switch::start(ns, config).unwrap();
    let words = format!(
        "set open . other_config:pmd-cpu-mask=1 other_config:pmd-maxsleep=500 \
         other_config:pmd-sleep-max=500 {other} -- add-br br0 -- set bridge br0 datapath_type=dummy \
         -- add-port br0 n1 -- set interface n1 type=dummy-pmd ofport_request=1 \
         -- add-port br0 n0 -- set interface n0 type=dummy-pmd ofport_request=2"
    );
    sw.vsctl(&words.split_whitespace().collect::<Vec<_>>()).unwrap();
    sw.ofctl(&["add-flow", "br0", "in_port=1,actions=output:2"]).unwrap();
    sw
}

/// One command's reply or error, with numbers and the blanks in front of them as `#`.
fn said(sw: &Switch<'_>, words: &str) -> Vec<String> {
    let words: Vec<_> = words.split_whitespace().map(|w| w.trim_matches('\'')).collect();
    let text = match sw.appctl(&words) {
        Ok(text) => text,
        Err(e) => format!("error: {e}"),
    };
    // ovs-vswitchd knows usage five seconds after its start only.
    text.replace(" NOT AVAIL", " 0 %").lines().map(without_numbers).collect()
}

fn without_numbers(line: &str) -> String {
    let mut out = String::new();
    for c in line.trim_end().chars() {
        let in_number = out.ends_with('#');
        if c.is_ascii_digit() && !in_number {
            out.truncate(out.trim_end().len());
            out.push_str(if out.ends_with('#') { " #" } else { "#" });
        } else if !(in_number && (c.is_ascii_digit() || c == '.')) {
            out.push(c);
        }
    }
    out
}

/// Runs the commands with both; what differs.
fn differences(weft: &Switch<'_>, ovs: &Switch<'_>, commands: &[&str], ours: &[&str]) -> String {
    let mut all = String::new();
    for command in commands {
        let (mut mine, theirs) = (said(weft, command), said(ovs, command));
        mine.retain(|line| !ours.iter().any(|word| line.contains(word)));
        if mine != theirs {
            let [mine, theirs] = [mine, theirs].map(|lines| lines.join("\n"));
            all += &format!("$ {command}\n--- weft\n{mine}\n--- ovs\n{theirs}\n");
        }
    }
    all
}

/// Commands whose replies differ in numbers only.
const SAME: &[&str] = &[
    "dpif-netdev/pmd-stats-show",
    "dpif-netdev/pmd-stats-show -pmd 0",
    "dpif-netdev/pmd-stats-show -pmd 7",
    "dpif-netdev/pmd-stats-show -pmd x",
    "dpif-netdev/pmd-stats-show -pmd",
    "dpif-netdev/pmd-stats-show nothing",
    "dpif-netdev/pmd-stats-show ovs-dummy",
    "dpif-netdev/pmd-stats-show a b c d",
    "dpif-netdev/pmd-perf-show",
    "dpif-netdev/pmd-perf-show -nh",
    "dpif-netdev/pmd-perf-show -nh -pmd 0",
    "dpif-netdev/pmd-perf-show -nh -pmd 3",
    "dpif-netdev/pmd-perf-show -pmd 0 -nh",
    "dpif-netdev/pmd-perf-show -it x -ms -1",
    "dpif-netdev/pmd-rxq-show",
    "dpif-netdev/pmd-rxq-show -pmd 0 -secs 5",
    "dpif-netdev/pmd-rxq-show -pmd 9",
    "dpif-netdev/pmd-rxq-show -secs x",
    "dpif-netdev/pmd-rxq-rebalance",
    "dpif-netdev/pmd-rxq-rebalance nothing",
    "dpif-netdev/pmd-rxq-rebalance a b",
    "dpif-netdev/bond-show",
    "dpif-netdev/bond-show nothing",
    "dpif-netdev/pmd-perf-log-set",
    "dpif-netdev/pmd-perf-log-set on -b 10 -a 10 -e -us 100 -q 200",
    "dpif-netdev/pmd-perf-log-set off -ne",
    "dpif-netdev/pmd-perf-log-set maybe",
    "dpif-netdev/pmd-perf-log-set -b",
    "dpif-netdev/pmd-perf-log-set -us x",
    "dpif-netdev/dpif-impl-set nothing",
    "dpif-netdev/dpif-impl-set dpif_scalar",
    "dpif-netdev/miniflow-parser-set",
    "dpif-netdev/miniflow-parser-set nothing",
    "dpif-netdev/miniflow-parser-set scalar 5",
    "dpif-netdev/miniflow-parser-set -pmd",
    "dpif-netdev/miniflow-parser-set -pmd x scalar",
    "dpif-netdev/miniflow-parser-set -pmd 9 scalar",
    "dpif-netdev/miniflow-parser-set -pmd 0 scalar",
    "dpif-netdev/miniflow-parser-set -pmd 0 study 300",
    "dpif-netdev/miniflow-parser-set study 0",
    "dpif-netdev/miniflow-parser-set study",
    "dpif-netdev/miniflow-parser-set autovalidator",
    "dpif-netdev/miniflow-parser-set scalar",
    "dpif-netdev/subtable-lookup-prio-set nothing 1",
    "dpif-netdev/subtable-lookup-prio-set generic 256",
    "dpif-netdev/subtable-lookup-prio-set generic -1",
    "dpif-netdev/subtable-lookup-prio-set generic",
    "odp-execute/action-impl-set nothing",
    "odp-execute/action-impl-set scalar",
    "dpif-netdev/pmd-stats-clear -pmd 0",
    "dpif-netdev/pmd-stats-clear",
    "dpif-netdev/pmd-stats-clear a b c d",
];

#[test]
fn pmd_commands_print_the_same() {
    if !privileged() {
        return;
    }
    let (a, b) = (Netns::new().unwrap(), Netns::new().unwrap());
    let weft = start(&a, SwitchConfig::new(env!("CARGO_BIN_EXE_weftd")), "");
    let ovs = start(&b, SwitchConfig::oracle(), "");
    // Stages are shown beyond what ovs-vswitchd shows.
    let ours = ["cycles of "];
    let found = differences(&weft, &ovs, SAME, &ours);
    assert!(found.is_empty(), "{found}");
    for sw in [&weft, &ovs] {
        let packet = "in_port(1),eth(src=50:54:00:00:00:01,dst=50:54:00:00:00:02),eth_type(0x1234)";
        (0..3).for_each(|_| drop(sw.appctl(&["netdev-dummy/receive", "n1", packet]).unwrap()));
        let received = || sw.appctl(&["dpif-netdev/pmd-stats-show"]).unwrap();
        for _ in 0..100 {
            if received().contains("packets received: 3") {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
    let found = differences(&weft, &ovs, &SAME[..12], &ours);
    assert!(found.is_empty(), "with packets: {found}");
}

#[test]
fn metrics_print_the_same() {
    if !privileged() {
        return;
    }
    let (a, b) = (Netns::new().unwrap(), Netns::new().unwrap());
    let metrics = "other_config:pmd-perf-metrics=true";
    let weft = start(&a, SwitchConfig::new(env!("CARGO_BIN_EXE_weftd")), metrics);
    let ovs = start(&b, SwitchConfig::oracle(), metrics);
    let commands = [
        "dpif-netdev/pmd-perf-show",
        "dpif-netdev/pmd-perf-show -nh -it 3",
        "dpif-netdev/pmd-perf-show -nh -ms 2",
        "dpif-netdev/pmd-perf-show -it 2 -ms 2 -pmd 0",
    ];
    let found = differences(&weft, &ovs, &commands, &["cycles of "]);
    assert!(found.is_empty(), "{found}");
    // Edges of bins are numbers that do not differ.
    let edges = |sw: &Switch<'_>| -> BTreeSet<String> {
        let text = sw.appctl(&["dpif-netdev/pmd-perf-show"]).unwrap();
        let bins = text.lines().skip_while(|l| *l != "Histograms").skip(2).take(31);
        let edge = |line: &str| {
            let words: Vec<_> = line.split_whitespace().collect();
            words.iter().step_by(2).map(|w| (*w).to_string()).collect::<Vec<_>>().join(" ")
        };
        bins.map(edge).collect()
    };
    assert_eq!(edges(&weft), edges(&ovs));
    assert_eq!(edges(&weft).len(), 31);
}

#[test]
fn long_iterations_are_logged() {
    if !privileged() {
        return;
    }
    let a = Netns::new().unwrap();
    let config = SwitchConfig::new(env!("CARGO_BIN_EXE_weftd"));
    let weft = start(&a, config, "other_config:pmd-perf-metrics=true");
    // Every iteration takes longer than nothing.
    weft.appctl(&["dpif-netdev/pmd-perf-log-set", "on", "-us", "0", "-a", "2"]).unwrap();
    for _ in 0..200 {
        if weft.log().contains("Neighborhood of suspicious iteration") {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("nothing was logged");
}

/// Which core polls which queue, after this change.
fn placed(sw: &Switch<'_>, words: &str) -> String {
    sw.vsctl(&words.split_whitespace().collect::<Vec<_>>()).unwrap();
    let text = sw.appctl(&["dpif-netdev/pmd-rxq-show"]).unwrap();
    // Percentages say nothing within the first seconds.
    text.lines().map(|l| l.split(" pmd usage").next().unwrap().to_string() + "\n").collect()
}

#[test]
fn queues_of_dummies_are_polled_by_the_same_cores() {
    if !privileged() {
        return;
    }
    let (a, b) = (Netns::new().unwrap(), Netns::new().unwrap());
    let [weft, ovs] =
        [(&a, SwitchConfig::new(env!("CARGO_BIN_EXE_weftd"))), (&b, SwitchConfig::oracle())].map(
            |(ns, mut config)| {
                config.args.push("--dummy-numa=0,0,1,1".into());
                start(ns, config, "")
            },
        );
    for words in [
        "set open . other_config:pmd-cpu-mask=3 -- set interface n1 options:n_rxq=8",
        "set open . other_config:pmd-rxq-assign=group",
        "set open . other_config:pmd-rxq-assign=roundrobin",
        "set interface n0 options:numa_id=1",
        "set open . other_config:pmd-cpu-mask=f",
        "set interface n1 other_config:pmd-rxq-affinity=0:3,1:1",
        "set interface n1 options:n_rxq=2 options:numa_id=1",
        "remove interface n1 options n_rxq",
    ] {
        let [mine, theirs] = [&weft, &ovs].map(|sw| placed(sw, words).replace("NOT AVAIL", " 0 %"));
        assert_eq!(mine, theirs, "{words}");
    }
    let [mine, theirs] = [&weft, &ovs].map(|sw| {
        let text = sw.appctl(&["dpif/show"]).unwrap();
        // How many threads may send is not how many do.
        let words = text.split(['(', ',']).filter(|w| !w.contains("_tx_queues"));
        words.skip(1).map(String::from).collect::<Vec<_>>()
    });
    assert_eq!(mine, theirs);
}
