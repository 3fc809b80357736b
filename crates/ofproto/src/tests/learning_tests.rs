//! What ports' packets teach is bounded by port; a pause ends in its own bridge only.

use crate::learned::{DEFERRED_FLOWS_MAX, PORT_FLOWS_BURST, PORT_FLOWS_RATE, TAUGHT_FLOWS_MAX};
use crate::tests::*;
use crate::translate::effects::Effects;
use crate::*;
use flow::Field;
use openflow::*;

const SECOND_NS: u64 = 1_000_000_000;
/// Cookie of flows that packets teach.
const COOKIE: u64 = 7;

/// Packets teach that their sender is met in table 1.
fn teaching(limit: u32, flags: u16) -> Lab {
    let mut lab = Lab::new();
    lab.add(flow(0, 100, "", apply(vec![learn(limit, flags)])));
    lab
}

fn learn(limit: u32, flags: u16) -> Action {
    let sender = Subfield { field: Field::EthSrc, ofs: 0, bits: 48 };
    let spec = LearnSpec {
        bits: 48,
        src: LearnSource::Field(sender),
        dst: LearnTarget::Match(Subfield { field: Field::EthDst, ..sender }),
    };
    let learn = Learn {
        idle_timeout: 0,
        hard_timeout: 0,
        fin_idle_timeout: 0,
        fin_hard_timeout: 0,
        priority: 5,
        cookie: COOKIE,
        flags,
        table: 1,
        limit,
        result: None,
        specs: vec![spec],
    };
    Action::Learn(Box::new(learn))
}

/// A packet of station `n` comes on a port; how many flows there are in table 1 then.
fn teach(lab: &mut Lab, port: u32, n: u32, now: u64) -> usize {
    let text = format!("in_port={port},dl_src=02:00:00:00:{:02x}:{:02x}", n >> 8, n & 255);
    let d = lab.decide(&packet(&text));
    lab.sw.effects(d.effects.as_ref().expect("it teaches"), now);
    lab.dump().iter().filter(|f| f.table == 1).count()
}

#[test]
fn a_port_that_teaches_too_much_leaves_others_their_share() {
    let mut lab = teaching(0, 0);
    assert_eq!(teach(&mut lab, 1, 1, 0), 1);
    // The rest of what port 1 may teach at once, without making the flows.
    let rest = (0..2 * PORT_FLOWS_BURST).filter(|_| lab.sw.learned.admits(11, 0)).count();
    assert_eq!(rest as u64, PORT_FLOWS_BURST - 1);
    let limited = lab.sw.flows_not_learned();
    assert_eq!(teach(&mut lab, 1, 2, 0), 1, "port 1 has taught enough");
    assert_eq!(lab.sw.flows_not_learned(), limited + 1);
    assert_eq!(teach(&mut lab, 1, 1, 0), 1, "what it taught is renewed");
    assert_eq!(lab.sw.flows_not_learned(), limited + 1, "which costs nothing");
    assert_eq!(teach(&mut lab, 2, 3, 0), 2, "port 2 has its own share");
    assert_eq!(teach(&mut lab, 1, 2, SECOND_NS), 3, "a second later port 1 may again");
    let fresh = (0..PORT_FLOWS_BURST).filter(|_| lab.sw.learned.admits(11, SECOND_NS)).count();
    assert_eq!(fresh as u64, PORT_FLOWS_RATE - 1, "as many as come in a second");
}

/// What packets taught is bounded in all, not only by how fast it comes: a guest with ever new
/// addresses takes no more than half of the memory that is for this, and leaves others theirs.
#[test]
fn flows_that_are_taught_are_bounded_by_port_as_long_as_they_are_there() {
    let mut lab = teaching(0, 0);
    assert_eq!(teach(&mut lab, 1, 1, 0), 1);
    // The rest of what port 1 may have, without making the flows.
    let rest = (0..TAUGHT_FLOWS_MAX).take_while(|_| {
        let more = lab.sw.slots.taught.has_room(11);
        lab.sw.slots.taught.add(Some(11).filter(|_| more));
        more
    });
    assert_eq!(rest.count() as u32, TAUGHT_FLOWS_MAX / 2 - 1);
    let limited = lab.sw.flows_not_learned();
    assert_eq!(teach(&mut lab, 1, 2, 0), 1, "port 1 has as many as it may have");
    assert_eq!(lab.sw.flows_not_learned(), limited + 1);
    assert_eq!(teach(&mut lab, 1, 1, 0), 1, "what it taught is renewed");
    assert_eq!(teach(&mut lab, 2, 3, 0), 2, "port 2 has its own share");
    lab.add(flow(1, 5, "", vec![]));
    assert_eq!(lab.dump().iter().filter(|f| f.table == 1).count(), 3, "and controllers theirs");
    // What goes leaves room: a flow of port 1's, and with it one for its next one.
    let gone = flow(1, 5, "dl_dst=02:00:00:00:00:01", vec![]);
    let gone = FlowMod { command: FlowModCommand::Delete, ..gone };
    lab.sw.flow_mod(lab.br, &gone, 0).unwrap();
    lab.sw.reclaim(usize::MAX);
    assert_eq!(teach(&mut lab, 1, 2, 0), 3);
}

/// A change of some steps, of which one is left, and how it ends.
fn begin(lab: &mut Lab, last: Result<BundleItem, OfError>) -> (Change, Outcome) {
    let flows = (1..20).map(|i| flow(2, 5, &format!("udp,tp_dst={i}"), vec![]));
    let items = flows.map(|f| Ok(BundleItem::Flow(f))).chain([last.clone()]);
    let items: Vec<_> = items.collect();
    let change = lab.sw.begin(lab.br, Box::new(items.into_iter()), 0).unwrap();
    assert_eq!(lab.sw.advance(&change, 19), None);
    (change, last.map(drop).map_err(|e| (19, e)))
}

/// Runs the change to its end, and learns what waited, a few flows at a time.
fn finish(lab: &mut Lab, (change, outcome): (Change, Outcome)) {
    let end = std::iter::repeat_with(|| lab.sw.advance(&change, 1)).find_map(|o| o);
    assert_eq!(end, Some(outcome));
    assert_eq!(lab.dump().iter().filter(|f| f.table == 1).count(), 0);
    while lab.sw.learn_deferred(10) {}
}

/// A last step that does nothing else.
fn harmless() -> Result<BundleItem, OfError> {
    Ok(BundleItem::Flow(flow(3, 1, "", vec![])))
}

#[test]
fn what_packets_teach_during_a_change_is_learned_after_it() {
    for last in [harmless(), Err(OfError::BadLen)] {
        let mut lab = teaching(0, 0);
        let change = begin(&mut lab, last);
        for n in [1, 2, 2, 1] {
            assert_eq!(teach(&mut lab, 1, n, n.into()), 0, "not before the change has ended");
        }
        assert!(lab.sw.busy() && !lab.sw.learn_deferred(10), "nor does it end the change");
        finish(&mut lab, change);
        assert_eq!(teach(&mut lab, 1, 1, 5), 2, "each once");
        assert_eq!(teach(&mut lab, 1, 3, 5), 3, "and others at once");
        assert_eq!(lab.sw.flows_not_learned(), 0);
    }
}

#[test]
fn what_waits_for_a_change_is_bounded_by_port() {
    let mut lab = teaching(0, 0);
    let change = begin(&mut lab, harmless());
    let most = DEFERRED_FLOWS_MAX as u32;
    (0..most).for_each(|n| _ = teach(&mut lab, 1, n, 0));
    assert_eq!(lab.sw.flows_not_learned(), u64::from(most / 2));
    (most..most + 100).for_each(|n| _ = teach(&mut lab, 2, n, 0));
    assert_eq!(lab.sw.flows_not_learned(), u64::from(most / 2), "another port's share");
    finish(&mut lab, change);
    assert_eq!(teach(&mut lab, 2, most, 0), most as usize / 2 + 100);
}

#[test]
fn what_waits_for_a_change_keeps_to_its_learn_action() {
    let mut lab = teaching(3, 0);
    let change = begin(&mut lab, harmless());
    (0..10).for_each(|n| _ = teach(&mut lab, 1, n, 0));
    finish(&mut lab, change);
    assert_eq!(lab.dump().iter().filter(|f| f.table == 1).count(), 3, "its limit");
    // It goes with the change, and what it taught with it.
    let mut lab = teaching(0, learn_flag::DELETE_LEARNED);
    let all = FlowMod { command: FlowModCommand::Delete, ..flow(0, 0, "", vec![]) };
    let change = begin(&mut lab, Ok(BundleItem::Flow(all)));
    (0..10).for_each(|n| _ = teach(&mut lab, 1, n, 0));
    finish(&mut lab, change);
    assert_eq!(lab.dump().iter().filter(|f| f.table == 1).count(), 0);
}

/// What a flow taught with `delete_learned` goes with it, though the same change adds another flow
/// that teaches there: OVN exchanges a load balancer's address so. A flow that replaces it, and a
/// change that fails, keep what was taught.
#[test]
fn what_was_taught_goes_with_its_last_teacher() {
    let teacher =
        |text: &str| flow(0, 100, text, apply(vec![learn(0, learn_flag::DELETE_LEARNED)]));
    let remove =
        |text: &str| FlowMod { command: FlowModCommand::Delete, ..flow(0, 0, text, vec![]) };
    let taught = |lab: &Lab| lab.dump().iter().filter(|f| f.table == 1).count();
    let change = |lab: &mut Lab, items: Vec<FlowMod>| {
        lab.sw.bundle(lab.br, items.into_iter().map(BundleItem::Flow).collect(), 0)
    };
    let mut lab = Lab::new();
    lab.add(teacher("tcp"));
    let d = lab.decide(&packet("in_port=1,tcp,dl_src=02:00:00:00:00:01"));
    lab.sw.effects(d.effects.as_ref().unwrap(), 0);
    assert_eq!(taught(&lab), 1);
    change(&mut lab, vec![teacher("tcp")]).unwrap();
    assert_eq!(taught(&lab), 1, "replaced");
    let group = flow(0, 1, "", apply(vec![Action::Group(5)]));
    assert!(change(&mut lab, vec![remove("tcp"), group]).is_err());
    change(&mut lab, vec![flow(0, 1, "", apply(vec![out(1)]))]).unwrap();
    assert_eq!(taught(&lab), 1, "the change failed");
    change(&mut lab, vec![remove("tcp"), teacher("udp")]).unwrap();
    assert_eq!(taught(&lab), 0);
}

fn pause() -> Action {
    Action::Controller {
        max_len: 128,
        reason: Reason::Action,
        id: 0,
        userdata: vec![],
        pause: true,
        meter: None,
    }
}

/// OVN floods a router solicitation to the router's port first, whose pipeline pauses in a clone:
/// other ports must not get it.
#[test]
fn a_pause_in_a_clone_ends_the_lists_around_it() {
    let mut lab = Lab::new();
    let inner = Action::Clone(vec![Action::Resubmit { in_port: None, table: Some(1), ct: false }]);
    lab.add(flow(0, 100, "in_port=1", apply(vec![out(2), inner, out(3)])));
    lab.add(flow(1, 100, "tcp", apply(vec![pause(), out(4)])));
    lab.add(flow(1, 100, "udp", apply(vec![out(4)])));
    let d = lab.decide(&packet("in_port=1,tcp"));
    assert!(matches!(&d.ops[..], [::action::Op::Output(_), ::action::Op::Punt(_)]), "{:?}", d.ops);
    let d = lab.decide(&packet("in_port=1,udp"));
    assert_eq!(::action::ops_text(&d.ops), "12,14,13");
}

/// A table-miss flow led to the rule (in OVN's case, NORMAL of the bridge before).
#[test]
fn the_packet_of_a_pause_names_the_rule_that_pauses() {
    let mut lab = Lab::new();
    let again = Action::Resubmit { in_port: None, table: Some(1), ct: false };
    lab.add(flow(0, 0, "", apply(vec![again, out(2)])));
    lab.add(FlowMod { cookie: COOKIE, ..flow(1, 100, "tcp", apply(vec![pause(), out(4)])) });
    let d = lab.decide(&packet("in_port=1,tcp"));
    let [::action::Op::Punt(p)] = &d.ops[..] else { panic!("{:?}", d.ops) };
    let context = p.context.downcast_ref::<PacketInContext>().unwrap();
    assert_eq!((context.table, context.cookie, context.miss_flow), (1, COOKIE, false));
}

/// What controllers' packets without an input port bring about is charged to their bridge.
#[test]
fn packets_of_one_bridges_controller_leave_anothers_theirs() {
    let mut lab = Lab::new();
    let other = lab.sw.add_bridge("br1", BridgeConfig::default(), 0).unwrap();
    let key = packet("in_port=1,tcp");
    let mut charged = |bridge, in_port: u32| {
        let actions = vec![learn(0, 0), pause()];
        let mut p =
            PacketOut { buffer_id: NO_BUFFER, matching: matching(""), actions, data: vec![] };
        p.matching.key.set_u32(at::OF_IN_PORT, in_port);
        let d = lab.sw.packet_out(bridge, &p, &key).unwrap();
        let [.., ::action::Op::Punt(p)] = &d.ops[..] else { panic!("{:?}", d.ops) };
        let context = p.context.downcast_ref::<PacketInContext>().unwrap();
        let paused = context.continuation.as_ref().expect("it pauses").odp_port;
        let effects = d.effects.as_ref().unwrap().downcast_ref::<Effects>().unwrap();
        assert_eq!(u32::from(effects.flows[0].port), paused);
        assert_eq!(u32::from(lab.sw.charged_port(bridge, in_port)), paused);
        paused as flow::PortNo
    };
    let [a, b] = [lab.br, other].map(|bridge| charged(bridge, port::CONTROLLER));
    assert!(a != b && !flow::is_received(a) && !flow::is_received(b), "{a}, {b}");
    assert_eq!(charged(lab.br, 1), 11, "its input port pays");
}

#[test]
fn a_controller_has_no_pipeline_of_another_bridge_go_on() {
    let mut lab = Lab::new();
    let other = lab.sw.add_bridge("br1", BridgeConfig::default(), 0).unwrap();
    lab.add(flow(0, 100, "in_port=1", apply(vec![pause(), out(2)])));
    let key = packet("in_port=1,tcp");
    let d = lab.decide(&key);
    let [.., ::action::Op::Punt(p)] = &d.ops[..] else { panic!("{:?}", d.ops) };
    let context = p.context.downcast_ref::<PacketInContext>().unwrap();
    let continuation = context.continuation.clone().expect("it pauses");
    let mut r = Resume { data: vec![0; 64], matching: context.matching.clone(), continuation };
    let ops = |d: &::action::Decision| ::action::ops_text(&d.ops);
    assert_eq!(ops(&lab.sw.resume(lab.br, &r, &key).unwrap()), "12");
    // A controller of br1 got the paused packet, or one of br0 names another bridge or port.
    assert_eq!(lab.sw.resume(other, &r, &key).err(), Some(OfError::ResumeStale));
    let last = &mut r.continuation.bridge[15];
    *last ^= (lab.br.0 ^ other.0) as u8;
    assert_eq!(lab.sw.resume(lab.br, &r, &key).err(), Some(OfError::ResumeStale));
    assert_eq!(lab.sw.resume(other, &r, &key).err(), Some(OfError::ResumeStale), "made up");
    r.continuation.bridge = context.continuation.clone().unwrap().bridge;
    assert!(lab.sw.resume(lab.br, &r, &key).is_ok());
    r.continuation.odp_port += 1;
    let forged = lab.sw.resume(lab.br, &r, &key).err();
    assert_eq!(forged, Some(OfError::ResumeStale), "another port would be charged");
}

/// Subfields of a tunnel option may lie where no key has bits.
#[test]
fn wide_options_are_learned_bit_by_bit() {
    let mut lab = Lab::new();
    let map = TlvMap { class: 0xffff, kind: 1, len: 124, index: 0 };
    let add = TlvTableMod::Add(vec![map]);
    lab.sw.tlv_table_mod(lab.br, &add).unwrap();
    let at = |ofs, bits| Subfield { field: Field::TunMetadata(0), ofs, bits };
    let value = |v, bits, dst| LearnSpec { bits, src: LearnSource::Value(v), dst };
    let specs = vec![
        value(5, 16, LearnTarget::Match(at(900, 16))),
        value(7 << 64 | 9, 100, LearnTarget::Load(at(300, 100))),
    ];
    let Action::Learn(mut one) = learn(0, 0) else { unreachable!() };
    one.specs = specs;
    lab.add(flow(0, 100, "", apply(vec![Action::Learn(one)])));
    teach(&mut lab, 1, 1, 0);
    let learned = lab.dump().into_iter().find(|f| f.table == 1).expect("it is there");
    let loads = [(300, 64, 9), (364, 36, 7)]
        .map(|(ofs, bits, value)| Action::Load { dst: at(ofs, bits), value });
    assert_eq!(learned.instructions, apply(loads.into()));
    assert_eq!(learned.matching.tun.len(), 1);
}
