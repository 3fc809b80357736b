//! What a translation records for a trace.

use crate::action_text::{actions_text, instructions_text, metadata_text};
use crate::tables::table::{FlowRule, match_of, priority_of};
use crate::trace::recorder::{Fork, StepKind};
use crate::translate::failure::Failure;
use crate::translate::frozen::State;
use crate::translate::frozen_store::Kept;
use crate::translate::xlate::Xlate;
use flow::{at, match_text};
use openflow::{Action, OfPort};
use std::sync::Arc;

impl Xlate<'_, '_> {
    fn leaf(&mut self, kind: StepKind, text: impl FnOnce() -> String) {
        if let Some(r) = self.recorder() {
            r.leaf(kind, text);
        }
    }

    pub(crate) fn note_action(&mut self, text: impl FnOnce() -> String) {
        self.leaf(StepKind::Action, text);
    }

    pub(crate) fn trace_detail(&mut self, text: impl FnOnce() -> String) {
        self.leaf(StepKind::Detail, text);
    }

    pub(crate) fn trace_warning(&mut self, text: impl FnOnce() -> String) {
        self.leaf(StepKind::Warning, text);
    }

    /// Ends the translation; `name` is what the last line of the trace calls that.
    pub(crate) fn trace_error(&mut self, name: &'static str, text: impl FnOnce() -> String) {
        if let Some(r) = self.recorder() {
            r.failure(name, text);
        }
    }

    /// Records that the packet is dropped because of its type.
    pub(super) fn note_unsupported(&mut self, text: &str) {
        self.note_action(|| text.into());
        if let Some(r) = self.recorder() {
            r.failed.get_or_insert("Unsupported packet type");
        }
    }

    /// Notes for the log what went wrong. Traces show it themselves.
    #[cold]
    pub(super) fn note_failure(&mut self, what: &str) {
        let is_kept = self.recorder().is_none() && self.snapshot.shared.failures.has_room();
        if is_kept && self.end.failure.is_none() {
            let text = format!("{what} on bridge {}", self.bridge.name);
            self.end.failure = Some(Box::new(Failure { text, received: None }));
        }
    }

    /// Records that something cannot be done; the translation continues.
    pub(crate) fn trace_refusal(&mut self, text: impl FnOnce() -> String) {
        self.leaf(StepKind::Error, text);
    }

    /// Records that ovs-vswitchd would take its slow path for the packet.
    pub(crate) fn note_slow(&mut self) {
        if let Some(r) = self.recorder() {
            r.slow = true;
        }
    }

    /// True unless this is a trace of a flow without a packet.
    pub(crate) fn teaches(&mut self) -> bool {
        self.recorder().is_none_or(|r| r.learning)
    }

    /// Records an address that will be learned and is not known yet.
    pub(crate) fn note_learn(&mut self, vlan: u16, mac: [u8; 6], port: OfPort) {
        let bridge = self.bridge();
        let learning = self.recorder().is_some_and(|r| r.learning);
        let known = self.taught(vlan, mac).or_else(|| bridge.macs.find(self.guard(), vlan, mac));
        if !learning || known == Some(port) {
            return;
        }
        let Some(p) = bridge.port(port) else { return };
        let [a, b, c, d, e, f] = mac;
        let mac = format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
        self.trace_detail(|| {
            format!("learned that {mac} is on port {} in VLAN {vlan}", p.spec.bundle)
        });
    }

    pub(crate) fn note_metadata(&mut self, value: u64, mask: u64) {
        self.note_action(|| metadata_text(value, mask));
    }

    pub(crate) fn note_bridge(&mut self) {
        let bridge = self.bridge();
        if let Some(r) = self.recorder() {
            r.open(StepKind::Bridge, || format!("bridge(\"{}\")", bridge.name));
        }
    }

    pub(crate) fn note_table(&mut self, text: impl FnOnce() -> String) {
        if let Some(r) = self.recorder() {
            r.open(StepKind::Table, text);
        }
    }

    /// True for a trace that changes nothing.
    pub(crate) fn suppresses(&mut self) -> bool {
        self.recorder().is_some_and(|r| !r.learning)
    }

    pub(crate) fn note_bucket(&mut self, id: u32) {
        if let Some(r) = self.recorder() {
            r.open(StepKind::Bucket, || format!("bucket {id}"));
        }
    }

    pub(crate) fn note_rule(&mut self, table: u8, rule: &FlowRule) {
        self.note_table(|| {
            let m = match_of(rule);
            let m = match_text(&m.key, &m.mask, &m.tun, &|_| None);
            let comma = if m.is_empty() { "" } else { ", " };
            let cookie = match rule.value().cookie {
                0 => String::new(),
                c => format!(", cookie {c:#x}"),
            };
            format!("{table:2}. {m}{comma}priority {}{cookie}", priority_of(rule))
        });
    }

    /// Ends the innermost table or bridge of the trace.
    pub(crate) fn trace_close(&mut self) {
        if let Some(r) = self.recorder() {
            r.close();
        }
    }

    /// Opens the last step of the trace again: OVS shows the action set inside the first table.
    pub(crate) fn trace_reopen(&mut self) {
        if let Some(r) = self.recorder()
            && let Some(node) = r.list().pop_if(|n| n.kind == StepKind::Table)
        {
            r.open.push(node);
        }
    }

    pub(crate) fn note_final(&mut self) {
        let mut key = *self.key();
        key.set_u32(at::ACTSET_OUTPUT, 0);
        let options = self.options_seen();
        if let Some(r) = self.recorder() {
            r.final_key = Some(key);
            r.options = options;
        }
    }

    /// Records that a tracked copy of the packet will be looked up in `table`; `list`: actions on
    /// it before that.
    pub(crate) fn note_fork(&mut self, kept: &Arc<Kept>, table: u8, zone: u16, list: &[Action]) {
        let mut key = *self.key();
        let Some(r) = self.recorder() else { return };
        if r.forks_left == 0 || r.is_full() {
            let id = kept.id;
            let text = "Failed to trace the conntrack forked pipeline with recirc_id";
            return self.trace_detail(|| format!("{text} = {id}."));
        }
        r.forks_left -= 1;
        key.set_u32(at::RECIRC, kept.id);
        key.set_u16(at::CT_ZONE, zone);
        let nat = list.iter().rev().find_map(|a| match a {
            Action::Nat(nat) => Some((**nat).clone()),
            _ => None,
        });
        r.forks.push_back(Fork { key, nat, _kept: kept.clone() });
        let text = "A clone of the packet is forked to recirculate. The forked pipeline will be";
        self.trace_detail(|| format!("{text} resumed at table {table}."));
    }

    /// Records that a translation continues where one was frozen.
    pub(crate) fn note_thaw(&mut self, state: &State) {
        let Some(r) = self.recorder() else { return };
        r.open(StepKind::Table, || "thaw".into());
        r.step(|| format!("Resuming from table {}", state.resumed_at()));
        if !state.set.is_empty() {
            r.step(|| format!("Restoring action set: {}", actions_text(&state.set)));
        }
        if !state.rest.is_empty() {
            r.step(|| format!("Restoring actions: {}", instructions_text(&state.rest)));
        }
        r.close();
    }
}
