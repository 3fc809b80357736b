//! The memory that a controller may have its bridge's flows take.

use crate::groups::history::GROUPS_BRIDGE_MAX;
use crate::tests::*;
use crate::*;
use openflow::*;

const FULL: Result<(), OfError> = Err(OfError::FlowTableFull);

/// Flow `i`, with `n` actions.
fn of(i: u32, n: usize) -> FlowMod {
    flow(0, 5, &format!("udp,tp_dst={i}"), apply(vec![out(2); n]))
}

fn modify(n: usize) -> FlowMod {
    FlowMod { command: FlowModCommand::Modify, ..flow(0, 0, "", apply(vec![out(3); n])) }
}

#[test]
fn flows_of_a_bridge_leave_others_memory() {
    let mut lab = Lab::new();
    let br = lab.br;
    let other = lab.sw.add_bridge("br1", BridgeConfig::default(), 0).unwrap();
    lab.sw.set_flow_memory(16 << 20);
    let add = |lab: &mut Lab, br, i, n| lab.sw.flow_mod(br, &of(i, n), 0);
    let fill = |lab: &mut Lab, n| (0..5000).take_while(|i| add(lab, lab.br, *i, n).is_ok()).count();
    let large = fill(&mut lab, 4096);
    let half = (8 << 20) / (4096 * size_of::<Action>());
    assert!((half..=half + 1).contains(&large), "half of all: {large}");
    assert_eq!(add(&mut lab, br, 6000, 4096), FULL);
    assert_eq!(add(&mut lab, br, 3, 4096), Ok(()), "one that is there already");
    assert_eq!(add(&mut lab, other, 1, 4096), Ok(()));
    // What does not become larger is no matter.
    assert_eq!(lab.sw.flow_mod(lab.br, &modify(4096), 0), Ok(()));
    assert_eq!(lab.sw.flow_mod(lab.br, &modify(1), 0), Ok(()));
    assert_eq!(lab.sw.n_flows(lab.br), Ok(large));
    // What a modification would make of many is too much, and what is undone leaves nothing.
    for i in 1000..1100 {
        assert_eq!(add(&mut lab, br, i, 1), Ok(()));
    }
    assert_eq!(lab.sw.flow_mod(lab.br, &modify(4096), 0), FULL);
    for _ in 0..100 {
        let bad = FlowMod { table: 0, ..flow(0, 1, "", apply(vec![Action::Group(9)])) };
        let items = (2000..2010).map(|i| BundleItem::Flow(of(i, 4096)));
        let items = items.chain([BundleItem::Flow(bad)]).collect();
        assert_eq!(lab.sw.bundle(lab.br, items, 0), Err((10, OfError::ActBadOutGroup)));
    }
    let delete = FlowMod { command: FlowModCommand::Delete, ..flow(0, 0, "", vec![]) };
    lab.sw.flow_mod(lab.br, &delete, 0).unwrap();
    lab.sw.reclaim(usize::MAX);
    let again = fill(&mut lab, 4096);
    assert!((large - 2..=large).contains(&again), "they gave all back: {again}");
    assert_eq!(add(&mut lab, other, 2, 4096), Ok(()));
}

#[test]
fn actions_of_buckets_count() {
    let mut lab = Lab::new();
    let of = |id, n| {
        let mut g = group(id, GroupType::Select, &[(1, 1)]);
        g.buckets[0].actions = vec![out(2); n];
        g
    };
    let ids = || 1..100_000;
    let taken = ids().take_while(|id| lab.sw.group_mod(lab.br, &of(*id, 4096), 0).is_ok()).count();
    let places = 2 + 2 * 4096 * size_of::<Action>() / 512;
    assert_eq!(taken, GROUPS_BRIDGE_MAX / places);
    assert_eq!(lab.sw.group_mod(lab.br, &of(1, 1), 0), Err(OfError::GroupExists));
    let delete = GroupMod { command: GroupCommand::Delete, ..of(1, 1) };
    assert_eq!(lab.sw.group_mod(lab.br, &delete, 0), Ok(()));
    assert_eq!(lab.sw.group_mod(lab.br, &of(1, 4096), 0), Ok(()));
}
