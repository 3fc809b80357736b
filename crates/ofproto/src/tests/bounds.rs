//! What one message or one packet may cost, in steps; and that liveness is what visiting all
//! groups says.

use crate::tests::*;
use crate::work::steps;
use crate::*;
use ::action::{Decision, Op, Request};
use openflow::*;
use std::collections::BTreeMap;
use telemetry::Drop;

/// Steps of one packet: those that are charged, and the few around them that are not.
const PACKET_STEPS_MAX: usize = 100_000;

fn bucket(id: u32, watch_port: u32, watch_group: u32, actions: Vec<Action>) -> Bucket {
    Bucket { id, weight: 1, watch_port, watch_group, actions }
}

fn group_of(id: u32, kind: GroupType, buckets: Vec<Bucket>) -> GroupMod {
    GroupMod { buckets, command: GroupCommand::AddOrMod, ..group(id, kind, &[]) }
}

/// A group whose buckets all watch another.
fn watching(id: u32, buckets: u32, to: u32) -> GroupMod {
    let buckets = (0..buckets).map(|i| bucket(i, port::ANY, to, vec![out(2)])).collect();
    group_of(id, GroupType::FastFailover, buckets)
}

/// A group whose buckets all name another.
fn naming(id: u32, buckets: u32, to: u32) -> GroupMod {
    let (any, list) = (port::ANY, vec![Action::Group(to)]);
    let buckets = (0..buckets).map(|i| bucket(i, any, GROUP_ANY, list.clone())).collect();
    group_of(id, GroupType::All, buckets)
}

fn put(lab: &mut Lab, m: &GroupMod) -> Result<(), OfError> {
    lab.sw.group_mod(lab.br, m, 0)
}

fn set_port(lab: &mut Lab, number: u32, up: bool) {
    let mut p = lab.sw.port(lab.br, number).unwrap().clone();
    p.state = if up { 0 } else { port_state::LINK_DOWN };
    lab.sw.update_port(lab.br, p).unwrap();
}

/// A port that is added takes no steps for every other one: bridges and ports are published once
/// for all that were added.
#[test]
fn ports_that_are_added_together_are_published_once() {
    const PORTS: u32 = 1_000;
    let mut lab = Lab::new();
    lab.sw.take_regions();
    let (added, ()) = steps(|| {
        for of_port in 100..100 + PORTS {
            let (name, patch_peer) = (format!("patch{of_port}"), Some("none".into()));
            let spec = PortSpec { of_port, name, patch_peer, ..PortSpec::default() };
            lab.sw.add_port(lab.br, spec).unwrap();
        }
        lab.sw.take_regions();
    });
    assert!(added < 4 * PORTS as usize, "{added} steps");
}

#[test]
fn groups_that_watch_themselves_are_refused() {
    let mut lab = Lab::new();
    assert_eq!(put(&mut lab, &watching(7, 2, 7)), Err(OfError::GroupLoop));
    put(&mut lab, &watching(1, 2, 2)).unwrap();
    put(&mut lab, &watching(2, 2, 3)).unwrap();
    assert_eq!(put(&mut lab, &watching(3, 2, 1)), Err(OfError::GroupLoop));
    // What was refused left nothing behind: the other way round is no loop.
    put(&mut lab, &watching(3, 2, 4)).unwrap();
    let items = vec![BundleItem::Group(watching(4, 1, 5)), BundleItem::Group(watching(5, 1, 1))];
    assert_eq!(lab.sw.bundle(lab.br, items, 0), Err((1, OfError::GroupLoop)));
    put(&mut lab, &watching(5, 1, 1)).unwrap();
}

#[test]
fn groups_that_name_themselves_are_refused() {
    let mut lab = Lab::new();
    put(&mut lab, &group(3, GroupType::All, &[(2, 1)])).unwrap();
    put(&mut lab, &naming(2, 2, 3)).unwrap();
    let clone = |to| vec![Action::Clone(vec![Action::Group(to)])];
    let one =
        |id, to| group_of(id, GroupType::All, vec![bucket(0, port::ANY, GROUP_ANY, clone(to))]);
    put(&mut lab, &one(1, 2)).unwrap();
    assert_eq!(put(&mut lab, &one(3, 1)), Err(OfError::GroupLoop), "also inside clone()");
    let delete = GroupMod { command: GroupCommand::Delete, ..one(3, 1) };
    put(&mut lab, &delete).unwrap();
    assert_eq!(put(&mut lab, &one(3, 1)), Err(OfError::GroupLoop), "2 still names 3");
}

#[test]
fn a_bucket_may_name_a_group_to_come() {
    let mut lab = Lab::new();
    put(&mut lab, &naming(1, 2, 9)).unwrap();
    lab.add(flow(0, 1, "", apply(vec![Action::Group(1)])));
    assert_eq!(lab.send("in_port=1,udp"), "drop", "it drops packets until it is there");
    assert_eq!(put(&mut lab, &naming(9, 2, 1)), Err(OfError::GroupLoop));
    put(&mut lab, &group(9, GroupType::Indirect, &[(2, 1)])).unwrap();
    assert!(lab.send("in_port=1,udp").contains("12"));
}

#[test]
fn a_packet_does_not_walk_through_watched_groups() {
    let mut lab = Lab::new();
    // 16 layers of 64 buckets: 64^16 walks if each were followed.
    for id in (1..16).rev() {
        put(&mut lab, &watching(id, 64, id + 1)).unwrap();
    }
    let last = (0..64).map(|i| bucket(i, 2, GROUP_ANY, vec![out(2)])).collect();
    put(&mut lab, &group_of(16, GroupType::FastFailover, last)).unwrap();
    lab.add(flow(0, 1, "udp", apply(vec![Action::Group(1)])));
    let (n, text) = steps(|| lab.send("in_port=1,udp"));
    assert_eq!(text, "12");
    assert!(n < 200, "{n} steps");
    let udp = packet("in_port=1,udp");
    let before = lab.decide(&udp);
    lab.settle();
    let (n, ()) = steps(|| set_port(&mut lab, 2, false));
    assert!((16 * 64..20 * 64).contains(&n), "each bucket once: {n} steps");
    assert!(lab.names(&udp, &before), "what was decided is asked again");
    let (n, text) = steps(|| lab.send("in_port=1,udp"));
    assert_eq!(text, "drop");
    assert!(n < 200, "{n} steps");
    set_port(&mut lab, 2, true);
    assert_eq!(lab.send("in_port=1,udp"), "12");
}

#[test]
fn packet_outs_of_a_bundle_see_liveness_as_staged() {
    let mut lab = Lab::new();
    put(&mut lab, &watching(1, 1, 2)).unwrap();
    let p = PacketOut {
        buffer_id: NO_BUFFER,
        matching: matching("in_port=1"),
        actions: vec![Action::Group(1)],
        data: vec![],
    };
    let p = || BundleItem::PacketOut(Box::new((p.clone(), packet("in_port=1,udp"))));
    let items = vec![p(), BundleItem::Group(group(2, GroupType::FastFailover, &[(3, 1)])), p()];
    lab.sw.bundle(lab.br, items, 0).unwrap();
    let texts = lab
        .sw
        .take_packets()
        .iter()
        .map(|p| ::action::ops_text(&p.decision.ops))
        .collect::<Vec<_>>();
    assert_eq!(texts, ["drop", "12"]);
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u32 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        ((self.0 >> 33) % n) as u32
    }
}

/// The twin: visiting all that is watched.
fn lives(lab: &Lab, all: &BTreeMap<u32, GroupMod>, id: u32) -> bool {
    let up = |n| lab.sw.port(lab.br, n).is_some_and(|p| p.state == 0);
    let bucket = |b: &Bucket| {
        (b.watch_port == port::ANY && b.watch_group == GROUP_ANY)
            || up(b.watch_port)
            || lives(lab, all, b.watch_group)
    };
    all.get(&id).is_some_and(|g| g.buckets.iter().any(bucket))
}

fn random_group(r: &mut Random, id: u32) -> GroupMod {
    let watch = |r: &mut Random| {
        let port = [port::ANY, 1 + r.below(5)][r.below(2) as usize];
        // Upwards only, so there are no loops.
        let group = [GROUP_ANY, id + 1 + r.below(3)][r.below(2) as usize];
        if r.below(30) == 0 { (port::ANY, GROUP_ANY) } else { (port, group) }
    };
    let buckets = (0..r.below(4)).map(|i| (i, watch(r)));
    let buckets =
        buckets.filter(|(_, (p, g))| (*p, *g) != (port::ANY, GROUP_ANY) || id.is_multiple_of(4));
    let buckets = buckets.map(|(i, (p, g))| bucket(i, p, g, vec![out(2)])).collect();
    group_of(id, GroupType::FastFailover, buckets)
}

#[test]
fn liveness_is_what_a_walk_says() {
    let (mut r, mut both) = (Random(1), [0u32; 2]);
    let mut lab = Lab::new();
    let mut all: BTreeMap<u32, GroupMod> = BTreeMap::new();
    for round in 0..3000 {
        let id = 1 + r.below(12);
        let m = random_group(&mut r, id);
        match r.below(8) {
            0 | 1 => set_port(&mut lab, 1 + (round % 4), r.below(2) == 0),
            2 => {
                let delete = GroupMod { command: GroupCommand::Delete, ..m.clone() };
                put(&mut lab, &delete).unwrap();
                all.remove(&m.id);
            }
            3 => {
                // Taken back, with a port that changes meanwhile.
                let bad = BundleItem::Group(watching(50, 1, 50));
                let items = [BundleItem::Group(m), bad].into_iter().map(Ok);
                let change = lab.sw.begin(lab.br, Box::new(items), 0).unwrap();
                assert_eq!(lab.sw.advance(&change, 1), None);
                set_port(&mut lab, 3, round % 2 == 0);
                assert!(lab.sw.advance(&change, 9).unwrap().is_err());
            }
            4 => {
                let items = [BundleItem::Group(m.clone())].into_iter().map(Ok);
                let change = lab.sw.begin(lab.br, Box::new(items), 0).unwrap();
                assert_eq!(lab.sw.advance(&change, 1), None);
                set_port(&mut lab, 4, round % 2 == 0);
                lab.sw.advance(&change, 9).unwrap().unwrap();
                all.insert(m.id, m);
            }
            _ => {
                put(&mut lab, &m).unwrap();
                all.insert(m.id, m);
            }
        }
        let shown = &lab.sw.bridge(lab.br).unwrap().groups.shown;
        for id in 1..16 {
            let live = lives(&lab, &all, id);
            assert_eq!(shown.live(id), live, "group {id} in round {round}");
            both[usize::from(live)] += 1;
        }
    }
    assert!(both.iter().all(|n| *n > 3000), "{both:?}");
}

/// Three layers of 512 buckets: 134 million if all were visited.
fn wide() -> Lab {
    let mut lab = Lab::new();
    let last = (0..512).map(|i| bucket(i, port::ANY, GROUP_ANY, vec![])).collect();
    put(&mut lab, &group_of(3, GroupType::All, last)).unwrap();
    put(&mut lab, &naming(2, 512, 3)).unwrap();
    put(&mut lab, &naming(1, 512, 2)).unwrap();
    lab.add(flow(0, 1, "udp", apply(vec![Action::Group(1), out(2)])));
    lab
}

fn is_refused(n: usize, d: &Decision) {
    assert!(d.ops.is_empty());
    let limits = [Drop::DepthLimit, Drop::ResubmitLimit, Drop::StackLimit].map(Some);
    assert!(limits.contains(&d.drop), "{:?}", d.drop);
    // And that of the bridge's ports.
    assert!(d.credits.len() <= 8192 + 1, "{} counters", d.credits.len());
    assert!(n < PACKET_STEPS_MAX, "{n} steps");
}

#[test]
fn the_fan_out_of_groups_ends_at_every_entrance() {
    let mut lab = wide();
    let key = packet("in_port=1,udp");
    let (n, d) = steps(|| lab.decide(&key));
    is_refused(n, &d);
    let mut all: Vec<Decision> = (0..8).map(|_| Decision::default()).collect();
    let request = || Request { key: &key, options: &[], packet: &[] };
    let requests: Vec<_> = all.iter().map(|_| request()).collect();
    let (n, ()) = steps(|| lab.sw.pipeline().resolve_all(lab.sw.pin(), &requests, &mut all));
    all.iter().for_each(|d| is_refused(n / 8, d));
    assert!(all.iter().all(|d| d.steps > 8192), "the decision says how much work it was");
    let mut keys = vec![key; 8];
    let (n, done) = steps(|| lab.sw.pipeline().resolve_unmasked(lab.sw.pin(), &mut keys, &mut all));
    assert_eq!(done, 0, "that is for the others to decide");
    assert!(n < 100, "{n} steps");
    let p = PacketOut {
        buffer_id: NO_BUFFER,
        matching: matching("in_port=1"),
        actions: vec![Action::Group(1), out(2)],
        data: vec![],
    };
    let (n, d) = steps(|| lab.sw.packet_out(lab.br, &p, &key).unwrap());
    is_refused(n, &d);
    let (n, text) = steps(|| {
        lab.sw.trace(lab.br, &key, &Options::default(), &crate::TraceStyle::default()).unwrap()
    });
    assert!(n < PACKET_STEPS_MAX, "{n} steps");
    assert!(text.contains(" >>>> over 8192 counters <<<<\n"), "{}", text.len());
    let end =
        "Datapath actions: drop\nTranslation failed (Too many resubmits), packet is dropped.\n";
    assert!(text.ends_with(end), "{}", &text[text.len() - 200..]);
}

#[test]
fn resubmits_end_as_in_ovs() {
    let mut lab = Lab::new();
    let again = |t| Action::Resubmit { in_port: None, table: Some(t), ct: false };
    lab.add(flow(0, 1, "udp", apply(vec![again(0)])));
    let trace = |lab: &mut Lab, p| {
        lab.sw
            .trace(lab.br, &packet(p), &Options::default(), &crate::TraceStyle::default())
            .unwrap()
    };
    let text = trace(&mut lab, "in_port=1,udp");
    assert!(text.contains(" >>>> over max translation depth 64 <<<<\n"), "{text}");
    assert!(text.ends_with("\nTranslation failed (Recursion too deep), packet is dropped.\n"));
    // 2 of 64 each, and these again: 1 + 64 + 64 * 64 lookups.
    for t in 1..3 {
        lab.add(flow(t - 1, 1, "tcp", apply(vec![again(t); 64])));
    }
    let text = trace(&mut lab, "in_port=1,tcp");
    assert!(text.contains(" >>>> over 4096 resubmit actions <<<<\n"));
    assert!(text.ends_with("\nTranslation failed (Too many resubmits), packet is dropped.\n"));
    assert!(lab.sw.take_failure().is_none(), "a trace is no packet");
    let (n, d) = steps(|| lab.decide(&packet("in_port=1,tcp")));
    is_refused(n, &d);
}

/// As in OVS, what was done before is done: no list goes on, and the packet is not dropped.
#[test]
fn a_pipeline_that_sends_too_many_copies_ends_and_sends_them() {
    let mut lab = Lab::new();
    let again = |t| Action::Resubmit { in_port: None, table: Some(t), ct: false };
    for t in 1..13 {
        lab.add(flow(t - 1, 1, "udp", apply(vec![again(t), again(t), out(2)])));
    }
    lab.add(flow(12, 1, "udp", apply(vec![out(2); 8])));
    let key = packet("in_port=1,udp");
    let text =
        lab.sw.trace(lab.br, &key, &Options::default(), &crate::TraceStyle::default()).unwrap();
    assert_eq!(text.matches(" >>>> resubmits yielded over 64 kB of actions <<<<\n").count(), 1);
    assert!(text.ends_with("\n  - Uses action(s) not supported by datapath.\n"), "{}", text.len());
    let (n, d) = steps(|| lab.decide(&key));
    assert!(n < PACKET_STEPS_MAX, "{n} steps");
    assert_eq!(d.drop, None);
    assert!((4097..4097 + 8).contains(&d.ops.len()), "{} copies", d.ops.len());
    assert!(lab.sw.take_failure().is_some(), "and the log says so");
    // A single flow may have more than that.
    lab.add(flow(0, 1, "tcp", apply(vec![out(2); 6000])));
    assert_eq!(lab.decide(&packet("in_port=1,tcp")).ops.len(), 6000);
}

/// The log hears of one packet, and of another one only when it has taken the first.
#[test]
fn one_failed_translation_is_kept_for_the_log() {
    let mut lab = Lab::new();
    let again = |t| Action::Resubmit { in_port: None, table: Some(t), ct: false };
    lab.add(flow(0, 1, "udp", apply(vec![again(0)])));
    let to = openflow::Subfield { field: flow::Field::EthDst, ofs: 0, bits: 48 };
    lab.add(flow(0, 1, "tcp", apply(vec![Action::Pop(to), out(2)])));
    for p in ["in_port=1,udp", "in_port=1,tcp", "in_port=1,icmp"] {
        lab.decide(&packet(p));
    }
    let failure = lab.sw.take_failure().unwrap();
    let text = "over max translation depth 64 on bridge br0 while processing udp,in_port=1,";
    assert!(failure.text.starts_with(text), "{}", failure.text);
    let (bridge, key, options) = failure.received.unwrap();
    let trace = lab
        .sw
        .trace(bridge, &key, &Options::Bytes(options), &crate::TraceStyle::default())
        .unwrap();
    assert!(trace.ends_with("(Recursion too deep), packet is dropped.\n"), "{trace}");
    assert!(lab.sw.take_failure().is_none());
    lab.decide(&packet("in_port=1,tcp"));
    let failure = lab.sw.take_failure().unwrap();
    assert!(failure.text.starts_with("stack underflow on bridge br0 while processing tcp,"));
    assert!(failure.received.is_none(), "it was not dropped");
    let push = || Action::PushMpls { ethertype: 0x8847 };
    lab.add(flow(0, 1, "icmp", apply(vec![push(), push(), push(), push(), out(2)])));
    lab.decide(&packet("in_port=1,icmp"));
    let failure = lab.sw.take_failure().unwrap();
    let text = "dropping packet on which an MPLS push action can't be performed as it would have \
                more MPLS LSEs than the 3 supported. on bridge br0 while processing icmp,";
    assert!(failure.text.starts_with(text), "{}", failure.text);
    assert!(failure.received.is_none());
}

#[test]
fn long_pipelines_are_no_deep_ones() {
    // As the threads that translate have it.
    let thread = std::thread::Builder::new().stack_size(8 << 20);
    let run = || {
        let mut lab = Lab::new();
        let go = |t: u8| apply(vec![Action::Resubmit { in_port: None, table: Some(t), ct: false }]);
        (0..200).for_each(|t| lab.add(flow(t, 1, "udp", go(t + 1))));
        lab.add(flow(200, 1, "udp", apply(vec![out(2)])));
        assert_eq!(lab.send("in_port=1,udp"), "12");
        // Back to the beginning, twice and without end.
        lab.add(flow(200, 1, "udp", go(1)));
        let (n, d) = steps(|| lab.decide(&packet("in_port=1,udp")));
        is_refused(n, &d);
        let text = lab.sw.trace(
            lab.br,
            &packet("in_port=1,udp"),
            &Options::default(),
            &crate::TraceStyle::default(),
        );
        assert!(text.unwrap().contains(" >>>> over 512 nested lookups <<<<\n"));
    };
    thread.spawn(run).unwrap().join().unwrap();
}

#[test]
fn questions_about_buckets_and_long_lists_count() {
    let mut lab = Lab::new();
    // Nothing lives: every bucket is asked about, for each of many packets' visits.
    let dead = (0..1024).map(|i| bucket(i, 9, GROUP_ANY, vec![out(2)])).collect();
    put(&mut lab, &group_of(1, GroupType::FastFailover, dead)).unwrap();
    lab.add(flow(0, 1, "udp", apply(vec![Action::Group(1); 4000])));
    let (n, d) = steps(|| lab.decide(&packet("in_port=1,udp")));
    is_refused(n, &d);
    // Long lists of every kind behind many lookups.
    let again = Action::Resubmit { in_port: None, table: Some(1), ct: false };
    let set = Action::SetEthDst([2; 6]);
    lab.add(flow(0, 1, "in_port=1,tcp", apply(vec![again; 4000])));
    let list = |a: &Action| vec![a.clone(); 4000];
    for instruction in [
        Instruction::Apply(list(&set)),
        Instruction::Write(list(&set)),
        Instruction::Apply(vec![Action::Clone(list(&set))]),
        Instruction::Apply(vec![Action::Push(parse_subfield("NXM_NX_REG0[]").unwrap()); 4000]),
    ] {
        lab.add(flow(1, 1, "tcp", vec![instruction]));
        let (n, d) = steps(|| lab.decide(&packet("in_port=1,tcp")));
        is_refused(n, &d);
    }
}

#[test]
fn what_is_kept_for_after_recirculations_counts() {
    let mut lab = Lab::new();
    let list =
        [vec![Action::PopMpls { ethertype: 0x0800 }], vec![Action::SetIpTtl(9); 100]].concat();
    lab.add(flow(0, 1, "mpls", apply(vec![Action::Clone(list); 1000])));
    let mut key = packet("mpls,in_port=1");
    key.set_u32(flow::at::MPLS, 0x0001_0140);
    let (n, d) = steps(|| lab.decide(&key));
    is_refused(n, &d);
}

#[test]
fn the_limits_leave_room_for_what_ovs_does() {
    let mut lab = Lab::new();
    // 1,000 lookups, 16,000 actions, 1,000 outputs.
    let again = Action::Resubmit { in_port: None, table: Some(1), ct: false };
    lab.add(flow(0, 1, "udp", apply(vec![again; 1000])));
    let list = [vec![Action::SetEthDst([2; 6]); 14], vec![out(2)]].concat();
    lab.add(flow(1, 1, "udp", apply(list)));
    let d = lab.decide(&packet("in_port=1,udp"));
    assert_eq!((d.ops.len(), d.drop, d.credits.len()), (1001, None, 1001));
}

#[test]
fn group_mods_look_at_each_group_once() {
    let mut lab = Lab::new();
    put(&mut lab, &group(6, GroupType::All, &[(2, 1)])).unwrap();
    for id in (1..6).rev() {
        let (n, done) = steps(|| put(&mut lab, &naming(id, 1024, id + 1)));
        done.unwrap();
        assert!(n < 8 * 1024, "layer {id}: {n} steps");
    }
    let (n, done) = steps(|| put(&mut lab, &naming(6, 1024, 1)));
    assert_eq!(done, Err(OfError::GroupLoop));
    assert!(n < 16 * 1024, "{n} steps");
}

#[test]
fn ten_thousand_group_mods_cost_what_each_costs() {
    let mut lab = Lab::new();
    let (n, ()) = steps(|| {
        for id in 1..=10_000 {
            let m = group_of(id, GroupType::All, vec![bucket(0, 2, id - 1, vec![out(2)])]);
            put(&mut lab, &m).unwrap();
        }
    });
    assert!(n < 100_000, "{n} steps");
    let shown = &lab.sw.bridge(lab.br).unwrap().groups.shown;
    assert!((1..=10_000).all(|id| shown.live(id)));
}

/// The flow that keeps a packet's source in a register over a recirculation: a state for each
/// source.
fn keeps_sources(lab: &mut Lab, br: BridgeId) {
    let field = |name| parse_subfield(name).unwrap();
    let (src, dst) = (field("NXM_OF_ETH_SRC[0..31]"), field("NXM_NX_REG0[]"));
    let again = Action::Resubmit { in_port: None, table: Some(1), ct: false };
    let pop = Action::PopMpls { ethertype: 0x0800 };
    let list = apply(vec![Action::Move { src, dst }, pop, again]);
    lab.sw.flow_mod(br, &flow(0, 1, "mpls", list), 0).unwrap();
    lab.sw.flow_mod(br, &flow(1, 1, "ip", apply(vec![out(2)])), 0).unwrap();
}

fn labelled(in_port: u32, source: u32) -> flow::Key {
    let mut key = packet(&format!("mpls,in_port={in_port}"));
    key.set_u32(flow::at::MPLS, 0x0001_0140);
    key.set_u32(flow::at::ETH_SRC + 2, source);
    key
}

#[test]
fn states_of_recirculations_have_a_share_per_bridge_and_go() {
    let mut lab = Lab::new();
    let other = lab.sw.add_bridge("br1", BridgeConfig::default(), 0).unwrap();
    let spec = PortSpec { of_port: 9, name: "p9".into(), dp_port: Some(19), ..PortSpec::default() };
    lab.sw.add_port(other, spec).unwrap();
    let (br, second) = (lab.br, 1_000_000_000);
    keeps_sources(&mut lab, br);
    keeps_sources(&mut lab, other);
    let used = |lab: &Lab, br: BridgeId| lab.sw.shared.frozen.used(br.0);
    // Every hundredth flow is cached.
    let (mut cached, mut refused) = (Vec::new(), 0);
    for n in 0..200_000 {
        let mut d = lab.decide(&labelled(1, n));
        assert_eq!(d.ops.is_empty(), d.drop == Some(Drop::RecircLimit));
        refused += u32::from(d.ops.is_empty());
        cached.extend(d.keep_alive.take().filter(|_| n % 100 == 0).map(|h| (n, h, d.ops)));
    }
    assert!(used(&lab, br) <= 16_384 && refused >= 183_616, "{} {refused}", used(&lab, br));
    let text = lab
        .sw
        .trace(br, &labelled(1, 200_000), &Options::default(), &crate::TraceStyle::default())
        .unwrap();
    assert!(text.contains(" >>>> no recirculation id is free <<<<\n"), "{text}");
    // The other bridge goes on: 10,000 sources of its own.
    for n in 0..10_000 {
        assert!(!lab.decide(&labelled(9, n)).ops.is_empty(), "{n}");
    }
    // Time passes: what nothing holds is free again.
    for t in 1..20 {
        lab.sw.expire(t * second, 0, 100);
    }
    assert_eq!((used(&lab, br) as usize, used(&lab, other)), (cached.len(), 0));
    assert!(!lab.decide(&labelled(1, 200_000)).ops.is_empty());
    for (n, _, ops) in &cached {
        let Op::Recirc(id) = ops[1] else { panic!("{ops:?}") };
        let mut inner = packet("ip,in_port=1");
        inner.set_u32(flow::at::RECIRC, id);
        inner.set_u32(flow::at::ETH_SRC + 2, *n);
        let second = lab.decide(&inner);
        assert_eq!(::action::ops_text(&second.ops), "12");
        assert!(second.keep_alive.is_some(), "what is cached of it names the state, too");
    }
    cached.clear();
    for t in 20..40 {
        lab.sw.expire(t * second, 0, 100);
    }
    assert_eq!(used(&lab, br), 0);
}

/// A port that comes, changes or goes costs steps for each port that there is, and not for each
/// pair of them, though patch ports ask for the other end.
#[test]
fn a_change_of_one_port_looks_at_each_port_few_times() {
    const PAIRS: u32 = 500;
    let mut lab = Lab::new();
    let spec = |of_port: u32, other: u32| {
        let [name, peer] = [of_port, other].map(|n| format!("patch{n}"));
        let bundle = name.clone();
        PortSpec { of_port, name, bundle, patch_peer: Some(peer), ..PortSpec::default() }
    };
    for n in (100..100 + 2 * PAIRS).step_by(2) {
        lab.sw.add_port(lab.br, spec(n, n + 1)).unwrap();
        lab.sw.add_port(lab.br, spec(n + 1, n)).unwrap();
    }
    let (n, done) = steps(|| lab.sw.add_port(lab.br, spec(50, 51)));
    done.unwrap();
    assert!(n < 8 * PAIRS as usize, "{n} steps to add a port");
    let (n, ()) = steps(|| set_port(&mut lab, 50, false));
    assert!(n < 8 * PAIRS as usize, "{n} steps to change a port");
    let (n, done) = steps(|| lab.sw.remove_port(lab.br, 50));
    done.unwrap();
    assert!(n < 8 * PAIRS as usize, "{n} steps to remove a port");
}

/// Each configuration is applied to all ports: those that stay as they are cost nothing.
#[test]
fn a_port_that_stays_as_it_is_looks_at_no_other() {
    let mut lab = Lab::new();
    for n in 100..200 {
        let (name, dp_port) = (format!("p{n}"), Some(n as u16));
        let spec =
            PortSpec { of_port: n, bundle: name.clone(), name, dp_port, ..Default::default() };
        lab.sw.add_port(lab.br, spec).unwrap();
    }
    set_port(&mut lab, 150, false);
    let (n, ()) = steps(|| set_port(&mut lab, 150, false));
    assert_eq!(n, 0);
}

/// Each of many masks costs a lookup time, and the packet steps: one that is looked up again and
/// again in a table of thousands is dropped.
#[test]
fn lookups_among_many_masks_count() {
    const MASKS: u32 = 1100;
    let mut lab = Lab::new();
    let again = |t| Action::Resubmit { in_port: None, table: Some(t), ct: false };
    lab.add(flow(0, 1, "udp", apply(vec![again(1); 60])));
    lab.add(flow(1, 1, "udp", apply(vec![again(2); 60])));
    lab.add(flow(0, 1, "tcp", apply(vec![again(2), out(2)])));
    // Bits of addresses that no prefix has, so that the masks stay apart.
    for n in 1..=MASKS {
        let [a, b, c, _] = (n << 4 | 1).to_le_bytes();
        let bits = format!("02:00:00:{c:02x}:{b:02x}:{a:02x}");
        lab.add(flow(2, 9, &format!("dl_src={bits}/{bits}"), apply(vec![out(3)])));
    }
    assert_eq!(lab.send("in_port=1,tcp"), "12", "once is no burden");
    let steps_of = |d: Decision| d.steps;
    // Two lookups, two actions, the output; masks beyond sixteen.
    assert_eq!(steps_of(lab.decide(&packet("in_port=1,tcp"))), 5 + (MASKS - 16) / 4);
    assert_eq!(steps_of(lab.decide(&packet("in_port=1,icmp"))), 1);
    let key = packet("in_port=1,udp");
    let (n, d) = steps(|| lab.decide(&key));
    is_refused(n, &d);
    let lookups = d.credits.len();
    assert!(lookups < 1000, "{lookups} of 3,600 lookups");
    let mut all: Vec<Decision> = (0..8).map(|_| Decision::default()).collect();
    let mut keys = vec![packet("in_port=1,tcp"); 8];
    let once = lab.sw.pipeline().resolve_unmasked(lab.sw.pin(), &mut keys, &mut all);
    assert_eq!(once, 0, "that is for the others to decide");
}
