//! Multicast snooping of a bridge, from a report to where packets go.

use crate::mcast::messages::tests::{GROUP, igmp_frame};
use crate::tests::{Lab, apply, flow, out, packet};
use crate::{McastConfig, McastContext, McastPort, PortSpec, VlanMode};
use action::Op;
use openflow::{Action, port};

const SECOND_NS: u64 = 1_000_000_000;
const QUERY: u8 = 0x11;
const JOIN: u8 = 0x16;
const LEAVE: u8 = 0x17;
const DATA: &str = "udp,dl_dst=01:00:5e:5e:01:01,nw_dst=239.94.1.1";

/// A bridge that snoops, with ports 1 to 4; multicast without members goes nowhere.
fn lab() -> Lab {
    let mut lab = Lab::new();
    lab.sw.install_default_flow(lab.br, 0).unwrap();
    configure(&mut lab, Some(McastConfig { flood_unregistered: false, ..McastConfig::default() }));
    lab
}

fn configure(lab: &mut Lab, mcast: Option<McastConfig>) {
    let config = lab.sw.bridge_config(lab.br).unwrap().clone();
    lab.sw.configure_bridge(lab.br, crate::BridgeConfig { mcast, ..config }).unwrap();
    lab.sw.take_regions();
}

fn flag(lab: &mut Lab, number: u32, mcast: McastPort) {
    let spec = lab.sw.port(lab.br, number).unwrap().clone();
    lab.sw.update_port(lab.br, PortSpec { mcast, ..spec }).unwrap();
}

/// An IGMP message of a type comes in: where it goes, without what the control side gets.
fn igmp(lab: &mut Lab, port: u32, kind: u8, now: u64) -> String {
    let group = GROUP.octets();
    let message = [&[kind, 0, 0, 0], group.as_slice()].concat();
    let text = format!("in_port={port},dl_dst=01:00:5e:5e:01:01,ip,nw_proto=2,tp_src={kind}");
    let d = lab.decide(&packet(&text));
    for op in &d.ops {
        let Op::Punt(p) = op else { continue };
        let to = *p.context.downcast_ref::<McastContext>().unwrap();
        assert_eq!((to.bridge, to.port), (lab.br, port));
        lab.sw.snoop_mcast(&to, &igmp_frame([10, 0, 0, 1], &message), now);
    }
    let outputs = |op: &&Op| !matches!(op, Op::Punt(_));
    action::ops_text(&d.ops.iter().filter(outputs).cloned().collect::<Vec<_>>())
}

fn data(lab: &mut Lab, from: u32) -> String {
    lab.send(&format!("in_port={from},{DATA}"))
}

#[test]
fn multicast_goes_to_members_and_routers() {
    let mut lab = lab();
    assert_eq!(data(&mut lab, 1), "drop", "there is no member");
    assert_eq!(igmp(&mut lab, 2, JOIN, 0), "drop", "and there is no router");
    let about = |r: &action::Region| r.mask.u32(flow::at::IP_DST) == u32::MAX;
    assert!(lab.sw.take_regions().iter().any(about), "decisions about the group");
    assert_eq!(data(&mut lab, 1), "12");
    assert_eq!(data(&mut lab, 2), "drop", "not back");
    assert_eq!(igmp(&mut lab, 4, QUERY, 0), "11,12,13");
    assert_eq!(data(&mut lab, 1), "12,14");
    assert_eq!(igmp(&mut lab, 3, JOIN, 0), "14", "what members report is for routers");
    assert_eq!(data(&mut lab, 1), "12,13,14");
    igmp(&mut lab, 4, JOIN, 0);
    assert_eq!(lab.sw.mdb(lab.br).unwrap().len(), 3, "a router's port gets everything");
    igmp(&mut lab, 2, LEAVE, 0);
    assert_eq!(data(&mut lab, 1), "13,14");
    lab.sw.take_regions();
    igmp(&mut lab, 3, JOIN, 9 * SECOND_NS);
    assert!(lab.sw.take_regions().is_empty(), "to say it again changes no decision");
    assert!(lab.sw.mdb_flush(lab.br) && !lab.sw.take_regions().is_empty());
    assert_eq!(data(&mut lab, 1), "drop");
}

#[test]
fn members_and_routers_age() {
    let mut lab = lab();
    igmp(&mut lab, 2, JOIN, 0);
    igmp(&mut lab, 4, QUERY, 0);
    while lab.sw.expire(180 * SECOND_NS, 0, 1) {}
    assert_eq!(data(&mut lab, 1), "12");
    lab.sw.take_regions();
    while lab.sw.expire(300 * SECOND_NS, 0, 1) {}
    assert_eq!((data(&mut lab, 1), lab.sw.take_regions().len()), ("drop".into(), 1));
}

#[test]
fn what_is_for_all_is_flooded() {
    let mut lab = lab();
    let all = [
        "udp,dl_dst=01:00:5e:00:00:05,nw_dst=224.0.0.5",
        "udp6,dl_dst=33:33:00:00:00:01,ipv6_dst=ff02::1",
        "udp,dl_dst=ff:ff:ff:ff:ff:ff,nw_dst=255.255.255.255",
        "ip,dl_dst=01:00:5e:5e:01:01,nw_dst=239.94.1.1,nw_proto=2,tp_src=19",
        "icmp6,dl_dst=33:33:00:00:00:01,ipv6_dst=ff02::1,icmp_type=130",
        "arp,dl_dst=01:00:5e:5e:01:01",
        "udp,dl_dst=02:00:00:00:00:99,nw_dst=239.94.1.1",
    ];
    for text in all {
        let d = lab.decide(&packet(&format!("in_port=1,{text}")));
        assert!(action::ops_text(&d.ops).ends_with("12,13,14"), "{text}");
    }
    assert_eq!(lab.send("in_port=1,udp6,dl_dst=33:33:00:00:00:05,ipv6_dst=ff02::5"), "drop");
    configure(&mut lab, Some(McastConfig::default()));
    assert_eq!(data(&mut lab, 1), "12,13,14", "unregistered");
    configure(&mut lab, None);
    assert_eq!(igmp(&mut lab, 2, JOIN, 0), "11,13,14");
    assert!(lab.sw.mdb(lab.br).is_none() && !lab.sw.mdb_flush(lab.br));
}

#[test]
fn decisions_look_at_what_they_depend_on() {
    let mut lab = lab();
    igmp(&mut lab, 2, JOIN, 0);
    for text in [
        DATA,
        "udp,dl_dst=01:00:5e:00:00:05,nw_dst=224.0.0.5",
        "ip,dl_dst=01:00:5e:5e:01:01,nw_proto=2,tp_src=22",
        "icmp6,dl_dst=33:33:00:00:00:16,ipv6_dst=ff02::16,icmp_type=143",
        "icmp6,dl_dst=33:33:00:00:00:05,ipv6_dst=ff02::5,icmp_type=128",
    ] {
        let key = packet(&format!("in_port=1,{text}"));
        let d = lab.decide(&key);
        let mut twin = packet("in_port=1");
        (0..flow::WORDS).for_each(|i| twin.words[i] |= key.words[i] & d.mask.words[i]);
        let again = lab.decide(&twin);
        assert_eq!(action::ops_text(&again.ops), action::ops_text(&d.ops), "{text}");
    }
}

#[test]
fn groups_belong_to_vlans() {
    let mut lab = lab();
    lab.port(2, VlanMode::Access(5));
    lab.port(3, VlanMode::Access(6));
    igmp(&mut lab, 2, JOIN, 0);
    assert_eq!(data(&mut lab, 3), "drop");
    assert_eq!(lab.send(&format!("in_port=1,dl_vlan=5,{DATA}")), "pop_vlan,12");
    lab.port(2, VlanMode::Access(6));
    assert_eq!(lab.sw.mdb(lab.br).unwrap().len(), 0, "it was a member in VLAN 5");
    igmp(&mut lab, 2, JOIN, 0);
    igmp(&mut lab, 2, QUERY, 0);
    lab.sw.remove_port(lab.br, 2).unwrap();
    assert_eq!(lab.sw.mdb(lab.br).unwrap().len(), 0);
}

#[test]
fn flagged_ports_get_what_they_ask_for() {
    let mut lab = lab();
    igmp(&mut lab, 2, JOIN, 0);
    flag(&mut lab, 3, McastPort { flood: true, flood_reports: false });
    flag(&mut lab, 4, McastPort { flood: false, flood_reports: true });
    assert_eq!(data(&mut lab, 1), "12,13");
    assert_eq!(igmp(&mut lab, 2, JOIN, 0), "14");
    igmp(&mut lab, 3, JOIN, 0);
    igmp(&mut lab, 3, QUERY, 0);
    assert_eq!(lab.sw.mdb(lab.br).unwrap().len(), 1, "port 3 gets everything already");
    igmp(&mut lab, 4, JOIN, 0);
    igmp(&mut lab, 4, LEAVE, 0);
    assert_eq!(data(&mut lab, 1), "12,14,13", "behind port 4 are more hosts");
    // One that becomes a member's, a router's and a flagged port gets one copy.
    igmp(&mut lab, 2, QUERY, 0);
    flag(&mut lab, 2, McastPort { flood: true, flood_reports: true });
    assert_eq!(data(&mut lab, 1), "12,14,13");
}

#[test]
fn regions_are_those_of_packets_before_their_fields_are_set() {
    let mut lab = lab();
    let set =
        Action::SetField { field: flow::Field::Ipv4Dst, value: 0xef5e_0101, mask: 0xffff_ffff };
    lab.add(flow(0, 1, "in_port=1,ip", apply(vec![set, out(port::NORMAL)])));
    lab.sw.take_regions();
    igmp(&mut lab, 2, JOIN, 0);
    let regions = lab.sw.take_regions();
    assert!(regions.iter().any(|r| r.mask.u32(flow::at::IP_DST) == 0), "{regions:?}");
}
