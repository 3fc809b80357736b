//! NORMAL: learning, flooding, VLANs and priority tags.

use super::*;

#[test]
fn normal_learns_floods_and_tags() {
    let mut lab = Lab::new();
    lab.sw.install_default_flow(lab.br, 0).unwrap();
    lab.port(3, VlanMode::Access(5));
    lab.port(4, VlanMode::Access(6));
    let there = "udp,dl_src=00:00:00:00:00:01,dl_dst=00:00:00:00:00:02";
    let back = "udp,dl_src=00:00:00:00:00:02,dl_dst=00:00:00:00:00:01";
    assert_eq!(lab.send(&format!("in_port=1,{there}")), "12");
    assert_eq!(lab.send(&format!("in_port=2,{back}")), "11");
    assert_eq!(lab.send(&format!("in_port=1,{there}")), "12");
    let tag = "push_vlan(vid=5,pcp=0)";
    assert_eq!(lab.send(&format!("in_port=3,{there}")), format!("{tag},11,12"));
    assert_eq!(lab.send(&format!("in_port=1,dl_vlan=5,{back}")), "pop_vlan,13");
    assert_eq!(lab.send(&format!("in_port=1,dl_vlan=6,{back}")), "12,pop_vlan,14");
    assert_eq!(lab.send(&format!("in_port=3,dl_vlan=6,{back}")), "drop");
    assert_eq!(lab.sw.fdb(lab.br).unwrap().len(), 5);
    assert_eq!(lab.send("in_port=1,udp,dl_dst=01:80:c2:00:00:02"), "drop");
    lab.sw.fdb_flush(lab.br).unwrap();
    assert!(lab.sw.fdb(lab.br).unwrap().is_empty());
}

#[test]
fn a_flood_reaches_the_bridges_own_port_first() {
    let mut lab = Lab::new();
    lab.sw.install_default_flow(lab.br, 0).unwrap();
    let (of_port, dp_port) = (port::LOCAL, Some(100));
    let (name, bundle) = ("br0".into(), "br0".into());
    let local = PortSpec { of_port, name, bundle, dp_port, ..PortSpec::default() };
    lab.sw.add_port(lab.br, local).unwrap();
    assert_eq!(lab.send("in_port=1,udp,dl_dst=ff:ff:ff:ff:ff:ff"), "100,12,13,14");
}

#[test]
fn a_controllers_packet_is_flooded_by_normal_and_teaches_nothing() {
    let mut lab = Lab::new();
    lab.sw.install_default_flow(lab.br, 0).unwrap();
    let mut actions = |port: u32| {
        let mut key = packet("in_port=1,udp,dl_src=00:00:00:00:00:01,dl_dst=00:00:00:00:00:02");
        key.set_u32(at::OF_IN_PORT, port);
        let style = crate::TraceStyle::default();
        let text = lab.sw.trace_learning(lab.br, &key, &Options::default(), &style, 0).unwrap();
        assert!(lab.sw.fdb(lab.br).unwrap().is_empty());
        text.lines().last().map(str::to_owned)
    };
    let flooded = Some("Datapath actions: 11,12,13,14".to_owned());
    assert_eq!([port::CONTROLLER, port::ANY].map(&mut actions), [flooded.clone(), flooded]);
    assert_eq!(actions(9).as_deref(), Some("Datapath actions: drop"));
}

#[test]
fn priority_tags_leave_as_the_port_says() {
    let mut lab = Lab::new();
    lab.sw.install_default_flow(lab.br, 0).unwrap();
    lab.port(3, VlanMode::Access(5));
    lab.port(4, VlanMode::Access(6));
    let to_all = "dl_dst=ff:ff:ff:ff:ff:ff";
    for (tags, with, without) in [
        (PriorityTags::Never, "13", "13"),
        (PriorityTags::IfNonzero, "push_vlan(vid=0,pcp=1),13", "13"),
        (PriorityTags::Always, "push_vlan(vid=0,pcp=1),13", "push_vlan(vid=0,pcp=0),13"),
    ] {
        let spec = lab.sw.port(lab.br, 3).unwrap().clone();
        lab.sw.update_port(lab.br, PortSpec { priority_tags: tags, ..spec }).unwrap();
        for (pcp, leaves) in [(1, with), (0, without)] {
            let text = lab.send(&format!("in_port=1,dl_vlan=5,dl_vlan_pcp={pcp},udp,{to_all}"));
            assert_eq!(text, format!("12,pop_vlan,{leaves}"), "{tags:?}");
        }
    }
}

#[test]
fn normal_keeps_a_priority_tag_that_says_something() {
    let mut lab = Lab::new();
    lab.sw.install_default_flow(lab.br, 0).unwrap();
    let to = "udp,dl_src=00:00:00:00:00:01,dl_dst=00:00:00:00:00:02";
    assert_eq!(lab.send(&format!("in_port=1,dl_vlan=0,dl_vlan_pcp=3,{to}")), "12,13,14");
    assert_eq!(lab.send(&format!("in_port=1,dl_vlan=0,dl_vlan_pcp=0,{to}")), "pop_vlan,12,13,14");
}

#[test]
fn a_packet_to_its_own_sender_is_not_flooded() {
    let mut lab = Lab::new();
    lab.sw.install_default_flow(lab.br, 0).unwrap();
    let mac = "02:00:00:00:00:05";
    assert_eq!(lab.send(&format!("in_port=1,udp,dl_src={mac},dl_dst={mac}")), "drop");
}

#[test]
fn a_port_with_a_native_vlan_carries_nothing_without_a_vlan() {
    let mut lab = Lab::new();
    let trunks = Arc::new(VlanSet::ALL);
    lab.port(2, VlanMode::NativeTagged { tag: 10, trunks: trunks.clone() });
    lab.port(3, VlanMode::NativeUntagged { tag: 10, trunks });
    lab.add(flow(0, 1, "", apply(vec![Action::output(port::NORMAL)])));
    let udp = "in_port=1,udp,dl_src=02:00:00:00:00:01,dl_dst=02:00:00:00:00:02";
    assert_eq!(lab.send(udp), "14");
    assert_eq!(lab.send(&format!("{udp},dl_vlan=7")), "12,13,14");
    assert_eq!(lab.send(&format!("{udp},dl_vlan=10")), "12,pop_vlan,13,push_vlan(vid=10,pcp=0),14");
}

#[test]
fn a_third_tag_hides_none() {
    let mut lab = Lab::new();
    let push = Action::PushVlan { ethertype: 0x8100 };
    let vid = Action::SetVlanVid { vid: 7, push_if_absent: false };
    let clone = Action::Clone(vec![push.clone(), out(3)]);
    let list = vec![clone, push, vid, out(2), Action::StripVlan { pop: true }, out(4)];
    lab.add(flow(0, 1, "in_port=1", apply(list)));
    let mut key = packet("in_port=1,udp,dl_vlan=5");
    key.set_u16(at::VLAN1, 0x1006);
    let text = ::action::ops_text(&lab.decide(&key).ops);
    let new = "push_vlan(vid=0,pcp=0)";
    let other = "pop_vlan,push_vlan(vid=7,pcp=0)";
    assert_eq!(text, format!("clone({new},13),{new},{other},12,pop_vlan,14"));
}

#[test]
fn addresses_of_a_port_that_goes_are_forgotten_by_all_bridges() {
    let mut lab = Lab::new();
    let other = lab.sw.add_bridge("br1", BridgeConfig::default(), 0).unwrap();
    let patch = |of_port| PortSpec {
        of_port,
        name: format!("q{of_port}"),
        bundle: format!("q{of_port}"),
        ..PortSpec::default()
    };
    [7, 8].into_iter().for_each(|n| lab.sw.add_port(other, patch(n)).unwrap());
    let [guest, kept, fixed] = [1, 2, 3].map(|n| [2, 0, 0, 0, 0, n]);
    for mac in [guest, kept, fixed] {
        lab.sw.learn(other.0, 5, mac, 7, 0);
    }
    lab.sw.fdb_add(other, 8, 5, fixed, 0).unwrap();
    lab.sw.learn(lab.br.0, 5, guest, 1, 0);
    lab.sw.learn(lab.br.0, 5, fixed, 1, 0);
    lab.sw.learn(lab.br.0, 5, kept, 2, 0);
    lab.sw.remove_port(lab.br, 1).unwrap();
    let mut known: Vec<_> = lab.sw.fdb(other).unwrap().iter().map(|e| e.mac).collect();
    known.sort_unstable();
    assert_eq!(known, [kept, fixed]);
    let here: Vec<_> = lab.sw.fdb(lab.br).unwrap().iter().map(|e| e.mac).collect();
    assert_eq!(here, [kept]);
}
