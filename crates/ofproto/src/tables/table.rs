//! Flow tables as packets see them.

use crate::tables::instructions::{Clause, clauses, learns, meter_of, names_groups};
use crate::tables::tlv;
use crate::work;
use classifier::{Classifier, Rule, Unlinked};
use flow::{Key, Mask, TUN_METADATAS, TunMetadata, at};
use openflow::{Action, Instruction, Loose, Match, OfPort, names_header, packet_type, port};
use std::sync::{Arc, OnceLock};
use sync::{Domain, Guard};

/// Number of tables that controllers can use.
pub const N_TABLES: usize = 254;

/// The data of a rule besides match and priority. It never changes: modifying a flow makes a new
/// rule.
pub(crate) struct Flow {
    /// Index of the flow's counters and timeouts; also its credit id.
    pub id: u32,
    /// What the instructions do, if `translate::plain` can execute them.
    pub plain: Plain,
    /// True if the instructions use groups.
    pub groups: bool,
    /// The meter that the instructions use first.
    pub meter: Option<u32>,
    /// The clauses of conjunctive matches that the flow stands for. Packets cannot hit such a rule.
    pub clauses: Option<Box<[Clause]>>,
    /// True if the instructions have learn actions.
    pub learns: bool,
    /// The fields `tun_metadataN` that the instructions use, a bit each.
    pub instruction_options: u64,
    /// True if controllers get a flow-removed message when the flow is removed (SEND_FLOW_REM).
    pub reports_removal: bool,
    /// True for a flow of the switch's own in table 0: it precedes all others, and controllers
    /// neither see nor change it.
    pub hidden: bool,
    pub cookie: u64,
    /// The part of its match on tunnel options, if there is one.
    pub tun: Option<Arc<Vec<TunMetadata>>>,
    /// The instructions, which all flows of one modification share.
    pub instructions: Arc<[Instruction]>,
}

impl Flow {
    pub fn new(
        id: u32,
        reports_removal: bool,
        cookie: u64,
        instructions: Arc<[Instruction]>,
    ) -> Flow {
        let groups = names_groups(&instructions);
        let plain = Plain::of(&instructions);
        let meter = meter_of(&instructions);
        let clauses = clauses(&instructions);
        let learns = !learns(&instructions).is_empty();
        let options = options_of(&instructions);
        Flow {
            id,
            plain,
            groups,
            meter,
            clauses,
            learns,
            instruction_options: options,
            reports_removal,
            hidden: false,
            cookie,
            tun: None,
            instructions,
        }
    }

    /// The fields `tun_metadataN` that the flow uses, each once.
    pub fn options(&self) -> impl Iterator<Item = u8> {
        work::step();
        let matched = self.tun.iter().flat_map(|tun| tun.iter());
        let all = matched.fold(self.instruction_options, |all, t| all | 1 << t.index);
        (0..TUN_METADATAS).filter(move |i| all >> i & 1 != 0)
    }
}

/// Instructions that are only an output to a port, a goto, or both.
#[derive(Clone, Copy)]
pub(crate) enum Plain {
    Yes { output: Option<OfPort>, next: Option<u8> },
    No,
}

impl Plain {
    fn of(list: &[Instruction]) -> Plain {
        let (first, next) = match list {
            [first @ .., Instruction::Goto(table)] => (first, Some(*table)),
            first => (first, None),
        };
        let actions = match first {
            [] => &[][..],
            [Instruction::Apply(actions)] => actions,
            _ => return Plain::No,
        };
        // In OpenFlow 1.0 a `goto_table` is a resubmission at the end.
        let (actions, next) = match actions {
            [
                first @ ..,
                Action::Resubmit { in_port: None, table: Some(table @ ..=0xfe), ct: false },
            ] if next.is_none() => (first, Some(*table)),
            all => (all, next),
        };
        match actions {
            [] => Plain::Yes { output: None, next },
            [Action::Output { port, trunc: 0, .. }] if *port < port::MAX => {
                Plain::Yes { output: Some(*port), next }
            }
            _ => Plain::No,
        }
    }
}

pub(crate) type FlowRule = Rule<Flow>;

/// What is added to the priority of a hidden rule to make it OVS's, which is above all that
/// controllers may use.
const HIDDEN_PRIORITY_MIN: u32 = 180_000;

/// The priority of a rule, as texts have it.
pub(crate) fn priority_of(rule: &FlowRule) -> u32 {
    let least = if rule.value().hidden { HIDDEN_PRIORITY_MIN } else { 0 };
    least + u32::from(rule.priority())
}

/// The match of a rule.
pub(crate) fn match_of(rule: &FlowRule) -> Match {
    let (mut key, mut mask) = (rule.key(), rule.mask());
    key.set_u64(at::TUN_MATCH, 0);
    mask.set_u64(at::TUN_MATCH, 0);
    Match { key, mask, tun: tun_of(rule).to_vec() }
}

/// True if the packet type of a loose request selects the rule.
pub(crate) fn packet_type_fits(loose: &Loose<'_>, rule: &FlowRule) -> bool {
    loose.packet_type_fits(|| (rule.key(), rule.mask()))
}

/// The tunnel options that a rule matches on.
pub(crate) fn tun_of(rule: &FlowRule) -> &[TunMetadata] {
    rule.value().tun.as_deref().map_or(&[], Vec::as_slice)
}

/// True if a rule matches on each of these fields at least as narrowly.
pub(crate) fn within(rule: &FlowRule, wide: &[TunMetadata]) -> bool {
    let narrow = tun_of(rule);
    wide.iter().all(|w| tlv::get(narrow, w.index).is_some_and(|n| n.within(w)))
}

/// True if one packet can match both the rule and the match, as far as tunnel options are
/// concerned.
pub(crate) fn overlap(rule: &FlowRule, fields: &[TunMetadata]) -> bool {
    fields.iter().all(|f| tlv::get(tun_of(rule), f.index).is_none_or(|r| r.overlaps(f)))
}

/// The fields `tun_metadataN` that instructions use, a bit each.
fn options_of(instructions: &[Instruction]) -> u64 {
    let mut found = 0;
    for i in instructions {
        if let Instruction::Apply(list) | Instruction::Write(list) = i {
            let mut see = |i: u8, _| found |= 1 << i;
            list.iter().for_each(|a| tlv::each_field(a, &mut see));
        }
    }
    found
}

/// Places of a classifier that a lookup may visit without taking a step: as many as with few masks.
const PLACES_FREE: usize = 16;
/// Places that a lookup visits in one step, which takes some 100 ns.
const PLACES_PER_STEP: usize = 4;

/// The steps of a lookup that visited this many places.
fn steps_of(places: usize) -> usize {
    places.saturating_sub(PLACES_FREE) / PLACES_PER_STEP
}

/// A flow table: one writer, many readers.
pub(crate) struct Table {
    rules: Classifier<Flow>,
    /// Flows that are clauses of conjunctive matches.
    clauses: Classifier<Flow>,
    /// Flows for packets without an Ethernet header.
    bare: Classifier<Flow>,
    /// Hidden flows.
    hidden: Classifier<Flow>,
}

impl Table {
    fn new(domain: Domain) -> Table {
        let clauses = Classifier::without_prefix_trie(domain.clone());
        let bare = Classifier::without_prefix_trie(domain.clone());
        let hidden = Classifier::without_prefix_trie(domain.clone());
        Table { rules: Classifier::new(domain), clauses, bare, hidden }
    }

    /// The best rule for `key` at `version`. Adds the bits that were read to `wc`, and the
    /// steps for conjunctive matches and very many masks to `steps`.
    #[inline]
    pub fn lookup<'a>(
        &'a self,
        guard: Guard<'a>,
        key: &Key,
        version: u64,
        wc: &mut Mask,
        steps: &mut usize,
    ) -> Option<&'a FlowRule> {
        if !self.hidden.is_empty()
            && let Some(rule) = self.hidden.lookup(guard, key, version, wc)
        {
            return Some(rule);
        }
        let rule = self.ordinary(guard, key, version, wc, steps);
        match self.has_clauses() {
            false => rule,
            true => self.conjunctive(guard, (key, version), rule, wc, steps),
        }
    }

    /// As [`Table::lookup`], without conjunctive matches and hidden flows.
    #[inline]
    pub fn ordinary<'a>(
        &'a self,
        guard: Guard<'a>,
        key: &Key,
        version: u64,
        wc: &mut Mask,
        steps: &mut usize,
    ) -> Option<&'a FlowRule> {
        let mut tried = 0;
        let rule = self.rules.lookup_counted(guard, key, version, wc, &mut tried);
        *steps += steps_of(tried);
        rule
    }

    /// The most steps that a lookup takes because of the number of masks.
    pub fn steps_max(&self, guard: Guard<'_>) -> usize {
        steps_of(self.rules.places(guard))
    }

    /// True if there are clauses of conjunctive matches.
    #[inline]
    pub fn has_clauses(&self) -> bool {
        !self.clauses.is_empty()
    }

    /// Calls `each` with every clause that matches `key` and has at least priority `least`. Returns
    /// the steps that this took.
    pub fn clauses_for(
        &self,
        guard: Guard<'_>,
        key: &Key,
        version: u64,
        least: u32,
        wc: &mut Mask,
        each: &mut dyn FnMut(&FlowRule),
    ) -> usize {
        self.clauses.each_in_subtables(guard, key, version, least, wc, each);
        steps_of(self.clauses.places(guard))
    }

    /// The best rules for at most [`classifier::BATCH`] keys, without conjunctive matches. Returns
    /// which words of keys were read, a bit each.
    pub fn lookup_all<'a>(
        &'a self,
        guard: Guard<'a>,
        keys: &[&Key],
        version: u64,
        found: &mut [Option<&'a FlowRule>],
    ) -> u64 {
        let read = self.rules.lookup_all(guard, keys, version, found);
        if self.hidden.is_empty() {
            return read;
        }
        let mut first = [None; classifier::BATCH];
        let first = &mut first[..keys.len()];
        let read = read | self.hidden.lookup_all(guard, keys, version, first);
        for (found, first) in found.iter_mut().zip(first) {
            *found = first.or(*found);
        }
        read
    }

    /// Prefetches what a lookup of these keys reads.
    pub fn prepare(&self, guard: Guard<'_>, keys: &[&Key]) {
        self.rules.prepare(guard, keys)
    }

    /// The best rule for a packet without an Ethernet header: one that matches on its type, or on
    /// no header at all. As in OVS, all other rules are for packets with one.
    pub fn lookup_bare<'a>(
        &'a self,
        guard: Guard<'a>,
        key: &Key,
        version: u64,
        wc: &mut Mask,
        steps: &mut usize,
    ) -> Option<&'a FlowRule> {
        *steps += steps_of(self.bare.places(guard)) + steps_of(self.rules.places(guard));
        let mut best = self.bare.lookup(guard, key, version, wc);
        let least = best.map_or(0, |r| u32::from(r.priority()) + 1);
        self.rules.each_in_subtables(guard, key, version, least, wc, &mut |r| {
            let better = best.is_none_or(|b| r.priority() > b.priority());
            if better && !names_header(&r.mask()) {
                best = Some(r);
            }
        });
        best
    }

    /// The classifiers of flows that controllers see.
    fn all(&self) -> [&Classifier<Flow>; 3] {
        [&self.rules, &self.clauses, &self.bare]
    }

    /// The classifier in which the rule is.
    fn home(&self, rule: &FlowRule) -> &Classifier<Flow> {
        match rule {
            r if r.value().hidden => &self.hidden,
            r if r.value().clauses.is_some() => &self.clauses,
            r if r.key().u32(at::PACKET_TYPE) != packet_type::ETHERNET => &self.bare,
            _ => &self.rules,
        }
    }

    /// The hidden rules that are visible at `version`.
    pub fn hidden(&self, version: u64) -> Vec<Arc<FlowRule>> {
        self.hidden.iter().filter(|r| r.visible(version)).collect()
    }

    /// The hidden rule with this very match and rank.
    pub fn find_hidden(
        &self,
        key: &Key,
        mask: &Mask,
        rank: u16,
        version: u64,
    ) -> Option<Arc<FlowRule>> {
        self.hidden.find_exact(key, mask, rank, version)
    }

    pub fn insert(&self, rule: Arc<FlowRule>) {
        self.home(&rule).insert(rule);
    }

    /// Removes a rule; returns the table's handle on it, to be retired.
    pub fn unlink(&self, rule: &Arc<FlowRule>) -> Option<Unlinked<Flow>> {
        self.home(rule).unlink(rule)
    }

    /// The rule with this very match and priority.
    pub fn find_exact(
        &self,
        key: &Key,
        mask: &Mask,
        priority: u16,
        version: u64,
    ) -> Option<Arc<FlowRule>> {
        let here = |c: &Classifier<Flow>| c.find_exact(key, mask, priority, version);
        self.all().into_iter().find_map(here)
    }

    /// The rules that a loose request with this match selects and `want` accepts.
    pub fn within(
        &self,
        m: &Match,
        version: u64,
        want: impl Fn(&FlowRule) -> bool,
    ) -> Vec<Arc<FlowRule>> {
        let mut looks = usize::MAX;
        self.within_few(m, version, &mut looks, want).unwrap_or_default()
    }

    /// As [`Table::within`]; None if more than `looks` rules would have to be examined. Subtracts
    /// the examined rules from `looks`.
    pub fn within_few(
        &self,
        m: &Match,
        version: u64,
        looks: &mut usize,
        want: impl Fn(&FlowRule) -> bool,
    ) -> Option<Vec<Arc<FlowRule>>> {
        let loose = Loose::new(m);
        let mut want = |r: &FlowRule| r.visible(version) && packet_type_fits(&loose, r) && want(r);
        let mut found = Vec::new();
        for c in self.all() {
            found.extend(c.pick_loose(loose.key, &loose.mask, looks, &mut want)?);
        }
        Some(found)
    }

    /// True if a rule of this priority can match the same packets as the match; None if more than
    /// `looks` rules would have to be examined. Subtracts the examined rules from `looks`.
    pub fn overlaps(
        &self,
        m: &Match,
        priority: u16,
        version: u64,
        looks: &mut usize,
    ) -> Option<bool> {
        let want = |r: &FlowRule| r.visible(version) && overlap(r, &m.tun);
        for c in self.all() {
            if c.overlapping(&m.key, &m.mask, priority, looks, want)? {
                return Some(true);
            }
        }
        Some(false)
    }
}

/// The tables of a bridge. A table that was never used does not exist.
pub(crate) struct Tables {
    domain: Domain,
    tables: [OnceLock<Table>; N_TABLES],
}

impl Tables {
    pub fn new(domain: Domain) -> Tables {
        Tables { domain, tables: [const { OnceLock::new() }; N_TABLES] }
    }

    /// A table; None: it was never used.
    #[inline]
    pub fn get(&self, table: u8) -> Option<&Table> {
        self.tables.get(usize::from(table))?.get()
    }

    /// A table, which is made when it is first used. `table` is below [`N_TABLES`].
    pub fn make(&self, table: u8) -> &Table {
        self.tables[usize::from(table)].get_or_init(|| Table::new(self.domain.clone()))
    }
}
