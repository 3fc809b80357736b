//! A worker's loop. [`Worker::vector`] is a packet's path, in six steps:
//!
//! | step | folder | does |
//! |---|---|---|
//! | poll | `rx` | takes packets from receive queues |
//! | parse | `parse` | writes each packet's key |
//! | lookup | `lookup` | finds each packet's megaflow |
//! | misses | `miss` | asks the pipeline about packets that have none |
//! | actions | `actions` | executes each packet's program |
//! | tx | `tx` | sends what is due, and notifies who waits for it |
//!
//! Parsing follows poll burst by burst. Packets whose megaflow is known before they are parsed get
//! it there and skip parse and lookup, or lookup: by an adapter's mark (`marks::step`), by their
//! port (`rx::known_way`), out of a tunnel (`tunnel::decap`).
//!
//! A worker is a PMD thread, or the kernel worker, which serves kernel ports and may sleep.

mod commands;
mod cycles;
mod sleep;

use crate::actions::Actions;
use crate::actions::inject;
use crate::actions::interpret::RECIRC_LIMIT;
use crate::batch::{Batch, Burst};
use crate::lookup::Lookup;
use crate::marks::step::PortMarks;
use crate::messages::{Command, Handoff, Report, Shared};
use crate::miss::Misses;
use crate::miss::rates::INTERVAL_MS;
use crate::parse::Parser;
use crate::pmd::cycles::IterationCycles;
use crate::pmd::sleep::IdleState;
use crate::report::Reports;
use crate::rx::Rx;
use crate::rx::kernel_wait::KernelWait;
use crate::rx::known_way;
use crate::settings::{Config, Settings};
use crate::stats::clock::{cycles, cycles_per_second, nanoseconds, now_ms};
use crate::tunnel::decap::Decap;
use crate::tx::TxState;
use crate::wake::Wake;
use packet::VECTOR;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use sync::{Consumer, Producer, Reader};

/// How often a worker reports its lookups to the control side, milliseconds.
const REPORT_LOOKUPS_INTERVAL_MS: u64 = 1000;

/// Periodic work that is so much late, in its intervals, has the worker look whether it waited.
const LATE_INTERVALS: u64 = 2;

/// When the worker's periodic work is due.
struct Timers {
    /// Cycle at which the next housekeeping is due.
    next: u64,
    /// Cycles between two of them: a millisecond's.
    interval: u64,
    /// When the ports' policies were last judged.
    tuned_ms: u64,
    /// When lookups were last reported to the control side.
    lookups_reported_ms: u64,
}

/// The steps that can write the keys of a burst's packets. The first that serves the burst's port
/// is used: decapsulation, marks, known way, parser.
struct Parsers<'a> {
    parser: &'a mut Parser,
    decap: &'a mut Decap,
    marks: &'a mut PortMarks,
    lookup: &'a mut Lookup,
    actions: &'a Actions,
    reports: &'a mut Reports,
}

impl Parsers<'_> {
    /// Parses a burst that was just received; returns its bytes.
    #[inline(always)]
    fn parse(&mut self, batch: &mut Batch, tx: &mut TxState, burst: Burst) -> u64 {
        let Parsers { parser, decap, marks, lookup, actions, reports } = self;
        let (began, n) = (parser.clock.begin(), burst.range.len());
        let bytes = if decap.serves(burst.port) {
            decap.parse(parser, batch, burst, reports)
        } else if marks.serve(burst.port) {
            marks.parse(parser, batch, burst, &lookup.table, reports)
        } else {
            let (table, programs) = (&mut lookup.table, &actions.programs);
            let port = burst.port;
            // A burst of a known way is parsed all the same if every packet needs its key: for the
            // validating mode or a capture.
            let known = (!parser.all)
                .then(|| known_way::assign(batch, &burst, table, programs, tx))
                .flatten();
            known.unwrap_or_else(|| parser.parse_burst(batch, burst, table.matched(port), reports))
        };
        parser.clock.end(began, n);
        bytes
    }
}

/// One thread of the packet side: a PMD thread or the kernel worker. Its thread calls
/// [`Worker::run`]; a test calls [`Worker::step`].
pub(crate) struct Worker {
    batch: Batch,
    rx: Rx,
    parser: Parser,
    decap: Decap,
    marks: PortMarks,
    pub lookup: Lookup,
    misses: Misses,
    actions: Actions,
    tx: TxState,
    reports: Reports,
    /// Packets that other workers hand over, to be sent here.
    inbound: Vec<Consumer<Handoff>>,
    commands: Consumer<Command>,
    settings: Settings,
    shared: Arc<Shared>,
    reader: Reader,
    stopping: bool,
    timers: Timers,
    cycles: IterationCycles,
    idle: IdleState,
}

impl Worker {
    /// Makes a worker without ports. With `wait` it is the kernel worker, which sleeps by means of
    /// it; without `wait` it is a PMD thread.
    pub fn new(
        config: &Config,
        tx: TxState,
        commands: Consumer<Command>,
        reports: Producer<Report>,
        shared: Arc<Shared>,
        wait: Option<KernelWait>,
    ) -> Self {
        let mut reader = config.domain.reader();
        reader.offline();
        let interval = cycles_per_second() / 1000;
        Worker {
            batch: Batch::new(),
            rx: Rx::new(wait),
            parser: Parser::default(),
            decap: Decap::new(),
            marks: PortMarks::default(),
            lookup: Lookup::new(config.max_flows as usize),
            misses: Misses::new(config.pipeline.clone(), shared.clone()),
            actions: Actions::default(),
            tx,
            reports: Reports::new(reports, shared.clone()),
            inbound: Vec::new(),
            commands,
            settings: Settings::default(),
            shared,
            reader,
            stopping: false,
            timers: Timers { next: 0, interval, tuned_ms: 0, lookups_reported_ms: 0 },
            cycles: IterationCycles::default(),
            idle: IdleState::default(),
        }
    }

    /// Runs until `Stop` is executed.
    pub fn run(&mut self) {
        self.reader.online();
        self.cycles.ended = cycles();
        while !self.stopping {
            let n = self.iterate();
            self.sleep_if_idle(n);
        }
        self.reader.offline();
    }

    /// Runs one iteration for a test. Unlike in [`Worker::run`], time may have passed since the
    /// last one. Returns how many packets it moved.
    pub fn step(&mut self) -> usize {
        self.cycles.ended = cycles();
        if !self.reader.is_online() {
            self.reader.online();
        }
        self.iterate()
    }

    /// Runs one iteration; returns how many packets it moved. The iteration begins at the cycle at
    /// which the last one ended: reading the clock again would cost as much as one step of one
    /// packet.
    fn iterate(&mut self) -> usize {
        let began = self.cycles.ended;
        if began >= self.timers.next {
            self.housekeeping(began);
        }
        self.run_commands();
        let injected = match self.tx.injected.is_empty() {
            true => 0,
            false => inject::run_iteration(&mut self.tx, self.batch.vlan_limit),
        };
        port::begin_iteration();
        let misses = (self.shared.perf.misses.get(), self.shared.perf.miss_cycles.get());
        let handed = self.take_inbound(VECTOR);
        let n = self.vector(began);
        self.shared.perf.iterations.add(1);
        if self.cycles.recorder.on {
            self.record(n, began, misses);
        }
        self.tx.end_iteration(self.cycles.ended - began);
        if !self.misses.costly.is_empty() {
            let costly = &mut self.misses.costly;
            let alone = self.rx.came_from(|port| costly.has(port));
            costly.end_iteration(nanoseconds(self.cycles.ended - began), alone, self.tx.now_ms);
        }
        if !self.tx.copies.is_empty() {
            let copies = &mut self.tx.copies;
            let alone = self.rx.came_from(|port| copies.owes(port));
            copies.end_iteration(nanoseconds(self.cycles.ended - began), alone);
        }
        self.reader.quiescent();
        n + handed + injected
    }

    /// One vector, the path of every packet. Returns the number of packets.
    fn vector(&mut self, began: u64) -> usize {
        let Worker { batch, rx, parser, marks, decap, lookup, .. } = self;
        let Worker { misses, actions, tx, reports, reader, .. } = self;
        decap.refresh(&lookup.table);
        let again = batch.begin(&mut tx.recirculated);
        parser.validate_waited(batch, reports);
        let mut parsers = Parsers { parser, decap, marks, lookup, actions, reports };
        let fresh = rx.poll(batch, tx, |batch, tx, burst| parsers.parse(batch, tx, burst));
        reports.perf().rx_packets.add(fresh as u64);
        reports.perf().recirculated.add(again as u64);
        let n = again + fresh;
        if n == 0 {
            self.idle(began);
            return 0;
        }
        let sampled = self.cycles.clock.is_sampled(n);
        let received = sampled.then(cycles);
        parser.drop_failed(batch, tx, &mut actions.capture);
        decap.credit(&mut lookup.table, tx.now_ms);
        misses.begin();
        lookup.classify(batch, reports);
        misses.resolve(batch, lookup, &mut actions.programs, reports, tx.now_ms, reader);
        let mut looked_up = sampled.then(cycles);
        actions.run(batch, &lookup.table, decap, tx, reports);
        let mut passes = n;
        if batch.len() > 0 || !tx.recirculated.is_empty() {
            passes += self.pass_again(&mut looked_up);
        }
        self.end(n, looked_up.unwrap_or(began));
        self.count_cycles(passes, began, received.zip(looked_up));
        passes
    }

    /// Ends a vector of `n` packets at cycle `now`: removes programs and megaflows that are no
    /// longer used, and sends the packets and notifications that are due.
    #[inline(always)]
    fn end(&mut self, n: usize, now: u64) {
        let Worker { rx, lookup, misses, actions, tx, reports, .. } = self;
        misses.finish(&mut lookup.table, &mut actions.programs, reports, tx.now_ms);
        tx.flush_due(n, now);
        rx.notify(tx.notified_all());
        self.idle.in_flight = port::end_iteration();
        self.cycles.ended = cycles();
    }

    /// Looks up and acts on packets of this vector that were recirculated, until none are left or
    /// the limit of recirculations is reached. Copies that are outside the batch then wait for the
    /// next vector. Returns how many packets this looked up; adds the cycles of their lookups to
    /// `looked_up`.
    #[inline(never)]
    fn pass_again(&mut self, looked_up: &mut Option<u64>) -> usize {
        let Worker { batch, parser, decap, lookup, misses, actions, .. } = self;
        let Worker { tx, reports, reader, .. } = self;
        let (mut packets, mut none) = (0, Vec::new());
        for pass in 0.. {
            // Packets that stay in the batch are recirculated once more with each pass, up to the
            // limit.
            let taken = if pass < RECIRC_LIMIT { &mut tx.recirculated } else { &mut none };
            let n = batch.begin_pass(taken);
            if n == 0 {
                break;
            }
            packets += n;
            let began = looked_up.map(|_| cycles());
            parser.validate_waited(batch, reports);
            lookup.classify(batch, reports);
            misses.resolve(batch, lookup, &mut actions.programs, reports, tx.now_ms, reader);
            lookup.table.learn_recirculated(&batch.keys, batch.len(), &batch.columns.preset);
            *looked_up = looked_up.zip(began).map(|(at, began)| at + (cycles() - began));
            actions.run(batch, &lookup.table, decap, tx, reports);
        }
        reports.perf().recirculated.add(packets as u64);
        packets
    }

    /// Ends an iteration without packets: sends the held packets that are due.
    fn idle(&mut self, began: u64) {
        self.cycles.ended = cycles();
        self.tx.flush_due(0, self.cycles.ended);
        self.rx.notify(self.tx.notified_all());
        self.idle.in_flight = port::end_iteration();
        self.count_idle_cycles(began);
    }

    /// Sends packets that other workers handed over, at most `most` of each; returns how many.
    fn take_inbound(&mut self, most: usize) -> usize {
        let mut n = 0;
        for ring in &mut self.inbound {
            for _ in 0..most {
                let Some((port, packet)) = ring.pop() else { break };
                self.tx.send(port, packet);
                n += 1;
            }
        }
        n
    }

    /// Work that is due once per millisecond: timers, reports to the control side, and the ports'
    /// policies.
    fn housekeeping(&mut self, now: u64) {
        let late = now.saturating_sub(self.timers.next);
        sync::waits::look(late > LATE_INTERVALS * self.timers.interval);
        self.timers.next = now + self.timers.interval;
        let now_ms = now_ms();
        self.tx.now_ms = now_ms;
        self.tx.expire_fragments();
        self.reports.flush(&mut self.misses.uncached);
        let table = &mut self.lookup.table;
        self.misses.take_limit(table);
        if now_ms >= self.timers.tuned_ms + INTERVAL_MS {
            self.timers.tuned_ms = now_ms;
            table.tune(self.settings.signature_cache);
            for rxq in &mut self.rx.rxqs {
                let own = rxq.rx.take_port_penalty() + self.tx.take_excess(rxq.port);
                rxq.cell.cycles.add(own);
            }
            if now_ms >= self.timers.lookups_reported_ms + REPORT_LOOKUPS_INTERVAL_MS {
                self.timers.lookups_reported_ms = now_ms;
                self.reports.send_lookups(table.snapshot());
            }
        }
        self.shared.flows.store(table.live, Ordering::Relaxed);
        self.shared.masks.store(table.masks() as u32, Ordering::Relaxed);
        self.shared.cache_on.store(table.any_port.cached, Ordering::Relaxed);
        self.inbound.retain_mut(|r| !r.is_abandoned() || !r.is_empty());
    }

    /// The kernel worker's doorbell.
    pub fn wake(&self) -> Option<Arc<Wake>> {
        self.rx.wait.as_ref().map(|w| w.wake.clone())
    }
}
