//! Timeouts of flows that go before they time out.

use crate::tests::*;
use openflow::*;

const SECOND_NS: u64 = 1_000_000_000;

/// A controller that adds a flow and deletes it, again and again, leaves nothing behind: neither
/// while the first one's timeout runs, nor when later flows have its number.
#[test]
fn flows_that_go_early_leave_no_timers() {
    let mut lab = Lab::new();
    for i in 0..1000 {
        let now = i * SECOND_NS;
        let one = flow(0, 5, &format!("udp,tp_dst={}", i % 5), vec![]);
        let add = FlowMod { hard_timeout: 30, ..one.clone() };
        let delete = FlowMod { command: FlowModCommand::Delete, ..one };
        lab.sw.flow_mod(lab.br, &delete, now).unwrap();
        lab.sw.flow_mod(lab.br, &add, now).unwrap();
        lab.sw.reclaim(usize::MAX);
        lab.sw.expire(now, now, usize::MAX);
        assert!(lab.sw.slots.timers() <= 5, "{i}: {}", lab.sw.slots.timers());
    }
}
