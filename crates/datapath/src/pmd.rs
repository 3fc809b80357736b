//! A worker: one thread's queues, table and tx, and its loop.

use crate::batch::Vector;
use crate::mem::prefetch;
use crate::messages::{Command, Handoff, Report, RxSlot, Shared, Wake};
use crate::rx::kernel_wait::KernelWait;
use crate::rx::schedule::{self as schedule, RxSchedule, RxqState};
use crate::settings::Settings;
use crate::stats::clock::{cycles, cycles_per_second, now_ms};
use crate::stats::perf::{Iteration, Recorder};
use crate::stats::stage_clock::StageClock;
use crate::tx::TxState;
use packet::{BURST, VECTOR};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use sync::{Consumer, Reader};
use telemetry::Drop;

/// How often subtables are ranked and the cache is judged.
const TUNE_MS: u64 = 100;

/// So many queues ahead is fetched what tells where their packets are, and the packets themselves.
const DESCRIPTOR_PREFETCH_RXQS: usize = 4;
const PACKET_PREFETCH_RXQS: usize = 2;

/// How often control hears of lookups.
const REPORT_LOOKUPS_MS: u64 = 1000;

/// One thread of the packet side. Stepped by its thread, or by hand in tests.
pub(crate) struct Worker {
    pub vector: Vector,
    pub tx: TxState,
    #[allow(clippy::vec_box)] // they travel as boxes
    rx: Vec<Box<RxSlot>>,
    /// Of each queue; side by side, as all are looked at for every vector.
    rxq_states: Vec<RxqState>,
    /// Queues that brought packets to the current vector, and how many, in order.
    polled_rxqs: Vec<(usize, usize)>,
    /// Queues that have brought packets since all were notified.
    pending_notify: Vec<usize>,
    /// Which queue is asked first.
    next_rxq: usize,
    /// Queues that are asked for packets of this vector, in order.
    poll_order: Vec<usize>,
    inbound: Vec<Consumer<Handoff>>,
    commands: Consumer<Command>,
    settings: Settings,
    shared: Arc<Shared>,
    reader: Reader,
    /// Some: serves kernel ports and sleeps in the kernel.
    sleep: Option<KernelWait>,
    stopping: bool,
    next_tick: u64,
    tick: u64,
    tuned_ms: u64,
    lookups_reported_ms: u64,
    /// Next sleep of an idle PMD thread, microseconds.
    idle_sleep_us: u64,
    recorder: Recorder,
    stage_clock: StageClock,
    /// When the last loop ended, or what came after it; cycles.
    ended: u64,
    /// Copies that were left to an engine are not made yet.
    in_flight: bool,
}

impl Worker {
    pub fn new(
        vector: Vector,
        tx: TxState,
        commands: Consumer<Command>,
        shared: Arc<Shared>,
        reader: Reader,
        sleep: Option<KernelWait>,
    ) -> Self {
        reader.offline();
        Worker {
            vector,
            tx,
            rx: Vec::new(),
            rxq_states: Vec::new(),
            polled_rxqs: Vec::new(),
            pending_notify: Vec::new(),
            next_rxq: 0,
            poll_order: Vec::new(),
            inbound: Vec::new(),
            commands,
            settings: Settings::default(),
            shared,
            reader,
            sleep,
            stopping: false,
            next_tick: 0,
            tick: cycles_per_second() / 1000,
            tuned_ms: 0,
            lookups_reported_ms: 0,
            idle_sleep_us: 0,
            recorder: Recorder::default(),
            stage_clock: StageClock::default(),
            ended: 0,
            in_flight: false,
        }
    }

    /// Runs until told to stop.
    pub fn run(&mut self) {
        self.reader.online();
        self.ended = cycles();
        while !self.stopping {
            let n = self.iterate();
            match self.sleep {
                Some(_) => self.sleep_in_kernel(n),
                None => self.idle_sleep(n),
            }
        }
        self.reader.offline();
    }

    /// One loop, some time after the one before.
    pub fn step(&mut self) -> usize {
        self.ended = cycles();
        self.iterate()
    }

    /// One loop: rx, parse, lookup, act, tx. Returns how many packets it moved. It begins when the
    /// one before ended: the clock is looked at as seldom as possible, as it costs as much as a
    /// packet's step.
    fn iterate(&mut self) -> usize {
        let t0 = self.ended;
        if t0 >= self.next_tick {
            self.housekeeping(t0);
        }
        self.run_commands();
        port::begin_turn();
        let misses = (self.shared.perf.misses.get(), self.shared.perf.miss_cycles.get());
        let handed = self.take_inbound();
        let n = self.receive();
        if n > 0 {
            let measured = self.stage_clock.is_sampled(n);
            let t1 = measured.then(cycles);
            self.vector.drop_failed(&mut self.tx);
            self.vector.credit_decap_rules(self.tx.now_ms);
            self.vector.lookup(self.tx.now_ms);
            let t2 = measured.then(cycles);
            self.vector.act(&mut self.tx);
            self.tx.flush_due(n, t2.unwrap_or(t0));
            self.notify();
            self.in_flight = port::end_turn();
            self.ended = cycles();
            let stages = self.stage_clock.divide(t0, t1.zip(t2), self.ended);
            self.account(n, self.ended - t0, stages);
        } else {
            self.ended = cycles();
            self.tx.flush_due(0, self.ended);
            self.notify();
            self.in_flight = port::end_turn();
            // Reading nothing but violations is work.
            let (perf, all) = (&self.shared.perf, self.ended - t0);
            let lost = port::take_lost().min(all);
            perf.idle_iterations.add(1);
            perf.idle_cycles.add(all - lost);
            perf.busy_cycles.add(lost);
        }
        self.shared.perf.iterations.add(1);
        if self.recorder.on {
            self.record(n, t0, misses);
        }
        self.reader.quiescent();
        n + handed
    }

    /// Notes what the iteration was like that began at cycle `t0`, when there had been so many
    /// misses and cycles of them.
    #[cold]
    fn record(&mut self, n: usize, t0: u64, misses: (u64, u64)) {
        let perf = &self.shared.perf;
        let cycles = self.ended - t0;
        let fresh: usize = self.polled_rxqs.iter().map(|(_, n)| n).sum();
        let bursts = |n: usize| n.div_ceil(BURST);
        let one = Iteration {
            stamp: perf.iterations.get(),
            iterations: 1,
            cycles,
            busy_cycles: if n > 0 { cycles } else { 0 },
            packets: fresh as u64,
            bursts: self.polled_rxqs.iter().map(|(_, n)| bursts(*n) as u64).sum(),
            misses: perf.misses.get() - misses.0,
            miss_cycles: perf.miss_cycles.get() - misses.1,
        };
        let fill = |n: usize| (0..bursts(n)).map(move |i| (n - i * BURST).min(BURST) as u64);
        let all = self.polled_rxqs.iter().flat_map(|(_, n)| fill(*n));
        if let Some(one) = self.recorder.record(&self.shared.metrics, &one, all) {
            self.vector.report(Report::Suspicious(Box::new(one)));
        }
    }

    /// Step 1: packets that wait, then every queue in turn.
    fn receive(&mut self) -> usize {
        let waiting = self.vector.begin(&mut self.tx);
        let schedule = RxSchedule::new(&self.rxq_states);
        self.choose(&schedule);
        self.polled_rxqs.clear();
        let mut fresh = 0;
        (0..DESCRIPTOR_PREFETCH_RXQS).for_each(|k| self.prepare(k, 0));
        (0..PACKET_PREFETCH_RXQS).for_each(|k| self.prepare(k, 1));
        for k in 0..self.poll_order.len() {
            let limit = schedule.limit.min(VECTOR - self.vector.len());
            if limit == 0 {
                self.next_rxq = self.poll_order[k];
                self.poll_order[k..].iter().for_each(|q| self.rxq_states[*q].defer());
                break;
            }
            self.prepare(k + DESCRIPTOR_PREFETCH_RXQS, 0);
            self.prepare(k + PACKET_PREFETCH_RXQS, 1);
            fresh += self.ask(self.poll_order[k], limit);
        }
        let perf = &self.shared.perf;
        perf.rx_packets.add(fresh as u64);
        perf.recirculated.add(waiting as u64);
        waiting + fresh
    }

    /// Which queues are asked for packets, in which order.
    fn choose(&mut self, schedule: &RxSchedule) {
        let queues = self.rx.len();
        if queues == 0 {
            return self.poll_order.clear();
        }
        let next_rxq = if self.next_rxq < queues { self.next_rxq } else { 0 };
        self.next_rxq = next_rxq + 1;
        match &mut self.sleep {
            Some(s) => {
                s.poll_ready();
                self.poll_order.clear();
                let all = (0..queues).map(|k| (next_rxq + k) % queues);
                self.poll_order.extend(all.filter(|q| s.is_ready(&*self.rx[*q].rx)));
            }
            None => {
                schedule::choose(&mut self.rxq_states, schedule, next_rxq, &mut self.poll_order)
            }
        }
    }

    /// Lets the `k`-th queue that is asked fetch what it will read.
    #[inline]
    fn prepare(&mut self, k: usize, step: usize) {
        if let Some(q) = self.poll_order.get(k) {
            self.rx[*q].rx.prepare(step);
        }
        if let Some(q) = self.poll_order.get(k + DESCRIPTOR_PREFETCH_RXQS) {
            prefetch(&*self.rx[*q]);
        }
    }

    /// Takes up to `limit` packets from queue `q`, and counts them; how many, with those that are
    /// more than it may bring.
    fn ask(&mut self, q: usize, limit: usize) -> usize {
        let slot = &mut self.rx[q];
        let police = slot.police.as_deref();
        let (n, bytes) = self.vector.receive(&mut *slot.rx, slot.port, limit, police);
        self.rxq_states[q].polled(limit, n);
        if let (Some(s), true) = (&mut self.sleep, n < limit) {
            s.drained(&*slot.rx);
        }
        if n > 0 {
            slot.stats.rx_packets.add(n as u64);
            slot.stats.rx_bytes.add(bytes);
            slot.cell.packets.add(n as u64);
            if police.is_some() {
                let refused = self.vector.take_refused(&mut self.tx);
                slot.stats.lost(Drop::Policed, refused);
            }
            self.polled_rxqs.push((q, n));
            if slot.rx.notifies() {
                self.pending_notify.push(q);
            }
        }
        n
    }

    /// Lets queues tell the other side of what was received.
    fn notify(&mut self) {
        if self.pending_notify.is_empty() {
            return;
        }
        let all = self.tx.notify_all;
        fence(Ordering::SeqCst);
        self.pending_notify.iter().for_each(|q| self.rx[*q].rx.notify(all));
        if all {
            self.pending_notify.clear();
        }
    }

    /// Packets other workers want sent here.
    fn take_inbound(&mut self) -> usize {
        let mut n = 0;
        for ring in &mut self.inbound {
            for _ in 0..VECTOR {
                let Some((port, packet)) = ring.pop() else { break };
                self.tx.send(port, packet);
                n += 1;
            }
        }
        n
    }

    /// Counts an iteration with `n` packets: its cycles, and those of receiving and parsing, of
    /// lookup, and of the rest.
    fn account(&mut self, n: usize, all: u64, [rx, lookup, act]: [u64; 3]) {
        let perf = &self.shared.perf;
        let (claimed, parsing) = self.vector.take_parsed();
        perf.claimed.add(claimed);
        perf.passes.add(n as u64);
        perf.vectors.add(1);
        perf.rx_cycles.add(rx.saturating_sub(parsing));
        perf.parse_cycles.add(parsing);
        perf.lookup_cycles.add(lookup);
        perf.act_cycles.add(act);
        perf.busy_cycles.add(all);
        let marks = self.vector.marks.take_counts();
        perf.mark_hits.add(marks.hits);
        perf.mark_stale.add(marks.stale);
        perf.mark_wrong.add(marks.wrong);
        let counts = self.vector.table.take_counts();
        perf.cache_hits.add(counts.cache_hits);
        perf.flow_hits.add(counts.flow_hits);
        perf.subtable_lookups.add(counts.visits);
        // What the vector cost is charged to the queues that filled it, but for what the other
        // sides of ports made it cost: their own queues owe that.
        let all = all.saturating_sub(port::take_lost());
        if let [(q, _)] = self.polled_rxqs[..] {
            return self.rx[q].cell.cycles.add(all);
        }
        let fresh: u64 = self.polled_rxqs.iter().map(|(_, n)| *n as u64).sum();
        let schedule = all.checked_div(fresh).unwrap_or(0);
        for (q, n) in &self.polled_rxqs {
            self.rx[*q].cell.cycles.add(schedule * *n as u64);
        }
    }

    /// Once per millisecond.
    fn housekeeping(&mut self, now: u64) {
        self.next_tick = now + self.tick;
        self.tx.now_ms = now_ms();
        self.vector.flush_reports();
        self.vector.take_limit();
        if self.tx.now_ms >= self.tuned_ms + TUNE_MS {
            self.tuned_ms = self.tx.now_ms;
            self.vector.table.tune(self.settings.signature_cache);
            self.rx.iter_mut().for_each(|slot| slot.cell.cycles.add(slot.rx.owed()));
            if self.tx.now_ms >= self.lookups_reported_ms + REPORT_LOOKUPS_MS {
                self.lookups_reported_ms = self.tx.now_ms;
                self.vector.report_lookups();
            }
        }
        let table = &self.vector.table;
        self.shared.flows.store(table.live, Ordering::Relaxed);
        self.shared.masks.store(table.masks() as u32, Ordering::Relaxed);
        self.shared.cache_on.store(table.cache_on, Ordering::Relaxed);
        self.inbound.retain_mut(|r| !r.is_abandoned() || !r.is_empty());
    }

    /// Executes control's commands.
    fn run_commands(&mut self) {
        let mut done = 0;
        while let Some(c) = self.commands.pop() {
            self.command(c);
            done += 1;
        }
        if done > 0 {
            self.shared.processed.fetch_add(done, Ordering::Release);
        }
    }

    fn command(&mut self, c: Command) {
        match c {
            Command::AddPort(no, stats) => self.tx.add_port(no, stats),
            Command::DelPort(no) => {
                let queue = self.tx.del_port(no);
                self.give_back(no, queue);
            }
            Command::SetRoute(no, route) => {
                let queue = self.tx.set_route(no, route);
                self.give_back(no, queue);
            }
            Command::Limit(no, bytes) => self.tx.set_limit(no, bytes),
            Command::Police(port, police) => {
                let slots = self.rx.iter_mut().filter(|slot| slot.port == port);
                slots.for_each(|slot| slot.police = police.clone());
            }
            Command::Mark(port, change) => self.vector.change_marks(port, change),
            Command::AddRx(slot) => {
                if let (Some(s), Some(fd)) = (&mut self.sleep, slot.rx.fd()) {
                    s.watch(fd);
                }
                self.rx.push(slot);
                self.rxq_states.push(RxqState::default());
            }
            Command::DelRx(port, queue) => self.return_rx(port, queue),
            Command::Settings(s) => {
                self.tx.configure(&s);
                if self.sleep.is_some() {
                    self.tx.flush_at_once();
                }
                self.vector.configure(&s);
                self.vector.table.tune(s.signature_cache);
                (self.recorder.on, self.recorder.log) = (s.perf_metrics, s.perf_log);
                self.settings = *s;
            }
            Command::Unlink(megaflows) => self.vector.unlink(megaflows),
            Command::Release(megaflows) => {
                megaflows.iter().for_each(|i| self.vector.table.release(*i))
            }
            Command::Execute(e) => self.vector.inject(&e, &mut self.tx),
            Command::AddPeer(slot, ring, wake) => self.tx.add_peer(slot, ring, wake),
            Command::DelPeer(slot) => self.tx.del_peer(slot),
            Command::AddInbound(ring) => self.inbound.push(ring),
            Command::Stop => self.stop(),
        }
    }

    fn give_back(&mut self, no: flow::PortNo, queue: Option<Box<dyn port::TxQueue>>) {
        if let Some(q) = queue {
            self.vector.report(Report::TxBack(no, q));
        }
    }

    fn return_rx(&mut self, port: flow::PortNo, queue: usize) {
        let at = self.rx.iter().position(|s| s.port == port && s.queue == queue);
        if let Some(i) = at {
            // Their numbers are about to change.
            fence(Ordering::SeqCst);
            self.pending_notify.drain(..).for_each(|q| self.rx[q].rx.notify(true));
            self.polled_rxqs.clear();
            let slot = self.rx.remove(i);
            self.rxq_states.remove(i);
            if let (Some(s), Some(fd)) = (&mut self.sleep, slot.rx.fd()) {
                s.forget(fd);
            }
            self.vector.report(Report::RxBack(slot));
        }
    }

    /// Lets go of every packet and tells what is left to tell (as far as there is room).
    fn stop(&mut self) {
        while self.take_inbound() > 0 {}
        self.vector.shut_down(&mut self.tx);
        self.tx.shut_down();
        port::stop_turns();
        self.vector.flush_reports();
        self.stopping = true;
    }

    /// After the thread ended: what could not be told before; call until true.
    pub fn drained(&mut self) -> bool {
        self.vector.flush_reports();
        self.vector.has_reported_all()
    }

    /// A PMD thread's rest when little is to do: one microsecond longer each time.
    fn idle_sleep(&mut self, n: usize) {
        let max = self.settings.pmd_sleep_max_us;
        if max == 0 || n >= BURST / 2 || self.vector.carries() {
            self.idle_sleep_us = 0;
        }
        if n > 0 {
            return;
        }
        if max == 0 || self.vector.carries() || self.in_flight {
            return std::hint::spin_loop();
        }
        self.idle_sleep_us = (self.idle_sleep_us + 1).min(max);
        let t = cycles();
        self.reader.offline();
        std::thread::sleep(std::time::Duration::from_micros(self.idle_sleep_us));
        self.reader.online();
        self.slept(t);
    }

    /// The kernel worker's rest: see `kernel.rs`.
    fn sleep_in_kernel(&mut self, n: usize) {
        let Some(s) = &mut self.sleep else { return };
        let has_reports =
            std::mem::take(&mut self.vector.has_reports) | std::mem::take(&mut self.tx.has_reports);
        if let Some(bell) = &self.shared.bell {
            if has_reports {
                bell.wake();
            }
            bell.answer();
        }
        if n > 0 || self.vector.carries() || self.tx.has_pending() {
            return s.busy();
        }
        let t = cycles();
        let unwatched = self.rx.iter().any(|r| !s.watches(&*r.rx));
        let (rings, commands) = (&mut self.inbound, &mut self.commands);
        let quiet = || rings.iter_mut().all(|r| r.is_empty()) && commands.is_empty();
        s.wait(&self.reader, unwatched, quiet);
        self.slept(t);
    }

    /// Counts a sleep that began at cycle `t`.
    fn slept(&mut self, t: u64) {
        self.ended = cycles();
        self.shared.perf.sleep_iterations.add(1);
        self.shared.perf.sleep_cycles.add(self.ended - t);
    }

    /// Its doorbell.
    pub fn wake(&self) -> Option<Arc<Wake>> {
        self.sleep.as_ref().map(|s| s.wake.clone())
    }
}
