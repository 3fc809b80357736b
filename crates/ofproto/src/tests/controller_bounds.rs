//! What a bridge's controllers can have the control side do and keep: in one turn, by one message,
//! by one packet.

use crate::tests::*;
use crate::work::steps;
use crate::*;
use openflow::*;

/// Flows of a slice of a change, as on the control thread.
const SLICE: usize = 2048;
/// Steps that a slice takes at most: 16 flows are looked at instead of one being changed.
const SLICE_STEPS_MAX: usize = 16 * SLICE + 1000;
/// More flows than a search by indexes looks at.
const CROWD: usize = 20_000;

fn learn(cookie: u64, limit: u32, flags: u16) -> Action {
    Action::Learn(Box::new(Learn {
        idle_timeout: 0,
        hard_timeout: 0,
        fin_idle_timeout: 0,
        fin_hard_timeout: 0,
        priority: 5,
        cookie,
        flags,
        table: 1,
        limit,
        result: None,
        specs: vec![],
    }))
}

/// Flow `i` of a crowd in table 1, with one of ten cookies.
fn one_of(i: usize) -> FlowMod {
    let m = format!("udp,nw_src=10.0.{}.{},tp_dst=7", i >> 8, i & 255);
    FlowMod { cookie: i as u64 % 10, ..flow(1, 5, &m, apply(vec![out(2)])) }
}

fn crowd() -> Lab {
    let mut lab = Lab::new();
    (0..CROWD).for_each(|i| lab.add(one_of(i)));
    lab
}

fn delete_by_cookie(cookie: u64) -> FlowMod {
    let all = FlowMod { command: FlowModCommand::Delete, ..flow(1, 0, "", vec![]) };
    FlowMod { cookie_old: cookie, cookie_mask: u64::MAX, ..all }
}

/// Executes items in slices: the outcome, and how many slices that took.
fn in_slices(lab: &mut Lab, items: Vec<BundleItem>) -> (Outcome, usize) {
    let items = Box::new(items.into_iter().map(Ok));
    let change = lab.sw.begin(lab.br, items, 0).unwrap();
    for slices in 1.. {
        let (taken, outcome) = steps(|| lab.sw.advance(&change, SLICE));
        assert!(taken < SLICE_STEPS_MAX, "{taken} steps");
        if let Some(outcome) = outcome {
            return (outcome, slices);
        }
    }
    unreachable!()
}

#[test]
fn a_slice_of_searches_is_no_longer_than_one_of_changes() {
    let mut lab = crowd();
    let all = |cookies: std::ops::Range<u64>| -> Vec<BundleItem> {
        cookies.map(|c| BundleItem::Flow(delete_by_cookie(c))).collect()
    };
    // Each looks at all flows: 16,384 of them, and then at all.
    let (outcome, slices) = in_slices(&mut lab, all(100..120));
    assert_eq!((outcome, lab.dump().len()), (Ok(()), CROWD));
    assert!((20..30).contains(&slices), "{slices}");
    assert_eq!(in_slices(&mut lab, all(3..5)).0, Ok(()));
    assert_eq!(lab.dump().len(), CROWD * 8 / 10);
    let modify = FlowMod {
        command: FlowModCommand::Modify,
        instructions: apply(vec![out(3)]),
        ..delete_by_cookie(5)
    };
    assert_eq!(in_slices(&mut lab, vec![BundleItem::Flow(modify)]).0, Ok(()));
    let changed = lab.dump().iter().filter(|f| f.instructions == apply(vec![out(3)])).count();
    assert_eq!(changed, CROWD / 10);
    // Of flows that the same change has added or removed, too.
    let mut both = all(6..7);
    both.push(BundleItem::Flow(FlowMod { cookie: 77, ..one_of(CROWD) }));
    both.extend(all(6..8));
    both.extend(all(77..78));
    assert_eq!(in_slices(&mut lab, both).0, Ok(()));
    assert_eq!(lab.dump().len(), CROWD * 6 / 10);
}

/// A change that fails at its end is undone in slices, too.
#[test]
fn a_slice_undoes_as_few_flows_as_it_changes() {
    let mut lab = crowd();
    lab.sw.take_events();
    let before = lab.dump().len();
    let added = (0..5000).map(|i| BundleItem::Flow(one_of(CROWD + i)));
    let deleted = BundleItem::Flow(delete_by_cookie(3));
    let bad = flow(1, 5, "tcp", apply(vec![Action::Group(77)]));
    let items: Vec<_> = added.chain([deleted, BundleItem::Flow(bad)]).collect();
    let change = lab.sw.begin(lab.br, Box::new(items.into_iter().map(Ok)), 0).unwrap();
    let (mut undone, mut left) = (0, 0);
    let outcome = loop {
        let ended = lab.sw.advance(&change, SLICE);
        let open = lab.sw.changes.open.as_ref();
        let now = open.map_or(0, |open| open.txn.undo.len());
        assert!(now + SLICE >= left, "a slice undid {}", left - now);
        undone += usize::from(now < left);
        left = now;
        if let Some(outcome) = ended {
            break outcome;
        }
        assert_eq!(lab.dump().len(), before, "packets and dumps see the flows as they were");
    };
    assert_eq!(outcome, Err((5001, OfError::ActBadOutGroup)));
    assert!(undone >= 5000 / SLICE, "{undone}");
    assert!(lab.dump().len() == before && !lab.sw.busy());
}

#[test]
fn overlaps_are_looked_for_some_flows_at_a_time() {
    let mut lab = crowd();
    let check = |m: &str| FlowMod { flags: flow_flag::CHECK_OVERLAP, ..flow(1, 5, m, vec![]) };
    for (m, outcome) in [("tcp", Ok(())), ("ip,nw_tos=8", Err((0, OfError::FlowOverlap)))] {
        assert_eq!(in_slices(&mut lab, vec![BundleItem::Flow(check(m))]).0, outcome);
    }
    // The last flow is the only one that is met.
    let last = FlowMod { flags: flow_flag::CHECK_OVERLAP, ..flow(1, 5, "udp,tp_dst=8", vec![]) };
    assert_eq!(in_slices(&mut lab, vec![BundleItem::Flow(last.clone())]).0, Ok(()));
    lab.add(flow(1, 5, "udp,tp_dst=9,dl_vlan=3", vec![]));
    let met = FlowMod { matching: matching("udp,tp_dst=9"), ..last };
    let refused = Err((0, OfError::FlowOverlap));
    assert_eq!(in_slices(&mut lab, vec![BundleItem::Flow(met)]).0, refused);
}

#[test]
fn what_very_many_learn_actions_count_is_counted_at_once() {
    let mut lab = crowd();
    let list: Vec<Action> = (0..1000).map(|cookie| learn(cookie, 3, 0)).collect();
    let teaching = flow(0, 1, "", apply(list));
    let (taken, ()) = steps(|| lab.add(teaching.clone()));
    assert!(taken < CROWD + 5000, "{taken} steps");
    let counted = |lab: &Lab, cookie| {
        let counts = &lab.sw.bridge(lab.br).unwrap().learning.counts;
        counts.get(&(1, cookie)).map(|n| n.load(std::sync::atomic::Ordering::Relaxed))
    };
    let some = CROWD as u32 / 10;
    assert_eq!([0, 9, 10, 1000].map(|c| counted(&lab, c)), [Some(some), Some(some), Some(0), None]);
    lab.add(FlowMod { command: FlowModCommand::DeleteStrict, ..one_of(9) });
    assert_eq!(counted(&lab, 9), Some(some - 1));
    // What no learn action limits any more is not counted: after the change that removes it.
    lab.add(flow(0, 2, "udp", apply(vec![learn(9, 3, 0)])));
    lab.add(FlowMod { command: FlowModCommand::DeleteStrict, ..teaching.clone() });
    assert_eq!(lab.sw.bridge(lab.br).unwrap().learning.counts.size(), 1);
    let bad = flow(0, 3, "", apply(vec![learn(500, 3, 0), Action::Group(7)]));
    assert!(lab.sw.flow_mod(lab.br, &bad, 0).is_err());
    assert_eq!(lab.sw.bridge(lab.br).unwrap().learning.counts.size(), 1, "it was refused");
}

#[test]
fn what_very_many_learn_actions_own_goes_in_slices() {
    let mut lab = crowd();
    let list = (0..500).map(|c| learn(c, 0, learn_flag::DELETE_LEARNED)).collect();
    let teaching = flow(0, 1, "", apply(list));
    lab.add(teaching.clone());
    lab.add(flow(0, 2, "udp", apply(vec![learn(3, 0, learn_flag::DELETE_LEARNED)])));
    let gone = FlowMod { command: FlowModCommand::Delete, table: 0, ..teaching };
    let gone = FlowMod { matching: matching(""), priority: 1, ..gone };
    let gone = FlowMod { command: FlowModCommand::DeleteStrict, ..gone };
    assert_eq!(in_slices(&mut lab, vec![BundleItem::Flow(gone)]).0, Ok(()));
    assert_eq!(lab.dump().len(), CROWD / 10 + 1, "another flow owns those of cookie 3");
}

#[test]
fn a_packet_teaches_few_flows() {
    let mut lab = Lab::new();
    let taught = |lab: &mut Lab, n: u64| {
        lab.add(flow(0, 1, "", apply((0..n).map(|c| learn(c, 0, 0)).chain([out(2)]).collect())));
        let d = lab.decide(&packet("in_port=1,udp"));
        (d.drop, d.cacheable)
    };
    assert_eq!(taught(&mut lab, 4), (None, true));
    assert_eq!(taught(&mut lab, 32), (None, false), "too much to be kept");
    assert_eq!(taught(&mut lab, 33), (Some(telemetry::Drop::ResubmitLimit), false));
}

/// Table 0 resubmits to itself often by 12 tables, the last of which has these actions.
fn tree(lab: &mut Lab, last: Vec<Action>) {
    let to = |table| Action::Resubmit { in_port: None, table: Some(table), ct: false };
    for table in 0..11u8 {
        lab.add(flow(table, 1, "", apply(vec![to(table + 1); 2])));
    }
    lab.add(flow(11, 1, "", apply(last)));
}

#[test]
fn packet_outs_of_a_bundle_go_in_slices_and_keep_little() {
    let mut lab = Lab::new();
    tree(&mut lab, vec![Action::SetIpTtl(3); 20]);
    let to = Action::Resubmit { in_port: None, table: Some(0), ct: false };
    let m = PacketOut {
        buffer_id: NO_BUFFER,
        matching: matching("in_port=1"),
        actions: vec![to],
        data: vec![],
    };
    let p = || BundleItem::PacketOut(Box::new((m.clone(), packet("in_port=1,udp"))));
    let of = |n| (0..n).map(|_| p()).collect::<Vec<_>>();
    let items = Box::new(of(8).into_iter().map(Ok));
    let change = lab.sw.begin(lab.br, items, 0).unwrap();
    let slices = (1..).find(|_| lab.sw.advance(&change, SLICE).is_some());
    assert_eq!(slices, Some(9), "one in each");
    assert_eq!(lab.sw.take_packets().len(), 8);
    let outcome = lab.sw.bundle(lab.br, of(40), 0);
    assert!(matches!(outcome, Err((10..40, OfError::BundleMsgTooMany))), "{outcome:?}");
    assert!(lab.sw.take_packets().is_empty());
}

#[test]
fn copies_for_controllers_are_bounded_by_bytes() {
    let mut lab = Lab::new();
    let to_controller = Action::Controller {
        max_len: 64,
        reason: Reason::Action,
        id: 0,
        userdata: vec![7; 60_000],
        pause: false,
        meter: None,
    };
    tree(&mut lab, vec![to_controller]);
    let d = lab.decide(&packet("in_port=1,udp"));
    assert_eq!(d.drop, Some(telemetry::Drop::ResubmitLimit), "2,048 of 60 kB");
}

#[test]
fn states_of_a_bridge_are_bounded_by_bytes() {
    let mut lab = Lab::new();
    let note = Action::Note(vec![1; 60_000]);
    let keep = Action::Move {
        src: Subfield { field: flow::Field::EthSrc, ofs: 0, bits: 32 },
        dst: Subfield { field: flow::Field::Reg(0), ofs: 0, bits: 32 },
    };
    let list = vec![keep, Action::PopMpls { ethertype: 0x800 }, Action::SetIpTtl(3), note, out(2)];
    lab.add(flow(0, 1, "mpls", apply(list)));
    let (mut kept, mut refused) = (0, 0);
    for i in 0..2000 {
        let text =
            format!("in_port=1,mpls,mpls_bos=1,dl_src=02:00:00:00:{:02x}:{:02x}", i >> 8, i & 255);
        match lab.decide(&packet(&text)).drop {
            None => kept += 1,
            Some(why) => {
                assert_eq!(why, telemetry::Drop::RecircLimit);
                refused += 1;
            }
        }
    }
    assert!((1000..1200).contains(&kept), "{kept} of 60 kB are kept, {refused} are not");
}

#[test]
fn a_trace_is_no_longer_than_it_may_be() {
    const MOST: usize = 5 << 20;
    let trace = |lab: &Lab| {
        let style = TraceStyle::default();
        lab.sw.trace(lab.br, &packet("in_port=1,udp"), &Options::default(), &style).unwrap()
    };
    // Text of 180 kB for each of 2,048 times.
    let mut lab = Lab::new();
    tree(&mut lab, vec![Action::Note(vec![1; 60_000])]);
    let text = trace(&lab);
    assert!((3 << 20..MOST).contains(&text.len()), "{}", text.len());
    assert!(text.contains("\nThe rest of the trace is not shown: it is too long.\n"));
    assert!(text.contains("\nDatapath actions: drop\n"), "what comes of it is shown");
    // As for the log.
    let style = TraceStyle { bytes_max: Some(256 << 10), ..TraceStyle::default() };
    let at = packet("in_port=1,udp");
    let text = lab.sw.trace(lab.br, &at, &Options::default(), &style).unwrap();
    assert!((256 << 10..512 << 10).contains(&text.len()), "{}", text.len());
    assert!(text.contains("\nDatapath actions: drop\n"), "what comes of it is shown");
    // 200 lookups in each other, and many actions in the last one: all would be indented.
    let mut lab = Lab::new();
    let to = |table| Action::Resubmit { in_port: None, table: Some(table), ct: false };
    for table in 0..200u8 {
        lab.add(flow(table, 1, "", apply(vec![to(table + 1), Action::SetIpTtl(3)])));
    }
    lab.add(flow(200, 1, "", apply(vec![Action::SetIpTtl(3); 20_000])));
    let text = trace(&lab);
    assert!(text.len() < MOST && text.contains("\nThe rest of the trace"), "{}", text.len());
    lab.add(flow(200, 1, "", apply(vec![out(2)])));
    assert!(!trace(&lab).contains("The rest of the trace"));
}

/// A trace beyond its limit of bytes has the line that says why the translation failed.
#[test]
fn a_trace_that_is_too_long_shows_why_the_translation_failed() {
    let mut lab = Lab::new();
    let again = |t| Action::Resubmit { in_port: None, table: Some(t), ct: false };
    lab.add(flow(0, 1, "", apply(vec![again(0)])));
    let style = TraceStyle { bytes_max: Some(100), ..TraceStyle::default() };
    let at = packet("in_port=1,udp");
    let text = lab.sw.trace(lab.br, &at, &Options::default(), &style).unwrap();
    assert!(text.contains("\nThe rest of the trace is not shown: it is too long.\n"), "{text}");
    assert_eq!(text.matches(" >>>> over max translation depth 64 <<<<\n").count(), 1, "{text}");
}

#[test]
fn port_mods_of_a_bundle_go_in_slices() {
    let mut lab = Lab::new();
    let other = lab.sw.add_bridge("br1", BridgeConfig::default(), 0).unwrap();
    for n in 1..=1000u32 {
        let name = format!("o{n}");
        let (bundle, dp_port) = (name.clone(), Some(n as u16 + 100));
        let spec = PortSpec { of_port: n, name, bundle, dp_port, ..PortSpec::default() };
        lab.sw.add_port(other, spec).unwrap();
    }
    let item = |config| {
        let (mask, hw_addr) = (port_config::NO_FLOOD, lab.sw.port(lab.br, 1).unwrap().hw_addr);
        BundleItem::Port(PortMod { port: 1, hw_addr, config, mask, advertise: 0 })
    };
    let items: Vec<_> = (0..20).map(|i| item([0, port_config::NO_FLOOD][i % 2])).collect();
    let change = lab.sw.begin(lab.br, Box::new(items.into_iter().map(Ok)), 0).unwrap();
    for slices in 1.. {
        let (taken, outcome) = steps(|| lab.sw.advance(&change, SLICE));
        assert!(taken < 4 * SLICE, "{taken} steps, though other bridges have many ports");
        if let Some(outcome) = outcome {
            assert_eq!((outcome, slices > 8), (Ok(()), true));
            return;
        }
    }
}
