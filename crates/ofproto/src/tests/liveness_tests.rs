//! Buckets that watch ports and groups are notified of changes some at a time.

use crate::groups::group::{BucketView, GroupView};
use crate::groups::liveness::Groups;
use crate::tests::*;
use crate::work::steps;
use openflow::*;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Buckets that a change tells at once, and that a turn tells, with some steps around them.
const AT_ONCE: usize = 4096 + 100;
/// Groups of so many buckets each.
const BUCKETS: u32 = 1000;

fn bucket(id: u32, watch_port: u32, watch_group: u32) -> Bucket {
    Bucket { id, weight: 1, watch_port, watch_group, actions: vec![out(3)] }
}

fn watching(id: u32, watch_port: u32, watch_group: u32) -> GroupMod {
    let buckets = (0..BUCKETS).map(|i| bucket(i, watch_port, watch_group)).collect();
    let command = GroupCommand::AddOrMod;
    GroupMod { buckets, command, ..group(id, GroupType::FastFailover, &[]) }
}

fn set_port(lab: &mut Lab, number: u32, up: bool) {
    let mut p = lab.sw.port(lab.br, number).unwrap().clone();
    p.state = if up { 0 } else { port_state::LINK_DOWN };
    lab.sw.update_port(lab.br, p).unwrap();
}

/// A guest's link, or a port-mod of a few bytes, concerns 20,000 buckets.
#[test]
fn a_port_that_very_many_buckets_watch_changes_in_few_steps() {
    let mut lab = Lab::new();
    let n = 20;
    (1..=n).for_each(|id| lab.sw.group_mod(lab.br, &watching(id, 2, GROUP_ANY), 0).unwrap());
    let by_way_of = group_of_one(n + 1, n);
    lab.sw.group_mod(lab.br, &by_way_of, 0).unwrap();
    lab.add(flow(0, 1, "udp", apply(vec![Action::Group(n + 1)])));
    let udp = packet("in_port=1,udp");
    assert_eq!(lab.send("in_port=1,udp"), "13");
    for up in [false, true] {
        let text = if up { "13" } else { "drop" };
        let (taken, ()) = steps(|| set_port(&mut lab, 2, up));
        assert!(taken <= AT_ONCE, "{taken} steps");
        assert_ne!(lab.send("in_port=1,udp"), text, "the last group is not notified yet");
        let (before, mut turns) = (lab.decide(&udp), 0);
        lab.settle();
        loop {
            turns += 1;
            let (taken, more) = steps(|| lab.sw.notify_buckets());
            assert!(taken <= AT_ONCE, "{taken} steps");
            if !more {
                break;
            }
        }
        assert!((2..=(n * BUCKETS) as usize / 1000).contains(&turns), "{turns} turns");
        assert_eq!(lab.send("in_port=1,udp"), text);
        assert!(lab.names(&udp, &before), "what was decided meanwhile is asked again");
        assert!(!lab.sw.has_pending_buckets());
    }
}

fn group_of_one(id: u32, watch_group: u32) -> GroupMod {
    let buckets = vec![bucket(0, port::ANY, watch_group)];
    GroupMod { buckets, ..watching(id, port::ANY, watch_group) }
}

/// A group that very many buckets of others watch changes, which costs a controller few bytes: no
/// turn notifies many of these buckets.
#[test]
fn a_group_that_very_many_buckets_watch_changes_in_few_steps() {
    let mut lab = Lab::new();
    let n = 20;
    (1..=n).for_each(|id| lab.sw.group_mod(lab.br, &watching(id, port::ANY, 99), 0).unwrap());
    let command = |command| GroupMod { command, ..group(99, GroupType::All, &[(2, 1)]) };
    let add = command(GroupCommand::Add);
    let (taken, answer) = steps(|| lab.sw.group_mod(lab.br, &add, 0));
    assert_eq!(answer, Ok(()));
    assert!(taken <= AT_ONCE, "{taken} steps");
    let live = |lab: &Lab| lab.sw.bridge(lab.br).unwrap().groups.shown.live(n);
    assert!(!live(&lab) && lab.sw.is_behind(lab.br));
    while lab.sw.notify_buckets() {}
    assert!(live(&lab) && !lab.sw.is_behind(lab.br));
    // What comes and goes before anyone was notified.
    let delete = command(GroupCommand::Delete);
    let (taken, ()) = steps(|| {
        for _ in 0..50 {
            assert_eq!(lab.sw.group_mod(lab.br, &delete, 0), Ok(()));
            assert_eq!(lab.sw.group_mod(lab.br, &add, 0), Ok(()));
        }
    });
    assert!(taken <= 100 * AT_ONCE, "{taken} steps");
    while lab.sw.notify_buckets() {}
    assert!(live(&lab));
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u32 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        ((self.0 >> 33) % n) as u32
    }
}

/// Groups watch groups of higher numbers only, so that there are no loops.
fn random_view(r: &mut Random, id: u32) -> Arc<GroupView> {
    let buckets = (0..r.below(6)).map(|i| {
        let port = [port::ANY, 1 + r.below(5)][r.below(2) as usize];
        let group = [GROUP_ANY, id + 1 + r.below(4)][r.below(2) as usize];
        let watched = (port, group) != (port::ANY, GROUP_ANY);
        let port = if watched || r.below(20) == 0 { port } else { 1 };
        BucketView { bucket: bucket(i, port, group), credit: 0 }
    });
    let (kind, buckets) = (GroupType::FastFailover, buckets.collect());
    let (selection_fields, selection_param) = (vec![], 0);
    Arc::new(GroupView { kind, buckets, credit: 0, selection_fields, selection_param })
}

/// Whatever changes while buckets are being notified, liveness is in the end that of groups that
/// were notified all at once.
#[test]
fn notified_in_any_order_groups_live_as_if_notified_at_once() {
    let mut r = Random(7);
    let (mut groups, mut views) = (Groups::default(), BTreeMap::new());
    let (mut up, mut generation, mut both) = ([true; 6], 0, [0u32; 2]);
    for round in 0..20_000 {
        match r.below(6) {
            0 => {
                let id = 1 + r.below(20);
                let view = random_view(&mut r, id);
                groups.insert(id, view.clone(), |p| up[p as usize]);
                views.insert(id, view);
            }
            1 => {
                let id = 1 + r.below(20);
                groups.remove(id);
                views.remove(&id);
            }
            2 | 3 => {
                let port = 1 + r.below(5);
                up[port as usize] ^= true;
                generation += 1;
                match r.below(2) {
                    0 => groups.see_ports(generation, |p| up[p as usize]),
                    _ => groups.see_changed(port, generation, |p| up[p as usize]),
                };
            }
            _ => drop(groups.go_on(1 + r.below(3) as usize)),
        }
        if round % 10 != 0 {
            continue;
        }
        let mut now = groups.clone();
        let mut turns = 0;
        while now.is_behind() {
            assert!(now.go_on(5) <= 5);
            turns += 1;
            assert!(turns < 1000, "it comes to an end");
        }
        let mut twin = Groups::default();
        let all = views.iter().rev();
        all.for_each(|(id, view)| twin.insert(*id, view.clone(), |p| up[p as usize]));
        for id in 1..=20 {
            assert_eq!(now.live(id), twin.live(id), "group {id} in round {round}");
            both[usize::from(now.live(id))] += 1;
        }
    }
    assert!(both.iter().all(|n| *n > 3000), "{both:?}");
}
