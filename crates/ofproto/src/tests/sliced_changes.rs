//! Tests of dumps and changes that go in slices.

use crate::tests::{Lab, apply, flow, group, matching, out, packet};
use crate::*;
use openflow::*;

#[test]
fn a_dump_in_pieces_gives_what_stays_once() {
    let mut lab = Lab::new();
    let add = |lab: &mut Lab, i: u16, to| {
        lab.add(flow(0, i, &format!("udp,tp_dst={i}"), apply(vec![out(to)])));
    };
    (1..=100).for_each(|i| add(&mut lab, i, 2));
    let mut dump = lab.sw.dump(lab.br, &FlowSelect::default()).unwrap();
    let mut seen = Vec::new();
    let more = lab.sw.dump_next(&mut dump, 10, 0, &mut |f| seen.push((f.priority, f.instructions)));
    assert!(more && seen.len() == 10, "no more than was asked for");
    // Some go, some come, some are replaced and some modified.
    for i in 1..=30 {
        let m = flow(0, i, &format!("udp,tp_dst={i}"), vec![]);
        lab.add(FlowMod { command: FlowModCommand::DeleteStrict, ..m });
    }
    (101..=120).for_each(|i| add(&mut lab, i, 2));
    (31..=60).for_each(|i| add(&mut lab, i, 3));
    let modify = flow(0, 0, "udp,tp_dst=77", apply(vec![out(4)]));
    lab.add(FlowMod { command: FlowModCommand::Modify, ..modify });
    let early = seen.len();
    while lab.sw.dump_next(&mut dump, 10, 0, &mut |f| seen.push((f.priority, f.instructions))) {}
    let late = &seen[early..];
    let mut numbers: Vec<u16> = seen.iter().map(|(i, _)| *i).collect();
    numbers.sort_unstable();
    assert!(numbers.is_sorted_by(|a, b| a < b), "twice: {numbers:?}");
    assert!((31..=100).all(|i| numbers.contains(&i)), "{numbers:?}");
    assert!(numbers.iter().all(|i| *i <= 100), "{numbers:?}");
    let now = |i: u16| match i {
        31..=60 => 3,
        77 => 4,
        _ => 2,
    };
    assert!(late.iter().all(|(i, list)| *i > 30 && *list == apply(vec![out(now(*i))])));
}

/// Flows that take several turns to look at, of two tables. The highest ids are free to be used
/// again.
fn crowd() -> (Lab, usize) {
    let n = 3 * FLOWS_TURN_MAX;
    let mut lab = Lab::new();
    (0..n).for_each(|i| lab.add(one_of(i, 2)));
    for i in n - FREE..n {
        lab.add(FlowMod { command: FlowModCommand::DeleteStrict, ..one_of(i, 2) });
    }
    (lab, n - FREE)
}

/// Flow `i` of a [`crowd`].
fn one_of(i: usize, to: u32) -> FlowMod {
    let m = format!("udp,nw_src=10.0.0.{},tp_dst={i}", i % 4);
    flow((i % 2) as u8, 5, &m, apply(vec![out(to)]))
}

/// Flows of a [`crowd`] that are gone.
const FREE: usize = 600;
/// When their ids may be used again, ns.
const LATER: u64 = 20_000_000_000;

/// Replaces, modifies, deletes and adds flows of a [`crowd`], one of 97 and others each turn.
fn stir(lab: &mut Lab, turn: usize) {
    let mut modify = flow(0, 0, "udp", apply(vec![out(4)]));
    (modify.command, modify.table) = (FlowModCommand::Modify, TABLE_ALL);
    lab.sw.flow_mod(lab.br, &modify, LATER).unwrap();
    for i in (200 + turn..3 * FLOWS_TURN_MAX - FREE).step_by(97) {
        lab.sw.flow_mod(lab.br, &one_of(i, 3), LATER).unwrap();
    }
    let gone = FlowMod { table: TABLE_ALL, ..delete(&format!("udp,tp_dst={}", 150 + turn)) };
    lab.sw.flow_mod(lab.br, &gone, LATER).unwrap();
    let new = flow(1, 6, &format!("udp,tp_dst={turn}"), vec![]);
    lab.sw.flow_mod(lab.br, &new, LATER).unwrap();
}

#[test]
fn no_turn_counts_too_many_flows_and_none_counts_one_twice() {
    let (mut lab, n) = crowd();
    let few =
        FlowSelect { matching: matching("udp,nw_src=10.0.0.3,tp_dst=303"), ..Default::default() };
    let mut sums = lab.sw.aggregate(lab.br, &few).unwrap();
    assert!(!lab.sw.aggregate_next(&mut sums) && sums.flows == 1, "one turn for one flow");
    for select in [FlowSelect::default(), FlowSelect { table: 1, ..FlowSelect::default() }] {
        let n = if select.table == 1 { n / 2 } else { n };
        let mut sums = lab.sw.aggregate(lab.br, &select).unwrap();
        let (mut turns, mut before) = (1, 0);
        while lab.sw.aggregate_next(&mut sums) {
            assert!(sums.flows as usize - before <= FLOWS_TURN_MAX);
            (turns, before) = (turns + 1, sums.flows as usize);
        }
        assert_eq!((sums.flows as usize, turns), (n, 5), "{select:?}");
    }
    let mut sums = lab.sw.aggregate(lab.br, &FlowSelect::default()).unwrap();
    let mut turn = 0;
    while lab.sw.aggregate_next(&mut sums) {
        stir(&mut lab, turn);
        turn += 1;
    }
    let counted = sums.flows as usize;
    let changed = turn * (n / 97 + 2);
    assert!((n - changed..=n).contains(&counted), "{counted} of {n}");
}

#[test]
fn a_long_dump_takes_turns_and_gives_no_flow_twice() {
    let (mut lab, n) = crowd();
    let mut dump = lab.sw.dump(lab.br, &FlowSelect::default()).unwrap();
    let (mut seen, mut turn, mut held) = (Vec::new(), 0, 0);
    let mut next = |lab: &Lab| {
        held = held.max(dump.held());
        let each = &mut |f: FlowStats| seen.push((f.table, f.matching.key.u16(flow::at::TP_DST)));
        lab.sw.dump_next(&mut dump, usize::MAX, LATER, each)
    };
    while next(&lab) {
        stir(&mut lab, turn);
        turn += 1;
    }
    assert!(turn >= 3, "{turn} turns");
    assert!(held >= n * size_of::<usize>() && dump.held() < held, "{held}");
    assert!(seen.is_sorted_by_key(|(table, _)| *table), "by table");
    seen.sort_unstable();
    assert!(seen.is_sorted_by(|a, b| a < b), "twice");
    // Those that were replaced before they were looked at may be missing.
    let stay = |i: u16| (i - 200) % 97 >= turn as u16;
    let missing =
        (200..n as u16).find(|i| stay(*i) && seen.binary_search(&((i % 2) as u8, *i)).is_err());
    assert_eq!(missing, None);
}

#[test]
fn aggregates_are_sums_of_dumps() {
    let mut lab = Lab::new();
    for i in 1..=40u16 {
        let mut m = flow((i % 3) as u8, i, &format!("udp,tp_dst={i}"), apply(vec![out(2)]));
        m.cookie = u64::from(i % 4);
        m.flags = if i % 5 == 0 { flow_flag::NO_BYT_COUNTS } else { 0 };
        lab.add(m);
    }
    (0..2000).for_each(|id| lab.sw.credit(id, 3, 100, 0));
    let selects = [
        FlowSelect::default(),
        FlowSelect { table: 1, ..FlowSelect::default() },
        FlowSelect { cookie: 2, cookie_mask: 3, ..FlowSelect::default() },
        FlowSelect { matching: matching("udp"), table: 2, ..FlowSelect::default() },
        FlowSelect { matching: matching("udp,tp_dst=7"), ..FlowSelect::default() },
        FlowSelect { out_port: 3, ..FlowSelect::default() },
    ];
    for select in selects {
        let known = |n| if n == u64::MAX { 0 } else { n };
        let sum = lab.sw.flow_stats(lab.br, &select, 0).unwrap().iter().fold(
            (0, 0, 0),
            |(packets, bytes, flows), f| {
                (packets + known(f.packets), bytes + known(f.bytes), flows + 1)
            },
        );
        let mut sums = lab.sw.aggregate(lab.br, &select).unwrap();
        while lab.sw.aggregate_next(&mut sums) {}
        assert_eq!((sums.packets, sums.bytes, sums.flows), sum, "{select:?}");
    }
}

/// As many flows, of one UDP port each.
fn many(n: u16) -> Vec<Result<BundleItem, OfError>> {
    let item = |i| BundleItem::Flow(flow(0, 5, &format!("udp,tp_dst={i}"), apply(vec![out(2)])));
    (0..n).map(|i| Ok(item(i))).collect()
}

fn delete(m: &str) -> FlowMod {
    FlowMod { command: FlowModCommand::Delete, ..flow(0, 0, m, vec![]) }
}

#[test]
fn a_change_in_slices_is_seen_at_its_end() {
    let mut lab = Lab::new();
    lab.add(flow(0, 1, "udp", apply(vec![out(3)])));
    lab.sw.take_regions();
    let change = lab.sw.begin(lab.br, Box::new(many(100).into_iter()), 0).unwrap();
    for _ in 0..9 {
        assert_eq!(lab.sw.advance(&change, 10), None);
        assert_eq!(lab.send("in_port=1,udp,tp_dst=5"), "13");
        assert_eq!(lab.dump().len(), 1);
        assert!(lab.sw.take_regions().is_empty(), "nothing changed yet");
    }
    while lab.sw.advance(&change, 10).is_none() {}
    assert!(!lab.sw.busy());
    assert!(!lab.sw.take_regions().is_empty());
    assert_eq!(lab.send("in_port=1,udp,tp_dst=5"), "12");
    assert_eq!(lab.dump().len(), 101);
    // The same for flows that go, which have one region.
    let gone = vec![Ok(BundleItem::Flow(delete("udp")))];
    let change = lab.sw.begin(lab.br, Box::new(gone.into_iter()), 0).unwrap();
    assert_eq!(lab.sw.advance(&change, 50), None);
    assert_eq!(lab.dump().len(), 101);
    while lab.sw.advance(&change, 50).is_none() {}
    assert_eq!(lab.dump().len(), 0);
    assert_eq!(lab.sw.n_flows(lab.br), Ok(0));
}

#[test]
fn another_change_runs_the_open_one_to_its_end() {
    let mut lab = Lab::new();
    let change = lab.sw.begin(lab.br, Box::new(many(100).into_iter()), 0).unwrap();
    assert_eq!(lab.sw.advance(&change, 10), None);
    lab.add(flow(0, 9, "udp", apply(vec![out(4)])));
    assert_eq!(lab.dump().len(), 101);
    assert_eq!(lab.sw.advance(&change, 10), Some(Ok(())), "who began it learns of it");
    // A failed one leaves nothing, and says which item it was.
    let mut bad = many(60);
    bad.insert(50, Err(OfError::BadLen));
    let change = lab.sw.begin(lab.br, Box::new(bad.into_iter()), 0).unwrap();
    assert_eq!(lab.sw.advance(&change, 10), None);
    lab.add(delete("udp,tp_dst=3"));
    assert_eq!(lab.sw.advance(&change, 1), Some(Err((50, OfError::BadLen))));
    assert_eq!(lab.dump().len(), 100);
    assert_eq!(lab.sw.n_flows(lab.br), Ok(100));
}

#[test]
fn groups_and_flows_of_a_bundle_change_together() {
    let mut lab = Lab::new();
    let br = lab.br;
    lab.sw.group_mod(br, &group(7, GroupType::Indirect, &[(2, 1)]), 0).unwrap();
    lab.add(flow(0, 1, "in_port=1", apply(vec![Action::Group(7), out(4)])));
    assert_eq!(lab.send("in_port=1,udp,tp_dst=999"), "12,14");
    let changed =
        GroupMod { command: GroupCommand::Modify, ..group(7, GroupType::Indirect, &[(3, 1)]) };
    let mut items = vec![Ok(BundleItem::Group(changed))];
    items.extend(many(20));
    items.push(Ok(BundleItem::Flow(flow(0, 9, "in_port=1", apply(vec![Action::Group(7)])))));
    let change = lab.sw.begin(br, Box::new(items.into_iter()), 0).unwrap();
    while lab.sw.advance(&change, 1).is_none() {
        let seen = lab.send("in_port=1,udp,tp_dst=999");
        assert!(seen == "12,14" || seen == "13", "{seen}");
    }
    assert_eq!(lab.send("in_port=1,udp,tp_dst=999"), "13");
    // All the same when it fails, and when the group goes.
    let gone = GroupMod { command: GroupCommand::Delete, ..group(7, GroupType::Indirect, &[]) };
    let items = [Ok(BundleItem::Group(gone.clone())), Err(OfError::BadLen)];
    let change = lab.sw.begin(br, Box::new(items.into_iter()), 0).unwrap();
    assert_eq!(lab.sw.advance(&change, 100), Some(Err((1, OfError::BadLen))));
    assert_eq!(lab.send("in_port=1,udp,tp_dst=999"), "13");
    lab.sw.group_mod(br, &gone, 0).unwrap();
    assert_eq!(lab.send("in_port=1,udp,tp_dst=999"), "drop");
}

#[test]
fn a_wide_change_has_few_regions_and_is_tidied_in_slices() {
    let mut lab = Lab::new();
    let change = lab.sw.begin(lab.br, Box::new(many(3000).into_iter()), 0).unwrap();
    assert_eq!(lab.sw.advance(&change, usize::MAX), Some(Ok(())));
    lab.sw.take_regions();
    let modify = FlowMod { instructions: apply(vec![out(3)]), ..delete("udp") };
    lab.add(FlowMod { command: FlowModCommand::Modify, ..modify });
    let regions = lab.sw.take_regions();
    assert!(regions.len() <= 2, "{}", regions.len());
    let packet = packet("in_port=1,udp,tp_dst=7");
    assert!(regions.iter().all(|r| packet.matches(&r.key, &r.mask)));
    let mut slices = 0;
    while lab.sw.has_garbage() {
        lab.sw.reclaim(100);
        slices += 1;
    }
    assert!(slices > 20, "3000 rules in {slices} slices of 100");
    assert_eq!(lab.send("in_port=1,udp,tp_dst=7"), "13");
}
