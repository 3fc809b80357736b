//! Packets from controllers.

use crate::check;
use crate::switch::Switch;
use crate::translate::{self, Xlate};
use crate::types::BridgeId;
use action::Decision;
use flow::{Key, PACKET_LINES, at};
use openflow::{Action, NO_BUFFER, OfError, PacketOut, port};

impl Switch {
    pub(crate) fn check_packet_out(&self, id: BridgeId, p: &PacketOut) -> Result<(), OfError> {
        let b = self.of_bridge(id)?;
        let in_port = p.matching.key.u32(at::OF_IN_PORT);
        let valid = in_port < 0xff00
            || matches!(in_port, port::LOCAL | port::CONTROLLER | port::ANY | port::UNSET);
        if !valid {
            return Err(OfError::RequestBadPort);
        }
        if p.buffer_id != NO_BUFFER {
            return Err(OfError::BufferUnknown);
        }
        check::lenient(b, &p.actions)
    }

    /// Decides what the datapath does with a controller's packet. `key` is the packet's, as the
    /// parser made it. The decision is for this packet only; its credits and effects count.
    pub fn packet_out(
        &mut self,
        id: BridgeId,
        p: &PacketOut,
        key: &Key,
    ) -> Result<Decision, OfError> {
        self.check_packet_out(id, p)?;
        Ok(self.run_actions(id, &p.actions, &p.matching.key, key, &mut None))
    }

    /// Runs actions on a packet, with pipeline fields (lines 4 and 5) of `pipeline`.
    pub(crate) fn run_actions(
        &self,
        id: BridgeId,
        actions: &[Action],
        pipeline: &Key,
        key: &Key,
        trace: &mut Option<crate::trace::Recorder>,
    ) -> Decision {
        let mut out = Decision::default();
        // SAFETY: this is the thread of the only writer.
        let world = unsafe { self.shared.world.read() };
        let Some(bridge) = world.bridge(id.0) else { return out };
        let mut packet = *key;
        let in_port = pipeline.u32(at::OF_IN_PORT);
        let dp = bridge.port(in_port).and_then(|p| p.spec.dp_port);
        packet.set_u16(at::IN_PORT, dp.unwrap_or(flow::NO_PORT));
        packet.set_u16(at::RECIRC, 0);
        packet.set_u32(at::TUN_ID, pipeline.u32(at::TUN_ID));
        let mut x = Xlate::new(&self.shared, world, bridge, &packet, &mut out, trace);
        x.pipeline(&pipeline.words[PACKET_LINES * 8..]);
        x.packet_out(actions);
        out.cacheable = false;
        out
    }

    /// Decides as a PMD thread would, without caching anything.
    pub fn resolve(&self, key: &Key, out: &mut Decision) {
        // SAFETY: this is the thread of the only writer.
        let world = unsafe { self.shared.world.read() };
        translate::resolve(&self.shared, world, key, out, &mut None);
    }
}
