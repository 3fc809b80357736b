//! Packets on their way through steps 1 to 4; a file per step.

pub(crate) mod columns;
pub(crate) mod keys;

use crate::actions::interpret::Sink;
use crate::actions::program::Programs;
use crate::batch::columns::Columns;
use crate::batch::keys::Keys;
use crate::cpu::Level;
use crate::lookup::Table;
use crate::marks::step::PortMarks;
use crate::messages::{Report, Shared};
use crate::parse::ProfileStats;
use crate::parse::frame::Frame;
use crate::settings::{PortLookup, Settings};
use crate::tunnel::decap_rules::DecapRules;
use crate::tx::{Pending, TxState};
use crate::verify::levels::preferred_level;
use action::Pipeline;
use flow::PortNo;
use packet::{Packet, VECTOR};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use sync::Producer;
use telemetry::Drop;

/// Packets on their way through the steps, and all that the steps need.
pub(crate) struct Vector {
    pub(crate) packets: Vec<Packet>,
    pub(crate) in_port: Vec<PortNo>,
    pub(crate) keys: Box<Keys>,
    pub(crate) columns: Box<Columns>,
    /// What the packets of each port have been.
    pub(crate) profile_stats: Vec<ProfileStats>,
    pub(crate) level: Level,
    pub(crate) validate: bool,
    /// Packets that profiles claimed, and what parsing took, since they were taken.
    pub(crate) claimed: u64,
    pub(crate) parse_time: crate::rx::ParseTime,
    /// What adapters' marks stand for.
    pub(crate) marks: PortMarks,
    /// Packets that end at this step, and why.
    pub(crate) failed: Vec<(u8, Drop)>,
    /// Packets beyond what their port may bring.
    pub(crate) refused: Vec<Packet>,
    /// Megaflows that decapsulate, and what the packets of this vector that they took had for key
    /// word 6.
    pub(crate) decap_rules: DecapRules,
    pub(crate) stripped: [u64; VECTOR],
    pub(crate) one_pass: bool,
    pub(crate) depth: [u8; VECTOR],
    pub(crate) meta: Vec<Option<Box<Frame>>>,
    pub(crate) todo: Vec<u8>,
    /// The first packets of runs with the same key, and how many.
    pub(crate) leaders: [u8; VECTOR],
    pub(crate) runs: usize,
    /// Waiting for the next vector (over the miss budget).
    pub(crate) carry: Vec<Pending>,
    pub table: Table,
    pub(crate) programs: Programs,
    /// Programs of decisions that are used only in this vector.
    pub(crate) once_programs: Vec<u32>,
    /// What they are credited with.
    pub(crate) uncached: crate::miss::uncached_stats::UncachedStats,
    /// Lists of these that control was sent.
    pub(crate) uncached_reports: u64,
    pub(crate) miss_batch: Option<Box<crate::miss::MissBatch>>,
    pub(crate) uncached_batch: Option<Box<crate::miss::uncached::UncachedBatch>>,
    pub(crate) pipeline: Arc<dyn Pipeline>,
    pub(crate) reports: Producer<Report>,
    /// Reports that found the ring full.
    pub(crate) backlog: VecDeque<Report>,
    /// Lookups as control knows them.
    pub(crate) reported_lookups: Box<[PortLookup]>,
    /// Something was said since this was cleared.
    pub has_reports: bool,
    pub(crate) shared: Arc<Shared>,
    pub(crate) vlan_limit: u8,
    pub(crate) budget: usize,
    pub(crate) limit: u32,
    /// Decisions asked for, to choose which are stored.
    pub(crate) missed: u32,
}

impl Vector {
    pub fn new(
        pipeline: Arc<dyn Pipeline>,
        reports: Producer<Report>,
        shared: Arc<Shared>,
        flows: usize,
    ) -> Self {
        Vector {
            packets: Vec::with_capacity(VECTOR),
            in_port: Vec::with_capacity(VECTOR),
            keys: Box::new(Keys::new()),
            columns: Box::new(Columns::new()),
            profile_stats: Vec::new(),
            level: preferred_level(),
            validate: false,
            claimed: 0,
            parse_time: crate::rx::ParseTime::default(),
            marks: PortMarks::default(),
            failed: Vec::new(),
            refused: Vec::new(),
            decap_rules: DecapRules::default(),
            stripped: [0; VECTOR],
            one_pass: true,
            depth: [0; VECTOR],
            meta: Vec::new(),
            todo: Vec::with_capacity(VECTOR),
            leaders: [0; VECTOR],
            runs: 0,
            carry: Vec::new(),
            table: Table::new(flows),
            programs: Programs::default(),
            once_programs: Vec::new(),
            uncached: crate::miss::uncached_stats::UncachedStats::default(),
            uncached_reports: 0,
            miss_batch: Some(Box::default()),
            uncached_batch: Some(Box::default()),
            pipeline,
            reports,
            backlog: VecDeque::new(),
            reported_lookups: Box::default(),
            has_reports: false,
            shared,
            vlan_limit: 1,
            budget: VECTOR,
            limit: u32::MAX,
            missed: 0,
        }
    }

    /// Takes over new settings.
    pub fn configure(&mut self, s: &Settings) {
        self.vlan_limit = s.vlan_limit.clamp(1, 2);
        self.level = s.level;
        self.table.level = s.lookup_level();
        self.validate = s.validate;
        self.one_pass = s.one_pass;
        self.decap_rules.clear();
        self.budget = s.miss_budget.max(1);
        self.take_limit();
    }

    /// Takes over what control says is this worker's part of the flow limit.
    pub fn take_limit(&mut self) {
        let part = self.shared.limit.load(Ordering::Relaxed);
        self.limit = part.min(self.table.store.capacity() as u32);
    }

    /// Packets gathered.
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Takes packets out of the vector; the others stay in order and side by side.
    pub(crate) fn close_up(&mut self, gone: &[bool; VECTOR]) {
        let mut to = 0;
        for i in (0..self.packets.len()).filter(|i| !gone[*i]) {
            self.packets[to] = self.packets[i];
            self.in_port[to] = self.in_port[i];
            self.depth[to] = self.depth[i];
            if i < self.meta.len() {
                self.meta.swap(to, i);
            }
            self.columns.copy(i, to);
            self.keys.copy(i, to);
            to += 1;
        }
        let metas = (0..self.meta.len()).filter(|i| !gone[*i]).count();
        self.meta.truncate(metas);
        self.packets.truncate(to);
        self.in_port.truncate(to);
    }

    /// Are packets waiting for the next vector?
    pub fn carries(&self) -> bool {
        !self.carry.is_empty()
    }

    /// Gives up packets that wait.
    pub fn shut_down(&mut self, tx: &mut TxState) {
        for p in std::mem::take(&mut self.carry) {
            tx.dropped(p.in_port, Drop::Shutdown);
            tx.free(p.packet);
        }
    }
}
