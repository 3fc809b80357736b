//! Tests of the whole switch, without I/O.

mod bounds;
mod bucket_tests;
mod controller_bounds;
mod encap_tests;
mod erspan_tests;
mod eviction_tests;
mod export_tests;
mod in_band_tests;
mod learning_tests;
mod links;
mod liveness_tests;
mod mcast_tests;
mod memory_tests;
mod mirrors_tests;
mod misses;
mod normal_tests;
mod nsh_tests;
mod ovs_trace;
mod packet_type_tests;
mod properties;
mod queues;
mod regions;
mod sliced_changes;
mod special_tests;
mod timer_tests;
mod tlv_properties;
mod tree_tests;
pub(crate) mod tunnel_lab;
mod users_tests;

use crate::*;
use ::action::{Decision, Op};
use flow::{Key, at, parse_match, parse_match_tun};
use openflow::*;
use std::sync::Arc;
use sync::Domain;

pub(crate) struct Lab {
    pub sw: Switch,
    pub br: BridgeId,
}

/// `in_port` etc. as `ovs-ofctl` writes them; the datapath port is OpenFlow's plus 10.
pub(crate) fn packet(text: &str) -> Key {
    let (mut key, _) = parse_match(text, &|_| None).expect(text);
    key.set_u16(at::IN_PORT, key.u32(at::OF_IN_PORT) as u16 + 10);
    key
}

pub(crate) fn matching(text: &str) -> Match {
    let (key, mask, tun) = parse_match_tun(text, &|_| None).expect(text);
    Match { key, mask, tun }
}

pub(crate) fn out(port: u32) -> Action {
    Action::output(port)
}

pub(crate) fn flow(table: u8, priority: u16, m: &str, list: Vec<Instruction>) -> FlowMod {
    let m = FlowMod::new(FlowModCommand::Add, table, matching(m));
    FlowMod { priority, instructions: list, ..m }
}

pub(crate) fn apply(list: Vec<Action>) -> Vec<Instruction> {
    vec![Instruction::Apply(list)]
}

impl Lab {
    pub fn new() -> Lab {
        let mut sw = Switch::new(Domain::new().writer());
        let br = sw.add_bridge("br0", BridgeConfig::default(), 0).unwrap();
        let mut lab = Lab { sw, br };
        for i in 1..=4 {
            lab.port(i, VlanMode::default());
        }
        lab
    }

    pub fn port(&mut self, number: u32, vlan: VlanMode) {
        let spec = PortSpec {
            of_port: number,
            name: format!("p{number}"),
            bundle: format!("p{number}"),
            dp_port: Some(number as u16 + 10),
            vlan,
            ..PortSpec::default()
        };
        match self.sw.port(self.br, number).is_some() {
            true => self.sw.update_port(self.br, spec).unwrap(),
            false => self.sw.add_port(self.br, spec).unwrap(),
        }
    }

    /// The bridge's own port, datapath port 9.
    pub fn add_local(&mut self) {
        let (name, bundle) = ("br0".into(), "br0".into());
        let (of_port, dp_port) = (port::LOCAL, Some(9));
        let spec = PortSpec { of_port, name, bundle, dp_port, ..PortSpec::default() };
        self.sw.add_port(self.br, spec).unwrap();
    }

    /// Takes what changes have named so far.
    pub fn settle(&mut self) {
        self.sw.take_regions();
        self.sw.take_stale();
    }

    /// True if changes since the last call name a decision about a packet: it may be another one.
    pub fn names(&mut self, packet: &Key, d: &Decision) -> bool {
        let regions = self.sw.take_regions();
        let stale = self.sw.take_stale();
        regions.iter().any(|r| r.overlaps(packet, &d.mask))
            || stale.is_some_and(|is| is(&d.cached()))
    }

    pub fn add(&mut self, m: FlowMod) {
        self.sw.flow_mod(self.br, &m, 0).unwrap();
    }

    pub fn decide(&mut self, packet: &Key) -> Decision {
        let mut d = Decision::default();
        d.clear();
        self.sw.resolve(packet, &mut d);
        d
    }

    /// Decides, and lets the switch learn.
    pub fn send(&mut self, text: &str) -> String {
        let d = self.decide(&packet(text));
        if let Some(e) = &d.effects {
            self.sw.effects(e, 1);
        }
        ::action::ops_text(&d.ops)
    }

    pub fn dump(&self) -> Vec<FlowStats> {
        let mut all = self.sw.flow_stats(self.br, &FlowSelect::default(), 0).unwrap();
        all.sort_by_key(|f| (f.table, f.priority));
        all
    }
}

#[test]
fn rewrites_commit_late_and_minimal() {
    let mut lab = Lab::new();
    let list = vec![
        Action::SetField { field: flow::Field::Ipv4Dst, value: 0x0a010101, mask: 0xffff_ffff },
        Action::DecTtl { ids: None },
        out(2),
        Action::SetField { field: flow::Field::Ipv4Dst, value: 0x0a020202, mask: 0xffff_ffff },
        out(1),
        out(3),
    ];
    lab.add(flow(0, 100, "ip,in_port=1", apply(list)));
    let text = lab.send("in_port=1,tcp,nw_dst=10.2.2.2,nw_ttl=64");
    assert_eq!(text, "set(ipv4(dst=10.1.1.1,ttl=63)),12,set(ipv4(dst=10.2.2.2)),13");
    let d = lab.decide(&packet("in_port=1,tcp,nw_dst=10.2.2.2,nw_ttl=1"));
    let [Op::Set(_), Op::Punt(p)] = &d.ops[..] else { panic!("{:?}", d.ops) };
    let context = p.context.downcast_ref::<PacketInContext>().unwrap();
    assert_eq!(context.reason, Reason::InvalidTtl);
    assert_eq!(d.drop, Some(telemetry::Drop::TtlExpired));
    assert!(!p.is_wanted(), "no controller wants it");
    lab.sw.set_expired_wanted(lab.br, true).unwrap();
    assert!(p.is_wanted(), "known at once");
    // For no controller, as OVN asks for it.
    lab.add(flow(0, 100, "ip,in_port=3", apply(vec![Action::DecTtl { ids: Some(vec![]) }])));
    let d = lab.decide(&packet("in_port=3,tcp,nw_ttl=1"));
    assert_eq!((d.ops.len(), d.drop), (0, Some(telemetry::Drop::TtlExpired)));
    let d = lab.decide(&packet("in_port=2,tcp"));
    assert_eq!(d.drop, Some(telemetry::Drop::Policy));
    let d = lab.decide(&packet("in_port=9,tcp"));
    assert_eq!(d.drop, Some(telemetry::Drop::NoPort));
}

#[test]
fn nothing_is_written_where_the_protocol_is_0() {
    let mut lab = Lab::new();
    let set = |field, value| Action::SetField { field, value, mask: u128::MAX };
    let ip = vec![set(flow::Field::Ipv4Dst, 0x0a010101), set(flow::Field::IpTtl, 9), out(2)];
    lab.add(flow(0, 1, "ip", apply(ip)));
    let ipv6 = vec![set(flow::Field::Ipv6Dst, 5), out(2)];
    lab.add(flow(0, 1, "ipv6", apply(ipv6)));
    let (sha, op) = (set(flow::Field::ArpSha, 5), set(flow::Field::ArpOp, 1));
    lab.add(flow(0, 1, "arp", apply(vec![sha, out(2), op, out(3)])));
    // As ovs-vswitchd 3.1 does it.
    assert_eq!(lab.send("in_port=1,ip,nw_proto=0"), "12");
    assert_eq!(lab.send("in_port=1,ip,nw_proto=47"), "set(ipv4(dst=10.1.1.1,ttl=9)),12");
    assert_eq!(lab.send("in_port=1,ipv6,nw_proto=0"), "12");
    assert_eq!(lab.send("in_port=1,ipv6,nw_proto=47"), "set(ipv6(dst=::5)),12");
    let both = "set(arp(op=1,sha=00:00:00:00:00:05)),13";
    assert_eq!(lab.send("in_port=1,arp,arp_op=0"), format!("12,{both}"));
    let first = "set(arp(sha=00:00:00:00:00:05)),12";
    assert_eq!(lab.send("in_port=1,arp,arp_op=2"), format!("{first},set(arp(op=1)),13"));
    // The decision is about this protocol.
    assert_eq!(lab.decide(&packet("in_port=1,ip,nw_proto=0")).mask.u8(at::PROTO), 0xff);
}

#[test]
fn while_flows_are_restored_no_packet_passes() {
    let mut lab = Lab::new();
    lab.sw.install_default_flow(lab.br, 0).unwrap();
    lab.add(flow(0, 100, "in_port=1", apply(vec![out(2)])));
    let config = lab.sw.bridge_config(lab.br).unwrap().clone();
    let waiting = BridgeConfig { restoring: true, ..config.clone() };
    lab.sw.configure_bridge(lab.br, waiting).unwrap();
    assert!(!lab.sw.take_regions().is_empty());
    for text in ["in_port=1,tcp", "in_port=2,tcp"] {
        let d = lab.decide(&packet(text));
        assert_eq!((d.drop, d.ops.len()), (Some(telemetry::Drop::FlowRestoreWait), 0));
        assert!(d.effects.is_none(), "nothing is learned");
    }
    lab.sw.configure_bridge(lab.br, config).unwrap();
    assert!(!lab.sw.take_regions().is_empty(), "what was decided meanwhile goes");
    assert_eq!(lab.send("in_port=1,tcp"), "12");
}

#[test]
fn an_expired_ttl_ends_its_own_flow_only() {
    let mut lab = Lab::new();
    let ttl = || Action::DecTtl { ids: Some(vec![]) };
    let resubmit = Action::Resubmit { in_port: None, table: Some(1), ct: false };
    lab.add(flow(0, 1, "ip", apply(vec![ttl(), out(2), resubmit, out(4)])));
    lab.add(flow(1, 1, "ip", apply(vec![ttl(), out(3)])));
    assert_eq!(lab.send("in_port=1,udp,nw_ttl=2"), "set(ipv4(ttl=1)),12,14");
    assert_eq!(lab.send("in_port=1,udp,nw_ttl=1"), "drop");
}

#[test]
fn addresses_come_in_the_order_in_which_they_were_seen() {
    let mut lab = Lab::new();
    lab.sw.install_default_flow(lab.br, 0).unwrap();
    for (port, mac) in [(3, 5), (1, 6), (2, 7), (2, 5)] {
        lab.send(&format!("in_port={port},udp,dl_src=00:00:00:00:00:0{mac}"));
    }
    let order = |lab: &Lab| -> Vec<(u32, u8)> {
        lab.sw.fdb(lab.br).unwrap().iter().map(|e| (e.port, e.mac[5])).collect()
    };
    assert_eq!(order(&lab), [(1, 6), (2, 7), (2, 5)]);
    let before = lab.sw.fdb_add(lab.br, 4, 0, [0, 0, 0, 0, 0, 6], 9).unwrap();
    assert_eq!(before.map(|e| (e.port, e.fixed)), Some((1, false)));
    assert_eq!(order(&lab), [(2, 7), (2, 5), (4, 6)]);
    lab.send("in_port=1,udp,dl_src=00:00:00:00:00:06");
    assert_eq!((order(&lab).len(), lab.sw.macs_not_moved()), (3, 1));
}

#[test]
fn a_traced_packet_teaches() {
    let mut lab = Lab::new();
    lab.sw.install_default_flow(lab.br, 0).unwrap();
    let there = packet("in_port=1,udp,dl_src=00:00:00:00:00:01,dl_dst=00:00:00:00:00:02");
    let said = " -> learned that 00:00:00:00:00:01 is on port p1 in VLAN 0\n";
    assert!(
        !lab.sw
            .trace(lab.br, &there, &Options::default(), &crate::TraceStyle::default())
            .unwrap()
            .contains(said)
    );
    assert!(lab.sw.fdb(lab.br).unwrap().is_empty());
    let text = lab
        .sw
        .trace_learning(lab.br, &there, &Options::default(), &crate::TraceStyle::default(), 0)
        .unwrap();
    assert!(text.contains(said), "{text}");
    assert_eq!(lab.sw.fdb(lab.br).unwrap().len(), 1);
    let text = lab
        .sw
        .trace_learning(lab.br, &there, &Options::default(), &crate::TraceStyle::default(), 0)
        .unwrap();
    assert!(!text.contains("learned that"), "{text}");
}

#[test]
fn subfields_are_as_wide_as_in_messages() {
    let mut lab = Lab::new();
    let wide = |field, bits| Action::Load { dst: Subfield { field, ofs: 0, bits }, value: 2 };
    let list = vec![wide(flow::Field::ArpOp, 16), wide(flow::Field::TunId, 64), out(2)];
    lab.add(flow(0, 1, "arp", apply(list)));
    let text = lab
        .sw
        .trace(
            lab.br,
            &packet("in_port=1,arp,arp_op=1"),
            &Options::default(),
            &crate::TraceStyle::default(),
        )
        .unwrap();
    assert!(text.contains("load:0x2->NXM_OF_ARP_OP[]\n"), "{text}");
    assert!(text.contains("arp_op=2"), "{text}");
}

#[test]
fn action_set_goto_and_registers() {
    let mut lab = Lab::new();
    let write = Instruction::Write(vec![out(3)]);
    lab.add(flow(0, 1, "in_port=2", vec![write, Instruction::Goto(2)]));
    let load =
        Action::Load { dst: Subfield { field: flow::Field::Reg(0), ofs: 0, bits: 32 }, value: 5 };
    let again = Action::Resubmit { in_port: None, table: Some(3), ct: false };
    lab.add(flow(2, 1, "", apply(vec![load, again])));
    lab.add(flow(3, 1, "reg0=5,in_port=2", apply(vec![out(1)])));
    assert_eq!(lab.send("in_port=2,udp"), "11,13");
    let trace = lab
        .sw
        .trace(lab.br, &packet("in_port=2,udp"), &Options::default(), &crate::TraceStyle::default())
        .unwrap();
    let want = "\
Flow: udp,in_port=2,vlan_tci=0x0000,dl_src=00:00:00:00:00:00,dl_dst=00:00:00:00:00:00,nw_src=0.0.0.0,nw_dst=0.0.0.0,nw_tos=0,nw_ecn=0,nw_ttl=0,nw_frag=no,tp_src=0,tp_dst=0

bridge(\"br0\")
-------------
 0. in_port=2, priority 1
    write_actions(output:3)
     -> action set is: output:3
    goto_table:2
     2. priority 1
            load:0x5->NXM_NX_REG0[]
            resubmit(,3)
         3. reg0=0x5,in_port=2, priority 1
            output:1
--. Executing action set:
    output:3

Final flow: udp,reg0=0x5,in_port=2,vlan_tci=0x0000,dl_src=00:00:00:00:00:00,dl_dst=00:00:00:00:00:00,nw_src=0.0.0.0,nw_dst=0.0.0.0,nw_tos=0,nw_ecn=0,nw_ttl=0,nw_frag=no,tp_src=0,tp_dst=0
Megaflow: recirc_id=0,eth,ip,in_port=2,nw_frag=no
Datapath actions: 11,13
";
    assert_eq!(trace, want);
}

#[test]
fn bundles_are_all_or_nothing() {
    let mut lab = Lab::new();
    lab.add(flow(0, 1, "in_port=1", apply(vec![out(2)])));
    let before = lab.dump();
    let mut modify = flow(0, 0, "in_port=1", apply(vec![out(3)]));
    modify.command = FlowModCommand::Modify;
    let mut delete = flow(0, 0, "", vec![]);
    delete.command = FlowModCommand::Delete;
    let good = [
        BundleItem::Flow(modify),
        BundleItem::Flow(flow(0, 1, "in_port=1", apply(vec![out(4)]))),
        BundleItem::Flow(delete),
        BundleItem::Flow(flow(0, 7, "in_port=2", apply(vec![out(4)]))),
    ];
    let mut bad = good.to_vec();
    bad.push(BundleItem::Flow(flow(0, 1, "", apply(vec![Action::Group(9)]))));
    assert_eq!(lab.sw.bundle(lab.br, bad, 0), Err((4, OfError::ActBadOutGroup)));
    assert_eq!(lab.dump(), before);
    assert_eq!(lab.sw.n_flows(lab.br), Ok(1));
    assert_eq!(lab.send("in_port=1,udp"), "12");
    lab.sw.bundle(lab.br, good.to_vec(), 0).unwrap();
    assert_eq!(lab.send("in_port=1,udp"), "drop");
    assert_eq!(lab.send("in_port=2,udp"), "14");
    assert_eq!(lab.dump().len(), 1);
}

#[test]
fn a_flow_is_small() {
    assert!(size_of::<Action>() <= 64, "{}", size_of::<Action>());
    assert!(size_of::<Instruction>() <= 32, "{}", size_of::<Instruction>());
    assert!(
        size_of::<crate::tables::counters::Slot>() <= 88,
        "{}",
        size_of::<crate::tables::counters::Slot>()
    );
}

pub(crate) fn group(id: u32, kind: GroupType, ports: &[(u32, u16)]) -> GroupMod {
    let bucket = |(id, (port, weight)): (usize, &(u32, u16))| Bucket {
        id: id as u32,
        weight: *weight,
        watch_port: *port,
        watch_group: GROUP_ANY,
        actions: vec![out(*port)],
    };
    GroupMod {
        command: GroupCommand::Add,
        kind,
        id,
        buckets: ports.iter().enumerate().map(bucket).collect(),
        selection_method: String::new(),
        selection_param: 0,
        selection_fields: vec![],
    }
}

#[test]
fn popped_mpls_is_parsed_again() {
    let mut lab = Lab::new();
    let again = Action::Resubmit { in_port: None, table: Some(1), ct: false };
    let pop = Action::PopMpls { ethertype: 0x0800 };
    lab.add(flow(0, 1, "mpls,in_port=1", apply(vec![pop, again, out(4)])));
    lab.add(flow(1, 1, "tcp,in_port=1,tp_dst=80", apply(vec![out(2)])));
    let mut key = packet("mpls,in_port=1");
    key.set_u32(at::MPLS, 0x0001_0140);
    let d = lab.decide(&key);
    let [Op::PopMpls { ethertype: 0x0800 }, Op::Recirc(id)] = d.ops[..] else {
        panic!("{:?}", d.ops)
    };
    let mut inner = packet("tcp,in_port=1,tp_dst=80");
    inner.set_u32(at::RECIRC, id);
    assert_eq!(::action::ops_text(&lab.decide(&inner).ops), "12,14");
    inner.set_u32(at::RECIRC, id ^ 1 << 31);
    assert_eq!(lab.decide(&inner).drop, Some(telemetry::Drop::RecircLimit));
}

#[test]
fn groups_watch_and_spread() {
    let mut lab = Lab::new();
    let failover = group(1, GroupType::FastFailover, &[(2, 1), (3, 1)]);
    lab.sw.group_mod(lab.br, &failover, 0).unwrap();
    lab.sw.group_mod(lab.br, &group(2, GroupType::Select, &[(2, 1), (3, 3)]), 0).unwrap();
    lab.add(flow(0, 2, "udp", apply(vec![Action::Group(1)])));
    lab.add(flow(0, 1, "tcp", apply(vec![Action::Group(2)])));
    assert_eq!(lab.send("in_port=1,udp"), "12");
    let mut down = lab.sw.port(lab.br, 2).unwrap().clone();
    down.state = port_state::LINK_DOWN;
    lab.sw.update_port(lab.br, down.clone()).unwrap();
    assert_eq!(lab.send("in_port=1,udp"), "13");
    down.state = 0;
    lab.sw.update_port(lab.br, down).unwrap();
    let mut hits = [0; 2];
    for i in 0..4000 {
        let text = lab.send(&format!("in_port=1,tcp,nw_src=10.0.{}.{}", i / 256, i % 256));
        hits[usize::from(text == "13")] += 1;
    }
    // A quarter of the packets for a weight of 1 beside 3.
    assert!((900..1100).contains(&hits[0]), "{hits:?}");
    let mut again = group(1, GroupType::All, &[(2, 1)]);
    assert_eq!(lab.sw.group_mod(lab.br, &again, 0), Err(OfError::GroupExists));
    again.buckets[0].actions = vec![Action::Group(1)];
    again.command = GroupCommand::Modify;
    assert_eq!(lab.sw.group_mod(lab.br, &again, 0), Err(OfError::GroupLoop));
    again.command = GroupCommand::Delete;
    lab.sw.group_mod(lab.br, &again, 0).unwrap();
    assert_eq!(lab.dump().len(), 1, "the flow that used the group went with it");
}

#[test]
fn a_select_group_hashes_the_bits_that_it_names() {
    let mut lab = Lab::new();
    let selection_fields = vec![(flow::Field::Ipv4Src, 0xffff_ff00)];
    let select = group(1, GroupType::Select, &[(2, 1), (3, 1)]);
    lab.sw.group_mod(lab.br, &GroupMod { selection_fields, ..select }, 0).unwrap();
    lab.add(flow(0, 1, "tcp", apply(vec![Action::Group(1)])));
    let mut nets = std::collections::BTreeSet::new();
    for net in 0..64 {
        let from = |host| packet(&format!("in_port=1,tcp,nw_src=10.0.{net}.{host}"));
        let (one, other) = (lab.decide(&from(1)), lab.decide(&from(99)));
        assert_eq!(one.ops, other.ops, "one network, one bucket");
        assert_eq!(one.mask.u32(at::IP_SRC), 0xffff_ff00);
        nets.insert(::action::ops_text(&one.ops));
    }
    assert_eq!(nets.len(), 2, "networks are spread");
}

#[test]
fn packet_out_runs_actions() {
    let mut lab = Lab::new();
    lab.add(flow(0, 1, "in_port=3", apply(vec![out(4)])));
    let p = |in_port: u32, actions| PacketOut {
        buffer_id: NO_BUFFER,
        matching: matching(&format!("in_port={in_port}")),
        actions,
        data: vec![],
    };
    let key = packet("in_port=3,udp");
    let text = |lab: &mut Lab, p: PacketOut| {
        let d = lab.sw.packet_out(lab.br, &p, &key);
        d.map(|d| ::action::ops_text(&d.ops))
    };
    assert_eq!(text(&mut lab, p(3, vec![out(port::TABLE)])).as_deref(), Ok("14"));
    assert_eq!(text(&mut lab, p(1, vec![out(port::FLOOD)])).as_deref(), Ok("12,13,14"));
    assert_eq!(text(&mut lab, p(1, vec![out(0xff00)])), Err(OfError::ActBadOutPort));
    let mut from = p(1, vec![out(port::ALL)]);
    from.matching.key.set_u32(at::OF_IN_PORT, port::CONTROLLER);
    assert_eq!(text(&mut lab, from).as_deref(), Ok("11,12,13,14"));
}

#[test]
fn packets_of_a_bundle_meet_what_the_steps_before_made() {
    let mut lab = Lab::new();
    lab.add(flow(0, 0, "", vec![]));
    let from = |in_port: u32| {
        let matching = matching(&format!("in_port={in_port}"));
        let actions = vec![out(port::TABLE)];
        let po = PacketOut { buffer_id: NO_BUFFER, matching, actions, data: vec![] };
        BundleItem::PacketOut(Box::new((po, packet(&format!("in_port={in_port},udp")))))
    };
    let delete = GroupMod { command: GroupCommand::Delete, ..group(1, GroupType::Indirect, &[]) };
    let items = vec![
        from(3),
        BundleItem::Group(group(1, GroupType::Indirect, &[(2, 1)])),
        BundleItem::Flow(flow(0, 9, "in_port=3", apply(vec![Action::Group(1)]))),
        from(3),
        BundleItem::Group(delete),
        from(3),
    ];
    let mut failing = items.clone();
    failing.push(BundleItem::Flow(flow(0, 1, "", apply(vec![Action::Group(9)]))));
    assert_eq!(lab.sw.bundle(lab.br, failing, 0), Err((6, OfError::ActBadOutGroup)));
    assert!(lab.sw.take_packets().is_empty());
    lab.sw.bundle(lab.br, items, 0).unwrap();
    let packets = lab.sw.take_packets();
    let said: Vec<_> = packets.iter().map(|p| ::action::ops_text(&p.decision.ops)).collect();
    assert_eq!(said, ["drop", "12", "drop"]);
    assert_eq!(lab.send("in_port=3,udp"), "drop");
    assert_eq!(lab.sw.n_flows(lab.br), Ok(1));
}

#[test]
fn vacancies_are_told_once_each_way() {
    let mut lab = Lab::new();
    let mut config = BridgeConfig::default();
    config.tables.insert(1, TableConfig { limit: Some(10), ..TableConfig::default() });
    lab.sw.configure_bridge(lab.br, config).unwrap();
    lab.sw.table_mod(lab.br, 1, false, Some([20, 80])).unwrap();
    let mut events = Vec::new();
    let mut change = |lab: &mut Lab, command, i: u32| {
        let m = flow(1, 1, &format!("in_port={i}"), vec![]);
        lab.sw.flow_mod(lab.br, &FlowMod { command, ..m }, 0).unwrap();
        for event in lab.sw.take_events() {
            if let Event::TableStatus(_, more, t) = event {
                events.push((more, t.table, t.free_percent()));
            }
        }
    };
    for _ in 0..2 {
        (1..=10).for_each(|i| change(&mut lab, FlowModCommand::Add, i));
        (1..=10).for_each(|i| change(&mut lab, FlowModCommand::DeleteStrict, i));
    }
    let once = [(false, 1, 10), (true, 1, 90)];
    assert_eq!(events, [once, once].concat());
}

#[test]
fn flows_tell_of_their_end_however_often_ids_are_used_again() {
    let mut lab = Lab::new();
    let delete =
        |id| GroupMod { command: GroupCommand::Delete, ..group(id, GroupType::Indirect, &[]) };
    for round in 0..20u64 {
        let now = round * 4_000_000_000;
        let removals = |lab: &mut Lab, m: FlowMod| {
            lab.sw
                .flow_mod(lab.br, &FlowMod { flags: flow_flag::SEND_FLOW_REM, ..m }, now)
                .unwrap();
            lab.sw.take_events().iter().filter(|e| matches!(e, Event::FlowRemoved(..))).count()
        };
        removals(&mut lab, flow(0, 1, "in_port=4", apply(vec![out(1)])));
        removals(&mut lab, flow(0, 1, "", vec![]));
        let gone = FlowMod { command: FlowModCommand::DeleteStrict, ..flow(0, 1, "", vec![]) };
        assert_eq!(removals(&mut lab, gone), 1, "round {round}");
        lab.sw.group_mod(lab.br, &group(7, GroupType::Indirect, &[(2, 1)]), now).unwrap();
        assert_eq!(removals(&mut lab, flow(0, 1, "", apply(vec![Action::Group(7)]))), 0);
        lab.sw.group_mod(lab.br, &delete(7), now).unwrap();
        let events = lab.sw.take_events();
        assert!(matches!(events[..], [Event::FlowRemoved(..)]), "round {round}: {events:?}");
    }
}

#[test]
fn port_config_is_honoured() {
    let mut lab = Lab::new();
    lab.add(flow(0, 1, "", apply(vec![out(port::FLOOD)])));
    let set = |lab: &mut Lab, port, bit| {
        let m = PortMod { port, hw_addr: [0; 6], config: bit, mask: bit, advertise: 0 };
        lab.sw.port_mod(lab.br, &m).unwrap();
    };
    set(&mut lab, 2, port_config::NO_FLOOD);
    set(&mut lab, 3, port_config::NO_FWD);
    assert_eq!(lab.send("in_port=1,udp"), "14");
    set(&mut lab, 1, port_config::NO_RECV);
    assert_eq!(lab.send("in_port=1,udp"), "drop");
    let events = lab.sw.take_events();
    assert!(matches!(events.last(), Some(Event::PortStatus(_, 2, d, _)) if d.port == 1));
    let m = PortMod { port: 1, hw_addr: [1; 6], config: 0, mask: 0, advertise: 0 };
    assert_eq!(lab.sw.port_mod(lab.br, &m), Err(OfError::PortModBadHwAddr));
}

#[test]
fn a_port_comes_and_then_lives() {
    let mut lab = Lab::new();
    lab.sw.take_events();
    let spec = PortSpec { of_port: 9, name: "p9".into(), dp_port: Some(19), ..PortSpec::default() };
    lab.sw.add_port(lab.br, spec.clone()).unwrap();
    let events = lab.sw.take_events();
    let [Event::PortStatus(_, 0, first, None), Event::PortStatus(_, 2, then, Some(old))] =
        events.as_slice()
    else {
        panic!("{events:?}")
    };
    assert_eq!((first.state, then.state), (0, port_state::LIVE));
    assert_eq!(first, old);
    lab.sw.update_port(lab.br, spec).unwrap();
    assert_eq!(lab.sw.take_events(), []);
}

#[test]
fn an_action_set_is_done_under_the_first_rules_cookie() {
    let mut lab = Lab::new();
    let to_controller = Action::Controller {
        max_len: 9,
        reason: Reason::Action,
        id: 0,
        userdata: vec![],
        pause: false,
        meter: None,
    };
    let list = vec![Instruction::Write(vec![to_controller]), Instruction::Goto(1)];
    lab.add(FlowMod { cookie: 5, ..flow(0, 1, "", list) });
    lab.add(FlowMod { cookie: 6, ..flow(1, 1, "", vec![]) });
    let ops = lab.decide(&packet("in_port=1,udp")).ops;
    let cookies: Vec<u64> = ops
        .iter()
        .filter_map(|op| match op {
            ::action::Op::Punt(p) => p.context.downcast_ref::<PacketInContext>().map(|c| c.cookie),
            _ => None,
        })
        .collect();
    assert_eq!(cookies, [5]);
}

#[test]
fn buckets_come_and_go() {
    let mut lab = Lab::new();
    let mut m = crate::switch::groups::delete_all();
    (m.command, m.kind, m.id) = (GroupCommand::Add, GroupType::FastFailover, 7);
    lab.sw.group_mod(lab.br, &m, 0).unwrap();
    for which in [0xffff_fffd, 0xffff_fffe, 0xffff_ffff] {
        m.command = GroupCommand::RemoveBucket(which);
        assert_eq!(lab.sw.group_mod(lab.br, &m, 0), Ok(()), "none to remove is no error");
    }
    let (watch_port, watch_group) = (port::ANY, GROUP_ANY);
    m.buckets = vec![Bucket { id: 3, weight: 0, watch_port, watch_group, actions: vec![out(0)] }];
    m.command = GroupCommand::InsertBucket(0xffff_fffe);
    assert_eq!(lab.sw.group_mod(lab.br, &m, 0), Ok(()), "a bucket may watch nothing");
    assert_eq!(lab.sw.group_mod(lab.br, &m, 0), Err(OfError::GroupBucketExists));
    m.command = GroupCommand::RemoveBucket(4);
    assert_eq!(lab.sw.group_mod(lab.br, &m, 0), Err(OfError::GroupUnknownBucket));
    assert_eq!(lab.sw.group_desc(lab.br, 7, 0).unwrap().entries[0].buckets.len(), 1);
}

#[test]
fn a_deleted_group_takes_its_flows_along_every_time() {
    let mut lab = Lab::new();
    for round in 0..20 {
        let mut m = crate::switch::groups::delete_all();
        (m.command, m.id) = (GroupCommand::Add, 7);
        let drop = FlowMod { flags: flow_flag::SEND_FLOW_REM, ..flow(0, 1, "", vec![]) };
        let delete = FlowMod { command: FlowModCommand::DeleteStrict, ..drop.clone() };
        lab.add(drop.clone());
        lab.add(delete);
        lab.sw.group_mod(lab.br, &m, round).unwrap();
        lab.add(FlowMod { instructions: apply(vec![Action::Group(7)]), ..drop });
        lab.sw.take_events();
        m.command = GroupCommand::Delete;
        lab.sw.group_mod(lab.br, &m, round).unwrap();
        let events = lab.sw.take_events();
        let [Event::FlowRemoved(_, removed)] = events.as_slice() else { panic!("{events:?}") };
        assert_eq!(removed.reason, Removed::GroupDelete);
    }
}

#[test]
fn a_full_table_evicts_if_it_is_told_to() {
    let mut lab = Lab::new();
    let table = |limit, evict, groups: &[&str]| TableConfig {
        limit: Some(limit),
        evict,
        groups: groups.iter().map(|g| parse_subfield(g).unwrap()).collect(),
        ..TableConfig::default()
    };
    let configure = |lab: &mut Lab, t| {
        let mut config = lab.sw.bridge_config(lab.br).unwrap().clone();
        config.tables.insert(0, t);
        lab.sw.configure_bridge(lab.br, config).unwrap();
        lab.sw.shrink_tables(lab.br, usize::MAX, 0);
    };
    let timed = |idle, m: &str| FlowMod { idle_timeout: idle, ..flow(0, 1, m, vec![]) };
    let ports = |lab: &Lab| -> Vec<u32> {
        let flows = lab.sw.flow_stats(lab.br, &FlowSelect::default(), 0).unwrap();
        let mut all: Vec<u32> = flows
            .iter()
            .map(|f| f.matching.key.u32(at::OF_IN_PORT) * 10 + u32::from(f.idle_timeout))
            .collect();
        all.sort_unstable();
        all
    };
    configure(&mut lab, table(4, true, &["NXM_OF_IN_PORT[]"]));
    for m in [timed(1, "in_port=2"), timed(2, "in_port=1"), timed(3, "in_port=1,ip")] {
        lab.add(m);
    }
    lab.add(timed(4, "in_port=1,arp"));
    lab.add(timed(0, "in_port=3"));
    assert_eq!(ports(&lab), [13, 14, 21, 30], "of the largest group the next to expire");
    configure(&mut lab, table(2, true, &[]));
    assert_eq!(ports(&lab), [14, 30], "a lower limit evicts");
    configure(&mut lab, table(2, false, &[]));
    assert_eq!(lab.sw.flow_mod(lab.br, &timed(5, "in_port=5"), 0), Err(OfError::FlowTableFull));
    lab.sw.table_mod(lab.br, 0, true, None).unwrap();
    lab.add(timed(0, "in_port=5"));
    assert_eq!(ports(&lab), [30, 50]);
    let full = lab.sw.flow_mod(lab.br, &timed(1, "in_port=6"), 0);
    assert_eq!(full, Err(OfError::FlowTableFull), "what never expires is not evicted");
}

#[test]
fn unsupported_is_refused() {
    let mut lab = Lab::new();
    let dst = Subfield { field: flow::Field::IpTtl, ofs: 0, bits: 8 };
    let cases = [
        (vec![Action::Meter(1)], OfError::MeterInvalid),
        (vec![Action::Load { dst, value: 1 }], OfError::ActMatchInconsistent),
        (vec![Action::PushVlan { ethertype: 0x1234 }], OfError::ActBadArgument),
        (vec![Action::Group(7)], OfError::ActBadOutGroup),
        (
            vec![Action::Push(Subfield { field: flow::Field::Reg(200), ..dst })],
            OfError::ActBadArgument,
        ),
    ];
    for (list, want) in cases {
        let m = flow(0, 1, "", apply(list));
        assert_eq!(lab.sw.flow_mod(lab.br, &m, 0), Err(want));
    }
    let back = flow(3, 1, "", vec![Instruction::Goto(3)]);
    assert_eq!(lab.sw.flow_mod(lab.br, &back, 0), Err(OfError::InstBadTableId));
    let table = flow(254, 1, "", vec![]);
    assert_eq!(lab.sw.flow_mod(lab.br, &table, 0), Err(OfError::RequestEperm));
}

#[test]
fn actions_for_tests_are_taken_where_bridges_have_them_only() {
    let mut lab = Lab::new();
    let [slow, recirc] = [TestAction::Slow, TestAction::Recirc].map(Action::Test);
    let list = vec![slow.clone(), out(2), recirc, out(3)];
    let m = flow(0, 1, "", apply(list));
    assert_eq!(lab.sw.flow_mod(lab.br, &m, 0), Err(OfError::ActBadExpType));
    let config = lab.sw.bridge_config(lab.br).unwrap().clone();
    let config = crate::BridgeConfig { test_actions: true, ..config };
    lab.sw.configure_bridge(lab.br, config).unwrap();
    lab.add(m);
    let mut key = packet("in_port=1,udp");
    let d = lab.decide(&key);
    let [Op::Output(first), Op::Recirc(id)] = d.ops[..] else { panic!("{:?}", d.ops) };
    key.set_u32(at::RECIRC, id);
    let [Op::Output(second)] = lab.decide(&key).ops[..] else { panic!("one output is left") };
    assert_eq!((first, second), (12, 13));
    let write = flow(0, 2, "", vec![Instruction::Write(vec![slow, out(2)])]);
    assert_eq!(lab.sw.flow_mod(lab.br, &write, 0), Err(OfError::ActBadType));
}

#[test]
fn an_action_sets_packet_in_has_the_first_flows_cookie() {
    let mut lab = Lab::new();
    let cookie = |cookie, m: FlowMod| FlowMod { cookie, ..m };
    let send = Action::output(port::CONTROLLER);
    let go = Instruction::Goto(1);
    lab.add(cookie(0x10, flow(0, 1, "udp", vec![go.clone()])));
    lab.add(cookie(0x12, flow(0, 1, "tcp", vec![Instruction::Write(vec![send.clone()]), go])));
    lab.add(cookie(0x20, flow(1, 1, "udp,tp_dst=1", vec![Instruction::Write(vec![send.clone()])])));
    lab.add(cookie(0x23, flow(1, 1, "udp,tp_dst=4", apply(vec![send]))));
    let mut cookie_of = |m: &str| match &lab.decide(&packet(m)).ops[..] {
        [Op::Punt(p)] => p.context.downcast_ref::<PacketInContext>().map(|c| c.cookie),
        ops => panic!("{ops:?}"),
    };
    // As ovs-vswitchd 3.1 has it.
    assert_eq!(cookie_of("in_port=1,udp,tp_dst=1"), Some(0x10));
    assert_eq!(cookie_of("in_port=1,udp,tp_dst=4"), Some(0x23));
    assert_eq!(cookie_of("in_port=1,tcp"), Some(0x12));
}
