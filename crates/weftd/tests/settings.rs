//! What the database asks for and the switch does not do is said in the log, once; what it reports
//! is there.

mod sandbox;

use sandbox::{Sandbox, wait_for};

/// Lines of the log about settings without effect, without what is before the text.
fn notices(s: &Sandbox) -> Vec<String> {
    let log = s.log();
    let about = log.lines().filter(|l| l.contains(" has no effect"));
    about.map(|l| l.splitn(4, '|').nth(3).unwrap().replace("|bridge|", "|")).collect()
}

/// Sets something; the one notice that it brings, from its level to before the reason.
fn one(s: &Sandbox, words: &str) -> String {
    let before = notices(s).len();
    s.vsctl(words);
    let all = notices(s);
    assert_eq!(all.len(), before + 1, "{words}: {:?}", &all[before..]);
    let text = all.last().unwrap();
    text.split(" (").next().unwrap().to_string()
}

/// Commands, and the setting of which they bring a notice.
const CASES: &[(&str, &str)] = &[
    ("set port d0 qos=@q -- --id=@q create qos type=linux-htb", "port d0: qos: type=linux-htb"),
    ("set port bond0 bond_fake_iface=true", "port bond0: bond_fake_iface"),
    (
        "set port bond0 other_config:bond-miimon-interval=100",
        "port bond0: other_config:bond-miimon-interval",
    ),
    ("set interface p1 lldp:enable=yes", "interface p1: lldp:enable=yes"),
    ("set port p1 other_config:bond-detect-mode=miimon", "port p1: other_config:bond-detect-mode"),
    ("set open . other_config:tc-policy=skip_hw", "Open_vSwitch: other_config:tc-policy"),
    (
        "set open . other_config:shared-mempool-config=9000",
        "Open_vSwitch: other_config:shared-mempool-config",
    ),
    (
        "set interface p1 other_config:tx-steering=maybe",
        "interface p1: other_config:tx-steering=maybe",
    ),
    ("set bridge br0 other_config:in-band-queue=no", "bridge br0: other_config:in-band-queue=no"),
    (
        "set controller br0 other_config:dscp=100",
        "bridge br0: controller tcp:127.0.0.1:9: other_config:dscp=100",
    ),
    (
        "set interface d0 options:dpdk-vf-mac=02\\:00\\:00\\:00\\:00\\:01",
        "interface d0: options:dpdk-vf-mac",
    ),
    (
        "--no-wait set bridge br0 other_config:controller-queue-size=700",
        "bridge br0: other_config:controller-queue-size",
    ),
];

/// Settings of threads that are not there: no user misses what they would do.
const MOOT: &[&str] = &["n-handler-threads=2", "n-revalidator-threads=2", "max-revalidator=500"];

#[test]
fn what_is_set_and_not_supported_is_said_once() {
    let s = Sandbox::new();
    s.start_detached("");
    s.vsctl(
        "add-br br0 -- set bridge br0 datapath_type=dummy -- add-port br0 p1 -- set interface p1 type=dummy \
         -- add-bond br0 bond0 b1 b2 -- set interface b1 type=dummy -- set interface b2 type=dummy \
         -- set bridge br0 external_ids:bridge-id=x -- set interface p1 external_ids:iface-id=y \
         -- set open . external_ids:ovn-remote=z -- set interface p1 bfd:enable=false \
         -- set-controller br0 tcp:127.0.0.1:9 -- set controller br0 connection_mode=out-of-band \
         -- set open . other_config:pmd-maxsleep=500 -- set open . other_config:hw-offload=true \
         -- add-port br0 d0 -- set interface d0 type=dpdk options:dpdk-devargs=net_null0,no-rx=1",
    );
    assert!(notices(&s).is_empty(), "{:?}", notices(&s));
    for (words, about) in CASES {
        if words.starts_with("--no-wait") {
            s.vsctl(words);
            wait_for(words, || notices(&s).last().is_some_and(|n| n.contains(about)));
            continue;
        }
        assert_eq!(one(&s, words), format!("WARN|{about} is not supported and has no effect"));
    }
    for setting in MOOT {
        let about = format!("INFO|Open_vSwitch: other_config:{setting} has no effect");
        assert_eq!(one(&s, &format!("set open . other_config:{setting}")), about);
    }
    let typo = one(&s, "set bridge br0 other_config:mac-agin-time=7");
    assert_eq!(typo, "INFO|bridge br0: other_config:mac-agin-time is not known and has no effect");
    // Another value is news; the same at other changes is not.
    one(&s, "set open . other_config:n-handler-threads=3");
    let all = notices(&s).len();
    s.vsctl("add-port br0 p2 -- set interface p2 type=dummy");
    s.vsctl("set open . other_config:n-handler-threads=3");
    s.vsctl("remove open . other_config n-handler-threads");
    assert_eq!(notices(&s).len(), all);
    // A new daemon says it again.
    s.appctl_ok("exit");
    s.start_detached("");
    assert_eq!(notices(&s).len(), all + CASES.len() + MOOT.len());
}

/// However many settings a row has, and however often they change.
#[test]
fn very_many_unknown_settings_are_few_lines_of_the_log() {
    const SETTINGS: usize = 700;
    let s = Sandbox::new();
    s.start_detached("");
    s.vsctl("add-br br0 -- set bridge br0 datapath_type=dummy");
    for round in 0..4 {
        let some = (0..SETTINGS).map(|n| format!("other_config:k{n}={round}"));
        s.vsctl(&format!("set bridge br0 {}", some.collect::<Vec<_>>().join(" ")));
    }
    let said = notices(&s).len();
    assert!((1000..2 * SETTINGS).contains(&said), "{said}");
    assert!(s.log().contains(" more settings are not known or not supported"));
}

/// Nor are mirrors that are refused many lines.
#[test]
fn very_many_refused_mirrors_are_few_lines_of_the_log() {
    let s = Sandbox::new();
    s.start_detached("");
    s.vsctl("add-br br0 -- set bridge br0 datapath_type=dummy");
    for round in 0..4 {
        let some = (0..500).map(|n| format!("-- --id=@m{n} create mirror name=m{round}x{n}"));
        let names: Vec<_> = (0..500).map(|n| format!("@m{n}")).collect();
        let all = some.collect::<Vec<_>>().join(" ");
        s.vsctl(&format!("set bridge br0 mirrors={} {all}", names.join(",")));
    }
    let said = s.log().matches("does not specify output; ignoring").count();
    assert!((1000..1700).contains(&said), "{said}");
    assert!(s.log().contains(" more settings are not known or not supported"));
}

#[test]
fn the_machine_and_bonds_are_reported() {
    let s = Sandbox::new();
    s.start_detached("");
    s.vsctl("add-br br0 -- set bridge br0 datapath_type=dummy");
    s.vsctl(
        "add-bond br0 bond0 b1 b2 -- set interface b1 type=dummy -- set interface b2 type=dummy",
    );
    let mac = |name: &str| s.vsctl(&format!("get interface {name} mac_in_use"));
    let active = || s.vsctl("get port bond0 bond_active_slave");
    let first = || {
        let number =
            |name: &str| s.vsctl(&format!("get interface {name} ofport")).parse::<u32>().unwrap();
        if number("b1") < number("b2") { ("b1", "b2") } else { ("b2", "b1") }
    };
    let (first, second) = first();
    for name in [first, second] {
        s.appctl_ok(&format!("netdev-dummy/set-admin-state {name} up"));
    }
    wait_for("the first interface to be active", || active() == mac(first));
    let shown = s.appctl_ok("bond/show bond0");
    assert!(shown.starts_with("---- bond0 ----\nbond_mode: active-backup\n"), "{shown}");
    assert!(shown.contains(&format!("({first})\n")), "{shown}");
    assert!(
        shown.contains(&format!("member {first}: enabled\n  active member\n  may_enable: true\n")),
        "{shown}"
    );
    assert_eq!(
        s.appctl_ok("bond/list"),
        "bond\ttype\trecircID\tmembers\nbond0\tactive-backup\t0\tb1, b2\n"
    );
    s.appctl_ok(&format!("netdev-dummy/set-admin-state {first} down"));
    wait_for("the second interface to be active", || active() == mac(second));
    assert!(s.appctl_ok("bond/show").contains(&format!("member {first}: disabled\n")));
    assert!(!s.appctl("bond/show br0").status.success());

    assert_eq!(s.vsctl("get open . statistics"), "{}");
    s.vsctl("set open . other_config:enable-statistics=true");
    for key in ["cpu", "load_average", "memory", "file_systems", "process_ovs-vswitchd"] {
        wait_for(key, || s.vsctl(&format!("--if-exists get open . statistics:{key}")).len() > 2);
    }
    // The pidfile is still locked: tools take its holder for alive.
    s.appctl_ok("version");
    s.vsctl("remove open . other_config enable-statistics");
    wait_for("no statistics", || s.vsctl("get open . statistics") == "{}");
    let types = s.vsctl("get open . iface_types");
    for kind in ["geneve", "gre", "ip6gre", "vxlan", "system", "dpdkvhostuserclient"] {
        assert!(types.contains(kind), "{types}");
    }
}

/// The daemon sleeps up to 100 ms between two looks at what the log wants.
#[test]
fn the_log_has_the_first_flow_after_it_was_asked_for() {
    let s = Sandbox::new();
    s.start_detached("");
    s.vsctl("add-br br0 -- set bridge br0 datapath_type=dummy");
    for n in 1..=8 {
        s.vsctl(&format!("add-port br0 p{n} -- set interface p{n} type=dummy"));
        s.appctl_ok("vlog/set dpif_netdev:info");
        std::thread::sleep(std::time::Duration::from_millis(150));
        s.appctl_ok("vlog/set dpif_netdev:dbg");
        s.appctl_ok(&format!("netdev-dummy/receive p{n} in_port({n}),eth(),eth_type(0x1234)"));
        let added = s.log().matches("flow_add: ").count();
        assert_eq!(added, n, "{}", s.log());
    }
}
