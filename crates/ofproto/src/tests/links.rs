//! What a link that goes up and down, as often as a tenant likes, has decided again.

use super::*;
use ::action::Region;

/// The regions that port 2 makes by losing its link.
fn lose_link(lab: &mut Lab) -> Vec<Region> {
    let spec = lab.sw.port(lab.br, 2).unwrap().clone();
    lab.sw.take_regions();
    let (down, config) = (port_state::LINK_DOWN, spec.config | port_config::PORT_DOWN);
    let off = PortSpec { state: down, config, speeds: [7, 0], ..spec.clone() };
    lab.sw.update_port(lab.br, off).unwrap();
    let regions = lab.sw.take_regions();
    lab.sw.update_port(lab.br, spec).unwrap();
    regions
}

#[test]
fn a_link_that_nothing_asks_for_changes_no_decision() {
    let mut lab = Lab::new();
    lab.add(flow(0, 1, "", apply(vec![out(port::NORMAL)])));
    assert_eq!(lose_link(&mut lab), []);
    let spec = lab.sw.port(lab.br, 2).unwrap().clone();
    let other = PortSpec { config: port_config::NO_FWD, ..spec };
    lab.sw.update_port(lab.br, other).unwrap();
    assert_eq!(lab.sw.take_regions(), [lab.all_packets()]);
}

#[test]
fn a_link_that_a_bucket_watches_changes_decisions() {
    let mut lab = Lab::new();
    let watching = |id, port| group(id, GroupType::FastFailover, &[(port, 1)]);
    lab.sw.group_mod(lab.br, &watching(5, 3), 0).unwrap();
    assert_eq!(lose_link(&mut lab), []);
    lab.sw.group_mod(lab.br, &watching(6, 2), 0).unwrap();
    assert_eq!(lose_link(&mut lab), [lab.all_packets()]);
}

#[test]
fn a_link_of_a_port_with_others_changes_decisions() {
    let mut lab = Lab::new();
    let spec = lab.sw.port(lab.br, 3).unwrap().clone();
    lab.sw.update_port(lab.br, PortSpec { bundle: "p2".into(), ..spec }).unwrap();
    assert_eq!(lose_link(&mut lab), [lab.all_packets()]);
}

#[test]
fn a_link_that_a_bundle_action_may_choose_changes_decisions() {
    let mut lab = Lab::new();
    let bundle = Bundle { fields: 0, basis: 0, algorithm: 0, dst: None, members: vec![2, 3] };
    lab.add(flow(0, 1, "", apply(vec![Action::Bundle(Box::new(bundle))])));
    assert_eq!(lose_link(&mut lab), [lab.all_packets()]);
}
