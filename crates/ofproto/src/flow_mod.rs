//! Flow-mods and bundles: staged under the next version, then shown all at once or undone.

use crate::check;
use crate::counters::{Counter, FlowRec, Slot};
use crate::events::{Event, Regions};
use crate::group::GroupUndo;
use crate::switch::{Limbo, Switch};
use crate::table::{Flow, FlowRule, N_TABLES, Table};
use crate::types::{BridgeId, ConfigError, FailMode, PortSpec};
use action::Region;
use openflow::{
    Action, FlowMod, FlowModCommand, FlowRemoved, GROUP_ANY, GroupMod, Instruction, Match,
    MonitorUpdate, NO_BUFFER, OfError, OfPort, PortMod, Removed, TABLE_ALL, flow_flag, port,
};
use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// One step of a bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum BundleItem {
    Flow(FlowMod),
    Group(GroupMod),
    Port(PortMod),
    /// A packet-out is checked with the others and returned to the caller to execute.
    PacketOut(openflow::PacketOut),
}

/// How to take a step back.
enum Undo {
    /// A rule that no packet saw yet.
    Added(u8, Arc<FlowRule>),
    /// A rule that still lives in the current version.
    Removed(u8, Arc<FlowRule>),
    /// A record as it was.
    Record(u32, Box<FlowRec>),
    Group(GroupUndo),
    Port(Box<PortSpec>),
}

/// Changes of one bridge on their way to the next version.
pub(crate) struct Txn {
    pub bridge: BridgeId,
    pub version: u64,
    pub now: u64,
    undo: Vec<Undo>,
    /// Ids whose rule goes for good, with the reason and its last state.
    gone: Vec<(u32, Removed)>,
    regions: Regions,
    /// With what a modified flow did before.
    updates: Vec<(MonitorUpdate, Vec<Instruction>)>,
}

/// Which flows a request means.
pub(crate) struct Select<'a> {
    pub table: u8,
    pub matching: &'a Match,
    /// Strict: exactly this match and priority.
    pub priority: Option<u16>,
    pub cookie: u64,
    pub cookie_mask: u64,
    pub out_port: OfPort,
    pub out_group: u32,
}

impl Switch {
    /// Executes a flow-mod. It is visible to packets when this returns; cached decisions that
    /// overlap it are in [`Switch::take_regions`].
    pub fn flow_mod(&mut self, id: BridgeId, m: &FlowMod, now: u64) -> Result<(), OfError> {
        self.transact(id, now, |s, txn| s.stage_flow(txn, m)).map_err(|(_, e)| e)
    }

    /// Executes all or nothing; packets see all at once. An error names the failed item.
    pub fn bundle(
        &mut self,
        id: BridgeId,
        items: &[BundleItem],
        now: u64,
    ) -> Result<(), (usize, OfError)> {
        let mut at = 0;
        let done = self.transact(id, now, |s, txn| {
            for (i, item) in items.iter().enumerate() {
                at = i;
                s.stage(txn, item)?;
            }
            Ok(())
        });
        done.map_err(|(_, e)| (at, e))
    }

    fn stage(&mut self, txn: &mut Txn, item: &BundleItem) -> Result<(), OfError> {
        match item {
            BundleItem::Flow(m) => self.stage_flow(txn, m),
            BundleItem::Group(m) => self.stage_group(txn, m),
            BundleItem::Port(m) => {
                let old = self.port(txn.bridge, m.port).ok_or(OfError::PortModBadPort)?.clone();
                txn.undo.push(Undo::Port(Box::new(old)));
                self.port_mod(txn.bridge, m)
            }
            BundleItem::PacketOut(p) => self.check_packet_out(txn.bridge, p),
        }
    }

    /// Runs `stage` and shows or undoes what it did.
    pub(crate) fn transact(
        &mut self,
        bridge: BridgeId,
        now: u64,
        stage: impl FnOnce(&mut Switch, &mut Txn) -> Result<(), OfError>,
    ) -> Result<(), ((), OfError)> {
        self.of_bridge(bridge).map_err(|e| ((), e))?;
        self.collect();
        let version = self.version() + 1;
        let mut txn = Txn {
            bridge,
            version,
            now,
            undo: Vec::new(),
            gone: Vec::new(),
            regions: std::mem::take(&mut self.spare_regions),
            updates: Vec::new(),
        };
        match stage(self, &mut txn) {
            Ok(()) => {
                self.commit(txn);
                Ok(())
            }
            Err(e) => {
                self.roll_back(txn);
                Err(((), e))
            }
        }
    }

    fn commit(&mut self, mut txn: Txn) {
        self.shared.version.store(txn.version, Ordering::Release);
        for (id, reason) in &txn.gone {
            self.removed(&txn, *id, *reason);
        }
        let grace = self.shared.domain.grace();
        for u in std::mem::take(&mut txn.undo) {
            match u {
                Undo::Removed(table, rule) => {
                    if let Ok(b) = self.bridge(txn.bridge) {
                        let tables = b.tables.clone();
                        self.limbo.push_back(Limbo { grace, tables, table, rule });
                    }
                }
                Undo::Group(g) => self.group_committed(txn.bridge, g, txn.now),
                _ => {}
            }
        }
        txn.regions.drain().for_each(|r| self.outbox.region(r));
        self.spare_regions = txn.regions;
        let events = std::mem::take(&mut txn.updates).into_iter();
        self.outbox.events.extend(events.map(|(u, old)| Event::Flow(txn.bridge, Box::new(u), old)));
        self.collect();
    }

    /// A flow is gone for good: tell, and free its id.
    fn removed(&mut self, txn: &Txn, id: u32, reason: Removed) {
        let Some(rec) = self.slots.flow(id) else { return };
        if rec.flags & flow_flag::SEND_FLOW_REM != 0 {
            let stats = self.stats_of(rec, txn.now);
            let message = Box::new(FlowRemoved { stats, reason });
            self.outbox.events.push(Event::FlowRemoved(txn.bridge, message));
        }
        self.slots.release(id, txn.now);
    }

    fn roll_back(&mut self, txn: Txn) {
        for u in txn.undo.into_iter().rev() {
            match u {
                Undo::Added(table, rule) => self.undo_add(txn.bridge, table, rule, txn.now),
                Undo::Removed(table, rule) => {
                    rule.set_remove_version(classifier::NEVER);
                    self.note(txn.bridge, table, &rule.value().instructions, true);
                }
                Undo::Record(id, rec) => {
                    if let Some(slot) = self.slots.get_mut(id) {
                        *slot = Slot::Flow(*rec);
                    }
                }
                Undo::Group(g) => self.group_undo(txn.bridge, g),
                Undo::Port(spec) => {
                    let _ = self.update_port(txn.bridge, *spec);
                }
            }
        }
    }

    fn undo_add(&mut self, bridge: BridgeId, table: u8, rule: Arc<FlowRule>, now: u64) {
        if let Some(t) = self.bridge(bridge).ok().and_then(|b| b.tables.get(table)) {
            t.remove(&rule);
        }
        self.note(bridge, table, &rule.value().instructions, false);
        let mine = |r: &FlowRec| Arc::ptr_eq(&r.rule, &rule);
        if self.slots.flow(rule.value().id).is_some_and(mine) {
            self.slots.release(rule.value().id, now);
        }
    }

    /// Keeps counts of flows per table and references per group.
    fn note(&mut self, bridge: BridgeId, table: u8, list: &[Instruction], added: bool) {
        let Ok(b) = self.bridge_mut(bridge) else { return };
        let step = |n: &mut u32| *n = if added { *n + 1 } else { n.saturating_sub(1) };
        step(&mut b.table_recs[usize::from(table)].active);
        for_each_group(list, &mut |g| step(b.group_refs.entry(g).or_default()));
    }

    pub(crate) fn stage_flow(&mut self, txn: &mut Txn, m: &FlowMod) -> Result<(), OfError> {
        use FlowModCommand as C;
        let any = m.table == TABLE_ALL && !matches!(m.command, C::Add);
        let table = if m.command == C::Add && m.table == TABLE_ALL { 0 } else { m.table };
        if !any && usize::from(table) >= N_TABLES {
            // As in OVS, where the last table is the switch's own.
            let own = usize::from(table) == N_TABLES;
            return Err(if own { OfError::RequestEperm } else { OfError::BadTableId });
        }
        match m.command {
            C::Add => self.stage_add(txn, m, table),
            C::Modify | C::ModifyStrict => self.stage_modify(txn, m, table),
            C::Delete | C::DeleteStrict => {
                let select = Select {
                    table,
                    matching: &m.matching,
                    priority: (m.command == C::DeleteStrict).then_some(m.priority),
                    cookie: m.cookie_old,
                    cookie_mask: m.cookie_mask,
                    out_port: m.out_port,
                    out_group: m.out_group,
                };
                for (t, rule) in self.select(txn.bridge, &select, txn.version)? {
                    self.stage_remove(txn, t, &rule, Removed::Delete);
                }
                Ok(())
            }
        }
    }

    fn stage_add(&mut self, txn: &mut Txn, m: &FlowMod, table: u8) -> Result<(), OfError> {
        let b = self.of_bridge(txn.bridge)?;
        check::instructions(b, table, &m.matching, &m.instructions)?;
        if m.buffer_id != NO_BUFFER {
            return Err(OfError::BufferUnknown);
        }
        let (key, mask) = (&m.matching.key, &m.matching.mask);
        let t = b.tables.make(table);
        let old = t.find_exact(key, mask, m.priority, txn.version);
        if old.is_none()
            && m.flags & flow_flag::CHECK_OVERLAP != 0
            && t.overlaps(key, mask, m.priority, txn.version)
        {
            return Err(OfError::FlowOverlap);
        }
        if old.is_none() && b.full(table) {
            return Err(OfError::FlowTableFull);
        }
        let keep = m.flags & flow_flag::RESET_COUNTS == 0 && !m.modify_cookie;
        let (mut count, mut used) = (Counter::default(), txn.now);
        if let Some(old) = old {
            if let Some(rec) = self.slots.flow(old.value().id).filter(|_| keep) {
                (count, used) = (rec.count, rec.used);
            }
            self.stage_replace(txn, table, &old);
        }
        let id = self.slots.next(txn.now);
        let flow =
            Flow { id, cookie: m.cookie, instructions: m.instructions.clone().into_boxed_slice() };
        let rule = Arc::new(FlowRule::with_version(key, mask, m.priority, txn.version, flow));
        let rec = FlowRec {
            rule: rule.clone(),
            bridge: txn.bridge.0,
            table,
            flags: m.flags,
            idle: m.idle_timeout,
            hard: m.hard_timeout,
            importance: m.importance,
            created: txn.now,
            modified: txn.now,
            used,
            count,
        };
        self.set_timer(&rec, id);
        self.slots.alloc(Slot::Flow(rec), txn.now);
        self.stage_insert(txn, table, rule, None);
        Ok(())
    }

    /// Puts a rule in; `id`s record must be there. `old`: what the flow did until now, if it did.
    fn stage_insert(
        &mut self,
        txn: &mut Txn,
        table: u8,
        rule: Arc<FlowRule>,
        old: Option<&[Instruction]>,
    ) {
        self.rewritten.add_instructions(&rule.value().instructions);
        self.stage_region(txn, table, &rule);
        self.note(txn.bridge, table, &rule.value().instructions, true);
        let Ok(b) = self.bridge(txn.bridge) else { return };
        if b.monitored
            && let Some(rec) = self.slots.flow(rule.value().id)
        {
            let stats = self.stats_of(rec, txn.now);
            txn.updates.push(match old {
                None => (MonitorUpdate::Added(stats), Vec::new()),
                Some(old) => (MonitorUpdate::Modified(stats), old.to_vec()),
            });
        }
        b.tables.make(table).insert(rule.clone());
        txn.undo.push(Undo::Added(table, rule));
    }

    fn stage_region(&mut self, txn: &mut Txn, table: u8, rule: &FlowRule) {
        let Ok(b) = self.bridge(txn.bridge) else { return };
        let r = self.rewritten.region(table, &rule.key(), &rule.mask(), |p| b.dp_port(p));
        txn.regions.push(r);
    }

    /// Takes a rule out because another takes its place.
    fn stage_replace(&mut self, txn: &mut Txn, table: u8, rule: &Arc<FlowRule>) {
        self.unlink(txn, table, rule);
        // The id goes without an event: the flow is replaced, not removed.
        if let Some(rec) = self.slots.flow_mut(rule.value().id) {
            txn.undo.push(Undo::Record(rule.value().id, Box::new(rec.clone())));
            rec.flags &= !flow_flag::SEND_FLOW_REM;
            txn.gone.push((rule.value().id, Removed::Delete));
        }
    }

    fn unlink(&mut self, txn: &mut Txn, table: u8, rule: &Arc<FlowRule>) {
        rule.set_remove_version(txn.version);
        self.note(txn.bridge, table, &rule.value().instructions, false);
        txn.undo.push(Undo::Removed(table, rule.clone()));
    }

    pub(crate) fn stage_remove(
        &mut self,
        txn: &mut Txn,
        table: u8,
        rule: &Arc<FlowRule>,
        reason: Removed,
    ) {
        self.unlink(txn, table, rule);
        self.stage_region(txn, table, rule);
        let id = rule.value().id;
        txn.gone.push((id, reason));
        if self.bridge(txn.bridge).is_ok_and(|b| b.monitored)
            && let Some(rec) = self.slots.flow(id)
        {
            let update = MonitorUpdate::Deleted(self.stats_of(rec, txn.now), reason);
            txn.updates.push((update, Vec::new()));
        }
    }

    fn stage_modify(&mut self, txn: &mut Txn, m: &FlowMod, table: u8) -> Result<(), OfError> {
        let b = self.of_bridge(txn.bridge)?;
        let from = if table == TABLE_ALL { 0 } else { table };
        check::instructions(b, from, &m.matching, &m.instructions)?;
        let strict = m.command == FlowModCommand::ModifyStrict;
        let select = Select {
            table,
            matching: &m.matching,
            priority: strict.then_some(m.priority),
            cookie: m.cookie_old,
            cookie_mask: m.cookie_mask,
            out_port: port::ANY,
            out_group: GROUP_ANY,
        };
        let rules = self.select(txn.bridge, &select, txn.version)?;
        // Only OpenFlow 1.0 adds what it does not find.
        if rules.is_empty() && m.modify_cookie && m.cookie_mask == 0 && m.cookie != u64::MAX {
            return self.stage_add(txn, m, from);
        }
        for (t, old) in rules {
            check::instructions(self.of_bridge(txn.bridge)?, t, &m.matching, &m.instructions)?;
            self.stage_rewrite(txn, t, &old, m);
        }
        Ok(())
    }

    /// Replaces a rule's instructions, keeping its record.
    fn stage_rewrite(&mut self, txn: &mut Txn, table: u8, old: &Arc<FlowRule>, m: &FlowMod) {
        let id = old.value().id;
        let cookie = match m.modify_cookie && m.cookie != u64::MAX {
            true => m.cookie,
            false => old.value().cookie,
        };
        let instructions = m.instructions.clone().into_boxed_slice();
        let flow = Flow { id, cookie, instructions };
        let (key, mask) = (old.key(), old.mask());
        let rule = Arc::new(FlowRule::with_version(&key, &mask, old.priority(), txn.version, flow));
        self.unlink(txn, table, old);
        let before = self.slots.flow(id).cloned();
        if let Some(rec) = self.slots.flow_mut(id) {
            rec.rule = rule.clone();
            rec.modified = txn.now;
            if m.flags & flow_flag::RESET_COUNTS != 0 {
                rec.count = Counter::default();
            }
        }
        self.stage_insert(txn, table, rule, Some(&old.value().instructions));
        // Undone before the insertion is, so that the record is not taken for the new rule's.
        txn.undo.extend(before.map(|r| Undo::Record(id, Box::new(r))));
    }

    /// The flows that a request means, with their tables.
    pub(crate) fn select(
        &self,
        id: BridgeId,
        s: &Select<'_>,
        version: u64,
    ) -> Result<Vec<(u8, Arc<FlowRule>)>, OfError> {
        let mut out = Vec::new();
        for (n, t) in self.tables_of(id, s.table)? {
            let (key, mask) = (&s.matching.key, &s.matching.mask);
            let rules = match s.priority {
                Some(p) => {
                    let rule = t.find_exact(key, mask, p, version);
                    rule.into_iter().filter(|r| wanted(s, r)).collect()
                }
                None => t.within(key, mask, version, |r| wanted(s, r)),
            };
            out.extend(rules.into_iter().map(|r| (n, r)));
        }
        Ok(out)
    }

    /// The tables in use that a request means.
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

    /// Removes all flows, silently.
    pub(crate) fn clear_flows(&mut self, id: BridgeId, now: u64) {
        let everything = Match::default();
        let all = Select {
            table: TABLE_ALL,
            matching: &everything,
            priority: None,
            cookie: 0,
            cookie_mask: 0,
            out_port: port::ANY,
            out_group: GROUP_ANY,
        };
        for (_, rule) in self.select(id, &all, self.version()).unwrap_or_default() {
            self.slots.release(rule.value().id, now);
        }
    }

    /// Removes all flows and groups (`fail_mode` or controllers changed); flow-removed events as
    /// for a delete.
    pub fn flush_flows(&mut self, id: BridgeId, now: u64) -> Result<(), OfError> {
        self.flow_mod(id, &delete_all(), now)?;
        self.group_mod(id, &crate::group::delete_all(), now)
    }

    /// Installs what a standalone bridge without controller has: everything is NORMAL.
    pub fn install_default_flow(&mut self, id: BridgeId, now: u64) -> Result<(), ConfigError> {
        if self.bridge(id)?.config.fail_mode == FailMode::Secure {
            return Ok(());
        }
        let normal = Action::output(port::NORMAL);
        let m = FlowMod {
            command: FlowModCommand::Add,
            table: 0,
            priority: 0,
            instructions: vec![Instruction::Apply(vec![normal])],
            ..delete_all()
        };
        self.flow_mod(id, &m, now).map_err(|_| ConfigError::NoBridge)
    }

    pub(crate) fn set_timer(&mut self, rec: &FlowRec, id: u32) {
        if let Some(at) = deadline(rec) {
            self.timers.push(Reverse((at, id)));
        }
    }

    /// What undoing a group change needs is kept with the other steps.
    pub(crate) fn push_group_undo(txn: &mut Txn, undo: GroupUndo) {
        txn.undo.push(Undo::Group(undo));
        txn.regions.push(Region::ALL);
    }
}

/// When a flow times out if it is not used again, ns.
pub(crate) fn deadline(rec: &FlowRec) -> Option<u64> {
    const S: u64 = 1_000_000_000;
    let after = |since: u64, s: u16| (s != 0).then(|| since.saturating_add(u64::from(s) * S));
    let idle = after(rec.used.max(rec.modified), rec.idle);
    let hard = after(rec.modified, rec.hard);
    idle.into_iter().chain(hard).min()
}

fn delete_all() -> FlowMod {
    FlowMod {
        command: FlowModCommand::Delete,
        table: TABLE_ALL,
        priority: 0,
        matching: Match::default(),
        cookie: 0,
        cookie_old: 0,
        cookie_mask: 0,
        modify_cookie: false,
        idle_timeout: 0,
        hard_timeout: 0,
        importance: 0,
        flags: 0,
        buffer_id: NO_BUFFER,
        out_port: port::ANY,
        out_group: GROUP_ANY,
        instructions: Vec::new(),
    }
}

pub(crate) fn wanted(s: &Select<'_>, rule: &FlowRule) -> bool {
    let f = rule.value();
    (f.cookie ^ s.cookie) & s.cookie_mask == 0
        && (s.out_port == port::ANY || outputs_to(&f.instructions, s.out_port))
        && (s.out_group == GROUP_ANY || uses_group(&f.instructions, s.out_group))
}

fn actions_of(list: &[Instruction]) -> impl Iterator<Item = &Action> {
    list.iter().flat_map(|i| match i {
        Instruction::Apply(a) | Instruction::Write(a) => a.as_slice(),
        _ => &[],
    })
}

fn outputs_to(list: &[Instruction], p: OfPort) -> bool {
    actions_of(list).any(|a| match a {
        Action::Output { port, .. } | Action::Enqueue { port, .. } => *port == p,
        Action::Controller { .. } => p == port::CONTROLLER,
        _ => false,
    })
}

pub(crate) fn uses_group(list: &[Instruction], group: u32) -> bool {
    let mut found = false;
    for_each_group(list, &mut |g| found |= g == group);
    found
}

fn for_each_group(list: &[Instruction], f: &mut dyn FnMut(u32)) {
    actions_of(list).for_each(|a| group_in(a, f));
}

fn group_in(a: &Action, f: &mut dyn FnMut(u32)) {
    match a {
        Action::Group(g) => f(*g),
        Action::Clone(inner) => inner.iter().for_each(|a| group_in(a, f)),
        _ => {}
    }
}
