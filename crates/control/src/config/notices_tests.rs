use super::super::form::Form;
use super::super::knobs::{Knob, OPTIONS, Support, TABLES};
use super::*;
use ovsdb::Schema;

const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
/// What encloses the tables in docs/SUPPORT.md.
const MARK: &str = "<!-- database -->\n";

/// What the switch says of a bridge `br0` with port and interface `p1`, and these columns on top.
fn texts(extra: Vec<(&str, &str, Datum)>) -> Vec<String> {
    let id = |table: &str| match table {
        "Open_vSwitch" => Uuid(1),
        "Bridge" => Uuid(2),
        "Port" => Uuid(3),
        "Interface" => Uuid(4),
        "Controller" => Uuid(5),
        "Flow_Table" => Uuid(6),
        "Datapath" => Uuid(7),
        "CT_Zone" => Uuid(8),
        "CT_Timeout_Policy" => Uuid(9),
        "QoS" => Uuid(11),
        "Queue" => Uuid(12),
        _ => Uuid(10),
    };
    let mut all = vec![
        ("Open_vSwitch", "bridges", Datum::set([id("Bridge")])),
        ("Open_vSwitch", "datapaths", Datum::map([("netdev", id("Datapath"))])),
        ("Bridge", "name", Datum::scalar("br0")),
        ("Bridge", "ports", Datum::set([id("Port")])),
        ("Bridge", "ipfix", Datum::set([id("IPFIX")])),
        ("Bridge", "controller", Datum::set([id("Controller")])),
        ("Bridge", "flow_tables", Datum::map([(3, id("Flow_Table"))])),
        ("Port", "name", Datum::scalar("p1")),
        ("Port", "qos", Datum::set([id("QoS")])),
        ("QoS", "queues", Datum::map([(0, id("Queue"))])),
        ("Port", "interfaces", Datum::set([id("Interface")])),
        ("Interface", "name", Datum::scalar("p1")),
        ("Controller", "target", Datum::scalar("ptcp:6653")),
        ("Flow_Table", "name", Datum::scalar("first")),
        ("Datapath", "datapath_version", Datum::scalar("<built-in>")),
        ("Datapath", "ct_zones", Datum::map([(5, id("CT_Zone"))])),
        ("CT_Zone", "timeout_policy", Datum::set([id("CT_Timeout_Policy")])),
    ];
    all.extend(extra);
    let mut rows: std::collections::BTreeMap<(String, Uuid), Vec<(String, Datum)>> =
        Default::default();
    for (table, column, value) in all {
        rows.entry((table.into(), id(table))).or_default().push((column.into(), value));
    }
    let rows = rows.into_iter().map(|((table, id), row)| (table, id, row.into_iter().collect()));
    let db = Replica::with_rows(Schema::default(), rows);
    let (_, root) = db.singleton("Open_vSwitch").unwrap();
    let level = |n: &Notice| if n.missed { "WARN" } else { "INFO" };
    read(&db, root).iter().map(|n| format!("{} {}", level(n), n.text)).collect()
}

/// A notice on a column, or a key of a map.
fn one(table: &str, name: &str, value: &str) -> Vec<String> {
    let mut all = match table {
        "QoS" | "Queue" => vec![("QoS", "type", Datum::scalar("linux-htb"))],
        _ => Vec::new(),
    };
    all.push(match name.split_once(':') {
        Some((column, key)) => (table, column, Datum::map([(key, value)])),
        None => (table, name, Datum::scalar(value)),
    });
    texts(all)
}

#[test]
fn what_is_not_supported_is_said_by_row_and_name() {
    assert!(texts(vec![]).is_empty());
    let all = texts(vec![
        (
            "Open_vSwitch",
            "other_config",
            Datum::map([
                ("offload-rebalance", "true"),
                ("max-idle", "500"),
                ("n-handler-threads", "2"),
                ("typo", "1"),
            ]),
        ),
        ("Bridge", "stp_enable", Datum::scalar(true)),
        ("Bridge", "external_ids", Datum::map([("anything", "1")])),
        ("Port", "bond_fake_iface", Datum::scalar(true)),
        ("Interface", "type", Datum::scalar("dpdk")),
        (
            "Interface",
            "options",
            Datum::map([("n_rxq", "2"), ("dpdk-vf-mac", "02:00:00:00:00:01"), ("peer", "x")]),
        ),
        ("Interface", "bfd", Datum::map([("enable", "true"), ("min_xr", "100")])),
        ("Controller", "other_config", Datum::map([("dscp", "64")])),
        ("CT_Timeout_Policy", "timeouts", Datum::map([("udp_first", 1), ("tcp_unack", 2)])),
    ]);
    assert_eq!(
        all,
        [
            "INFO Open_vSwitch: other_config:n-handler-threads=2 has no effect (there are no handler and revalidator threads)",
            "WARN Open_vSwitch: other_config:offload-rebalance is not supported and has no effect (there is no kernel datapath)",
            "INFO Open_vSwitch: other_config:typo is not known and has no effect",
            "WARN bridge br0: controller ptcp:6653: other_config:dscp=64 is not supported and has no effect",
            "INFO interface p1 of type dpdk: options:peer is not known and has no effect",
            "INFO interface p1: bfd:min_xr is not known and has no effect",
            "WARN interface p1: options:dpdk-vf-mac is not supported and has no effect",
            "WARN port p1: bond_fake_iface is not supported and has no effect (a bond has no interface of its own)",
            "WARN zone 5: timeouts:tcp_unack is not supported and has no effect (connections have no such state)",
        ]
    );
}

#[test]
fn a_value_that_asks_for_nothing_is_no_news_and_a_changed_one_is() {
    assert!(one("Bridge", "other_config:disable-in-band", "true").is_empty());
    assert!(one("Interface", "bfd:enable", "false").is_empty());
    assert!(one("Controller", "target", "unix:/x").is_empty());
    assert!(one("Controller", "target", "ssl:192.0.2.1:1").is_empty());
    assert_eq!(one("Controller", "target", "udp:192.0.2.1:1").len(), 1);
    let db = |mode: &str| {
        let map = Datum::map([("bond-detect-mode", mode)]);
        let row: Row = [("other_config", map)].into_iter().collect();
        let mut walk =
            Walk { db: &Replica::default(), notices: BTreeSet::new(), qos: BTreeSet::new() };
        walk.row("Port", &row, &"port p1", "");
        walk.notices
    };
    assert_eq!((db("carrier").len(), db("miimon").len()), (0, 1));
    assert_eq!(db("miimon"), db("miimon"));
    assert_ne!(db("miimon"), db("other"), "the same text, and said again");
}

/// What cannot be read is said, whatever the setting wants; what can be read is not. A value that
/// Open vSwitch ignores in silence, too, is no reason to warn.
#[test]
fn a_value_of_another_form_is_said() {
    let cases: [(&str, &str, &[&str], &[&str]); 14] = [
        ("Open_vSwitch", "max-idle", &["100", "500"], &["-1", "1.5", "much", "1e3"]),
        ("Open_vSwitch", "hw-offload", &["true", "false"], &["yes", "TRUE", "1"]),
        ("Open_vSwitch", "pmd-auto-lb-load-threshold", &["0", "100"], &["101", "-1", "x"]),
        ("Open_vSwitch", "pmd-rxq-assign", &["group"], &["groups"]),
        ("Open_vSwitch", "pmd-sleep-max", &["0", "50,8:0", "8:9"], &["-1", "1,x", "1:x:2"]),
        ("Open_vSwitch", "flow-limit", &["1000"], &["-1", "0x400"]),
        ("Bridge", "mac-table-size", &["10"], &["-10", "many"]),
        ("Port", "lacp-time", &["fast", "Slow"], &["quick", "1"]),
        ("Port", "stp-port-priority", &["0", "0xff"], &["256", "0x100", "high"]),
        ("Bridge", "hwaddr", &["02:00:00:00:00:01"], &["01:00:00:00:00:01", "2:0:0:0:1", "x"]),
        (
            "Bridge",
            "datapath-id",
            &["0x1", "00000000000000ab"],
            &["0", "1234", "0x12345678901234567"],
        ),
        ("Port", "rstp-admin-p2p-mac", &["0", "1", "2"], &["3", "-1", "true", "auto", "0x0"]),
        ("Bridge", "stp-priority", &["0", "65535"], &["65536", "0x10"]),
        ("Port", "priority-tags", &["never", "always"], &["sometimes"]),
    ];
    for (table, key, good, bad) in cases {
        let said = |value: &&str| one(table, &format!("other_config:{key}"), value);
        assert!(good.iter().all(|value| said(value).is_empty()), "{key}");
        for value in bad {
            let all = said(value);
            let is_silent = !["pmd-rxq-assign", "stp-priority", "priority-tags"].contains(&key);
            let level = if is_silent { "INFO" } else { "WARN" };
            let shown = format!("other_config:{key}={value} is not ");
            assert!(all.len() == 1 && all[0].contains(&shown), "{key}={value}: {all:?}");
            assert!(all[0].starts_with(level), "{key}={value}: {all:?}");
        }
    }
}

#[test]
fn a_number_that_counts_as_another_one_is_said() {
    for (table, key, value, counts_as) in [
        ("Open_vSwitch", "flow-limit", "0", 1000),
        ("Open_vSwitch", "flow-limit", "5000000000", u32::MAX),
        ("Open_vSwitch", "max-idle", "1", 100),
        ("Open_vSwitch", "tx-flush-interval", "1000001", 1_000_000),
        ("Bridge", "mac-table-size", "4294967296", 1_000_000),
        ("Bridge", "mcast-snooping-table-size", "9", 10),
    ] {
        let all = one(table, &format!("other_config:{key}"), value);
        let end = format!("other_config:{key}={value} counts as {counts_as}");
        assert!(all.len() == 1 && all[0].ends_with(&end), "{all:?}");
    }
    let kind = ("Interface", "type", Datum::scalar("dummy-pmd"));
    let options = Datum::map([("n_rxq", "0"), ("n_txq", "1"), ("numa_id", "x")]);
    let all = texts(vec![kind, ("Interface", "options", options)]);
    assert_eq!(
        all,
        [
            "INFO interface p1: options:n_rxq=0 counts as 1 (of dummy-pmd ports; others have one)",
            "INFO interface p1: options:numa_id=x is not a number and has no effect",
        ]
    );
}

#[test]
fn what_users_write_is_one_short_line_of_the_log() {
    let long = "a".repeat(70_000);
    let all = one("Open_vSwitch", "other_config:max-idle", &format!("1\n2|emer|{long}"));
    assert!(all[0].len() < TEXT_LEN_MAX + 50, "{}", all[0].len());
    assert!(all[0].contains("max-idle=1\\n2|emer|aaa"), "{}", all[0]);
    assert!(all[0].ends_with("aaa is not a number and has no effect"), "{}", all[0]);
    assert!(one("Bridge", &format!("other_config:{long}"), "1")[0].len() < TEXT_LEN_MAX + 50);
}

#[test]
fn of_qos_the_type_or_what_it_does_not_have() {
    let of = |kind: &str, interface: &str, queue: i64| {
        texts(vec![
            ("QoS", "type", Datum::scalar(kind)),
            ("QoS", "queues", Datum::map([(queue, Uuid(30))])),
            ("QoS", "other_config", Datum::map([("cir", "9"), ("eir", "5")])),
            ("Interface", "type", Datum::scalar(interface)),
        ])
    };
    let unknown = "INFO port p1: qos: other_config:eir is not known and has no effect";
    let queues = |n: i64, why: &str| {
        format!("WARN port p1: qos: queues:{n} is not supported and has no effect ({why})")
    };
    assert_eq!(of("egress-policer", "dpdk", 0), [unknown, &queues(0, "the type has none")]);
    assert_eq!(of("linux-sfq", "", 0), [unknown, &queues(0, "the type has none")]);
    for kind in ["", "system", "internal", "tap"] {
        assert_eq!(of("linux-htb", kind, 0xefff), [unknown], "{kind}");
        assert_eq!(of("linux-htb", kind, 0xf000), [unknown, &queues(0xf000, "there are 61440")]);
    }
    for (kind, interface) in [("linux-htb", "dpdk"), ("linux-noop", "patch"), ("trtcm-policer", "")]
    {
        let said = of(kind, interface, 0);
        let what = format!("WARN port p1: qos: type={kind} is not supported and has no effect (");
        assert!(said.len() == 1 && said[0].starts_with(&what), "{said:?}");
    }
}

/// A row of QoS is looked at for the first of its ports only, all but its type, which may be right
/// for one port and not for another.
#[test]
fn a_row_of_qos_of_many_ports_is_looked_at_once() {
    let db = Replica::with_rows(
        Schema::default(),
        [("QoS".into(), Uuid(1), qos("linux-htb")), ("QoS".into(), Uuid(2), qos("x"))],
    );
    let mut walk = Walk { db: &db, notices: BTreeSet::new(), qos: BTreeSet::new() };
    for name in ["port p1: qos", "port p2: qos"] {
        [1, 2].into_iter().for_each(|uuid| walk.qos(&Row::default(), Uuid(uuid), name));
    }
    let said: Vec<_> = walk.notices.iter().map(|n| n.text.as_str()).collect();
    let type_of = |port| format!("port {port}: qos: type=x is not supported and has no effect");
    assert_eq!(said.len(), 3, "{said:?}");
    assert_eq!(said[0], "port p1: qos: other_config:typo is not known and has no effect");
    assert!(said[1].starts_with(&type_of("p1")) && said[2].starts_with(&type_of("p2")), "{said:?}");
}

fn qos(kind: &str) -> Row {
    let config = Datum::map([("typo", "1")]);
    [("type", Datum::scalar(kind)), ("other_config", config)].into_iter().collect()
}

/// Every setting that has no effect is said, whatever table it is in, and once.
#[test]
fn every_setting_without_effect_has_its_notice() {
    let mut checked = 0;
    for (table, knobs) in TABLES {
        for (name, state, _) in knobs.iter().filter(|(name, ..)| *name != "*") {
            let said =
                if *name == "target" { one(table, name, "x:") } else { one(table, name, "x") };
            let counts = !matches!(state, Support::Works | Support::Reported | Support::Foreign);
            assert_eq!(said.len(), usize::from(counts), "{table} {name}: {said:?}");
            checked += usize::from(counts);
        }
    }
    assert!(checked >= 30, "{checked}");
}

#[test]
fn no_column_of_the_schema_is_forgotten() {
    let schema = std::fs::read_to_string(SCHEMA).expect(SCHEMA);
    let schema: serde_json::Value = serde_json::from_str(&schema).unwrap();
    let tables = schema["tables"].as_object().unwrap();
    for (table, about) in tables {
        let (_, knobs) = TABLES.iter().find(|(name, _)| name == table).expect(table);
        for column in about["columns"].as_object().unwrap().keys() {
            let covers = |name: &str| {
                let map = MAPS.contains(&column.as_str());
                name == "*" || name == column || map && name.starts_with(&format!("{column}:"))
            };
            let known = knobs.iter().any(|(name, ..)| covers(name));
            // A map without a key of ours: all its keys are unknown, and said to be.
            assert!(known || column == "other_config", "{table}.{column}");
        }
        for (name, ..) in knobs.iter().filter(|(name, ..)| *name != "*") {
            let column = name.split(':').next().unwrap();
            assert!(about["columns"].get(column).is_some(), "{table} has no {column}");
        }
    }
    assert_eq!(tables.len(), TABLES.len());
}

fn label(state: Support) -> String {
    let list =
        |values: &[&str]| values.iter().map(|v| format!("`{v}`")).collect::<Vec<_>>().join(", ");
    match state {
        Support::Works => "works".into(),
        Support::Only(values) => format!("works for {}", list(values)),
        Support::Numbers(least, most) => format!("works for {least} to {most}"),
        Support::Of(Form::Between(least, most)) => format!("works for {least} to {most}"),
        Support::Of(Form::Flag) => "works for `true` and `false`".into(),
        Support::Of(Form::Whole) => "works for whole numbers".into(),
        Support::Within(least, u64::MAX) => format!("works for {least} and more, less as that"),
        Support::Within(least, most) => {
            format!("works for {least} to {most}, others as the nearest")
        }
        Support::Of(Form::Byte) => "works for 0 to 255".into(),
        Support::Of(Form::Pace) => "works for `fast` and `slow`".into(),
        Support::Of(Form::Address | Form::DatapathId | Form::Sleeps) => "works".into(),
        Support::No([]) => "no effect".into(),
        Support::No(idle) => format!("no effect ({} asks for none)", list(idle)),
        Support::Unneeded => "no effect".into(),
        Support::Reported => "reported".into(),
        Support::Foreign => "not for the switch".into(),
    }
}

/// The lines of one table, settings of which the same is to be said together.
fn lines(title: &str, prefix: &str, knobs: &[Knob]) -> String {
    let mut groups: Vec<((Support, &str), Vec<String>)> = Vec::new();
    for (name, state, remark) in knobs {
        let shown = if *name == "*" { "all columns".into() } else { format!("`{prefix}{name}`") };
        match groups.iter_mut().find(|(about, _)| *about == (*state, *remark)) {
            Some((_, names)) => names.push(shown),
            None => groups.push(((*state, *remark), vec![shown])),
        }
    }
    let line = |((state, remark), names): ((Support, &str), Vec<String>)| {
        let remark = if remark.is_empty() { String::new() } else { format!(": {remark}") };
        format!("| {title} | {} | {}{remark} |\n", names.join(", "), label(state))
    };
    groups.into_iter().map(line).collect()
}

#[test]
fn the_documentation_says_the_same() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/SUPPORT.md");
    let doc = std::fs::read_to_string(path).unwrap();
    let mut want = String::from("| table | columns and keys | |\n|---|---|---|\n");
    for (table, knobs) in TABLES {
        want += &lines(&format!("`{table}`"), "", knobs);
        if *table == "Interface" {
            for (kinds, knobs) in OPTIONS {
                want += &lines(
                    &format!("`{table}` of type {}", kinds.replace(' ', ", ")),
                    "options:",
                    knobs,
                );
            }
        }
    }
    let parts: Vec<&str> = doc.split(MARK).collect();
    let [before, is, after] = parts[..] else { panic!("{MARK} must be there twice") };
    if is != want && std::env::var_os("WEFT_WRITE_DOCS").is_some() {
        std::fs::write(path, [before, &want, after].join(MARK)).unwrap();
    }
    assert!(is == want, "run this test once with WEFT_WRITE_DOCS=1");
}
