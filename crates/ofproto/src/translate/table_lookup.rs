//! Looks the packet up in flow tables, and handles misses.

use super::state::{Miss, Snapshot};
use super::xlate::{ToController, Xlate};
use crate::published::PortView;
use crate::tables::table::{FlowRule, Table};
use crate::{N_TABLES, TableMiss};
use flow::{Key, Mask, at};
use openflow::{FragHandling, OfPort, Reason, port_config};

/// The priority that traces show for NORMAL when all controllers are away; OVS's number.
pub(super) const FAIL_OPEN_PRIORITY: u32 = 0xf0f0f0;

impl<'a> Xlate<'a, '_> {
    /// Looks the packet up in a table and executes the rule; returns its cookie. `in_port`: the
    /// input port for this lookup only.
    pub(super) fn table(&mut self, table: u8, in_port: Option<OfPort>, miss: Miss) -> Option<u64> {
        if self.is_too_much() || self.has_enough() || !self.spend(1) {
            return None;
        }
        // The first lookup is not a resubmission.
        let again = std::mem::replace(&mut self.spent.begun, true);
        self.spent.resubmits += usize::from(again);
        if table == 0 && self.bridge.config.fail_open {
            self.fail_open();
            return None;
        }
        let own = self.in_port();
        if let Some(p) = in_port {
            self.key.set_u32(at::OF_IN_PORT, p);
        }
        let rule = match std::mem::take(&mut self.packet.ct.original) {
            true => self.lookup_original(table),
            false => self.lookup_in_table(table),
        };
        let (table, rule) = match rule {
            None if miss == Miss::Honor => self.continue_from(table),
            rule => (table, rule),
        };
        self.key.set_u32(at::OF_IN_PORT, own);
        let before = (self.run.table, self.run.cookie, self.run.miss_flow, self.run.rule);
        self.run.rule = rule.map(|r| r.value().id);
        // As in OVS, only lookups in this table or an earlier one count as depth.
        let deepens = usize::from(again && table <= self.run.table);
        self.run.table = table;
        self.spent.depth += deepens;
        self.spent.nesting += 1;
        match rule {
            Some(rule) => {
                self.run.cookie = rule.value().cookie;
                self.run.first_cookie.get_or_insert(self.run.cookie);
                self.run.miss_flow = rule.priority() == 0 && rule.mask() == Mask::ZERO;
                self.note_rule(table, rule);
                self.credit(rule.value().id);
                if self.admit_once() {
                    let list = &rule.value().instructions;
                    if list.is_empty() {
                        self.note_action(|| "drop".into());
                    }
                    self.instructions(list);
                    self.end.stopped = false;
                }
                self.trace_close();
            }
            None => self.miss(table, miss),
        }
        self.spent.depth -= deepens;
        self.spent.nesting -= 1;
        (self.run.table, self.run.cookie, self.run.miss_flow, self.run.rule) = before;
        rule.map(|r| r.value().cookie)
    }

    /// The rule for the packet as it is now. With normal handling of fragments no fragment of a
    /// datagram has ports, so that all of them are treated alike.
    pub(super) fn lookup_in_table(&mut self, table: u8) -> Option<&'a FlowRule> {
        let table = self.bridge.tables.get(table)?;
        let own = self.key;
        let fragment = self.key.u8(at::FRAG) & flow::frag::ANY != 0;
        if fragment && self.bridge.config.frag == FragHandling::Normal {
            self.key.set_u16(at::TP_SRC, 0);
            self.key.set_u16(at::TP_DST, 0);
        }
        let key = self.key;
        let found = match self.is_ethernet() {
            true => match self.classify(table, &key) {
                found if self.wc.u64(at::TUN_MATCH) == 0 => found,
                found => self.by_options(table, found),
            },
            false => {
                let Snapshot { guard, version, .. } = self.snapshot;
                let mut steps = 0;
                let found = table.lookup_bare(guard, &key, version, &mut self.wc, &mut steps);
                self.pays(steps).then_some(found).flatten()
            }
        };
        self.key = own;
        found
    }

    /// The rule of a table for a key. None also if the lookup takes too many steps, because of
    /// conjunctive matches or very many masks.
    pub(super) fn classify(&mut self, table: &'a Table, key: &Key) -> Option<&'a FlowRule> {
        let mut steps = 0;
        let Snapshot { guard, version, .. } = self.snapshot;
        let found = table.lookup(guard, key, version, &mut self.wc, &mut steps);
        self.pays(steps).then_some(found).flatten()
    }

    /// As [`Xlate::spend`], for a lookup that may have taken no step.
    fn pays(&mut self, steps: usize) -> bool {
        steps == 0 || self.spend(steps)
    }

    /// Executes NORMAL in place of the flows of table 0, while all controllers are away.
    pub(super) fn fail_open(&mut self) {
        self.note_table(|| format!(" 0. priority {FAIL_OPEN_PRIORITY}"));
        if self.admit_once() {
            self.note_action(|| "NORMAL".into());
            self.normal();
        }
        self.trace_close();
    }

    /// Looks further tables up, as long as a table without a matching flow is configured to
    /// continue with the next one. Returns the last table, and its rule.
    fn continue_from(&mut self, mut table: u8) -> (u8, Option<&'a FlowRule>) {
        let misses = &self.bridge.config.misses;
        while misses.get(&table) == Some(&TableMiss::Continue)
            && usize::from(table) + 1 < N_TABLES
            && self.spend(1)
        {
            self.credit(self.bridge.miss_base + u32::from(table));
            table += 1;
            if let Some(rule) = self.lookup_in_table(table) {
                return (table, Some(rule));
            }
        }
        (table, None)
    }

    pub(super) fn miss(&mut self, table: u8, miss: Miss) {
        self.credit(self.bridge.miss_base + u32::from(table));
        let silent = |p: &PortView| p.spec.config & port_config::NO_PACKET_IN != 0;
        let wanted = match self.bridge.config.misses.get(&table) {
            Some(miss) => *miss != TableMiss::Drop,
            None => self.bridge.config.miss_to_controller,
        };
        let reported = wanted && miss == Miss::Honor && !self.input().is_some_and(silent);
        if !reported {
            self.note_table(|| format!("{table:2}. No match."));
            if self.admit_once() {
                self.note_action(|| "drop".into());
            }
            return self.trace_close();
        }
        let text = "No match, and a \"packet-in\" is called for.";
        self.note_table(|| format!("{table:2}. {text}"));
        if self.admit_once() {
            self.note_action(|| "CONTROLLER".into());
            (self.run.cookie, self.run.no_flow) = (0, true);
            self.controller(&ToController::new(0, Reason::TableMiss));
            self.run.no_flow = false;
        }
        self.trace_close();
    }
}
