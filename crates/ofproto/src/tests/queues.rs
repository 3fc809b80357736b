//! The DSCP that packets get by the queue of a port, and what traces show of queues.

use super::*;
use ::action::{Request, ops_text};

/// Gives the queues 0 and 5 of port 2 a DSCP.
fn mark(lab: &mut Lab) {
    let spec = lab.sw.port(lab.br, 2).unwrap().clone();
    let spec = PortSpec { queue_dscp: Arc::new([(0, 1), (5, 10)].into()), ..spec };
    lab.sw.update_port(lab.br, spec).unwrap();
}

fn ops(lab: &mut Lab, packet: &Key) -> String {
    ops_text(&lab.decide(packet).ops)
}

#[test]
fn a_queue_gives_ip_packets_its_dscp_at_its_port_only() {
    let mut lab = Lab::new();
    let list = vec![Action::SetQueue(5), out(3), out(2), Action::SetQueue(6), out(2), out(3)];
    lab.add(flow(0, 1, "in_port=1", apply(list)));
    lab.add(flow(0, 1, "in_port=4", apply(vec![out(2)])));
    let udp = packet("in_port=1,udp,nw_tos=32");
    let before = lab.decide(&udp);
    assert_eq!(ops_text(&before.ops), "13,12,12,13");
    lab.settle();
    mark(&mut lab);
    assert!(lab.names(&udp, &before), "another decision");
    let text = ops(&mut lab, &udp);
    assert_eq!(text, "13,set(ipv4(tos=0x28/0xfc)),12,set(ipv4(tos=0x20/0xfc)),12,13");
    assert_eq!(ops(&mut lab, &packet("in_port=1,arp")), "13,12,12,13");
    // Not on the plain way, which has no rewrites.
    let udp = packet("in_port=4,udp,nw_tos=32");
    let request = Request { key: &udp, options: &[], packet: &[] };
    assert_eq!(lab.sw.plain(&[request], &mut [Decision::default()]), 0);
    assert_eq!(ops(&mut lab, &udp), "set(ipv4(tos=0x4/0xfc)),12");
    assert_eq!(lab.decide(&udp).mask.u8(at::TOS), 0xfc);
}
