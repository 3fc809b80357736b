//! What becomes of packets that no flow matches, as controllers of OpenFlow 1.1 and 1.2 say.

use crate::tests::{Lab, apply, flow, out, packet};
use crate::work::steps;
use crate::{BridgeConfig, N_TABLES, PacketInContext, PortSpec, TableMiss};
use action::{Decision, Op};
use openflow::{Action, Instruction, Reason};

impl Lab {
    fn misses(&mut self, tables: std::ops::Range<usize>, miss: TableMiss) {
        let mut config = self.sw.bridge_config(self.br).unwrap().clone();
        config.misses = tables.map(|table| (table as u8, miss)).collect();
        self.sw.configure_bridge(self.br, config).unwrap();
    }
}

/// Table, cookie and `no_flow` of what is reported to controllers.
fn reported(d: &Decision) -> Option<(u8, u64, bool)> {
    let [Op::Punt(punt)] = &d.ops[..] else { return None };
    let context = punt.context.downcast_ref::<PacketInContext>()?;
    (context.reason == Reason::TableMiss).then_some((
        context.table,
        context.cookie,
        context.no_flow,
    ))
}

#[test]
fn a_miss_goes_where_the_table_says() {
    let mut lab = Lab::new();
    lab.add(flow(7, 1, "udp", apply(vec![out(2)])));
    let again = Action::Resubmit { in_port: None, table: Some(3), ct: false };
    lab.add(flow(0, 1, "arp", apply(vec![again])));
    lab.add(flow(0, 1, "icmp", vec![Instruction::Goto(5)]));
    let [udp, tcp] = ["in_port=1,udp", "in_port=1,tcp"].map(packet);
    assert_eq!(lab.decide(&tcp).ops, [], "no connection wants misses");

    lab.misses(0..N_TABLES, TableMiss::Continue);
    assert_eq!(lab.send("in_port=1,udp"), "12");
    let last = N_TABLES as u8 - 1;
    assert_eq!(reported(&lab.decide(&tcp)), Some((last, 0, true)), "behind the last table");
    assert_eq!(lab.send("in_port=1,arp"), "drop", "resubmit looks at one table");

    lab.misses(0..1, TableMiss::Controller);
    assert_eq!(reported(&lab.decide(&udp)), Some((0, 0, true)));
    assert_eq!(lab.send("in_port=1,icmp"), "drop", "nothing is said of table 5");

    lab.misses(5..6, TableMiss::Drop);
    let mut config = lab.sw.bridge_config(lab.br).unwrap().clone();
    config.miss_to_controller = true;
    let misses = ["in_port=1,icmp", "in_port=1,udp"].map(|p| lab.decide(&packet(p)));
    lab.sw.take_regions();
    lab.sw.take_stale();
    lab.sw.configure_bridge(lab.br, config).unwrap();
    assert!(lab.sw.take_regions().is_empty(), "decisions without a miss stay");
    let is_stale = lab.sw.take_stale().expect("misses are handled otherwise");
    assert!(misses.iter().all(|d| is_stale(&d.cached())));
    assert_eq!(lab.send("in_port=1,icmp"), "drop");
    assert_eq!(reported(&lab.decide(&udp)), Some((0, 0, true)), "as without any");
}

/// A packet that goes on through all tables takes a step for each and counts each miss, so one that
/// does it again and again meets the limit of counters.
#[test]
fn going_on_through_tables_is_bounded() {
    let mut lab = Lab::new();
    lab.misses(0..N_TABLES, TableMiss::Continue);
    let tcp = packet("in_port=1,tcp");
    let (taken, decision) = steps(|| lab.decide(&tcp));
    assert_eq!(decision.credits.len(), N_TABLES, "the miss of each table is counted");
    assert!((N_TABLES..N_TABLES + 8).contains(&taken), "{taken} steps");

    // Sixty-four ways to another bridge, on which each packet goes through all tables.
    let far = lab.sw.add_bridge("br1", BridgeConfig::default(), 0).unwrap();
    for (bridge, name, peer) in [(lab.br, "there", "here"), (far, "here", "there")] {
        let (name, patch_peer) = (name.to_string(), Some(peer.to_string()));
        let bundle = name.clone();
        let spec = PortSpec { of_port: 9, bundle, name, patch_peer, ..PortSpec::default() };
        lab.sw.add_port(bridge, spec).unwrap();
    }
    let mut config = lab.sw.bridge_config(far).unwrap().clone();
    config.misses = (0..N_TABLES).map(|table| (table as u8, TableMiss::Continue)).collect();
    lab.sw.configure_bridge(far, config).unwrap();
    lab.add(flow(0, 1, "tcp", apply(vec![out(9); 64])));
    let (taken, decision) = steps(|| lab.decide(&tcp));
    assert_eq!(decision.drop, Some(telemetry::Drop::ResubmitLimit));
    assert!(decision.ops.is_empty() && taken < 10_000, "{taken} steps");
}
