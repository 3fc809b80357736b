//! What a link that goes up and down, as often as a tenant likes, has decided again.

use super::*;

const PACKET: &str = "in_port=1,udp,dl_src=00:00:00:00:00:01,dl_dst=00:00:00:00:00:02";

/// True if a decision about packets of port 1 is named when port 2 loses its link.
fn asks_for_link(lab: &mut Lab) -> bool {
    let spec = lab.sw.port(lab.br, 2).unwrap().clone();
    let key = packet(PACKET);
    let decision = lab.decide(&key);
    lab.settle();
    let (down, config) = (port_state::LINK_DOWN, spec.config | port_config::PORT_DOWN);
    let off = PortSpec { state: down, config, speeds: [7, 0], ..spec.clone() };
    lab.sw.update_port(lab.br, off).unwrap();
    let is_named = lab.names(&key, &decision);
    lab.sw.update_port(lab.br, spec).unwrap();
    is_named
}

#[test]
fn a_link_that_nothing_asks_for_changes_no_decision() {
    let mut lab = Lab::new();
    lab.add(flow(0, 1, "", apply(vec![out(port::NORMAL)])));
    assert!(!asks_for_link(&mut lab));
    let spec = lab.sw.port(lab.br, 2).unwrap().clone();
    let key = packet(PACKET);
    let decision = lab.decide(&key);
    lab.settle();
    lab.sw.update_port(lab.br, PortSpec { config: port_config::NO_FWD, ..spec }).unwrap();
    assert!(lab.names(&key, &decision));
}

#[test]
fn a_link_that_a_bucket_watches_changes_decisions() {
    let mut lab = Lab::new();
    let watching = |id, port| group(id, GroupType::FastFailover, &[(port, 1)]);
    lab.sw.group_mod(lab.br, &watching(5, 3), 0).unwrap();
    lab.sw.group_mod(lab.br, &watching(6, 2), 0).unwrap();
    lab.add(flow(0, 1, "", apply(vec![Action::Group(5)])));
    lab.add(flow(0, 2, "udp", apply(vec![Action::Group(6)])));
    assert!(asks_for_link(&mut lab));
    lab.sw
        .group_mod(lab.br, &GroupMod { command: GroupCommand::Delete, ..watching(6, 2) }, 0)
        .unwrap();
    assert!(!asks_for_link(&mut lab));
}

#[test]
fn a_link_of_a_port_with_others_changes_decisions() {
    let mut lab = Lab::new();
    lab.add(flow(0, 1, "", apply(vec![out(4)])));
    assert!(!asks_for_link(&mut lab));
    let spec = lab.sw.port(lab.br, 3).unwrap().clone();
    lab.sw.update_port(lab.br, PortSpec { bundle: "p2".into(), ..spec }).unwrap();
    assert!(asks_for_link(&mut lab));
}

#[test]
fn a_link_that_a_bundle_action_may_choose_changes_decisions() {
    let mut lab = Lab::new();
    let bundle = Bundle { fields: 0, basis: 0, algorithm: 0, dst: None, members: vec![2, 3] };
    lab.add(flow(0, 1, "", apply(vec![Action::Bundle(Box::new(bundle))])));
    assert!(asks_for_link(&mut lab));
}
