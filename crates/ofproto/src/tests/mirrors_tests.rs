//! What mirrors do, as ovs-vswitchd does it; OVS's own tests say most of it (`scripts/judge.sh`).

use crate::tests::{Lab, apply, flow, out, packet};
use crate::work::steps;
use crate::*;
use openflow::*;
use telemetry::Drop;

fn to_port(id: u128, port: u32) -> MirrorSpec {
    let all = || (1..=4).map(|n| format!("p{n}")).collect();
    let to = MirrorTo::Port(format!("p{port}"));
    MirrorSpec { id, all: false, received: all(), sent: all(), vlans: None, to, snaplen: 0 }
}

fn to_vlan(id: u128, vlan: u16) -> MirrorSpec {
    MirrorSpec { to: MirrorTo::Vlan(vlan), ..to_port(id, 1) }
}

/// 1 sends to 2, everybody else to 1.
fn lab(mirrors: Vec<MirrorSpec>) -> Lab {
    let mut lab = Lab::new();
    lab.add(flow(0, 1, "in_port=1", apply(vec![out(2)])));
    lab.add(flow(0, 0, "", apply(vec![out(1)])));
    lab.sw.take_regions();
    assert!(lab.sw.set_mirrors(lab.br, mirrors, 0).unwrap().is_empty());
    assert!(!lab.sw.take_regions().is_empty(), "what was decided before goes");
    lab
}

fn trace(lab: &Lab, text: &str) -> String {
    lab.sw.trace(lab.br, &packet(text), &Options::default(), &crate::TraceStyle::default()).unwrap()
}

#[test]
fn a_copy_goes_out_once_before_a_received_packet_and_after_a_sent_one() {
    let mut lab = lab(vec![to_port(7, 3)]);
    assert_eq!(lab.send("in_port=1,udp"), "13,12");
    assert_eq!(lab.send("in_port=2,udp"), "13,11");
    let sent = MirrorSpec { received: Default::default(), ..to_port(7, 3) };
    lab.sw.set_mirrors(lab.br, vec![sent], 0).unwrap();
    assert_eq!(lab.send("in_port=1,udp"), "12,13");
    lab.sw.set_mirrors(lab.br, vec![], 0).unwrap();
    assert_eq!(lab.send("in_port=1,udp"), "12");
}

#[test]
fn a_mirror_of_all_ports_is_one_that_names_all() {
    let all = |id| MirrorSpec { all: true, received: [].into(), sent: [].into(), ..to_port(id, 3) };
    let mut lab = lab(vec![all(7)]);
    assert_eq!(lab.send("in_port=1,udp"), "13,12");
    assert_eq!(lab.send("in_port=2,udp"), "13,11");
    assert_eq!(lab.send("in_port=3,udp"), "drop");
}

/// A port that comes asks once for each port which mirrors it has, and not for each mirror, too.
#[test]
fn the_largest_number_of_mirrors_costs_a_change_of_a_port_little() {
    const PORTS: u32 = 300;
    let mut lab = Lab::new();
    let port = |n: u32| {
        let name = format!("p{n}");
        PortSpec { of_port: n, bundle: name.clone(), name, ..PortSpec::default() }
    };
    for n in 100..100 + PORTS {
        lab.sw.add_port(lab.br, port(n)).unwrap();
    }
    let all = || (100..100 + PORTS).map(|n| format!("p{n}")).collect();
    let mirror = |id| MirrorSpec { received: all(), sent: all(), ..to_port(id, 100) };
    lab.sw.set_mirrors(lab.br, (0..MIRRORS_MAX as u128).map(mirror).collect(), 0).unwrap();
    let (n, done) = steps(|| lab.sw.add_port(lab.br, port(50)));
    done.unwrap();
    assert!(n < 8 * PORTS as usize, "{n} steps to add a port");
}

#[test]
fn an_output_port_is_for_its_mirror_alone() {
    let mut lab = lab(vec![to_port(7, 3)]);
    let d = lab.decide(&packet("in_port=3,udp"));
    assert_eq!((d.ops.len(), d.drop), (0, Some(Drop::MirrorPort)));
    let said = ">>>> dropping packet received on port p3, which is reserved exclusively for mirroring <<<<";
    let text = trace(&lab, "in_port=3,udp");
    assert!(text.contains(said), "{text}");
    lab.add(flow(0, 2, "", apply(vec![out(port::NORMAL)])));
    lab.sw
        .set_mirrors(lab.br, vec![MirrorSpec { received: Default::default(), ..to_port(7, 3) }], 0)
        .unwrap();
    assert_eq!(lab.send("in_port=1,udp,dl_src=00:00:00:00:00:01"), "12,13,14");
    // p4 was learned, and is then a mirror's.
    assert_eq!(
        lab.send("in_port=4,udp,dl_src=00:00:00:00:00:04,dl_dst=00:00:00:00:00:01"),
        "11,13"
    );
    lab.sw.set_mirrors(lab.br, vec![to_port(7, 4)], 0).unwrap();
    let to = "in_port=1,udp,dl_src=00:00:00:00:00:01,dl_dst=00:00:00:00:00:04";
    let text = trace(&lab, to);
    assert!(text.contains(" >> learned port is a mirror port, dropping\n"), "{text}");
    assert_eq!(lab.send(to), "14");
}

#[test]
fn a_mirror_of_vlans_looks_at_tags_and_others_do_not() {
    let vlans = Some(Box::new([11].into_iter().collect()));
    let mut lab = lab(vec![MirrorSpec { vlans, ..to_port(7, 3) }]);
    for (text, ops, looked) in
        [("", "12", 0x1fff), (",dl_vlan=10", "12", 0x1fff), (",dl_vlan=11", "13,12", 0x1fff)]
    {
        let d = lab.decide(&packet(&format!("in_port=1,udp{text}")));
        assert_eq!(::action::ops_text(&d.ops), ops, "{text}");
        assert_eq!(d.mask.u16(flow::at::VLAN), looked, "{text}");
    }
    lab.sw.set_mirrors(lab.br, vec![to_port(7, 3)], 0).unwrap();
    let d = lab.decide(&packet("in_port=1,udp,dl_vlan=10"));
    assert_eq!(d.mask.u16(flow::at::VLAN), 0);
}

#[test]
fn remote_mirroring_sends_to_all_of_its_vlan_and_never_in_circles() {
    let mut lab = lab(vec![to_vlan(7, 12)]);
    lab.port(4, VlanMode::Access(12));
    let copies = "push_vlan(vid=12,pcp=0),11,12,13,pop_vlan,14";
    assert_eq!(lab.send("in_port=1,udp"), format!("{copies},12"));
    assert_eq!(lab.send("in_port=1,udp,dl_vlan=12"), "12");
    let reserved = "in_port=1,udp,dl_dst=01:80:c2:00:00:02";
    assert_eq!(lab.send(reserved), "12");
    assert_eq!(lab.send("in_port=1,udp,dl_dst=01:00:0c:cc:cc:cc"), "12");
    let d = lab.decide(&packet("in_port=1,udp,dl_dst=52:00:00:00:00:02"));
    assert_eq!(d.mask.get::<6>(flow::at::ETH_DST), [0xff, 0, 0, 0, 0, 0]);
}

#[test]
fn copies_are_cut_and_what_is_forwarded_is_not() {
    let mut lab = lab(vec![MirrorSpec { snaplen: 100, ..to_port(7, 3) }]);
    assert_eq!(lab.send("in_port=1,udp"), "trunc(100),13,12");
    lab.sw.set_mirrors(lab.br, vec![MirrorSpec { snaplen: 0xffff, ..to_port(7, 3) }], 0).unwrap();
    assert_eq!(lab.send("in_port=1,udp"), "13,12");
}

#[test]
fn counters_live_as_long_as_the_mirror() {
    let mut lab = lab(vec![to_port(7, 3), to_vlan(8, 12)]);
    let d = lab.decide(&packet("in_port=1,udp"));
    for id in &d.credits {
        lab.sw.credit(*id, 2, 128, 1);
    }
    for id in [7, 8] {
        assert_eq!(lab.sw.mirror_counters(lab.br, id), Some((2, 128)));
    }
    let changed = MirrorSpec { snaplen: 60, ..to_port(7, 3) };
    lab.sw.set_mirrors(lab.br, vec![changed.clone()], 1).unwrap();
    assert_eq!(lab.sw.mirror_counters(lab.br, 7), Some((2, 128)));
    assert_eq!(lab.sw.mirror_counters(lab.br, 8), None);
    lab.sw.take_regions();
    lab.sw.set_mirrors(lab.br, vec![changed], 1).unwrap();
    assert!(lab.sw.take_regions().is_empty(), "nothing changed");
}

#[test]
fn no_more_than_there_is_place_for() {
    let mut lab = Lab::new();
    let many = (0..40).map(|n| to_vlan(n, 100 + n as u16)).collect();
    let left_out = lab.sw.set_mirrors(lab.br, many, 0).unwrap();
    assert_eq!(left_out.iter().map(|m| m.id).collect::<Vec<_>>(), (32..40).collect::<Vec<_>>());
    lab.add(flow(0, 0, "", apply(vec![out(1)])));
    // Each mirror floods once, whatever the copies cause in turn.
    let d = lab.decide(&packet("in_port=2,udp"));
    let outputs = d.ops.iter().filter(|op| matches!(op, ::action::Op::Output(_))).count();
    assert_eq!(outputs, MIRRORS_MAX * 4 + 1);
    assert_eq!(d.drop, None);
}

#[test]
fn the_worst_that_mirrors_can_do_is_bounded() {
    let mut lab = Lab::new();
    (5..=800).for_each(|n| lab.port(n, VlanMode::default()));
    let many = (0..32).map(|n| to_vlan(n, 100 + n as u16)).collect();
    lab.sw.set_mirrors(lab.br, many, 0).unwrap();
    lab.add(flow(0, 0, "", apply(vec![out(1)])));
    let (steps, d) = crate::work::steps(|| lab.decide(&packet("in_port=2,udp")));
    assert_eq!(d.drop, Some(Drop::ResubmitLimit));
    assert!(steps < 20_000, "{steps}");
}

#[test]
fn a_mirrored_packet_stays_so_when_it_is_looked_up_again() {
    let ct = Action::Ct(Box::new(Conntrack {
        flags: 0,
        zone: Zone::Number(0),
        table: Some(1),
        alg: 0,
        actions: vec![],
    }));
    let mut lab = lab(vec![to_port(7, 3)]);
    lab.add(flow(0, 9, "udp,in_port=4", apply(vec![out(2), ct])));
    lab.add(flow(1, 0, "", apply(vec![out(1)])));
    let d = lab.decide(&packet("in_port=4,udp"));
    let text = ::action::ops_text(&d.ops);
    assert!(text.starts_with("13,12,ct,recirc("), "{text}");
    let id = d.ops.iter().find_map(|op| match op {
        ::action::Op::Recirc(id) => Some(*id),
        _ => None,
    });
    let mut again = packet("in_port=4,udp");
    again.set_u32(flow::at::RECIRC, id.unwrap());
    assert_eq!(::action::ops_text(&lab.decide(&again).ops), "11");
}
