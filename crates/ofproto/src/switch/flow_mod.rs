//! Flow-mods: which flows a flow-mod selects, and what is staged for each.

use crate::check;
use crate::switch::Switch;
use crate::switch::selecting::concerns_many;
use crate::tables::counters::{Counter, FlowRec, Slot};
use crate::tables::instructions::{for_each_group, outputs_to, uses_group};
use crate::tables::memory::flow_bytes;
use crate::tables::table::{Flow, FlowRule, N_TABLES, Table, within};
use crate::tables::tlv;
use crate::transaction::{
    BundleItem, GroupUndo, Items, MonitorEvent, Record, Remaining, Rewrite, Select, Txn, Undo,
};
use crate::types::{BridgeId, ConfigError, FailMode};
use action::Region;
use flow::NO_PORT;
use openflow::{
    Action, FlowMod, FlowModCommand, GROUP_ANY, Instruction, Match, NO_BUFFER, OfError, Removed,
    TABLE_ALL, flow_flag, port,
};
use std::sync::Arc;

/// Flows beyond which a request has one region, that of its match, instead of one for each flow.
const REGION_FLOWS_MAX: usize = 1024;

/// Checks that the table of a flow-mod exists.
pub fn check_table(m: &FlowMod) -> Result<(), OfError> {
    match usize::from(m.table) {
        ..N_TABLES => Ok(()),
        _ if m.table == TABLE_ALL => Ok(()),
        // As in OVS, the last table is the switch's own.
        N_TABLES => Err(OfError::RequestEperm),
        _ => Err(OfError::BadTableId),
    }
}

/// Steps by which a bridge loses its flows and groups, and the flows that use meters.
pub fn all_that_flows_are() -> Items {
    let all = FlowMod::new(FlowModCommand::Delete, TABLE_ALL, Match::default());
    let groups = crate::switch::groups::delete_all();
    Box::new([BundleItem::Flow(all), BundleItem::Group(groups)].into_iter().map(Ok))
}

impl Switch {
    /// Updates the number of flows per table and of references per group.
    pub(crate) fn note(&mut self, bridge: BridgeId, table: u8, flow: &Flow, added: bool) {
        if flow.hidden {
            return;
        }
        let Ok(b) = self.bridge_mut(bridge) else { return };
        let step = |n: &mut u32| *n = if added { *n + 1 } else { n.saturating_sub(1) };
        let rec = &mut b.table_recs[usize::from(table)];
        step(&mut rec.active);
        if rec.victims.is_some() {
            self.note_victim(bridge, table, flow.id, added);
        }
        self.note_learning(bridge, table, flow, added);
        let Ok(b) = self.bridge_mut(bridge) else { return };
        flow.meter.iter().for_each(|m| b.meters.users.note(*m, flow.id, added));
        for i in flow.options() {
            let n = b.options.users.entry(i).or_default();
            step(n);
            if *n == 0 {
                b.options.users.remove(&i);
            }
        }
        if flow.groups {
            let (refs, users) = (&mut b.groups.refs, &mut b.groups.users);
            for_each_group(&flow.instructions, &mut |g| {
                step(refs.entry(g).or_default());
                users.note(g, flow.id, added);
            });
        }
    }

    pub(crate) fn stage_flow(&mut self, txn: &mut Txn, m: &FlowMod) -> Result<(), OfError> {
        use FlowModCommand as C;
        check_table(m)?;
        let table = if m.command == C::Add && m.table == TABLE_ALL { 0 } else { m.table };
        // What needs no search is found by the match itself.
        match m.command {
            C::Add if !concerns_many(m) => self.stage_add(txn, m, table, false),
            _ => self.stage_selected(txn, m, table),
        }
    }

    /// `overlaps`: another flow of the same priority may match the same packets.
    pub(crate) fn stage_add(
        &mut self,
        txn: &mut Txn,
        m: &FlowMod,
        table: u8,
        overlaps: bool,
    ) -> Result<(), OfError> {
        let b = self.of_bridge(txn.bridge)?;
        let matching = tlv::fitted(&b.options.tlv, &m.matching)?;
        check::instructions(b, table, &matching, &m.instructions)?;
        if m.buffer_id != NO_BUFFER {
            return Err(OfError::BufferUnknown);
        }
        let (key, mask) = tlv::in_rule(&matching);
        let t = b.tables.make(table);
        let old = t.find_exact(&key, &mask, m.priority, txn.version);
        if old.is_none() && overlaps {
            return Err(OfError::FlowOverlap);
        }
        if old.is_none() && self.learned.teacher.is_some_and(|p| !self.slots.taught.has_room(p)) {
            self.learned.limited += 1;
            return Err(OfError::FlowTableFull);
        }
        let before = old.as_ref().and_then(|old| self.slots.flow(old.value().id));
        let before = before.map_or(0, FlowRec::memory);
        let more = flow_bytes(&m.instructions).saturating_sub(before);
        if !self.slots.memory.has_room(txn.bridge.0, more.into()) {
            return Err(OfError::FlowTableFull);
        }
        if old.is_none() && b.full(table) {
            self.make_room(txn, table)?;
        }
        let keep = m.flags & flow_flag::RESET_COUNTS == 0 && !m.modify_cookie;
        let (mut count, mut used) = (Counter::default(), txn.now);
        if let Some(old) = old {
            if let Some(rec) = self.slots.flow(old.value().id) {
                // As in OVS, a flow that replaces another one keeps its idle time.
                used = rec.used;
                count = if keep { rec.count } else { count };
            }
            self.unlink(txn, table, &old, Record::Goes);
        }
        let id = self.slots.next(txn.now);
        let reports_removal = m.flags & flow_flag::SEND_FLOW_REM != 0;
        let b = self.of_bridge(txn.bridge)?;
        let instructions = tlv::fitted_instructions(&b.options.tlv, &m.instructions);
        let mut flow = Flow::new(id, reports_removal, m.cookie, instructions);
        if !matching.tun.is_empty() {
            self.note_options(txn.bridge, &matching.tun);
            flow.tun = Some(Arc::new(matching.into_owned().tun));
        }
        let rule = Arc::new(FlowRule::with_version(&key, &mask, m.priority, txn.version, flow));
        let rec = FlowRec {
            flags: m.flags,
            idle: m.idle_timeout,
            hard: m.hard_timeout,
            importance: m.importance,
            teacher: self.learned.teacher.unwrap_or(NO_PORT),
            used,
            count,
            ..FlowRec::new(rule.clone(), (txn.bridge, table), txn.version, txn.now)
        };
        self.slots.alloc(Slot::Flow(rec), txn.now);
        self.set_timer(id);
        self.stage_insert(txn, table, rule, None);
        Ok(())
    }

    /// Stages the insertion of a rule, whose record `id` exists. `old`: the flow before, if it
    /// existed.
    pub(crate) fn stage_insert(
        &mut self,
        txn: &mut Txn,
        table: u8,
        rule: Arc<FlowRule>,
        old: Option<&Arc<FlowRule>>,
    ) {
        self.rewritten.add_instructions(&rule.value().instructions);
        self.stage_region(txn, table, &rule);
        self.note(txn.bridge, table, rule.value(), true);
        let Ok(b) = self.bridge(txn.bridge) else { return };
        if b.monitored && !rule.value().hidden {
            txn.monitor_events.push(match old {
                None => MonitorEvent::Added(rule.clone()),
                Some(old) => MonitorEvent::Modified(rule.clone(), old.clone()),
            });
        }
        b.tables.make(table).insert(rule.clone());
        txn.undo.push(Undo::Added(table, rule));
    }

    fn stage_region(&mut self, txn: &mut Txn, table: u8, rule: &FlowRule) {
        if txn.covered {
            return;
        }
        let Ok(b) = self.bridge(txn.bridge) else { return };
        let r = self.rewritten.region(table, &rule.key(), &rule.mask(), |p| b.dp_port(p));
        txn.regions.push(r);
    }

    /// Adds one region for `n` flows within a match, of any table, if these are many.
    pub(crate) fn cover(&mut self, txn: &mut Txn, m: &Match, n: usize) {
        let Ok(b) = self.bridge(txn.bridge) else { return };
        txn.covered = n > REGION_FLOWS_MAX;
        for table in [0, 1].iter().filter(|_| n > REGION_FLOWS_MAX) {
            let r = self.rewritten.region(*table, &m.key, &m.mask, |p| b.dp_port(p));
            txn.regions.push(r);
        }
    }

    /// Stages the removal of a rule, without an event for controllers or monitors.
    fn unlink(&mut self, txn: &mut Txn, table: u8, rule: &Arc<FlowRule>, record: Record) {
        rule.set_remove_version(txn.version);
        self.note(txn.bridge, table, rule.value(), false);
        txn.undo.push(Undo::Removed(table, rule.clone(), record));
    }

    pub(crate) fn stage_remove(
        &mut self,
        txn: &mut Txn,
        table: u8,
        rule: &Arc<FlowRule>,
        reason: Removed,
    ) {
        self.unlink(txn, table, rule, Record::Goes);
        self.stage_region(txn, table, rule);
        if rule.value().reports_removal {
            txn.removed.push((rule.value().id, reason));
        }
        let seen = !rule.value().hidden;
        if seen && self.bridge(txn.bridge).is_ok_and(|b| b.monitored) {
            txn.monitor_events.push(MonitorEvent::Deleted(rule.clone(), reason));
        }
    }

    pub(crate) fn stage_modify(
        &mut self,
        txn: &mut Txn,
        m: &FlowMod,
        table: u8,
        rules: Vec<(u8, Arc<FlowRule>)>,
    ) -> Result<(), OfError> {
        let b = self.of_bridge(txn.bridge)?;
        let from = if table == TABLE_ALL { 0 } else { table };
        check::instructions(b, from, &m.matching, &m.instructions)?;
        // In OpenFlow 1.0 and 1.1 a modification adds the flow if there is none; in later versions
        // it has no new cookie, which is how it is recognized.
        if rules.is_empty() && m.cookie_mask == 0 && m.cookie != u64::MAX {
            return self.stage_add(txn, m, from, false);
        }
        // By table, so that each table is checked once.
        for same in rules.chunk_by(|(a, _), (b, _)| a == b) {
            let b = self.of_bridge(txn.bridge)?;
            check::instructions(b, same[0].0, &m.matching, &m.instructions)?;
        }
        let bytes = rules.len() as u64 * u64::from(flow_bytes(&m.instructions));
        let records = rules.iter().filter_map(|(_, rule)| self.slots.flow(rule.value().id));
        let before = records.map(|rec| u64::from(rec.memory())).sum();
        if !self.slots.memory.has_room(txn.bridge.0, bytes.saturating_sub(before)) {
            return Err(OfError::FlowTableFull);
        }
        self.rewritten.add_instructions(&m.instructions);
        self.cover(txn, &m.matching, rules.len());
        let cookie = (m.modify_cookie && m.cookie != u64::MAX).then_some(m.cookie);
        let reset = m.flags & flow_flag::RESET_COUNTS != 0;
        let b = self.of_bridge(txn.bridge)?;
        let instructions = tlv::fitted_instructions(&b.options.tlv, &m.instructions);
        let to = Rewrite { instructions, cookie, reset };
        txn.remaining = Remaining::Modify(rules.into_iter(), to);
        Ok(())
    }

    /// Stages a rule with other instructions, which keeps its record.
    pub(crate) fn stage_rewrite(
        &mut self,
        txn: &mut Txn,
        table: u8,
        old: &Arc<FlowRule>,
        to: &Rewrite,
    ) {
        let id = old.value().id;
        let cookie = to.cookie.unwrap_or(old.value().cookie);
        let mut flow = Flow::new(id, old.value().reports_removal, cookie, to.instructions.clone());
        (flow.tun, flow.hidden) = (old.value().tun.clone(), old.value().hidden);
        let rule = Arc::new(old.renewed(txn.version, flow));
        self.unlink(txn, table, old, Record::Stays);
        let before = self.slots.flow(id).cloned();
        self.slots.set_rule(id, rule.clone());
        if let Some(rec) = self.slots.flow_mut(id) {
            rec.modified = txn.now;
            if to.reset {
                rec.count = Counter::default();
            }
        }
        self.stage_insert(txn, table, rule, Some(old));
        // This is undone before the insertion is, so that the record is not taken for the new
        // rule's.
        txn.undo.extend(before.map(|r| Undo::Record(id, Box::new(r))));
    }

    /// The flows that a request selects, with their tables.
    pub(crate) fn select(
        &self,
        id: BridgeId,
        s: &Select<'_>,
        version: u64,
    ) -> Result<Vec<(u8, Arc<FlowRule>)>, OfError> {
        let mut out = Vec::new();
        let matching = tlv::fitted(&self.of_bridge(id)?.options.tlv, s.matching)?;
        let s = &Select { matching: &matching, ..*s };
        for (n, t) in self.tables_of(id, s.table)? {
            let rules = match s.priority {
                Some(p) => {
                    let (key, mask) = tlv::in_rule(s.matching);
                    let rule = t.find_exact(&key, &mask, p, version);
                    rule.into_iter().filter(|r| wanted(s, r)).collect()
                }
                None => t.within(s.matching, version, |r| wanted(s, r)),
            };
            out.extend(rules.into_iter().map(|r| (n, r)));
        }
        Ok(out)
    }

    /// The tables in use that a request selects.
    pub(crate) fn tables_of(
        &self,
        id: BridgeId,
        table: u8,
    ) -> Result<impl Iterator<Item = (u8, &Table)>, OfError> {
        let b = self.of_bridge(id)?;
        let tables = match table {
            TABLE_ALL => 0..N_TABLES as u8,
            t if usize::from(t) < N_TABLES => t..t + 1,
            _ => return Err(OfError::BadTableId),
        };
        Ok(tables.filter_map(|n| Some((n, b.tables.get(n)?))))
    }

    /// Removes all flows, without events.
    pub(crate) fn clear_flows(&mut self, id: BridgeId, now: u64) {
        let everything = Match::default();
        let all = Select::all(&everything);
        let seen = self.select(id, &all, self.version()).unwrap_or_default();
        let seen = seen.into_iter().map(|(_, rule)| rule);
        for rule in seen.chain(self.hidden_rules(id)) {
            self.slots.release(rule.value().id, now);
        }
    }

    /// Removes all flows, groups and meters (`fail_mode` or controllers changed), with flow-removed
    /// events as for a delete.
    pub fn flush_flows(&mut self, id: BridgeId, now: u64) -> Result<(), OfError> {
        self.flow_mod(id, &FlowMod::new(FlowModCommand::Delete, TABLE_ALL, Match::default()), now)?;
        self.group_mod(id, &crate::switch::groups::delete_all(), now)?;
        self.delete_meters(id, openflow::meter_id::ALL, now)
    }

    /// Installs the flow of a standalone bridge without a controller: NORMAL for every packet.
    pub fn install_default_flow(&mut self, id: BridgeId, now: u64) -> Result<(), ConfigError> {
        if self.bridge(id)?.config.fail_mode == FailMode::Secure {
            return Ok(());
        }
        let normal = Action::output(port::NORMAL);
        let instructions = vec![Instruction::Apply(vec![normal])];
        let m = FlowMod::new(FlowModCommand::Add, 0, Match::default());
        let m = FlowMod { instructions, ..m };
        self.flow_mod(id, &m, now).map_err(|_| ConfigError::NoBridge)
    }

    /// Makes sure that a flow's timeouts are examined when they may be over.
    pub(crate) fn set_timer(&mut self, id: u32) {
        let Some(rec) = self.slots.flow(id) else { return };
        let (idle, hard) = deadlines(rec);
        self.slots.set_timer(id, idle.into_iter().chain(hard).min());
    }

    /// Adds what undoing a group change needs to the steps to undo.
    pub(crate) fn push_group_undo(txn: &mut Txn, undo: GroupUndo) {
        txn.undo.push(Undo::Group(Box::new(undo)));
        txn.regions.push(Region::ALL);
    }
}

/// When a flow times out if it is not used, and when in any case, ns.
pub(crate) fn deadlines(rec: &FlowRec) -> (Option<u64>, Option<u64>) {
    const S: u64 = 1_000_000_000;
    let after = |since: u64, s: u16| (s != 0).then(|| since.saturating_add(u64::from(s) * S));
    (after(rec.used.max(rec.modified), rec.idle), after(rec.modified, rec.hard))
}

pub(crate) fn wanted(s: &Select<'_>, rule: &FlowRule) -> bool {
    let f = rule.value();
    !f.hidden
        && (f.cookie ^ s.cookie) & s.cookie_mask == 0
        && (s.out_port == port::ANY || outputs_to(&f.instructions, s.out_port))
        && (s.out_group == GROUP_ANY || uses_group(&f.instructions, s.out_group))
        && (s.matching.tun.is_empty() || within(rule, &s.matching.tun))
}
