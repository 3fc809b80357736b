//! Packets that the switch itself takes, and ports that a protocol calls faulty.

use crate::tests::{Lab, apply, flow, group, out, packet};
use crate::translate::effects::Effects;
use crate::{
    BfdContext, BfdFilter, CfmContext, CfmFilter, Gate, LacpContext, LacpPort, LldpContext,
    OamFilters, PortSpec,
};
use action::{Decision, Op};
use flow::at;
use openflow::{Action, GroupType, port, port_state};
use std::net::Ipv4Addr;

const BFD: &str = "in_port=1,udp,dl_dst=00:23:20:00:00:01,nw_src=169.254.1.1,nw_dst=169.254.1.0,\
                   nw_ttl=255,tp_src=49152,tp_dst=3784";

fn lab(filter: BfdFilter) -> Lab {
    let mut lab = Lab::new();
    let mut spec = lab.sw.port(lab.br, 1).unwrap().clone();
    spec.oam.bfd = Some(filter);
    lab.sw.update_port(lab.br, spec).unwrap();
    lab.add(flow(0, 1, "", apply(vec![out(2)])));
    lab
}

/// Whose control packet the switch takes it for.
fn taken(d: &Decision) -> Option<u32> {
    match &d.ops[..] {
        [Op::Punt(p)] => p.context.downcast_ref::<BfdContext>().map(|c| c.port),
        _ => None,
    }
}

#[test]
fn a_session_takes_its_packets_and_no_others() {
    let mac = Some([0, 0x23, 0x20, 0, 0, 1]);
    let ip = |last| Some(Ipv4Addr::new(169, 254, 1, last));
    let any = BfdFilter::default;
    let table = [
        (any(), BFD, true),
        (any(), &BFD.replace("tp_dst=3784", "tp_dst=3785"), false),
        (any(), &BFD.replace("in_port=1", "in_port=3"), false),
        (any(), &BFD.replace("udp", "tcp"), false),
        (any(), &BFD.replace("tp_dst=3784", "nw_frag=later"), false),
        (any(), "in_port=1,udp6,tp_dst=3784", false),
        (any(), "in_port=1,arp", false),
        (BfdFilter { dst_mac: mac, ..any() }, BFD, true),
        (BfdFilter { dst_mac: mac, ..any() }, &BFD.replace(":01,", ":02,"), false),
        (BfdFilter { dst_ip: ip(0), ..any() }, BFD, true),
        (BfdFilter { dst_ip: ip(9), ..any() }, BFD, false),
        (BfdFilter { key_zero: true, ..any() }, BFD, true),
    ];
    for (filter, text, ours) in table {
        let mut lab = lab(filter.clone());
        let key = packet(text);
        let d = lab.decide(&key);
        assert_eq!(taken(&d), ours.then_some(1), "{text} {filter:?}");
        // The same holds for all packets that look alike under the mask.
        let mut twin = packet("in_port=1");
        (0..flow::WORDS).for_each(|i| twin.words[i] |= key.words[i] & d.mask.words[i]);
        assert_eq!(taken(&lab.decide(&twin)), ours.then_some(1), "{text} {filter:?}");
    }
}

/// Switches pass on what is in a VLAN, or goes to another address: it is not from the link's other
/// end.
#[test]
fn cfm_takes_messages_to_its_address() {
    let standard = "in_port=1,dl_type=0x8902,dl_dst=01:80:c2:00:00:30";
    let extended = "in_port=1,dl_type=0x8902,dl_dst=01:23:20:00:00:30";
    let (any, wide) = (CfmFilter::default(), CfmFilter { extended: true, ..Default::default() });
    for (filter, text, ours) in [
        (&any, standard, true),
        (&any, extended, false),
        (&any, &standard.replace("8902", "8903"), false),
        (&any, &standard.replace("in_port=1", "in_port=3"), false),
        (&wide, standard, false),
        (&wide, extended, true),
    ] {
        let mut lab = Lab::new();
        let mut spec = lab.sw.port(lab.br, 1).unwrap().clone();
        spec.oam.cfm = Some(filter.clone());
        lab.sw.update_port(lab.br, spec).unwrap();
        lab.add(flow(0, 1, "", apply(vec![out(2)])));
        let d = lab.decide(&packet(text));
        let context = match &d.ops[..] {
            [Op::Punt(p)] => p.context.downcast_ref::<CfmContext>().map(|c| c.port),
            _ => None,
        };
        assert_eq!(context, ours.then_some(1), "{text} {filter:?}");
        assert_eq!(d.mask.u16(at::ETH_TYPE), 0xffff);
        assert_eq!(d.mask.u16(at::ETH_DST) != 0, text.contains("in_port=1,dl_type=0x8902"));
    }
}

#[test]
fn lacp_takes_packets_of_the_other_end_only() {
    for (text, ours) in [
        ("dl_dst=01:80:c2:00:00:02", true),
        ("dl_dst=01:80:c2:00:00:03", true),
        ("dl_dst=01:80:c2:00:00:02,dl_vlan=0", true),
        ("dl_dst=01:80:c2:00:00:02,dl_vlan=7", false),
        ("dl_dst=01:80:c2:00:00:10", false),
        ("dl_dst=ff:ff:ff:ff:ff:ff", false),
        ("dl_dst=02:00:00:00:00:01", false),
    ] {
        let mut lab = lab(BfdFilter::default());
        let lacp = LacpPort { carries: true, ..LacpPort::default() };
        let spec = lab.sw.port(lab.br, 1).unwrap().clone();
        lab.sw.update_port(lab.br, PortSpec { lacp: Some(lacp.clone()), ..spec }).unwrap();
        let is_taken = |d: &Decision| match &d.ops[..] {
            [Op::Punt(p)] => p.context.is::<LacpContext>(),
            _ => false,
        };
        let key = packet(&format!("in_port=1,{text},dl_type=0x8809"));
        let d = lab.decide(&key);
        assert_eq!(is_taken(&d), ours, "{text}");
        let mut twin = packet("in_port=1");
        (0..flow::WORDS).for_each(|i| twin.words[i] |= key.words[i] & d.mask.words[i]);
        assert_eq!(is_taken(&lab.decide(&twin)), ours, "{text}");
        lacp.gate.set(false);
        assert!(d.ops.iter().all(|op| !matches!(op, Op::Punt(p) if p.is_wanted())), "{text}");
    }
}

/// Where LLDP is spoken its frames are taken, and no others.
#[test]
fn lldp_is_taken_where_it_is_spoken() {
    let mut lab = lab(BfdFilter::default());
    lab.add(flow(0, 2, "", apply(vec![out(2)])));
    let spec = lab.sw.port(lab.br, 1).unwrap().clone();
    let gate = Gate::default();
    let oam = OamFilters { lldp: Some(gate.clone()), ..spec.oam.clone() };
    lab.sw.update_port(lab.br, PortSpec { oam, ..spec }).unwrap();
    let mut is_taken = |text: &str| match &lab.decide(&packet(text)).ops[..] {
        [Op::Punt(p)] => p.context.is::<LldpContext>() && p.is_wanted(),
        _ => false,
    };
    assert!(is_taken("in_port=1,dl_dst=01:80:c2:00:00:0e,dl_type=0x88cc"));
    assert!(!is_taken("in_port=1,dl_dst=01:80:c2:00:00:0e,dl_type=0x88cd"));
    assert!(!is_taken("in_port=3,dl_dst=01:80:c2:00:00:0e,dl_type=0x88cc"), "another port");
    gate.set(false);
    assert!(!is_taken("in_port=1,dl_dst=01:80:c2:00:00:0e,dl_type=0x88cc"), "too many");
}

/// CFM is not spoken, spanning trees, LACP, LLDP, IGMP and MLD not unless that is asked for: their
/// frames are frames, and all that the control side does for one is to learn its sender, which is
/// bounded by port.
#[test]
fn protocols_that_are_not_spoken_cost_control_nothing() {
    let mut lab = lab(BfdFilter::default());
    lab.add(flow(0, 2, "", apply(vec![out(port::NORMAL)])));
    for (text, learned) in [
        ("dl_dst=01:80:c2:00:00:02,dl_type=0x8809", 0),
        ("dl_dst=01:80:c2:00:00:0e,dl_type=0x88cc", 0),
        ("dl_dst=01:80:c2:00:00:00,dl_type=0x0026", 0),
        ("dl_dst=01:80:c2:00:00:30,dl_type=0x8902", 1),
        ("dl_dst=01:00:5e:00:00:16,ip,nw_proto=2,nw_ttl=1", 1),
        ("dl_dst=33:33:00:00:00:16,icmp6,icmp_type=131,nw_ttl=1", 1),
    ] {
        let d = lab.decide(&packet(&format!("in_port=1,dl_src=02:00:00:00:00:07,{text}")));
        assert!(d.ops.iter().all(|op| !matches!(op, Op::Punt(_))), "{text}");
        let effects = d.effects.as_ref().and_then(|e| e.downcast_ref::<Effects>());
        let n = effects.map_or(0, |e| {
            assert!(e.flows.is_empty() && e.snooped.is_empty() && e.hops.is_empty(), "{text}");
            e.learns.len()
        });
        assert_eq!(n, learned, "{text}");
    }
}

#[test]
fn little_is_looked_at_to_tell() {
    let mut lab = lab(BfdFilter::default());
    let d = lab.decide(&packet("in_port=1,udp,nw_dst=10.0.0.1,tp_dst=53"));
    assert_eq!((d.mask.u16(at::TP_DST), d.mask.u32(at::IP_DST)), (0x0800, 0));
    let d = lab.decide(&packet("in_port=1,tcp,tp_dst=3784"));
    assert_eq!((d.mask.u16(at::TP_DST), d.mask.u8(at::PROTO)), (0, 0xff));
    let d = lab.decide(&packet("in_port=1,arp"));
    assert_eq!(d.mask.u8(at::PROTO), 0);
}

#[test]
fn a_closed_gate_is_closed_for_cached_decisions_too() {
    let filter = BfdFilter::default();
    let d = lab(filter.clone()).decide(&packet(BFD));
    let [Op::Punt(punt)] = &d.ops[..] else { panic!("{:?}", d.ops) };
    assert!(punt.is_wanted() && d.drop == Some(telemetry::Drop::PuntRate));
    filter.gate.set(false);
    assert!(!punt.is_wanted());
}

#[test]
fn sessions_on_patch_ports_take_what_comes_through() {
    let mut lab = lab(BfdFilter::default());
    let other = lab.sw.add_bridge("br1", Default::default(), 0).unwrap();
    let patch = |of_port, name: &str, peer: &str| crate::PortSpec {
        of_port,
        name: name.into(),
        bundle: name.into(),
        patch_peer: Some(peer.into()),
        ..Default::default()
    };
    lab.sw.add_port(lab.br, patch(8, "a", "b")).unwrap();
    let oam = OamFilters { bfd: Some(BfdFilter::default()), ..OamFilters::default() };
    lab.sw.add_port(other, crate::PortSpec { oam, ..patch(9, "b", "a") }).unwrap();
    lab.add(flow(0, 2, "in_port=2,udp", apply(vec![out(8)])));
    let d = lab.decide(&packet(&BFD.replace("in_port=1", "in_port=2")));
    assert_eq!(taken(&d), Some(9));
}

#[test]
fn a_faulty_port_is_not_live() {
    let mut lab = Lab::new();
    let failover = group(1, GroupType::FastFailover, &[(2, 1), (3, 1)]);
    lab.sw.group_mod(lab.br, &failover, 0).unwrap();
    lab.add(flow(0, 1, "in_port=4", apply(vec![Action::Group(1)])));
    let mut state = |faulty: bool| {
        let mut spec = lab.sw.port(lab.br, 2).unwrap().clone();
        spec.faulty = faulty;
        lab.sw.update_port(lab.br, spec).unwrap();
        let descs = lab.sw.port_descs(lab.br);
        let state = descs.iter().find(|p| p.port == 2).unwrap().state;
        (state & port_state::LIVE != 0, lab.send("in_port=4,tcp"))
    };
    assert_eq!(state(false), (true, "12".into()));
    assert_eq!(state(true), (false, "13".into()));
    assert_eq!(state(false), (true, "12".into()));
}
