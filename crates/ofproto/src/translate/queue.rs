//! Queues of ports: for which one the packet is, and the DSCP that a port's queue gives it. The
//! packet path does not know queues: only traces show which one is selected.

use crate::fields;
use crate::published::PortView;
use crate::translate::xlate::Xlate;
use action::{Op, Rewrite};
use flow::{Field, Key, Mask, at};
use openflow::OfPort;

/// Bits of the DSCP in the byte that it shares with ECN.
const DSCP_MASK: u8 = 0xfc;

impl Xlate<'_, '_> {
    /// Later outputs are for this queue.
    pub(super) fn set_queue(&mut self, queue: u32) {
        self.note_queue();
        self.key.set_u32(at::PRIORITY, queue);
    }

    /// Later outputs are for the queue for which the packet came.
    pub(super) fn pop_queue(&mut self) {
        let (first, now) = (self.answer.export.first.u32(at::PRIORITY), self.key.u32(at::PRIORITY));
        self.set_queue(first);
        if first != now {
            self.trace_detail(|| format!("queue = {}", hex(first)));
        }
    }

    /// Sends to a queue of a port.
    pub(super) fn enqueue(&mut self, port: OfPort, queue: u32) {
        let before = self.key.u32(at::PRIORITY);
        self.set_queue(queue);
        self.output(port, 0);
        self.key.set_u32(at::PRIORITY, before);
    }

    /// Gives an IP packet the DSCP of its queue at the port where it is sent; the byte to restore
    /// afterwards.
    pub(super) fn mark_dscp(&mut self, p: &PortView) -> Option<u8> {
        if p.spec.queue_dscp.is_empty() {
            return None;
        }
        self.note_queue();
        let dscp = p.spec.queue_dscp.get(&self.key.u32(at::PRIORITY))?;
        if !fields::is_ip(self.key.u16(at::ETH_TYPE)) {
            return None;
        }
        Field::IpDscp.unwildcard(&mut self.wc);
        let before = self.key.u8(at::TOS);
        self.key.set_u8(at::TOS, before & !DSCP_MASK | dscp << 2);
        Some(before)
    }

    /// Restores what [`Self::mark_dscp`] changed.
    pub(super) fn unmark_dscp(&mut self, before: Option<u8>) {
        before.into_iter().for_each(|tos| self.key.set_u8(at::TOS, tos));
    }

    /// Records in a trace that the decision depends on the queue.
    fn note_queue(&mut self) {
        if self.recorder().is_some() {
            self.wc.set_u32(at::PRIORITY, !0);
        }
    }

    /// Records in a trace that another queue is selected.
    pub(super) fn commit_queue(&mut self) {
        let queue = self.key.u32(at::PRIORITY);
        if queue == self.base.u32(at::PRIORITY) || self.recorder().is_none() {
            return;
        }
        let mut set = Rewrite { key: Key::ZERO, mask: Mask::ZERO };
        set.key.set_u32(at::PRIORITY, queue);
        set.mask.set_u32(at::PRIORITY, !0);
        self.op(Op::Set(Box::new(set)));
    }
}

/// As C prints it with `%#x`.
fn hex(n: u32) -> String {
    if n == 0 { "0".into() } else { format!("{n:#x}") }
}
