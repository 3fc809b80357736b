//! Packet-outs, and packets that controllers resume.

use crate::check;
use crate::events::StagedPacket;
use crate::published::BridgeView;
use crate::switch::Switch;
use crate::transaction::Txn;
use crate::translate::frozen::{OUTER_WORDS, State};
use crate::translate::pipe::resolve;
use crate::translate::xlate::Xlate;
use crate::tunnel;
use crate::types::BridgeId;
use action::{Decision, Request};
use flow::{Key, PACKET_LINES, PortNo, at, origin_port};
use openflow::check::{check_any, check_conntrack};
use openflow::{
    Action, Instruction, Match, NO_BUFFER, OfError, OfPort, PacketOut, Resume, packet_type, port,
};
use std::sync::Arc;
use sync::Published;

/// Bytes that the packets of one change may keep until they are sent, about.
const PACKETS_BYTES_MAX: usize = 64 << 20;
/// Bytes of what a step of a translation adds to a decision, at most, about.
const STEP_BYTES: usize = 64;

/// Where and when a controller's packet is decided about.
struct Run<'a> {
    bridge: &'a BridgeView,
    version: u64,
    /// Pipeline fields (lines 4 and 5 of the key), and tunnel options.
    pipeline: &'a Match,
    key: &'a Key,
}

impl Switch {
    /// Decides about a packet within an open change.
    pub(crate) fn stage_packet(
        &self,
        txn: &mut Txn,
        p: &PacketOut,
        key: &Key,
    ) -> Result<(), OfError> {
        self.check_packet_out(txn.bridge, p, key)?;
        let b = self.of_bridge(txn.bridge)?;
        let mut view = match txn.view.take() {
            Some(view) => view,
            None => {
                txn.cost += self.ports_steps();
                Box::new(self.view(b))
            }
        };
        let mut groups = txn.groups.as_ref().unwrap_or(&b.groups.shown).clone();
        groups.see_ports(b.groups.port_changes, |p| b.is_live(p));
        txn.cost += groups.catch_up();
        let groups = Box::new([(txn.version, Arc::new(groups))]);
        view.groups = Arc::new(Published::new(self.shared.domain.clone(), groups));
        let run = Run { bridge: &view, version: txn.version, pipeline: &p.matching, key };
        let (decision, steps) = self.run_on(run, &p.actions, &mut None);
        txn.view = Some(view);
        txn.cost += steps;
        txn.packet_bytes += p.data.len() + steps * STEP_BYTES;
        if txn.packet_bytes > PACKETS_BYTES_MAX {
            return Err(OfError::BundleMsgTooMany);
        }
        txn.packets.push(StagedPacket { packet_out: p.clone(), decision });
        Ok(())
    }

    /// Takes the packets of bundles that were committed since the last call, in order.
    pub fn take_packets(&mut self) -> Vec<StagedPacket> {
        std::mem::take(&mut self.outbox.packets)
    }

    fn check_packet_out(&self, id: BridgeId, p: &PacketOut, key: &Key) -> Result<(), OfError> {
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
        known_type(&p.matching)?;
        check::packet_out(b, &p.actions)?;
        check_conntrack(&p.actions, &Match::new(*key, *key))
    }

    /// The datapath port to which a controller's packet, and what it brings about, is charged: that
    /// of its input port, or the bridge's own share where it has none.
    pub fn charged_port(&self, id: BridgeId, in_port: OfPort) -> PortNo {
        let port = self.port(id, in_port).and_then(|spec| spec.dp_port);
        port.unwrap_or(origin_port(id.index()))
    }

    /// Decides about a controller's packet. `key` is the packet's, as parsed. The decision is for
    /// this packet only; its credits and effects count.
    pub fn packet_out(
        &mut self,
        id: BridgeId,
        p: &PacketOut,
        key: &Key,
    ) -> Result<Decision, OfError> {
        self.check_packet_out(id, p, key)?;
        Ok(self.run_actions(id, &p.actions, &p.matching, key, &mut None))
    }

    /// Executes actions on a packet, with the pipeline fields (lines 4 and 5) and tunnel options of
    /// `pipeline`.
    pub(crate) fn run_actions(
        &self,
        id: BridgeId,
        actions: &[Action],
        pipeline: &Match,
        key: &Key,
        trace: &mut Option<crate::trace::recorder::Recorder>,
    ) -> Decision {
        let view = self.reading();
        let Some(bridge) = view.published.bridge(id.0) else { return Decision::default() };
        let run = Run { bridge, version: self.version(), pipeline, key };
        self.run_on(run, actions, trace).0
    }

    /// The decision, and the steps of the translation.
    fn run_on(
        &self,
        run: Run<'_>,
        actions: &[Action],
        trace: &mut Option<crate::trace::recorder::Recorder>,
    ) -> (Decision, usize) {
        let mut out = Decision::default();
        let view = self.reading();
        let mut packet = *run.key;
        let pipeline = &run.pipeline.key;
        let in_port = pipeline.u32(at::OF_IN_PORT);
        let dp = run.bridge.port(in_port).and_then(|p| p.spec.dp_port);
        let charged = dp.unwrap_or(origin_port(run.bridge.id as usize));
        packet.set_u16(at::IN_PORT, charged);
        packet.set_u32(at::RECIRC, 0);
        // As in OVS, tunnel fields are the packet's, as if it had come with them.
        OUTER_WORDS.iter().for_each(|i| packet.words[*i] |= pipeline.words[*i]);
        let mut x = Xlate::new(view, run.bridge, &packet, &mut out, trace);
        x.at_version(run.version);
        x.pipeline(&pipeline.words[PACKET_LINES * 8..]);
        x.set_options(&run.pipeline.tun);
        x.packet_out(actions);
        let steps = x.steps();
        out.cacheable = false;
        (out, steps)
    }

    /// Decides about a packet that a controller of bridge `on` resumes, from where its pipeline was
    /// paused. `key` is the packet's. The decision is for this packet only; its credits and effects
    /// count.
    ///
    /// Errors: [`OfError::ResumeStale`] if the pipeline was not paused in that bridge during this
    /// daemon's life, for a packet that came in by the port that the continuation names;
    /// `BadPacket` for a packet without Ethernet header, and those of [`check_any`]. These are
    /// checked because a controller writes the continuation, and could name another bridge, or a
    /// port that would pay for what the packet causes.
    pub fn resume(&self, on: BridgeId, r: &Resume, key: &Key) -> Result<Decision, OfError> {
        let c = &r.continuation;
        let view = self.reading();
        let named = self.shared.bridge_of(c.bridge, c.odp_port).filter(|id| *id == on.0);
        let id = named.ok_or(OfError::ResumeStale)?;
        let bridge = view.published.bridge(id).ok_or(OfError::ResumeStale)?;
        ethernet(&r.matching)?;
        check_any(&c.set)?;
        let lists = c.rest.iter().filter_map(|i| match i {
            Instruction::Apply(list) | Instruction::Write(list) => Some(list),
            _ => None,
        });
        lists.into_iter().try_for_each(|list| check_any(list))?;
        let state = State::of_continuation(id, r);
        let mut packet = *key;
        State::restore(&r.matching.key, &mut packet);
        let mut out = Decision::default();
        out.clear();
        let mut trace = None;
        let mut x = Xlate::new(view, bridge, &packet, &mut out, &mut trace);
        x.at_version(self.version());
        x.resume_paused(&state);
        out.cacheable = false;
        Ok(out)
    }

    /// Decides as a PMD thread would, without storing a megaflow.
    pub fn resolve(&self, key: &Key, out: &mut Decision) {
        let view = self.reading();
        let request = Request { key, options: &[], packet: &[] };
        resolve(view, self.version(), &request, out, &mut None);
    }

    #[cfg(test)]
    pub(crate) fn plain(&self, requests: &[action::Request<'_>], out: &mut [Decision]) -> u32 {
        let view = self.reading();
        crate::translate::plain::resolve(view, requests, out)
    }
}

/// Checks that it is known what a controller's packet begins with: an Ethernet header, or what an
/// Ethertype names that is not a tag's.
fn known_type(fields: &Match) -> Result<(), OfError> {
    match packet_type::ethertype(fields.key.u32(at::PACKET_TYPE)) {
        Some(ethertype) if tunnel::is_packet(ethertype) => Ok(()),
        _ => ethernet(fields),
    }
}

/// Checks that a controller's packet has an Ethernet header.
fn ethernet(fields: &Match) -> Result<(), OfError> {
    match fields.key.u32(at::PACKET_TYPE) {
        packet_type::ETHERNET => Ok(()),
        _ => Err(OfError::BadPacket),
    }
}
