use super::*;
use crate::config::{IfaceConf, MirrorConf};

fn port(name: &str, settings: &[(&str, &str)]) -> PortConf {
    let iface = IfaceConf { name: name.into(), kind: "system".into(), ..IfaceConf::default() };
    let other_config = settings.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    PortConf { name: name.into(), other_config, interfaces: vec![iface], ..PortConf::default() }
}

fn bridge(settings: &[(&str, &str)], ports: Vec<PortConf>) -> BridgeConf {
    let other_config = settings.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    BridgeConf { name: "br0".into(), stp: true, other_config, ports, ..BridgeConf::default() }
}

fn asked(bridge: &BridgeConf) -> (Option<Asked>, Vec<String>) {
    let before = [("c".to_string(), 1)].into();
    read(bridge, [2; 6], &before, |name| {
        let last = name.as_bytes().last().copied()?;
        (name != "absent").then_some((last.into(), if name == "slow" { 100 } else { 0 }))
    })
}

/// Names, numbers, priorities and costs.
fn ports_of(asked: Option<Asked>) -> Vec<(String, u16, u8, u32)> {
    let ports = asked.unwrap().ports.into_iter();
    ports.map(|p| (p.iface, p.number, p.priority, p.path_cost)).collect()
}

#[test]
fn defaults_and_settings_of_a_bridge() {
    let (tree, wrong) = asked(&bridge(&[], vec![]));
    let tree = tree.unwrap();
    assert!(wrong.is_empty());
    assert_eq!(tree.id, BridgeId::new(0x8000, [2; 6]));
    assert_eq!((tree.hello_ms, tree.max_age_ms, tree.forward_delay_ms), (2000, 20_000, 15_000));
    let settings = [
        ("stp-priority", "4096"),
        ("stp-system-id", "02:00:00:00:00:07"),
        ("stp-hello-time", "3"),
        ("stp-max-age", "30"),
        ("stp-forward-delay", "16"),
    ];
    let tree = asked(&bridge(&settings, vec![])).0.unwrap();
    assert_eq!(tree.id, BridgeId::new(0x1000, [2, 0, 0, 0, 0, 7]));
    assert_eq!((tree.hello_ms, tree.max_age_ms, tree.forward_delay_ms), (3000, 30_000, 16_000));
    let (tree, wrong) = asked(&bridge(&[("stp-system-id", "x")], vec![]));
    assert_eq!(tree.unwrap().id.mac(), [2; 6]);
    let text = "bridge br0: invalid stp-system-id, defaulting to 02:02:02:02:02:02";
    assert_eq!(wrong, [text]);
    assert!(asked(&BridgeConf { stp: false, ..bridge(&[], vec![]) }).0.is_none());
}

#[test]
fn ports_get_numbers_and_keep_them() {
    let ports = ["a", "b", "c", "slow", "absent"].map(|name| port(name, &[]));
    let (tree, wrong) = asked(&bridge(&[], ports.to_vec()));
    assert!(wrong.is_empty());
    let all = ports_of(tree);
    let expected = [("c", 1, 128, 2), ("a", 2, 128, 2), ("b", 3, 128, 2), ("slow", 4, 128, 19)];
    assert_eq!(all, expected.map(|(name, n, p, c)| (name.to_string(), n, p, c)));
    let settings = [("stp-port-num", "9"), ("stp-path-cost", "77"), ("stp-port-priority", "0x20")];
    let all = ports_of(asked(&bridge(&[], vec![port("a", &settings)])).0);
    assert_eq!(all, [("a".to_string(), 9, 32, 77)]);
}

#[test]
fn what_takes_no_part_and_what_is_wrong() {
    let mut internal = port("i", &[]);
    internal.interfaces[0].kind = "internal".into();
    let mut bond = port("bond", &[]);
    bond.interfaces.push(bond.interfaces[0].clone());
    let off = port("off", &[("stp-enable", "false")]);
    let mut conf = bridge(&[], vec![internal, bond, off, port("out", &[]), port("p", &[])]);
    conf.mirrors = vec![MirrorConf { output_port: Some("out".into()), ..MirrorConf::default() }];
    let (tree, wrong) = asked(&conf);
    assert_eq!(ports_of(tree).len(), 1);
    assert_eq!(wrong, ["port bond: cannot enable STP on bonds, disabling"]);
    let taking: Vec<bool> = conf.ports.iter().map(|p| takes_part(&conf, p)).collect();
    assert_eq!(taking, [false, false, false, false, true]);

    let numbered = |name: &str, number: &str| port(name, &[("stp-port-num", number)]);
    let all = vec![numbered("a", "1"), numbered("b", "1"), numbered("d", "256")];
    let (tree, wrong) = asked(&bridge(&[], all));
    assert_eq!(ports_of(tree).len(), 1);
    assert_eq!(
        wrong,
        ["port b: duplicate stp-port-num 1, disabling", "port d: invalid stp-port-num"]
    );
    let (tree, wrong) = asked(&bridge(&[], vec![numbered("a", "1"), port("b", &[])]));
    assert!(tree.is_none());
    let text = "bridge br0: must manually configure all STP port IDs or none, disabling";
    assert_eq!(wrong, [text]);
    let many = (0..300).map(|n| port(&format!("p{n:03}"), &[])).collect();
    let (tree, wrong) = asked(&bridge(&[], many));
    assert_eq!((ports_of(tree).len(), wrong.len()), (255, 45));
}

#[test]
fn rstp_has_settings_of_its_own_and_goes_before_stp() {
    let settings = [
        ("rstp-priority", "4097"),
        ("rstp-address", "02:00:00:00:00:07"),
        ("rstp-max-age", "30"),
        ("rstp-forward-delay", "16"),
        ("rstp-transmit-hold-count", "99"),
        ("rstp-force-protocol-version", "0"),
        ("stp-priority", "1"),
    ];
    let of_port = [
        ("rstp-port-num", "300"),
        ("rstp-port-priority", "16"),
        ("rstp-path-cost", "70000"),
        ("rstp-port-admin-edge", "true"),
        ("rstp-port-auto-edge", "false"),
        ("rstp-port-mcheck", "true"),
        ("stp-enable", "false"),
    ];
    let conf = bridge(&settings, vec![port("a", &of_port), port("b", &[]), port("d", &of_port)]);
    let (tree, wrong) = asked(&BridgeConf { rstp: true, ..conf });
    let tree = tree.unwrap();
    let both = "br0: RSTP and STP are mutually exclusive but both are configured; enabling RSTP";
    assert_eq!(wrong, [both]);
    assert!(tree.rapid && tree.stp_only);
    assert_eq!(tree.id, BridgeId::new(0x1000, [2, 0, 0, 0, 0, 7]));
    assert_eq!((tree.max_age_ms, tree.forward_delay_ms, tree.hold_count), (30_000, 16_000, 10));
    let a = &tree.ports.iter().find(|p| p.iface == "a").unwrap();
    let rapid = RstpPortConf {
        priority: 16,
        path_cost: 70_000,
        admin_edge: true,
        auto_edge: false,
        point_to_point: true,
    };
    assert_eq!((a.number, a.checks, a.rapid), (300, true, rapid));
    let numbers: Vec<(&str, u16)> = tree.ports.iter().map(|p| (&*p.iface, p.number)).collect();
    assert_eq!(
        numbers,
        [("b", 1), ("d", 2), ("a", 300)],
        "who asks for a number in use gets another"
    );
    assert_eq!(tree.ports[0].path_cost, 2000);
}

/// What ovs-vswitchd 3.1 makes of each value; 2, the standard's "auto", is not point-to-point.
#[test]
fn a_link_is_point_to_point_unless_a_number_says_otherwise() {
    for (value, expected) in [
        (None, true),
        (Some("1"), true),
        (Some("0"), false),
        (Some("00"), false),
        (Some("2"), false),
        (Some("auto"), true),
        (Some("false"), true),
        (Some("0x0"), true),
    ] {
        let settings: Vec<_> = value.iter().map(|v| ("rstp-admin-p2p-mac", *v)).collect();
        let conf = bridge(&[], vec![port("a", &settings)]);
        let tree = asked(&BridgeConf { rstp: true, ..conf }).0.unwrap();
        let a = tree.ports.iter().find(|p| p.iface == "a").unwrap();
        assert_eq!(a.rapid.point_to_point, expected, "{value:?}");
    }
}
