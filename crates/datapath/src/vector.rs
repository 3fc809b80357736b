//! Packets on their way through steps 1 to 4; a file per step.

mod act;
mod credit;
mod decapsulate;
mod direct;
mod find;
mod gather;
mod miss;
mod tell;

use crate::events::{Report, Shared};
use crate::interpret::{Frame, Sink};
use crate::level::Level;
use crate::lookup::{Keys, Table};
use crate::parse::{Columns, Study};
use crate::program::Programs;
use crate::terminate::Terminators;
use crate::tx::{Exits, Pending};
use crate::types::{PortLookup, Settings};
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
    packets: Vec<Packet>,
    in_port: Vec<PortNo>,
    keys: Box<Keys>,
    columns: Box<Columns>,
    /// What the packets of each port have been.
    studies: Vec<Study>,
    level: Level,
    validate: bool,
    /// Packets that profiles claimed, and what parsing took, since they were taken.
    claimed: u64,
    parse_time: gather::ParseTime,
    /// Packets that end at this step, and why.
    failed: Vec<(u8, Drop)>,
    /// Packets beyond what their port may bring.
    refused: Vec<Packet>,
    /// Rules that decapsulate, and what the packets of this vector that they took had for key word 6.
    terminators: Terminators,
    stripped: [u64; VECTOR],
    one_pass: bool,
    depth: [u8; VECTOR],
    meta: Vec<Option<Box<Frame>>>,
    todo: Vec<u8>,
    /// The first packets of runs with the same key, and how many.
    leaders: [u8; VECTOR],
    runs: usize,
    /// Waiting for the next vector (over the miss budget).
    carry: Vec<Pending>,
    pub table: Table,
    programs: Programs,
    /// Programs of decisions that are used only in this vector.
    passing: Vec<u32>,
    /// What they are credited with.
    passed: credit::Passing,
    /// Lists of these that control was sent.
    passed_on: u64,
    asked: Option<Box<miss::Asked>>,
    strangers: Option<Box<direct::Strangers>>,
    pipeline: Arc<dyn Pipeline>,
    reports: Producer<Report>,
    /// Reports that found the ring full.
    late: VecDeque<Report>,
    /// Lookups as control knows them.
    shown: Box<[PortLookup]>,
    /// Something was said since this was cleared.
    pub news: bool,
    shared: Arc<Shared>,
    vlan_limit: u8,
    budget: usize,
    limit: u32,
    /// Decisions asked for, to choose which are stored.
    missed: u32,
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
            studies: Vec::new(),
            level: Level::preferred(),
            validate: false,
            claimed: 0,
            parse_time: gather::ParseTime::default(),
            failed: Vec::new(),
            refused: Vec::new(),
            terminators: Terminators::default(),
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
            passing: Vec::new(),
            passed: credit::Passing::default(),
            passed_on: 0,
            asked: Some(Box::default()),
            strangers: Some(Box::default()),
            pipeline,
            reports,
            late: VecDeque::new(),
            shown: Box::default(),
            news: false,
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
        self.terminators.clear();
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
    fn close_up(&mut self, gone: &[bool; VECTOR]) {
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
    pub fn shut_down(&mut self, exits: &mut Exits) {
        for p in std::mem::take(&mut self.carry) {
            exits.dropped(p.in_port, Drop::Shutdown);
            exits.free(p.packet);
        }
    }
}
