//! Hidden flows of in-band control.

use crate::tests::{Lab, apply, flow, out, packet};
use crate::*;
use ::action::Decision;
use openflow::*;

const LOCAL: [u8; 6] = [2, 0, 0, 0, 0, 9];
const ROUTER: [u8; 6] = [2, 0, 0, 0, 0, 7];
const FROM_REMOTE: &str =
    "in_port=1,tcp,dl_src=02:00:00:00:00:07,dl_dst=ff:ff:ff:ff:ff:ff,nw_src=10.0.0.1,tp_src=6653";
const DHCP_REPLY: &str =
    "in_port=1,udp,dl_src=02:00:00:00:00:07,dl_dst=ff:ff:ff:ff:ff:ff,tp_src=67,tp_dst=68";

fn wanted(remotes: &[&str]) -> InBand {
    InBand {
        remotes: remotes.iter().map(|r| r.parse().unwrap()).collect(),
        next_hops: [ROUTER].into(),
        local: Some(LOCAL),
        queue: None,
    }
}

/// A bridge that drops what no hidden flow takes, and has addresses learned: its own, and the
/// remote's on port 1.
fn lab() -> Lab {
    let mut lab = Lab::new();
    lab.add_local();
    lab.add(flow(0, u16::MAX, "", vec![]));
    lab.sw.set_in_band(lab.br, &wanted(&["10.0.0.1:6653"]), 0).unwrap();
    lab
}

fn texts(lab: &Lab) -> Vec<String> {
    let all = lab.sw.hidden_flows(lab.br, 0);
    let text = |(priority, f): &(u32, FlowStats)| {
        let m = flow::match_text(&f.matching.key, &f.matching.mask, &[], &|_| None);
        format!("{priority},{m},actions={}", instructions_text(&f.instructions))
    };
    all.iter().map(text).collect()
}

#[test]
fn each_remote_has_its_flows_and_no_two_are_the_same() {
    let mut lab = lab();
    let one = [
        "180000,udp,in_port=LOCAL,dl_src=02:00:00:00:00:09,tp_src=68,tp_dst=67,actions=NORMAL",
        "180001,arp,dl_dst=02:00:00:00:00:09,arp_op=2,actions=NORMAL",
        "180002,arp,dl_src=02:00:00:00:00:09,arp_op=1,actions=NORMAL",
        "180003,arp,dl_dst=02:00:00:00:00:07,arp_op=2,actions=NORMAL",
        "180004,arp,dl_src=02:00:00:00:00:07,arp_op=1,actions=NORMAL",
        "180005,arp,arp_tpa=10.0.0.1,arp_op=2,actions=NORMAL",
        "180006,arp,arp_spa=10.0.0.1,arp_op=1,actions=NORMAL",
        "180007,tcp,nw_dst=10.0.0.1,tp_dst=6653,actions=NORMAL",
        "180008,tcp,nw_src=10.0.0.1,tp_src=6653,actions=NORMAL",
    ];
    assert_eq!(texts(&lab), one);
    // Two on one host, and another one behind the same router.
    let many = wanted(&["10.0.0.1:6653", "10.0.0.1:6640", "10.1.0.1:6653"]);
    lab.sw.set_in_band(lab.br, &InBand { queue: Some(5), ..many }, 0).unwrap();
    let all = texts(&lab);
    assert_eq!(all.len(), BRIDGE_FLOWS_MAX + 2 + 2 * 2 + 3 * 2);
    assert!(all.iter().all(|f| f.ends_with("actions=set_queue:5,NORMAL")), "{all:#?}");
    let unknown = InBand { local: None, next_hops: [].into(), ..wanted(&["10.0.0.1:6653"]) };
    lab.sw.set_in_band(lab.br, &unknown, 0).unwrap();
    assert_eq!(texts(&lab), one[5..]);
    let own = InBand { next_hops: [LOCAL].into(), ..wanted(&["10.0.0.1:6653"]) };
    lab.sw.set_in_band(lab.br, &own, 0).unwrap();
    assert_eq!(texts(&lab).len(), one.len() - 2, "the router is the switch");
    lab.sw.set_in_band(lab.br, &wanted(&[]), 0).unwrap();
    assert!(texts(&lab).is_empty(), "there is no remote");
}

#[test]
fn the_number_of_flows_is_bounded_by_that_of_remotes() {
    let remotes = (0..100u32).map(|n| std::net::SocketAddrV4::new((n << 8).into(), 6653));
    let next_hops = (0..100).map(|n| [2, 0, 0, 0, 1, n]).collect();
    let wanted = InBand { remotes: remotes.collect(), next_hops, local: Some(LOCAL), queue: None };
    let mut lab = lab();
    lab.sw.set_in_band(lab.br, &wanted, 0).unwrap();
    assert_eq!(texts(&lab).len(), BRIDGE_FLOWS_MAX + 100 * REMOTE_FLOWS_MAX);
}

#[test]
fn hidden_flows_come_first_and_controllers_do_not_see_or_change_them() {
    let mut lab = lab();
    lab.sw.set_monitored(lab.br, true).unwrap();
    let before = texts(&lab);
    assert_eq!(lab.send(FROM_REMOTE), "9,12,13,14");
    assert_eq!(lab.send(&FROM_REMOTE.replace("6653", "6654")), "drop");
    let d = lab.decide(&packet(FROM_REMOTE));
    lab.sw.credit(d.credits[0], 3, 180, 5);
    let count = |lab: &Lab| {
        let all = lab.sw.hidden_flows(lab.br, 0);
        all.iter().map(|(_, f)| f.packets).sum::<u64>()
    };
    assert_eq!((count(&lab), lab.dump().len()), (3, 1), "and only the drop is in a dump");
    let mut sums = lab.sw.aggregate(lab.br, &FlowSelect::default()).unwrap();
    while lab.sw.aggregate_next(&mut sums) {}
    assert_eq!((sums.flows, sums.packets), (1, 0));
    assert_eq!(lab.sw.table_stats(lab.br).unwrap()[0].active, 1);
    use FlowModCommand as C;
    for command in [C::Add, C::Modify, C::ModifyStrict, C::Delete, C::DeleteStrict] {
        for text in ["", "tcp,nw_src=10.0.0.1,tp_src=6653"] {
            for priority in [8, u16::MAX] {
                lab.add(FlowMod { command, ..flow(0, priority, text, apply(vec![out(2)])) });
            }
        }
    }
    lab.sw.flush_flows(lab.br, 0).unwrap();
    assert!(lab.dump().is_empty());
    assert_eq!((texts(&lab), count(&lab)), (before, 3));
    assert_eq!(lab.send(FROM_REMOTE), "9,12,13,14");
    lab.sw.take_events();
    lab.sw.set_in_band(lab.br, &wanted(&[]), 0).unwrap();
    assert_eq!(lab.send(FROM_REMOTE), "drop");
    assert!(lab.sw.take_events().is_empty(), "no monitor hears of them");
}

#[test]
fn a_flow_that_stays_keeps_its_counters() {
    let mut lab = lab();
    let d = lab.decide(&packet(FROM_REMOTE));
    lab.sw.credit(d.credits[0], 3, 180, 5);
    let more = wanted(&["10.0.0.1:6653", "10.0.0.2:6653"]);
    for queue in [None, Some(1)] {
        lab.sw.set_in_band(lab.br, &InBand { queue, ..more.clone() }, 0).unwrap();
        let all = lab.sw.hidden_flows(lab.br, 0);
        let counts: Vec<u64> = all.iter().map(|(_, f)| f.packets).filter(|n| *n > 0).collect();
        assert_eq!(counts, [3]);
    }
}

#[test]
fn a_table_with_a_limit_has_room_for_all_its_flows() {
    let mut lab = lab();
    let config = lab.sw.bridge_config(lab.br).unwrap().clone();
    let limit = TableConfig { limit: Some(2), evict: true, ..TableConfig::default() };
    let config = BridgeConfig { tables: [(0, limit)].into(), ..config };
    lab.sw.configure_bridge(lab.br, config).unwrap();
    lab.sw.shrink_tables(lab.br, usize::MAX, 0);
    let before = texts(&lab);
    lab.add(FlowMod { idle_timeout: 9, ..flow(0, 1, "in_port=1", vec![]) });
    lab.add(flow(0, 1, "in_port=2", vec![]));
    assert_eq!(lab.dump().len(), 2);
    assert_eq!(texts(&lab), before);
}

#[test]
fn replies_of_dhcp_servers_go_to_local_in_addition() {
    let mut lab = lab();
    assert_eq!(lab.send(DHCP_REPLY), "9");
    let mask = lab.decide(&packet(DHCP_REPLY)).mask;
    for other in ["tp_src=68,tp_dst=68", "tp_src=67,tp_dst=67"] {
        let other = DHCP_REPLY.replace("tp_src=67,tp_dst=68", other);
        assert!(!packet(DHCP_REPLY).matches(&packet(&other), &mask), "{other}");
        assert_eq!(lab.send(&other), "drop");
    }
    lab.add(flow(0, u16::MAX, "", apply(vec![out(2)])));
    assert_eq!(lab.send(DHCP_REPLY), "12,9");
    lab.add(flow(0, u16::MAX, "", apply(vec![out(port::NORMAL)])));
    assert_eq!(lab.send(DHCP_REPLY), "9,12,13,14", "once");
    lab.sw.take_regions();
    lab.sw.set_in_band(lab.br, &wanted(&[]), 0).unwrap();
    assert!(!lab.sw.take_regions().is_empty());
    lab.add(flow(0, u16::MAX, "", vec![]));
    assert_eq!(lab.send(DHCP_REPLY), "drop");
}

#[test]
fn what_is_removed_is_forgotten_with_its_bridge() {
    let mut lab = lab();
    let d: Decision = lab.decide(&packet(FROM_REMOTE));
    lab.sw.remove_bridge(lab.br, 0).unwrap();
    assert!(lab.sw.slots.flow(d.credits[0]).is_none());
}

#[test]
fn a_trace_shows_priorities_as_ovs_has_them() {
    let lab = lab();
    let key = packet(FROM_REMOTE);
    let style = TraceStyle::default();
    let text = lab.sw.trace(lab.br, &key, &Options::default(), &style).unwrap();
    let rule = " 0. tcp,nw_src=10.0.0.1,tp_src=6653, priority 180008\n    NORMAL\n";
    assert!(text.contains(rule), "{text}");
    let key = packet(DHCP_REPLY);
    let text = lab.sw.trace(lab.br, &key, &Options::default(), &style).unwrap();
    assert!(text.contains("outputting DHCP packet to local port for in-band control"), "{text}");
}
