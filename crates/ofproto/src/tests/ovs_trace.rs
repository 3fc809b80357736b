//! The installed OVS 3.1 as oracle: `trace_ovs.txt` holds what its `ofproto/trace` said about the
//! flows below, with `recirc_id` and the numbers of recirculations left out.

use crate::tests::{apply, flow, out};
use crate::*;
use flow::{Field, NO_PORT, at, parse_match};
use openflow::*;
use sync::Domain;

fn set(field: Field, value: u128) -> Action {
    Action::SetField { field, value, mask: field.full() }
}

fn whole(field: Field) -> Subfield {
    Subfield { field, ofs: 0, bits: field.bits() as u16 }
}

fn part(field: Field, bits: u16) -> Subfield {
    Subfield { field, ofs: 0, bits }
}

fn resubmit(table: u8) -> Action {
    Action::Resubmit { in_port: None, table: Some(table), ct: false }
}

fn controller(max_len: u16) -> Action {
    let reason = Reason::Action;
    Action::Controller { max_len, reason, id: 0, userdata: vec![], pause: false, meter: None }
}

fn port(of_port: u32, name: &str, dp_port: Option<u16>, peer: Option<&str>) -> PortSpec {
    PortSpec {
        of_port,
        name: name.into(),
        bundle: name.into(),
        dp_port,
        patch_peer: peer.map(Into::into),
        ..PortSpec::default()
    }
}

fn flows() -> Vec<FlowMod> {
    let ttl = Action::DecTtl { ids: None };
    let (push_vlan, push_mpls) =
        (Action::PushVlan { ethertype: 0x8100 }, Action::PushMpls { ethertype: 0x8847 });
    let list = |list| apply(list);
    let mut cookie = flow(2, 32768, "reg0=5", list(vec![Action::Group(2)]));
    cookie.cookie = 5;
    let load = Action::Load { dst: whole(Field::Reg(0)), value: 5 };
    let bits = Action::Move { src: part(Field::EthSrc, 16), dst: part(Field::Reg(1), 16) };
    let reg = Action::OutputReg { src: whole(Field::Reg(1)), max_len: 0xffff };
    let clone = Action::Clone(vec![set(Field::IpTtl, 9), out(1)]);
    let label = Action::Load { dst: part(Field::Ipv6Label, 8), value: 5 };
    let to = |p| out(p);
    vec![
        flow(
            0,
            100,
            "ip,in_port=1,nw_dst=10.0.0.0/8",
            list(vec![set(Field::Ipv4Dst, 0x0a01_0101), ttl, resubmit(1), to(4)]),
        ),
        flow(0, 90, "arp", list(vec![to(port::NORMAL)])),
        flow(
            0,
            32768,
            "in_port=2",
            vec![Instruction::Write(vec![to(3), Action::Group(2)]), Instruction::Goto(2)],
        ),
        flow(
            0,
            32768,
            "in_port=3",
            list(vec![
                push_vlan,
                set(Field::VlanVid, 4097),
                to(1),
                Action::StripVlan { pop: true },
                to(2),
            ]),
        ),
        flow(0, 10, "in_port=4", list(vec![to(9), controller(100)])),
        flow(
            0,
            150,
            "tcp,in_port=4",
            list(vec![
                clone,
                bits,
                reg,
                set(Field::EthSrc, 10),
                to(port::IN_PORT),
                Action::Exit,
                to(2),
            ]),
        ),
        flow(
            0,
            150,
            "icmp,in_port=4",
            list(vec![
                Action::Push(whole(Field::EthSrc)),
                Action::Pop(whole(Field::EthDst)),
                set(Field::Icmpv4Type, 5),
                to(1),
                to(7),
                to(port::LOCAL),
            ]),
        ),
        flow(
            0,
            150,
            "tcp6,in_port=4",
            list(vec![set(Field::Ipv6Dst, 5), label, set(Field::TcpDst, 5), to(port::ALL)]),
        ),
        flow(
            0,
            150,
            "mpls,in_port=4",
            list(vec![
                set(Field::MplsLabel, 9),
                Action::DecMplsTtl,
                to(1),
                push_mpls.clone(),
                set(Field::MplsLabel, 10),
                to(2),
            ]),
        ),
        flow(0, 150, "sctp,in_port=4", list(vec![push_mpls, to(1)])),
        flow(
            0,
            150,
            "arp,in_port=4",
            list(vec![
                set(Field::ArpOp, 2),
                set(Field::ArpSha, 7),
                set(Field::ArpSpa, 0x0101_0101),
                to(1),
            ]),
        ),
        flow(1, 32768, "tcp", list(vec![to(2), load, resubmit(2)])),
        flow(1, 32768, "udp", list(vec![Action::Group(1)])),
        cookie,
        flow(2, 32768, "", vec![Instruction::WriteMetadata { value: 1, mask: u64::MAX }]),
        flow(
            0,
            200,
            "mpls,in_port=1",
            list(vec![Action::PopMpls { ethertype: 0x0800 }, resubmit(1)]),
        ),
        flow(0, 200, "in_port=1,vlan_tci=0x1000/0x1000", list(vec![to(port::FLOOD)])),
    ]
}

fn group(id: u32, kind: GroupType, lists: Vec<Vec<Action>>) -> GroupMod {
    let bucket = |(id, actions): (usize, Vec<Action>)| Bucket {
        id: id as u32,
        weight: 1,
        watch_port: port::ANY,
        watch_group: GROUP_ANY,
        actions,
    };
    GroupMod {
        command: GroupCommand::Add,
        kind,
        id,
        buckets: lists.into_iter().enumerate().map(bucket).collect(),
        selection_method: String::new(),
        selection_param: 0,
        selection_fields: vec![],
    }
}

fn two_bridges() -> (Switch, BridgeId, BridgeId) {
    let mut sw = Switch::new(Domain::new().writer());
    let secure = BridgeConfig { fail_mode: FailMode::Secure, ..BridgeConfig::default() };
    let br0 = sw.add_bridge("br0", secure, 0).unwrap();
    let br1 = sw.add_bridge("br1", BridgeConfig::default(), 0).unwrap();
    for i in 1..=4 {
        sw.add_port(br0, port(i, &format!("p{i}"), Some(i as u16), None)).unwrap();
    }
    sw.add_port(br0, port(port::LOCAL, "br0", Some(100), None)).unwrap();
    sw.add_port(br0, port(9, "pp0", None, Some("pp1"))).unwrap();
    sw.add_port(br1, port(9, "pp1", None, Some("pp0"))).unwrap();
    sw.add_port(br1, port(1, "q1", Some(5), None)).unwrap();
    sw.add_port(br1, port(port::LOCAL, "br1", Some(101), None)).unwrap();
    let first = vec![set(Field::EthDst, 1), out(1), out(3)];
    let second = vec![Action::DecTtl { ids: None }, out(2)];
    sw.group_mod(br0, &group(1, GroupType::All, vec![first, second]), 0).unwrap();
    sw.group_mod(br0, &group(2, GroupType::Indirect, vec![vec![out(3)]]), 0).unwrap();
    for m in flows() {
        sw.flow_mod(br0, &m, 0).unwrap_or_else(|e| panic!("{e} {m:?}"));
    }
    sw.install_default_flow(br1, 0).unwrap();
    (sw, br0, br1)
}

/// What legitimately differs: the order of a flood's ports, the ids of recirculations, names of
/// hidden rules and of the slow path, and the label behind the top one.
fn normal_form(text: &str) -> String {
    let line = |l: &str| {
        let l = l.strip_prefix("Datapath actions: ").map_or(l.into(), ops_form);
        without_state_id(l)
            .replace(" 0. reg0=0x2, priority 0", " 0. No match.")
            .replace("icmp_type=0x0/0xff,icmp_code=0x0/0xff", "icmp_type=0,icmp_code=0")
            .replace(",mpls_lse1=37126", "")
    };
    let wanted = |l: &&str| !l.starts_with("This flow") && !l.starts_with("  - ");
    text.lines().filter(wanted).map(line).collect::<Vec<_>>().join("\n")
}

/// The number of a controller's state differs between implementations, so it is removed.
fn without_state_id(line: String) -> String {
    match line.split_once(",recirc_id=").and_then(|(a, b)| Some((a, b.split_once(",rule")?.1))) {
        Some((before, behind)) => format!("{before},rule{behind}"),
        None => line,
    }
}

fn ops_form(ops: &str) -> String {
    let ops =
        ops.split_once("recirc(").map_or(ops.into(), |(before, _)| format!("{before}recirc(N)"));
    let is_port = |p: &&str| p.parse::<u16>().is_ok();
    let mut ports: Vec<&str> = ops.split(',').filter(is_port).collect();
    if ops.contains("set(eth") || ops.contains("set(ipv4") {
        return ops;
    }
    ports.sort();
    let mut ports = ports.into_iter();
    let part =
        |p: &str| if is_port(&p) { ports.next().unwrap_or_default().into() } else { p.into() };
    ops.split(',').map(part).collect::<Vec<String>>().join(",")
}

#[test]
fn traces_are_those_of_ovs() {
    let (sw, br0, br1) = two_bridges();
    let mut different = Vec::new();
    let mut cases = 0;
    for case in include_str!("trace_ovs.txt").split("##### ").skip(1) {
        cases += 1;
        let (title, want) = case.split_once('\n').unwrap();
        let (bridge, packet) = title.split_once(' ').unwrap();
        let (mut key, _) = parse_match(packet, &|_| None).unwrap();
        key.set_u16(at::IN_PORT, NO_PORT);
        let id = if bridge == "br0" { br0 } else { br1 };
        let have = sw.trace(id, &key, &Options::default(), &crate::TraceStyle::default()).unwrap();
        if normal_form(&have).trim() != normal_form(want).trim() {
            different.push(format!("### {title}\n--- OVS\n{want}\n--- here\n{have}"));
        }
    }
    assert_eq!(cases, 20);
    assert!(different.is_empty(), "{}", different.join("\n"));
}
