//! Flows that make room for others in a table that is large.

use crate::tests::*;
use crate::work::steps;
use crate::*;
use openflow::*;

/// Flows that the table may have.
const LIMIT: u32 = 4096;

fn full_table(groups: &[&str], make: fn(u32) -> FlowMod) -> Lab {
    let mut lab = Lab::new();
    let table = TableConfig {
        limit: Some(LIMIT),
        evict: true,
        groups: groups.iter().map(|g| parse_subfield(g).unwrap()).collect(),
        ..TableConfig::default()
    };
    let mut config = lab.sw.bridge_config(lab.br).unwrap().clone();
    config.tables.insert(0, table);
    lab.sw.configure_bridge(lab.br, config).unwrap();
    (0..LIMIT).for_each(|n| lab.add(make(n)));
    lab
}

/// The flow of a number: those with lower ones expire first.
fn numbered(n: u32) -> FlowMod {
    let text = format!("in_port={},udp,nw_dst=10.0.0.0,tp_dst={n}", 1 + n % 2);
    FlowMod { idle_timeout: 100 + n as u16, ..flow(0, 1, &text, vec![]) }
}

fn numbers(lab: &Lab) -> Vec<u32> {
    let flows = lab.sw.flow_stats(lab.br, &FlowSelect::default(), 0).unwrap();
    let mut all: Vec<u32> = flows.iter().map(|f| u32::from(f.idle_timeout) - 100).collect();
    all.sort_unstable();
    all
}

#[test]
fn no_flow_in_a_full_table_costs_many_visits() {
    const MORE: u32 = 2000;
    for groups in [&[][..], &["NXM_OF_IN_PORT[]"]] {
        let mut lab = full_table(groups, numbered);
        let first = steps(|| lab.add(numbered(LIMIT))).0;
        assert!(first < 2 * LIMIT as usize, "{first} steps: the table is looked at once");
        for n in LIMIT + 1..LIMIT + MORE {
            let (steps, ()) = steps(|| lab.add(numbered(n)));
            // The record of a table's misses may be among those that are looked at.
            let most = if n == LIMIT + 1 { 1000 } else { 40 };
            assert!(steps < most, "{steps} steps for flow {n}");
        }
        let expected: Vec<u32> = (MORE..LIMIT + MORE).collect();
        assert_eq!(numbers(&lab), expected, "those go that expire first");
    }
}

/// The flows that expire first are used all the time.
#[test]
fn flows_that_are_all_used_cost_few_visits() {
    const S: u64 = 1_000_000_000;
    let mut lab = full_table(&[], numbered);
    // Twice, until all records were looked at.
    (LIMIT..LIMIT + 2).for_each(|n| lab.add(numbered(n)));
    let flows: Vec<u32> = (0..lab.sw.slots.len() as u32).collect();
    for now in 1..4 {
        flows.iter().for_each(|id| lab.sw.credit(*id, 1, 60, now * S));
        for n in 0..10 {
            let m = numbered(LIMIT + now as u32 * 10 + n);
            let (steps, done) = steps(|| lab.sw.flow_mod(lab.br, &m, now * S));
            assert!(done == Ok(()) && steps < 60, "{done:?} {steps} steps");
        }
    }
    let left = numbers(&lab);
    let early = left.iter().filter(|n| **n < 100).count();
    assert!(left.len() == LIMIT as usize && early < 75, "{early}");
}

/// What a bundle stages and gives up changes nothing of which flows go next.
#[test]
fn what_is_undone_may_be_evicted_again() {
    let mut lab = full_table(&[], numbered);
    lab.add(numbered(LIMIT));
    let delete = |n| FlowMod { command: FlowModCommand::DeleteStrict, ..numbered(n) };
    let wrong = FlowMod { table: 254, ..numbered(0) };
    let all = [delete(1), numbered(9000), numbered(9001), wrong].map(BundleItem::Flow);
    assert!(lab.sw.bundle(lab.br, all.to_vec(), 0).is_err());
    assert_eq!(numbers(&lab), (1..=LIMIT).collect::<Vec<_>>());
    lab.add(numbered(LIMIT + 1));
    lab.add(numbered(LIMIT + 2));
    assert_eq!(numbers(&lab)[..2], [3, 4]);
}

#[test]
fn flows_that_are_gone_or_were_used_are_not_evicted() {
    let mut lab = full_table(&[], numbered);
    lab.add(numbered(LIMIT));
    assert_eq!(numbers(&lab)[0], 1);
    // The next ones on the list: one is deleted, one is made again.
    lab.add(FlowMod { command: FlowModCommand::DeleteStrict, ..numbered(1) });
    let again = FlowMod { idle_timeout: 9000, ..numbered(2) };
    lab.add(again);
    lab.add(numbered(LIMIT + 1));
    lab.add(numbered(LIMIT + 2));
    assert_eq!(numbers(&lab)[..2], [4, 5], "1 was deleted, 2 expires later, 3 has made room");
}

#[test]
fn a_table_of_flows_that_stay_is_looked_at_once() {
    let stays = |n| FlowMod { idle_timeout: 0, ..numbered(n) };
    let mut lab = full_table(&[], stays);
    let mut refused = |n| {
        steps(|| assert_eq!(lab.sw.flow_mod(lab.br, &stays(n), 0), Err(OfError::FlowTableFull))).0
    };
    let first = refused(LIMIT);
    assert!(first >= LIMIT as usize, "{first} steps");
    let more: usize = (1..500).map(|n| refused(LIMIT + n)).sum();
    assert!(more < 500 * 40, "{more} steps");
    // One comes that does not stay.
    lab.add(FlowMod { command: FlowModCommand::DeleteStrict, ..stays(7) });
    lab.add(numbered(LIMIT));
    lab.add(stays(LIMIT + 1));
    let text = "in_port=2,udp,nw_dst=10.0.0.0,tp_dst=4096";
    assert!(
        !lab.sw
            .flow_stats(lab.br, &FlowSelect::default(), 0)
            .unwrap()
            .iter()
            .any(|f| { f.matching == flow(0, 1, text, vec![]).matching })
    );
}

#[test]
fn a_table_with_a_lower_limit_gives_up_some_flows_at_a_time() {
    let mut lab = full_table(&[], numbered);
    let mut config = lab.sw.bridge_config(lab.br).unwrap().clone();
    config.tables.get_mut(&0).unwrap().limit = Some(LIMIT - 25);
    lab.sw.configure_bridge(lab.br, config).unwrap();
    assert!(lab.sw.shrink_tables(lab.br, 10, 0) && lab.sw.shrink_tables(lab.br, 10, 0));
    assert_eq!(numbers(&lab), (20..LIMIT).collect::<Vec<_>>());
    assert!(!lab.sw.shrink_tables(lab.br, 10, 0));
    assert_eq!(numbers(&lab), (25..LIMIT).collect::<Vec<_>>());
}
