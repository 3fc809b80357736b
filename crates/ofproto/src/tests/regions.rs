//! Which decisions a flow-mod has made anew when tables see a packet otherwise than it came in.

use crate::tests::{Lab, apply, flow, out, packet};
use ::action::Op;
use flow::{Field, Key, at};
use openflow::Action;
use openflow::conntrack::{Conntrack, Zone};

fn resubmit(table: u8) -> Action {
    Action::Resubmit { in_port: None, table: Some(table), ct: false }
}

fn ct(table: Option<u8>) -> Action {
    let zone = Zone::Number(0);
    Action::Ct(Box::new(Conntrack { flags: 0, zone, table, alg: 0, actions: vec![] }))
}

/// A packet that connection tracking has seen, on its way to table 1.
fn tracked(lab: &mut Lab) -> Key {
    let mut key = packet("in_port=1,udp");
    let d = lab.decide(&key);
    let id = d.ops.iter().find_map(|op| match op {
        Op::Recirc(id) => Some(*id),
        _ => None,
    });
    key.set_u32(at::RECIRC, id.expect("it is looked up again"));
    // +trk, +new
    key.set_u8(at::CT_STATE, 0x21);
    key
}

#[test]
fn a_flow_for_untracked_packets_reaches_those_that_were_tracked() {
    for (n, action) in [Action::CtClear, ct(None)].into_iter().enumerate() {
        let mut lab = Lab::new();
        lab.add(flow(0, 1, "udp", apply(vec![ct(Some(1))])));
        lab.add(flow(1, 1, "ct_state=+trk,udp", apply(vec![action, resubmit(2)])));
        lab.add(flow(2, 1, "", apply(vec![out(2)])));
        let key = tracked(&mut lab);
        let before = lab.decide(&key);
        lab.settle();
        lab.add(flow(2, 2, "ct_state=-trk", apply(vec![out(4)])));
        assert_ne!(lab.decide(&key).ops, before.ops, "{n}");
        assert!(lab.names(&key, &before), "{n}");
    }
}

#[test]
fn a_flow_reaches_packets_whose_register_sends_them_to_the_tables_again() {
    let mut lab = Lab::new();
    let src = openflow::Subfield { field: Field::Reg(0), ofs: 0, bits: 16 };
    let value = u64::from(openflow::port::TABLE & 0xffff);
    let list = vec![
        Action::SetIpDst([10, 0, 0, 9]),
        Action::Load { dst: src, value },
        Action::OutputReg { src, max_len: 0 },
    ];
    lab.add(flow(0, 1, "udp,nw_dst=10.0.0.1", apply(list)));
    let key = packet("in_port=1,udp,nw_dst=10.0.0.1");
    let before = lab.decide(&key);
    lab.settle();
    lab.add(flow(0, 1, "udp,nw_dst=10.0.0.9", apply(vec![out(4)])));
    assert_ne!(lab.decide(&key).ops, before.ops);
    assert!(lab.names(&key, &before));
}

#[test]
fn a_flow_reaches_packets_whose_length_was_written_into_a_header() {
    let mut lab = Lab::new();
    let dst = openflow::Subfield { field: Field::EthDst, ofs: 0, bits: 1 };
    let list = vec![Action::CheckPktLarger { len: 100, dst }, resubmit(1)];
    lab.add(flow(0, 1, "", apply(list)));
    let key = packet("in_port=1,udp,dl_dst=00:00:00:00:00:02");
    let before = lab.decide(&key);
    lab.settle();
    lab.add(flow(1, 1, "dl_dst=00:00:00:00:00:03", apply(vec![out(4)])));
    assert_ne!(lab.decide(&key).ops, before.ops);
    assert!(lab.names(&key, &before));
}
