//! What the switch sends, read back by `ovs-ofctl ofp-parse` (skipped where that is not installed).

use std::io::Write;
use std::process::{Command, Stdio};

use flow::Field;
use openflow::codec::{Dialect, Form, ReplyTo, encode, encode_hello, hello_failed};
use openflow::*;

const VERSIONS: [Version; 6] =
    [Version::V10, Version::V11, Version::V12, Version::V13, Version::V14, Version::V15];

/// The messages as text; `None` without ovs-ofctl.
fn print(messages: &[Vec<u8>]) -> Option<String> {
    let mut child = Command::new("ovs-ofctl")
        .args(["ofp-parse", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .ok()?;
    for m in messages {
        assert_eq!(usize::from(u16::from_be_bytes([m[2], m[3]])), m.len());
    }
    let bytes = messages.concat();
    let mut input = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || input.write_all(&bytes));
    let out = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.stderr.is_empty(), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(!text.contains("***"), "ovs-ofctl cannot read it: {text}");
    Some(text)
}

/// Asserts that the text has each of the parts.
fn expect(messages: &[Vec<u8>], parts: &[&str]) {
    let Some(text) = print(messages) else { return };
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
}

fn to(xid: u32, form: Form) -> ReplyTo {
    ReplyTo { xid, form }
}

fn exact(fields: &[(Field, u128)]) -> Match {
    let mut m = Match::default();
    for (field, value) in fields {
        field.set(&mut m.key, *value);
        field.unwildcard(&mut m.mask);
    }
    m
}

fn tcp80() -> Match {
    exact(&[(Field::InPort, 1), (Field::EthType, 0x800), (Field::IpProto, 6), (Field::TcpDst, 80)])
}

fn flow_stats() -> FlowStats {
    FlowStats {
        table: 3,
        priority: 7,
        matching: tcp80(),
        cookie: 0x2a,
        idle_timeout: 9,
        hard_timeout: 60,
        importance: 5,
        flags: flow_flag::SEND_FLOW_REM,
        duration_ns: 12_345_000_000,
        idle_age: Some(4),
        hard_age: Some(8),
        packets: 11,
        bytes: 660,
        instructions: vec![],
    }
}

fn port_desc() -> PortDesc {
    PortDesc {
        port: 1,
        hw_addr: [2, 0, 0, 0, 0, 1],
        name: "eth-one".into(),
        config: port_config::NO_RECV,
        state: port_state::LIVE,
        curr: 1 << 6 | 1 << 12,
        curr_speed: 10_000_000,
        max_speed: 10_000_000,
        ..PortDesc::default()
    }
}

#[test]
fn hello_and_its_failure() {
    expect(&[encode_hello(1, 0x72)], &["version bitmap: 0x01, 0x04, 0x05, 0x06"]);
    expect(&[hello_failed(1, 0x70, 0x02)], &["OFPHFC_INCOMPATIBLE", "we support versions 0x70"]);
}

#[test]
fn echo_and_barrier() {
    for v in VERSIONS {
        expect(&encode(v, 5, &Reply::EchoReply(vec![1, 2, 3])), &["OFPT_ECHO_REPLY", "3 bytes"]);
        expect(&encode(v, 5, &Reply::Barrier), &["OFPT_BARRIER_REPLY", "xid=0x5"]);
    }
}

#[test]
fn features_and_ports() {
    for v in VERSIONS {
        let ports = vec![port_desc()];
        let reply = Reply::Features { dpid: 0xabc, n_buffers: 0, n_tables: 254, ports };
        let messages = encode(v, 2, &reply);
        expect(&messages, &["dpid:0000000000000abc", "n_tables:254", "FLOW_STATS TABLE_STATS"]);
        if v == Version::V10 {
            expect(&messages, &["actions: output enqueue", "addr:02:00:00:00:00:01"]);
        }
        let reply = Reply::Multipart(MultipartReply::PortDesc(vec![port_desc()]));
        let parts = ["1(eth-one): addr:02:00:00:00:00:01", "NO_RECV", "10GB-FD"];
        expect(&encode(v, 2, &reply), &parts);
        let reply = Reply::PortStatus { reason: 2, desc: port_desc() };
        expect(&encode(v, 0, &reply), &["OFPT_PORT_STATUS", "MOD: 1(eth-one)"]);
    }
}

#[test]
fn flows_in_every_form() {
    let reply = Reply::Multipart(MultipartReply::Flow(vec![flow_stats(), flow_stats()]));
    let common = ["cookie=0x2a, duration=12.345s, table=3, n_packets=11, n_bytes=660,"];
    for v in VERSIONS {
        let messages = encode(v, 4, &reply);
        expect(&messages, &common);
        expect(&messages, &["idle_timeout=9,", "hard_timeout=60,", "priority=7,tcp"]);
        expect(&messages, &["in_port=1,tp_dst=80 actions=drop"]);
        if v >= Version::V13 {
            expect(&messages, &["send_flow_rem"]);
        }
        if v >= Version::V14 {
            expect(&messages, &["importance=5"]);
        }
    }
    let messages = encode(Version::V10, to(4, Form::Nicira), &reply);
    expect(&messages, &["NXST_FLOW reply", "idle_age=4, hard_age=8, priority=7,tcp"]);
    expect(&messages, &common);
}

#[test]
fn aggregates() {
    let aggregate = MultipartReply::Aggregate { packets: 3, bytes: 180, flows: 2 };
    let reply = Reply::Multipart(aggregate);
    for v in VERSIONS {
        let text = "packet_count=3 byte_count=180 flow_count=2";
        expect(&encode(v, 1, &reply), &["AGGREGATE reply", text]);
    }
    expect(&encode(Version::V10, to(1, Form::Nicira), &reply), &["NXST_AGGREGATE reply"]);
}

#[test]
fn long_replies_are_cut_into_messages() {
    let reply = Reply::Multipart(MultipartReply::Flow(vec![flow_stats(); 1500]));
    for v in VERSIONS {
        let messages = encode(v, 4, &reply);
        assert!(messages.len() > 1);
        for (i, m) in messages.iter().enumerate() {
            assert!(m.len() > 40 && m.len() <= 0xffff);
            let more = u16::from_be_bytes([m[10], m[11]]);
            assert_eq!(more, u16::from(i + 1 < messages.len()));
        }
        if let Some(text) = print(&messages) {
            assert_eq!(text.matches("cookie=0x2a").count(), 1500);
        }
    }
}

#[test]
fn removed_flows() {
    for v in VERSIONS {
        let removed = FlowRemoved { stats: flow_stats(), reason: Removed::IdleTimeout };
        let messages = encode(v, 0, &Reply::FlowRemoved(removed.clone()));
        expect(&messages, &["FLOW_REMOVED", "priority=7,tcp,in_port=1,tp_dst=80 reason=idle"]);
        expect(&messages, &["cookie:0x2a", "duration12.345s", "idle9", "pkts11 bytes660"]);
        if v != Version::V10 {
            expect(&messages, &["table_id=3"]);
        }
        let nxm = Dialect { nxm: true, ..v.into() };
        expect(&encode(nxm, 0, &Reply::FlowRemoved(removed)), &["table_id=3"]);
    }
}

fn packet_in() -> PacketIn {
    PacketIn {
        buffer_id: NO_BUFFER,
        total_len: 60,
        reason: Reason::Action,
        table: 7,
        cookie: 0x99,
        matching: exact(&[(Field::InPort, port::LOCAL.into()), (Field::Reg(1), 5)]),
        data: vec![0; 60],
        userdata: vec![1, 2, 3],
        continuation: None,
    }
}

#[test]
fn packets_to_the_controller() {
    for v in VERSIONS {
        let reply = Reply::PacketIn(packet_in());
        let messages = encode(v, 0, &reply);
        expect(&messages, &["PACKET_IN", "in_port=LOCAL (via action)", "data_len=60 (unbuffered)"]);
        if v >= Version::V13 {
            expect(&messages, &["table_id=7 cookie=0x99", "reg1=0x5"]);
        }
        let full = "table_id=7 cookie=0x99 total_len=60 reg1=0x5,in_port=LOCAL (via action)";
        for format in [PacketInFormat::Nxt, PacketInFormat::Nxt2] {
            let dialect = Dialect { packet_in: format, ..v.into() };
            expect(&encode(dialect, 0, &reply), &["NXT_PACKET_IN", full, "data_len=60"]);
        }
        let dialect = Dialect { packet_in: PacketInFormat::Nxt2, ..v.into() };
        expect(&encode(dialect, 0, &reply), &["userdata=01.02.03"]);
    }
}

#[test]
fn a_huge_packet_still_fits() {
    let mut p = packet_in();
    p.data = vec![0; 0xffff];
    p.total_len = 0xffff;
    for packet_in in [PacketInFormat::Standard, PacketInFormat::Nxt, PacketInFormat::Nxt2] {
        let dialect = Dialect { packet_in, ..Version::V13.into() };
        let m = &encode(dialect, 0, &Reply::PacketIn(p.clone()))[0];
        assert_eq!(usize::from(u16::from_be_bytes([m[2], m[3]])), m.len());
    }
}

#[test]
fn tables() {
    let table = |n: u8| TableStats {
        table: n,
        name: format!("table{n}"),
        max_entries: 1_000_000,
        active: 2,
        lookups: 30,
        matched: 20,
        config: 0,
        vacancy: None,
    };
    let tables: Vec<TableStats> = (0..254).map(table).collect();
    for v in VERSIONS {
        let reply = Reply::Multipart(MultipartReply::Table(tables.clone()));
        expect(&encode(v, 1, &reply), &["active=2, lookup=30, matched=20", "ditto"]);
        if v < Version::V13 {
            continue;
        }
        let reply = Reply::Multipart(MultipartReply::TableFeatures(tables.clone()));
        let messages = encode(v, 1, &reply);
        assert!(messages.len() > 10);
        let parts = [
            "max_entries=1000000",
            "ditto",
            "instructions:",
            "goto_table",
            "next tables: 1-253",
            "set_field",
            "tun_{id,src,dst",
        ];
        expect(&messages, &parts);
        if v >= Version::V14 {
            let evicts = TableStats {
                table: 1,
                max_entries: 10,
                active: 3,
                config: TableStats::EVICTION | TableStats::VACANCY,
                vacancy: Some([20, 80]),
                ..TableStats::default()
            };
            let reply = MultipartReply::TableDesc(vec![TableStats::default(), evicts]);
            let reply = Reply::Multipart(reply);
            expect(&encode(v, 1, &reply), &["table 0", "eviction=off"]);
        }
    }
}

#[test]
fn port_counters() {
    let stats = PortStats {
        port: 1,
        rx_packets: 10,
        rx_bytes: 1000,
        tx_packets: 20,
        tx_bytes: 2000,
        rx_crc_err: 3,
        collisions: u64::MAX,
        duration_ns: 1_500_000_000,
        ..PortStats::default()
    };
    for v in VERSIONS {
        let reply = Reply::Multipart(MultipartReply::PortStats(vec![stats.clone()]));
        let messages = encode(v, 1, &reply);
        expect(
            &messages,
            &["port  1: rx pkts=10, bytes=1000, drop=0, errs=0, frame=0, over=0, crc=3"],
        );
        expect(&messages, &["tx pkts=20, bytes=2000, drop=0, errs=0, coll=?"]);
        if v >= Version::V13 {
            expect(&messages, &["duration=1.500s"]);
        }
    }
}

#[test]
fn descriptions_configuration_queues() {
    for v in VERSIONS {
        let reply = Reply::Multipart(MultipartReply::Desc {
            manufacturer: "Weft".into(),
            hardware: "userspace".into(),
            software: "0.1".into(),
            serial: "None".into(),
            datapath: "x".repeat(400),
        });
        expect(&encode(v, 1, &reply), &["Manufacturer: Weft", "DP Description: xxx"]);
        let config = SwitchConfig {
            frag: FragHandling::NxMatch,
            miss_send_len: 128,
            invalid_ttl_to_controller: false,
        };
        expect(&encode(v, 1, &Reply::Config(config)), &["frags=nx-match miss_send_len=128"]);
    }
}

#[test]
fn queues() {
    let queue = |port, id| Queue { port, id };
    let of = |queue, duration_ns| {
        let (tx_bytes, tx_packets, tx_errors) = (60, 1, u64::MAX);
        QueueStats { queue, tx_bytes, tx_packets, tx_errors, duration_ns }
    };
    let all = vec![of(queue(1, 0), u64::MAX), of(queue(port::LOCAL, 7), 5_003_000_000)];
    let stats = Reply::Multipart(MultipartReply::QueueStats(all));
    for v in VERSIONS {
        let duration = if v >= Version::V13 { "5.003s" } else { "?" };
        let text = [
            "2 queues",
            "port 1 queue 0: bytes=60, pkts=1, errors=?, duration=?",
            &format!("port LOCAL queue 7: bytes=60, pkts=1, errors=?, duration={duration}"),
        ];
        expect(&encode(v, 1, &stats), &text);
        let none = Reply::Multipart(MultipartReply::QueueStats(Vec::new()));
        expect(&encode(v, 1, &none), &["0 queues"]);
        let queues = vec![queue(1, 0), queue(1, 7)];
        if v < Version::V14 {
            let reply = Reply::QueueConfig { port: 1, queues };
            expect(&encode(v, 1, &reply), &["CONFIG_REPLY", "port=1", "queue 0:", "queue 7:"]);
        } else {
            let reply = Reply::Multipart(MultipartReply::QueueDesc(queues));
            expect(&encode(v, 1, &reply), &["QUEUE_DESC", "port=1", "queue 0:", "queue 7:"]);
        }
    }
}

#[test]
fn counters_with_names() {
    let custom = vec![("rx_odd".to_string(), 7), ("tx_very_odd".to_string(), u64::MAX - 1)];
    let stats = PortStats { port: 1, rx_packets: 5, custom, ..PortStats::default() };
    let reply = Reply::Multipart(MultipartReply::PortStats(vec![stats]));
    for v in [Version::V14, Version::V15] {
        expect(&encode(v, 1, &reply), &["rx pkts=5", "CUSTOM", "rx_odd=7", "tx_very_odd=184467"]);
    }
}

fn group() -> GroupMod {
    let bucket = |id, weight, watch_port| Bucket {
        id,
        weight,
        watch_port,
        watch_group: GROUP_ANY,
        actions: vec![],
    };
    GroupMod {
        command: GroupCommand::Add,
        kind: GroupType::Select,
        id: 5,
        buckets: vec![bucket(0, 3, port::ANY), bucket(1, 7, 2)],
        selection_method: "hash".into(),
        selection_param: 9,
        selection_fields: vec![(Field::Ipv4Src, 0xffff_ff00)],
    }
}

#[test]
fn groups() {
    let stats = GroupStats {
        id: 5,
        ref_count: 1,
        packets: 4,
        bytes: 400,
        duration_ns: 2_000_000_000,
        buckets: vec![(1, 100), (3, 300)],
    };
    let features = MultipartReply::GroupFeatures {
        types: 0xf,
        capabilities: 7,
        max_groups: [0xffff_ff00; 4],
        actions: [0x3ff_8001; 4],
    };
    for v in [Version::V12, Version::V13, Version::V14, Version::V15] {
        let reply = Reply::Multipart(MultipartReply::GroupDesc(vec![group()]));
        let messages = encode(v, 1, &reply);
        expect(&messages, &["group_id=5,type=select", "weight:3", "weight:7,watch_port:2"]);
        if v == Version::V15 {
            expect(
                &messages,
                &["selection_method=hash,selection_method_param=9", "ip_src=255.255.255.0"],
            );
        }
        let reply = Reply::Multipart(MultipartReply::GroupStats(vec![stats.clone()]));
        let text =
            "ref_count=1,packet_count=4,byte_count=400,bucket0:packet_count=1,byte_count=100";
        expect(&encode(v, 1, &reply), &["group_id=5", text]);
        expect(&encode(v, 1, &Reply::Multipart(features.clone())), &["Types:  0xf"]);
    }
    let reply = Reply::Multipart(MultipartReply::GroupDesc(vec![group()]));
    expect(&encode(Version::V10, to(1, Form::Nicira), &reply), &["NXST_GROUP_DESC", "weight:7"]);
    let reply = Reply::Multipart(MultipartReply::GroupStats(vec![stats]));
    expect(
        &encode(Version::V10, to(1, Form::Nicira), &reply),
        &["NXST_GROUP reply", "duration=2s"],
    );
}

#[test]
fn meters() {
    let config = MeterMod {
        command: MeterCommand::Add,
        id: 1,
        flags: 0xd,
        bands: vec![
            Band::Drop { rate: 1000, burst: 10 },
            Band::DscpRemark { rate: 2000, burst: 20, prec: 1 },
        ],
    };
    let stats = MeterStats {
        id: 1,
        flow_count: 2,
        packets: 30,
        bytes: 3000,
        duration_ns: 1_000_000_000,
        bands: vec![(1, 100)],
    };
    let features = MultipartReply::MeterFeatures {
        max_meters: 1000,
        band_types: 2,
        capabilities: 0xf,
        max_bands: 8,
        max_color: 0,
    };
    for v in [Version::V13, Version::V14, Version::V15] {
        let reply = Reply::Multipart(MultipartReply::MeterConfig(vec![config.clone()]));
        let parts =
            ["meter=1 kbps burst stats", "type=drop rate=1000 burst_size=10", "prec_level=1"];
        expect(&encode(v, 1, &reply), &parts);
        let reply = Reply::Multipart(MultipartReply::MeterStats(vec![stats.clone()]));
        let parts =
            ["flow_count:2 packet_in_count:30 byte_in_count:3000", "0: packet_count:1 byte"];
        expect(&encode(v, 1, &reply), &parts);
        let reply = Reply::Multipart(features.clone());
        expect(&encode(v, 1, &reply), &["max_meter:1000 max_bands:8", "band_types: drop"]);
    }
}

#[test]
fn roles_and_asynchronous_configuration() {
    let role = Reply::Role { role: Role::Secondary, generation: 7 };
    for v in [Version::V12, Version::V13, Version::V14, Version::V15] {
        expect(&encode(v, 1, &role), &["OFPT_ROLE_REPLY", "role=secondary generation_id=7"]);
    }
    expect(
        &encode(Version::V10, to(1, Form::Nicira), &role),
        &["NXT_ROLE_REPLY", "role=secondary"],
    );
    let status = Reply::RoleStatus { role: Role::Secondary, reason: 0, generation: 7 };
    for v in [Version::V14, Version::V15] {
        expect(&encode(v, 1, &status), &["role=secondary generation_id=7 reason=primary_request"]);
    }
    let config = AsyncConfig {
        packet_in: [0x3b, 0],
        port_status: [7, 7],
        flow_removed: [0xf, 0],
        role_status: [0; 2],
        table_status: [0; 2],
        requestforward: [0; 2],
    };
    for v in [Version::V13, Version::V14, Version::V15] {
        let parts =
            ["PORT_STATUS: add delete modify", "FLOW_REMOVED: idle hard delete group_delete"];
        expect(&encode(v, 1, &Reply::Async(config)), &parts);
    }
}

#[test]
fn changes_by_others() {
    let group = GroupMod {
        command: GroupCommand::Modify,
        kind: GroupType::Select,
        id: 1,
        buckets: vec![Bucket {
            id: 0,
            weight: 5,
            watch_port: port::ANY,
            watch_group: GROUP_ANY,
            actions: vec![Action::output(2)],
        }],
        selection_method: String::new(),
        selection_param: 0,
        selection_fields: vec![],
    };
    let forward = Reply::RequestForward { xid: 9, group };
    for v in [Version::V10, Version::V11, Version::V13, Version::V14, Version::V15] {
        let parts = ["REQUESTFORWARD", "reason=group_mod", "MOD group_id=1,type=select,bucket="];
        expect(&encode(v, 1, &forward), &parts);
        expect(&encode(v, 1, &forward), &["weight:5,", "actions=output:2"]);
    }
    let table = TableStats {
        table: 1,
        max_entries: 10,
        active: 9,
        config: TableStats::VACANCY,
        vacancy: Some([20, 80]),
        ..TableStats::default()
    };
    for (more, reason) in [(false, "reason=VACANCY_DOWN"), (true, "reason=VACANCY_UP")] {
        for v in [Version::V14, Version::V15] {
            let status = Reply::TableStatus { more, table: table.clone() };
            expect(&encode(v, 1, &status), &["TABLE_STATUS", reason, "table 1", "vacancy=10%"]);
        }
    }
}

#[test]
fn bundles() {
    let reply = Reply::BundleControl { id: 3, step: BundleStep::CommitReply, flags: 3 };
    let parts = ["bundle_id=0x3 type=COMMIT_REPLY flags=atomic ordered"];
    expect(&encode(Version::V13, to(1, Form::Onf), &reply), &parts);
    for v in [Version::V14, Version::V15] {
        expect(&encode(v, 1, &reply), &parts);
    }
}

#[test]
fn flow_monitors() {
    let added = vec![MonitorUpdate::Added(flow_stats())];
    let forms = [
        (Version::V10, Form::Nicira),
        (Version::V11, Form::Nicira),
        (Version::V12, Form::Nicira),
        (Version::V13, Form::Onf),
        (Version::V14, Form::Standard),
        (Version::V15, Form::Standard),
    ];
    for (v, form) in forms {
        let reply = Reply::Multipart(MultipartReply::FlowMonitor(added.clone()));
        let parts = ["table=3 idle_timeout=9 hard_timeout=60 cookie=0x2a tcp,in_port=1,tp_dst=80"];
        expect(&encode(v, to(9, form), &reply), &parts);
        let events = vec![
            MonitorUpdate::Added(flow_stats()),
            MonitorUpdate::Modified(flow_stats()),
            MonitorUpdate::Deleted(flow_stats(), Removed::Delete),
            MonitorUpdate::Abbrev { xid: 0x77 },
        ];
        let parts = [
            "event=ADDED table=3",
            "event=MODIFIED table=3",
            "reason=delete table=3",
            "event=ABBREV xid=0x77",
        ];
        expect(&encode(v, 0, &Reply::MonitorUpdate(events)), &parts);
    }
}

#[test]
fn errors_bring_the_message_back() {
    for v in VERSIONS {
        let data = vec![v as u8, 5, 0, 8, 0, 0, 0, 9];
        let reply = Reply::Error { error: OfError::BadType, data };
        expect(&encode(v, 9, &reply), &["OFPT_ERROR", "OFPBRC_BAD_TYPE", "FEATURES_REQUEST"]);
    }
}
