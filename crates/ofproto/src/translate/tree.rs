//! Spanning trees: BPDUs are taken before the tables see them, and ports receive and send what
//! their states allow.

use crate::fields::LLC;
use crate::published::PortView;
use crate::translate::effects::TreeContext;
use crate::translate::xlate::{RECV_BITS, Xlate};
use crate::types::{BridgeId, TreeProtocol, TreeState};
use flow::{Field, at};
use openflow::port_config;
use telemetry::Drop;

/// The group that bridges listen to (IEEE 802.1D, table 7-9).
const BRIDGES_MAC: [u8; 6] = [0x01, 0x80, 0xc2, 0, 0, 0];
/// Bytes of a BPDU that are examined: Ethernet, LLC, and the longest BPDU of RSTP.
const BPDU_BYTES_MAX: u16 = 60;

impl Xlate<'_, '_> {
    /// Punts a BPDU, if the bridge has a spanning tree; false: it is not one. Of a port that takes
    /// no part in the tree BPDUs are dropped, as by ovs-vswitchd.
    pub(super) fn take_bpdu(&mut self, p: &PortView) -> bool {
        if self.bridge.config.tree.is_none() || !self.is_bpdu() {
            return false;
        }
        match &p.spec.tree {
            Some(tree) => {
                let (bridge, port) = (BridgeId(self.bridge.id), p.spec.of_port);
                let context = Box::new(TreeContext { bridge, port });
                self.hand_over(BPDU_BYTES_MAX, tree.gate.clone(), context);
            }
            None => _ = self.answer.decision.drop.get_or_insert(Drop::SpanningTree),
        }
        true
    }

    /// Every decision depends on the Ethertype anyway.
    fn is_bpdu(&mut self) -> bool {
        if self.key.u16(at::ETH_TYPE) != LLC {
            return false;
        }
        Field::EthDst.unwildcard(&mut self.wc);
        self.key.get::<6>(at::ETH_DST) == BRIDGES_MAC
    }

    /// True if the packet goes on from its port to the tables. One that is not to be forwarded goes
    /// on where addresses are learned.
    pub(super) fn receives(&mut self, p: &PortView) -> bool {
        if p.spec.config & RECV_BITS != 0 {
            let bit = match self.is_bpdu() {
                true => port_config::NO_RECV_STP,
                false => port_config::NO_RECV,
            };
            if p.spec.config & bit != 0 {
                let text = "OpenFlow port is configured not to receive, dropping";
                self.trace_warning(|| text.into());
                return false;
            }
        }
        let learns = p.spec.tree_state().learns();
        if !learns {
            self.answer.decision.drop.get_or_insert(Drop::SpanningTree);
        }
        learns
    }

    /// Ends the translation of a packet whose port learns and does not forward; its operations are
    /// gone already.
    pub(super) fn only_learn(&mut self) {
        self.end.rest = None;
        self.packet.set.clear();
        self.answer.decision.drop.get_or_insert(Drop::SpanningTree);
    }

    /// True if the port's state keeps the packet from being sent; a trace says so. BPDUs and OAM
    /// packets are about the link itself.
    pub(super) fn is_closed(&mut self, p: &PortView) -> bool {
        let state = p.spec.tree_state();
        if state.forwards() {
            return false;
        }
        let name = self.bridge.config.tree.map_or("", TreeProtocol::name);
        if self.is_bpdu() {
            let closed = state == TreeState::Blocking;
            if closed {
                let text = "STP not in listening state, skipping bpdu output";
                self.trace_warning(|| text.into());
            }
            return closed;
        }
        if self.is_oam(p) {
            return false;
        }
        self.trace_warning(|| format!("{name} not in forwarding state, skipping output"));
        true
    }
}
