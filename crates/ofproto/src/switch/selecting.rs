//! The flows that a flow-mod of an open change concerns: those that it selects, those that it
//! overlaps, and those that its learn actions count. They are searched some at a time, as a table
//! may have a million flows, and other work must not wait for that.

use crate::learned::Place;
use crate::switch::Switch;
use crate::switch::flow_mod::wanted;
use crate::tables::counters::FlowRec;
use crate::tables::instructions::learns;
use crate::tables::table::{FlowRule, overlap, packet_type_fits};
use crate::tables::tlv;
use crate::transaction::{Concerned, Purpose, Remaining, Select, Selecting, Txn};
use crate::types::BridgeId;
use crate::work::step;
use openflow::{
    FlowMod, FlowModCommand, Instruction, Loose, Match, OfError, Removed, TABLE_ALL, flow_flag,
};
use std::collections::{BTreeMap, BTreeSet};

/// Flows that a search looks at in one step of a change, which is about as long as changing a flow
/// takes.
const LOOKS_STEP: usize = 16;
/// Flows that a search by the tables' indexes looks at, at most, before it is left for one through
/// all flows, which goes in steps.
const INDEX_LOOKS_MAX: usize = 16_384;

/// True if a flow-mod may concern many flows.
pub fn concerns_many(m: &FlowMod) -> bool {
    use FlowModCommand as C;
    match m.command {
        C::Modify | C::Delete => true,
        C::DeleteStrict => false,
        C::Add | C::ModifyStrict => {
            m.flags & flow_flag::CHECK_OVERLAP != 0
                || limited_places(&m.instructions).next().is_some()
        }
    }
}

/// The tables and cookies of flows of which learn actions make a limited number.
fn limited_places(list: &[Instruction]) -> impl Iterator<Item = Place> {
    learns(list).into_iter().filter(|l| l.limit > 0).map(|l| (l.table, l.cookie))
}

impl Switch {
    /// Searches what a flow-mod concerns, and stages what it asks for: now, or in the change's next
    /// steps.
    pub(crate) fn stage_selected(
        &mut self,
        txn: &mut Txn,
        m: &FlowMod,
        table: u8,
    ) -> Result<(), OfError> {
        let mut found =
            Concerned { places: self.uncounted(txn.bridge, m)?, ..Concerned::default() };
        let mut looks = INDEX_LOOKS_MAX;
        let all = self.found_by_indexes(txn, (m, table), &mut found, &mut looks)?;
        txn.cost += (INDEX_LOOKS_MAX - looks) / LOOKS_STEP;
        if all {
            return self.stage_found(txn, m, table, found);
        }
        let found = Concerned { places: self.uncounted(txn.bridge, m)?, ..Concerned::default() };
        let b = self.of_bridge(txn.bridge)?;
        let matching = tlv::fitted(&b.options.tlv, &m.matching)?.into_owned();
        let numbers = 0..self.slots.len() as u32;
        let purpose = Purpose::FlowMod(Box::new(m.clone()), table, Box::new(matching));
        txn.remaining = Remaining::Select(Box::new(Selecting { purpose, found, numbers }));
        Ok(())
    }

    /// A search for flows that packets taught, and whose last owner is gone.
    pub(crate) fn unlearning(&self, places: BTreeSet<Place>) -> Remaining {
        let (purpose, found) = (Purpose::Unlearn(places), Concerned::default());
        let numbers = 0..self.slots.len() as u32;
        Remaining::Select(Box::new(Selecting { purpose, found, numbers }))
    }

    /// Looks at the next flows; false: it has ended, and what was to be done is staged.
    pub(crate) fn select_on(
        &mut self,
        txn: &mut Txn,
        mut search: Box<Selecting>,
    ) -> Result<bool, OfError> {
        let from = search.numbers.start;
        let to = search.numbers.end.min(from.saturating_add(LOOKS_STEP as u32));
        search.numbers.start = to;
        for number in from..to {
            step();
            if let Some(rec) = self.slots.flow(number)
                && rec.bridge == txn.bridge.0
                && rec.rule.visible(txn.version)
                && !rec.rule.value().hidden
            {
                look(&mut search, rec);
            }
        }
        if to < search.numbers.end {
            txn.remaining = Remaining::Select(search);
            return Ok(true);
        }
        let mut found = search.found;
        found.rules.sort_by_key(|(table, rule)| (*table, rule.value().id));
        match search.purpose {
            Purpose::FlowMod(m, table, _) => self.stage_found(txn, &m, table, found)?,
            Purpose::Unlearn(_) => {
                txn.remaining = Remaining::Remove(found.rules.into_iter(), Removed::Delete);
            }
        }
        Ok(!matches!(txn.remaining, Remaining::Nothing))
    }

    fn stage_found(
        &mut self,
        txn: &mut Txn,
        m: &FlowMod,
        table: u8,
        found: Concerned,
    ) -> Result<(), OfError> {
        use FlowModCommand as C;
        self.begin_counting(txn.bridge, &found.places);
        match m.command {
            C::Add => self.stage_add(txn, m, table, found.overlaps),
            C::Modify | C::ModifyStrict => self.stage_modify(txn, m, table, found.rules),
            C::Delete | C::DeleteStrict => {
                self.cover(txn, &m.matching, found.rules.len());
                txn.remaining = Remaining::Remove(found.rules.into_iter(), Removed::Delete);
                Ok(())
            }
        }
    }

    /// The places that a flow-mod's learn actions limit and whose flows are not counted yet.
    fn uncounted(&self, id: BridgeId, m: &FlowMod) -> Result<BTreeMap<Place, u32>, OfError> {
        let b = self.of_bridge(id)?;
        let makes = !matches!(m.command, FlowModCommand::Delete | FlowModCommand::DeleteStrict);
        let places = makes.then(|| limited_places(&m.instructions)).into_iter().flatten();
        Ok(places.filter(|p| !b.learning.counts.contains_key(p)).map(|p| (p, 0)).collect())
    }

    /// Searches by the tables' indexes; false: that takes too long. Subtracts the flows that it
    /// looks at from `looks`.
    fn found_by_indexes(
        &self,
        txn: &Txn,
        (m, table): (&FlowMod, u8),
        found: &mut Concerned,
        looks: &mut usize,
    ) -> Result<bool, OfError> {
        use FlowModCommand as C;
        let matching = tlv::fitted(&self.of_bridge(txn.bridge)?.options.tlv, &m.matching)?;
        let select = selection(m, table, &matching);
        for (n, t) in self.tables_of(txn.bridge, table)?.filter(|_| m.command != C::Add) {
            let rules = match select.priority {
                Some(p) => {
                    let (key, mask) = tlv::in_rule(&matching);
                    let rule = t.find_exact(&key, &mask, p, txn.version);
                    Some(rule.into_iter().filter(|r| wanted(&select, r)).collect())
                }
                None => t.within_few(&matching, txn.version, looks, |r| wanted(&select, r)),
            };
            let Some(rules) = rules else { return Ok(false) };
            found.rules.extend(rules.into_iter().map(|r| (n, r)));
        }
        let b = self.of_bridge(txn.bridge)?;
        if m.command == C::Add && m.flags & flow_flag::CHECK_OVERLAP != 0 {
            let t = b.tables.get(table);
            let any = t.map(|t| t.overlaps(&matching, m.priority, txn.version, looks));
            let Some(any) = any.unwrap_or(Some(false)) else { return Ok(false) };
            found.overlaps = any;
        }
        let tables: BTreeSet<u8> = found.places.keys().map(|(table, _)| *table).collect();
        for (n, t) in tables.into_iter().filter_map(|n| Some((n, b.tables.get(n)?))) {
            let any = Match::default();
            let Some(all) = t.within_few(&any, txn.version, looks, |_| true) else {
                return Ok(false);
            };
            all.iter().for_each(|rule| count(&mut found.places, n, rule));
        }
        Ok(true)
    }
}

fn count(places: &mut BTreeMap<Place, u32>, table: u8, rule: &FlowRule) {
    if let Some(n) = places.get_mut(&(table, rule.value().cookie)) {
        *n += 1;
    }
}

/// What a modification or a delete selects.
fn selection<'a>(m: &FlowMod, table: u8, matching: &'a Match) -> Select<'a> {
    use FlowModCommand as C;
    let all = Select {
        table,
        priority: matches!(m.command, C::ModifyStrict | C::DeleteStrict).then_some(m.priority),
        cookie: m.cookie_old,
        cookie_mask: m.cookie_mask,
        ..Select::all(matching)
    };
    match m.command {
        C::Delete | C::DeleteStrict => {
            Select { out_port: m.out_port, out_group: m.out_group, ..all }
        }
        _ => all,
    }
}

/// Looks at one flow.
fn look(search: &mut Selecting, rec: &FlowRec) {
    use FlowModCommand as C;
    let (rule, found) = (&rec.rule, &mut search.found);
    let (m, table, matching) = match &search.purpose {
        Purpose::FlowMod(m, table, matching) => (m, *table, matching),
        Purpose::Unlearn(places) => {
            if places.contains(&(rec.table, rule.value().cookie)) {
                found.rules.push((rec.table, rule.clone()));
            }
            return;
        }
    };
    count(&mut found.places, rec.table, rule);
    if table != TABLE_ALL && table != rec.table {
        return;
    }
    if m.command == C::Add {
        let same = m.flags & flow_flag::CHECK_OVERLAP != 0 && rule.priority() == m.priority;
        let meets = || rule.overlaps(&matching.key, &matching.mask);
        found.overlaps |= same && meets() && overlap(rule, &matching.tun);
        return;
    }
    let select = selection(m, table, matching);
    let fits = match select.priority {
        Some(priority) => {
            let (key, mask) = tlv::in_rule(matching);
            rule.priority() == priority && rule.key() == key && rule.mask() == mask
        }
        None => {
            let loose = Loose::new(matching);
            rule.within(loose.key, &loose.mask) && packet_type_fits(&loose, rule)
        }
    };
    if fits && wanted(&select, rule) {
        found.rules.push((rec.table, rule.clone()));
    }
}
