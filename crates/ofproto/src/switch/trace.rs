//! `ofproto/trace`: the translation of a packet as text, in OVS's layout.

use super::Switch;
use crate::check;
use crate::trace::recorder::Recorder;
use crate::trace::{Options, TraceStyle};
use crate::translate::effects::{BfdContext, CfmContext, LldpContext, McastContext};
use crate::translate::pipe::resolve;
use crate::translate::xlate::Xlate;
use crate::types::{BridgeId, ConfigError};
use action::{Decision, Op, Punt, Request};
use flow::{Field, Key, at, flow_text, megaflow_text};
use openflow::check::{ANY_TABLE, check_instructions};
use openflow::{Action, Instruction, Match, OfError, Version, packet_type};

/// Why the switch itself reads the packet, in ovs-vswitchd's words; None: it does not.
fn taken_because(op: &Op) -> Option<&'static str> {
    let Op::Punt(p) = op else { return None };
    let snooped = "Uses action(s) not supported by datapath.";
    match &p.context {
        c if c.is::<BfdContext>() => Some("Consists of BFD packets."),
        c if c.is::<CfmContext>() => Some("Consists of CFM packets."),
        c if c.is::<LldpContext>() => Some("Consists of LLDP packets."),
        c if c.is::<McastContext>() => Some(snooped),
        _ => None,
    }
}

impl Switch {
    /// Traces a packet with this key that comes in on the OpenFlow port in `at::OF_IN_PORT`
    /// (`at::IN_PORT` is set to its datapath port, if it has one).
    ///
    /// Nothing is learned, counted or sent.
    pub fn trace(
        &self,
        id: BridgeId,
        key: &Key,
        options: &Options,
        style: &TraceStyle<'_>,
    ) -> Result<String, ConfigError> {
        let recorder = Recorder::new(false, style.names.then_some(id), style.bytes_max);
        let (key, out, recorder) = self.traced(id, (key, options), style.actions, recorder)?;
        Ok(self.reports(&key, &out, recorder, style.ct_next))
    }

    /// As [`Switch::trace`], but the packet counts as real: what it teaches is learned at `now`
    /// (ns).
    pub fn trace_learning(
        &mut self,
        id: BridgeId,
        key: &Key,
        options: &Options,
        style: &TraceStyle<'_>,
        now: u64,
    ) -> Result<String, ConfigError> {
        let recorder = Recorder::new(true, style.names.then_some(id), style.bytes_max);
        let (key, out, recorder) = self.traced(id, (key, options), style.actions, recorder)?;
        if let Some(effects) = &out.effects {
            self.effects(effects, now);
        }
        Ok(self.reports(&key, &out, recorder, style.ct_next))
    }

    pub(super) fn traced(
        &self,
        id: BridgeId,
        (key, options): (&Key, &Options),
        actions: Option<&[Action]>,
        recorder: Recorder,
    ) -> Result<(Key, Decision, Recorder), ConfigError> {
        let bridge = self.bridge(id)?;
        let in_port = key.u32(at::OF_IN_PORT);
        let mut key = *key;
        let dp = bridge.dp_port(in_port);
        key.set_u16(at::IN_PORT, dp.unwrap_or(flow::NO_PORT));
        if let Some(ethertype) = packet_type::ethertype(key.u32(at::PACKET_TYPE)) {
            key.set_u16(at::ETH_TYPE, ethertype);
        }
        let mut out = Decision::default();
        out.clear();
        let mut recorder = Some(recorder);
        match (actions, key.u32(at::RECIRC)) {
            (None, 1..) => self.trace_frozen(&key, &mut out, &mut recorder),
            (Some(list), _) => {
                key.set_u32(at::RECIRC, 0);
                self.trace_from(id, (&key, options), Some(list), &mut out, &mut recorder);
            }
            (None, 0) => self.trace_from(id, (&key, options), None, &mut out, &mut recorder),
        }
        Ok((key, out, recorder.unwrap_or_default()))
    }

    /// Traces a packet that was recirculated.
    pub(super) fn trace_frozen(
        &self,
        key: &Key,
        out: &mut Decision,
        recorder: &mut Option<Recorder>,
    ) {
        let view = self.reading();
        let request = Request { key, options: &[], packet: &[] };
        resolve(view, self.version(), &request, out, recorder)
    }

    /// Traces from table 0 on or through these actions, with the registers and the port that the
    /// caller gave, whether that port exists or not.
    fn trace_from<'a>(
        &'a self,
        id: BridgeId,
        (key, options): (&'a Key, &Options),
        actions: Option<&'a [Action]>,
        out: &mut Decision,
        recorder: &mut Option<Recorder>,
    ) {
        let view = self.reading();
        let Some(bridge) = view.published.bridge(id.0) else { return };
        let mut x = Xlate::new(view, bridge, key, out, recorder);
        x.pipeline(&key.words[flow::PACKET_LINES * 8..]);
        match options {
            Options::Bytes(bytes) => x.options(bytes),
            Options::Fields(fields) => x.set_options(fields),
        }
        match actions {
            None => x.run(),
            Some(list) => x.packet_out(list),
        }
    }

    /// Checks that a packet with this key may have these actions, as ovs-vswitchd checks it for a
    /// trace: what a flow of OpenFlow 1.0 may not do is refused, with `consistent` what one of a
    /// later version may not do. Errors: those of [`check_instructions`], and what the bridge
    /// cannot do.
    pub fn check_traced(
        &self,
        id: BridgeId,
        key: &Key,
        actions: &[Action],
        consistent: bool,
    ) -> Result<(), OfError> {
        let version = if consistent { Version::V13 } else { Version::V10 };
        let m = Match::new(*key, flow::exact_mask(key));
        let apply = [Instruction::Apply(actions.to_vec())];
        check_instructions(&apply, &m, version, ANY_TABLE, ANY_TABLE)?;
        check::packet_out(self.of_bridge(id)?, actions)
    }

    /// The name of the port with this datapath number; None: there is none, or several tunnels
    /// share it.
    fn dp_port_name(&self, no: flow::PortNo) -> Option<String> {
        let ports = self.bridges.iter().flatten().flat_map(|b| b.ports.values());
        let mut own = ports.filter(|p| p.dp_port == Some(no) && p.tunnel.is_none());
        own.next().map(|p| p.name.clone())
    }

    /// True if there is a frozen state with this recirculation id.
    pub fn knows_recirculation(&self, id: u32) -> bool {
        self.shared.frozen.get(self.writer.pin(), id).is_some()
    }

    pub(super) fn report(&self, key: &Key, out: &Decision, r: &mut Recorder) -> String {
        let learning = r.learning;
        let bridge = r.names.and_then(|id| self.bridge(id).ok());
        let names = |no| bridge.and_then(|b| Some(b.ports.get(&no)?.name.clone()));
        let named = r.names.is_some();
        let dp_names = |no| if named { self.dp_port_name(no) } else { None };
        let [first, last, looked_at] = &std::mem::take(&mut r.options);
        let flow = flow_text(key, first, &names);
        let mut text = format!("Flow: {flow}\n");
        text.push_str(&r.text());
        let done = r.final_key.map(|k| flow_text(&k, last, &names));
        let done = done.filter(|d| *d != flow).unwrap_or_else(|| "unchanged".into());
        let mut mask = out.mask;
        if key.u16(at::VLAN) == 0 {
            // An untagged packet has no tag to match on, which the datapath knows anyway.
            mask.set_u16(at::VLAN, 0);
        }
        if key.u16(at::VLAN1) == 0 {
            mask.set_u16(at::VLAN1, 0);
        }
        mask.set_u32(at::OF_IN_PORT, !0);
        if mask.u32(at::TUN_ID) == u32::MAX {
            Field::TunId.unwildcard(&mut mask);
        }
        if key.u32(at::PACKET_TYPE) != packet_type::ETHERNET {
            mask.set_u32(at::PACKET_TYPE, !0);
        }
        let megaflow = megaflow_text(&key.masked(&mask), &mask, looked_at, &names);
        let punt = |p: &Punt| match learning {
            true => self.punt_text(p),
            false => self.punt_text(p).replace("dont_send=0", "dont_send=1"),
        };
        let style = action::OpsText { punt: &punt, port: &dp_names };
        // What the switch itself reads is no action in ovs-vswitchd.
        let asked = r.slow.then_some("Uses action(s) not supported by datapath.");
        let taken = asked.or_else(|| out.ops.iter().find_map(taken_because));
        let ops = out.ops.iter().filter(|op| taken_because(op).is_none()).cloned();
        let ops: Vec<Op> = ops.collect();
        let ops = action::ops_text_with(&ops, &style);
        text.push_str(&format!(
            "\nFinal flow: {done}\nMegaflow: {megaflow}\nDatapath actions: {ops}\n"
        ));
        if let Some(why) = taken {
            text.push_str("This flow is handled by the userspace slow path because it:\n");
            text.push_str(&format!("  - {why}\n"));
        }
        if let Some(why) = r.failed {
            text.push_str(&format!("Translation failed ({why}), packet is dropped.\n"));
        }
        text
    }
}
