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
fn a_flow_in_a_full_table_costs_few_visits() {
    const MORE: u32 = 2000;
    for groups in [&[][..], &["NXM_OF_IN_PORT[]"]] {
        let mut lab = full_table(groups, numbered);
        let (steps, ()) = steps(|| (LIMIT..LIMIT + MORE).for_each(|n| lab.add(numbered(n))));
        let most = 40 * MORE as usize + LIMIT as usize;
        assert!(steps < most, "{steps} steps of {most} for {MORE} flows");
        let expected: Vec<u32> = (MORE..LIMIT + MORE).collect();
        assert_eq!(numbers(&lab), expected, "those go that expire first");
    }
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
fn a_table_of_flows_that_stay_is_looked_at_once_a_second() {
    let stays = |n| FlowMod { idle_timeout: 0, ..numbered(n) };
    let mut lab = full_table(&[], stays);
    let mut refused = |n, now| {
        steps(|| assert_eq!(lab.sw.flow_mod(lab.br, &stays(n), now), Err(OfError::FlowTableFull))).0
    };
    let first = refused(LIMIT, 0);
    assert!(first >= LIMIT as usize, "{first} steps");
    let more: usize = (1..500).map(|n| refused(LIMIT + n, 1)).sum();
    assert!(more < 500 * 40, "{more} steps");
    assert!(refused(LIMIT + 500, 1_000_000_000) >= LIMIT as usize, "one may have come");
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
