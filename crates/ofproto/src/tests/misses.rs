//! What becomes of packets that no flow matches, as controllers of OpenFlow 1.1 and 1.2 say.

use crate::tests::{Lab, apply, flow, out, packet};
use crate::{N_TABLES, PacketInContext, TableMiss};
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
    lab.sw.configure_bridge(lab.br, config).unwrap();
    assert_eq!(lab.send("in_port=1,icmp"), "drop");
    assert_eq!(reported(&lab.decide(&udp)), Some((0, 0, true)), "as without any");
}
