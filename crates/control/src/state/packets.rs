//! Packets from controllers.

use super::State;
use action::Decision;
use flow::{PortNo, at};
use ofproto::BridgeId;
use openflow::{OfError, PacketOut, Resume};

impl State {
    /// Executes a packet-out.
    pub fn packet_out(&mut self, bridge: BridgeId, po: &PacketOut) -> Result<(), OfError> {
        let in_port = self.ofproto.charged_port(bridge, po.matching.key.u32(at::OF_IN_PORT));
        let limit = self.dp.settings().vlan_limit;
        let key = datapath::extract(&po.data, in_port, limit).ok_or(OfError::BadPacket)?;
        let decision = self.ofproto.packet_out(bridge, po, &key)?;
        self.send_packet(bridge, po, &decision)
    }

    /// Continues a paused pipeline of a bridge.
    pub fn resume(&mut self, bridge: BridgeId, r: &Resume) -> Result<(), OfError> {
        let in_port = self.pending.paused.charged(bridge, r.continuation.odp_port);
        let limit = self.dp.settings().vlan_limit;
        let key = datapath::extract(&r.data, in_port, limit).ok_or(OfError::BadPacket)?;
        let decision = self.ofproto.resume(bridge, r, &key)?;
        self.execute(bridge, &r.data, in_port, &decision)
    }

    /// Does with a controller's packet what was decided.
    pub fn send_packet(
        &mut self,
        bridge: BridgeId,
        po: &PacketOut,
        decision: &Decision,
    ) -> Result<(), OfError> {
        let in_port = self.ofproto.charged_port(bridge, po.matching.key.u32(at::OF_IN_PORT));
        self.execute(bridge, &po.data, in_port, decision)
    }

    fn execute(
        &mut self,
        bridge: BridgeId,
        packet: &[u8],
        in_port: PortNo,
        decision: &Decision,
    ) -> Result<(), OfError> {
        let now = self.now_ns();
        for (id, bytes) in action::credited(&decision.credits, 1, packet.len() as u64) {
            self.ofproto.credit(id, 1, bytes, now);
        }
        if let Some(effects) = &decision.effects {
            self.ofproto.effects(effects, now);
            // What the packet taught holds for packets that it brings about.
            self.flush_changes();
        }
        let sent = self.dp.execute(packet, in_port, &decision.ops);
        self.pending.injected.sent(bridge, 1 + action::count(&decision.ops), self.dp.injected());
        sent.map_err(|_| OfError::BadPacket)
    }
}
