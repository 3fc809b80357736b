use super::*;
use crate::config::{LinuxQos, Numbers};
use ovsdb::{Datum, Schema};

fn uuid(n: u128) -> Uuid {
    Uuid(n)
}

/// Bridge br0 (2) with ports br0 (3) and p1 (4), a bond of interfaces p1 (6) and p2 (7).
fn database(extra: Vec<(&str, Uuid, &str, Datum)>) -> Replica {
    let mut rows: BTreeMap<(String, Uuid), Vec<(String, Datum)>> = BTreeMap::new();
    let mut all = vec![
        ("Open_vSwitch", uuid(1), "next_cfg", Datum::scalar(5)),
        ("Open_vSwitch", uuid(1), "bridges", Datum::set([uuid(2)])),
        ("Bridge", uuid(2), "name", Datum::scalar("br0")),
        ("Bridge", uuid(2), "ports", Datum::set([uuid(3), uuid(4), uuid(99)])),
        ("Port", uuid(3), "name", Datum::scalar("br0")),
        ("Port", uuid(3), "interfaces", Datum::set([uuid(5)])),
        ("Port", uuid(4), "name", Datum::scalar("bond")),
        ("Port", uuid(4), "interfaces", Datum::set([uuid(6), uuid(7)])),
        ("Interface", uuid(5), "name", Datum::scalar("br0")),
        ("Interface", uuid(6), "name", Datum::scalar("p1")),
        ("Interface", uuid(7), "name", Datum::scalar("p2")),
    ];
    all.extend(extra);
    for (table, id, column, value) in all {
        rows.entry((table.to_owned(), id)).or_default().push((column.to_owned(), value));
    }
    let rows =
        rows.into_iter().map(|((table, id), columns)| (table, id, columns.into_iter().collect()));
    Replica::with_rows(Schema::default(), rows)
}

fn read(db: &Replica) -> Option<Desired> {
    Desired::read(db, &mut KnownQos::default())
}

#[test]
fn a_bare_database_has_defaults() {
    let desired = read(&database(vec![])).unwrap();
    assert_eq!((desired.next_cfg, desired.stats_interval()), (5, Duration::from_secs(5)));
    let bridge = desired.bridge("br0").unwrap();
    assert_eq!((bridge.datapath_type.as_str(), bridge.fail_mode), ("system", FailMode::Standalone));
    let names: Vec<_> = bridge.interfaces().map(|i| (i.name.as_str(), i.kind.as_str())).collect();
    assert_eq!(names, [("p1", "system"), ("p2", "system"), ("br0", "internal")]);
    assert_eq!(bridge.ports[0].vlan_mode, VlanMode::Trunk);
    assert_eq!(read(&Replica::default()), None);
}

#[test]
fn columns_reach_their_fields() {
    let desired = read(&database(vec![
        ("Open_vSwitch", uuid(1), "other_config", Datum::map([("stats-update-interval", "9000")])),
        ("Open_vSwitch", uuid(1), "datapaths", Datum::map([("netdev", uuid(40))])),
        ("Bridge", uuid(2), "datapath_type", Datum::scalar("netdev")),
        ("Bridge", uuid(2), "fail_mode", Datum::scalar("secure")),
        ("Bridge", uuid(2), "controller", Datum::set([uuid(20)])),
        ("Bridge", uuid(2), "flow_tables", Datum::map([(3, uuid(30)), (999, uuid(30))])),
        ("Controller", uuid(20), "target", Datum::scalar("tcp:1.2.3.4:5")),
        ("Controller", uuid(20), "inactivity_probe", Datum::scalar(0)),
        ("Flow_Table", uuid(30), "flow_limit", Datum::scalar(7)),
        ("Port", uuid(4), "tag", Datum::scalar(10)),
        ("Port", uuid(4), "trunks", Datum::set([1, 2, 5000])),
        ("Interface", uuid(6), "type", Datum::scalar("dpdk")),
        ("Interface", uuid(6), "options", Datum::map([("dpdk-devargs", "net_null0")])),
        ("Interface", uuid(6), "mtu_request", Datum::scalar(9000)),
        ("Interface", uuid(6), "ofport_request", Datum::scalar(8)),
    ]))
    .unwrap();
    assert_eq!(desired.stats_interval(), Duration::from_secs(9));
    assert_eq!(desired.datapaths["netdev"], uuid(40));
    let bridge = &desired.bridges[0];
    assert_eq!((bridge.datapath_type.as_str(), bridge.fail_mode), ("netdev", FailMode::Secure));
    let controller = &bridge.controllers[0];
    assert_eq!(controller.target, "tcp:1.2.3.4:5");
    assert_eq!(controller.inactivity_probe, Duration::ZERO);
    assert_eq!((controller.max_backoff, controller.async_messages), (Duration::from_secs(8), true));
    assert_eq!(bridge.flow_tables.keys().collect::<Vec<_>>(), [&3]);
    assert_eq!(bridge.flow_tables[&3].flow_limit, Some(7));
    let bond = &bridge.ports[0];
    assert_eq!((bond.tag, bond.vlan_mode, &bond.trunks), (Some(10), VlanMode::Access, &vec![1, 2]));
    let p1 = &bond.interfaces[0];
    assert_eq!(
        (p1.kind.as_str(), p1.mtu_request, p1.ofport_request),
        ("dpdk", Some(9000), Some(8))
    );
    assert_eq!(p1.options["dpdk-devargs"], "net_null0");
}

#[test]
fn qos_of_a_port_is_that_of_its_interfaces() {
    let qos = |kind: &str, config: &[(&str, &str)]| {
        let desired = read(&database(vec![
            ("Port", uuid(4), "qos", Datum::set([uuid(50)])),
            ("QoS", uuid(50), "type", Datum::scalar(kind)),
            ("QoS", uuid(50), "other_config", Datum::map(config.iter().copied())),
        ]));
        let all: Vec<_> =
            desired.unwrap().bridges[0].interfaces().map(|i| i.qos.as_deref().cloned()).collect();
        assert_eq!((&all[0], &all[2]), (&all[1], &None), "p1, p2 and br0");
        all[0].clone()
    };
    let policer = |cir, cbs| Some(QosConf::EgressPolicer { cir, cbs });
    let asked = qos("egress-policer", &[("cir", "46000000"), ("cbs", "2048"), ("ebs", "1")]);
    assert_eq!(asked, policer(46_000_000, 2048));
    assert_eq!(qos("egress-policer", &[("cir", "-1"), ("cbs", "2k")]), policer(0, 0));
    assert_eq!(qos("trtcm-policer", &[("cir", "1")]), Some(QosConf::Other("trtcm-policer".into())));
    let linux = |kind, config: &[(&str, u64)], queues: &[u32]| {
        let config = config.iter().map(|(key, n)| (key.to_string(), *n)).collect();
        let queues = queues.iter().map(|id| (*id, Numbers::new())).collect();
        Some(QosConf::Linux(LinuxQos { kind, config, queues }))
    };
    let asked = qos("linux-htb", &[("max-rate", "800"), ("x", "1k")]);
    assert_eq!(asked, linux("linux-htb", &[("max-rate", 800)], &[0]), "there is always a queue 0");
    assert_eq!(qos("linux-sfq", &[]), linux("linux-sfq", &[], &[]));
    assert_eq!(qos("", &[("cir", "1")]), None);
}

/// However many ports have a row of QoS, and however often others are written, its queues are one
/// thing in memory, which is equal to itself at a glance.
#[test]
fn a_row_of_qos_is_there_once_for_all_ports_and_looks() {
    let look = |known: &mut KnownQos, rate: &str| {
        let queue = ("Queue", uuid(60), "other_config", Datum::map([("max-rate", rate)]));
        let db = database(vec![
            ("Port", uuid(3), "qos", Datum::set([uuid(50)])),
            ("Port", uuid(4), "qos", Datum::set([uuid(50)])),
            ("QoS", uuid(50), "type", Datum::scalar("linux-htb")),
            ("QoS", uuid(50), "queues", Datum::map((0..100).map(|id| (id, uuid(60))))),
            ("Queue", uuid(60), "dscp", Datum::scalar(7)),
            queue,
        ]);
        let desired = Desired::read(&db, known).unwrap();
        let all = desired.bridges[0].interfaces();
        all.map(|i| (i.qos.clone().unwrap(), i.queue_dscp.clone())).collect::<Vec<_>>()
    };
    let same = |a: &(Arc<QosConf>, _), b: &(Arc<QosConf>, _)| {
        Arc::ptr_eq(&a.0, &b.0) && Arc::<BTreeMap<u32, u8>>::ptr_eq(&a.1, &b.1)
    };
    let mut known = KnownQos::default();
    let first = look(&mut known, "100");
    assert!(first.len() == 3 && first[0].1.len() == 100);
    assert!(first.iter().all(|one| same(one, &first[0])), "all ports");
    assert!(same(&look(&mut known, "100")[0], &first[0]), "another look");
    let changed = look(&mut known, "200");
    assert!(changed[0].0 != first[0].0 && same(&look(&mut known, "200")[0], &changed[0]));
}

#[test]
fn the_last_number_is_a_wish_and_no_change() {
    let with =
        |ofport| read(&database(vec![("Interface", uuid(6), "ofport", Datum::scalar(ofport))]));
    let last = |ofport| with(ofport).unwrap().bridges[0].ports[0].interfaces[0].last_ofport.0;
    assert_eq!([last(4), last(-1), last(65534)], [Some(4), None, None]);
    assert_eq!(with(4), with(5));
}

#[test]
fn a_name_used_twice_is_a_conflict_and_disturbs_nothing_else() {
    let desired = read(&database(vec![
        ("Bridge", uuid(2), "ports", Datum::set([uuid(3), uuid(4), uuid(8)])),
        ("Port", uuid(8), "name", Datum::scalar("zz")),
        ("Port", uuid(8), "interfaces", Datum::set([uuid(9)])),
        ("Interface", uuid(9), "name", Datum::scalar("p1")),
    ]))
    .unwrap();
    assert_eq!(desired.conflicts.len(), 1);
    assert_eq!(desired.conflicts[0].interface, uuid(9));
    assert_eq!(desired.bridges[0].ports.len(), 2);
}

#[test]
fn datapath_ids_are_read_as_documented() {
    let id = |text: &str| {
        let other_config = BTreeMap::from([("datapath-id".to_owned(), text.to_owned())]);
        BridgeConf { other_config, ..Default::default() }.datapath_id()
    };
    assert_eq!(id("0000000000000abc"), Some(0xabc));
    assert_eq!(id("0x1F"), Some(0x1f));
    for bad in
        ["abc", "0000000000000000", "0x", "+000000000000abc", "0x11112222333344445", "éééééééé"]
    {
        assert_eq!(id(bad), None, "{bad}");
    }
}
