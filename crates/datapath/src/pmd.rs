//! A worker: one thread's queues, table and exits, and its loop.

use crate::batch::Vector;
use crate::lookup::prefetch;
use crate::messages::{Command, Handoff, Report, RxSlot, Shared, Wake};
use crate::rx::kernel_wait::Sleep;
use crate::rx::schedule::{self as share, Appetite, Share};
use crate::settings::Settings;
use crate::stats::clock::{cycles, cycles_per_second, now_ms};
use crate::stats::perf::{Iteration, Recorder};
use crate::stats::stage_clock::Spent;
use crate::tx::Exits;
use packet::{BURST, VECTOR};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use sync::{Consumer, Reader};
use telemetry::Drop;

/// How often subtables are ranked and the cache is judged.
const TUNE_MS: u64 = 100;

/// So many queues ahead is fetched what tells where their packets are, and the packets themselves.
const FAR: usize = 4;
const NEAR: usize = 2;

/// How often control hears of lookups.
const TELL_MS: u64 = 1000;

/// One thread of the packet side. Stepped by its thread, or by hand in tests.
pub(crate) struct Worker {
    pub vector: Vector,
    pub exits: Exits,
    #[allow(clippy::vec_box)] // they travel as boxes
    rx: Vec<Box<RxSlot>>,
    /// Of each queue; side by side, as all are looked at for every vector.
    appetites: Vec<Appetite>,
    /// Queues that brought packets to the current vector, and how many, in order.
    brought: Vec<(usize, usize)>,
    /// Queues that have brought packets since all were notified.
    untold: Vec<usize>,
    /// Which queue is asked first.
    turn: usize,
    /// Queues that are asked for packets of this vector, in order.
    asking: Vec<usize>,
    inbound: Vec<Consumer<Handoff>>,
    commands: Consumer<Command>,
    settings: Settings,
    shared: Arc<Shared>,
    reader: Reader,
    /// Some: serves kernel ports and sleeps in the kernel.
    sleep: Option<Sleep>,
    stopping: bool,
    next_tick: u64,
    tick: u64,
    tuned_ms: u64,
    told_ms: u64,
    /// Next sleep of an idle PMD thread, microseconds.
    nap_us: u64,
    recorder: Recorder,
    spent: Spent,
    /// When the last loop ended, or what came after it; cycles.
    ended: u64,
}

impl Worker {
    pub fn new(
        vector: Vector,
        exits: Exits,
        commands: Consumer<Command>,
        shared: Arc<Shared>,
        reader: Reader,
        sleep: Option<Sleep>,
    ) -> Self {
        reader.offline();
        Worker {
            vector,
            exits,
            rx: Vec::new(),
            appetites: Vec::new(),
            brought: Vec::new(),
            untold: Vec::new(),
            turn: 0,
            asking: Vec::new(),
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
            told_ms: 0,
            nap_us: 0,
            recorder: Recorder::default(),
            spent: Spent::default(),
            ended: 0,
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
                None => self.nap(n),
            }
        }
        self.reader.offline();
    }

    /// One loop, some time after the one before.
    pub fn step(&mut self) -> usize {
        self.ended = cycles();
        self.iterate()
    }

    /// One loop: rx, parse, lookup, act, tx. Returns how many packets it moved. It begins when the one before ended: the
    /// clock is looked at as seldom as possible, as it costs as much as a packet's step.
    fn iterate(&mut self) -> usize {
        let t0 = self.ended;
        if t0 >= self.next_tick {
            self.housekeeping(t0);
        }
        self.obey();
        let misses = (self.shared.perf.misses.get(), self.shared.perf.miss_cycles.get());
        let handed = self.take_inbound();
        let n = self.receive();
        if n > 0 {
            let measured = self.spent.measures(n);
            let t1 = measured.then(cycles);
            self.vector.drop_failed(&mut self.exits);
            self.vector.credit_terminators(self.exits.now_ms);
            self.vector.lookup(self.exits.now_ms);
            let t2 = measured.then(cycles);
            self.vector.act(&mut self.exits);
            self.exits.flush_due(n, t2.unwrap_or(t0));
            self.notify();
            self.ended = cycles();
            let stages = self.spent.divide(t0, t1.zip(t2), self.ended);
            self.account(n, self.ended - t0, stages);
        } else {
            self.ended = cycles();
            self.exits.flush_due(0, self.ended);
            self.notify();
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

    /// Notes what the iteration was like that began at cycle `t0`, when there had been so many misses and cycles
    /// of them.
    #[cold]
    fn record(&mut self, n: usize, t0: u64, misses: (u64, u64)) {
        let perf = &self.shared.perf;
        let cycles = self.ended - t0;
        let fresh: usize = self.brought.iter().map(|(_, n)| n).sum();
        let bursts = |n: usize| n.div_ceil(BURST);
        let one = Iteration {
            stamp: perf.iterations.get(),
            iterations: 1,
            cycles,
            busy_cycles: if n > 0 { cycles } else { 0 },
            packets: fresh as u64,
            bursts: self.brought.iter().map(|(_, n)| bursts(*n) as u64).sum(),
            misses: perf.misses.get() - misses.0,
            miss_cycles: perf.miss_cycles.get() - misses.1,
        };
        let fill = |n: usize| (0..bursts(n)).map(move |i| (n - i * BURST).min(BURST) as u64);
        let all = self.brought.iter().flat_map(|(_, n)| fill(*n));
        if let Some(one) = self.recorder.record(&self.shared.metrics, &one, all) {
            self.vector.report(Report::Suspicious(Box::new(one)));
        }
    }

    /// Step 1: packets that wait, then every queue in turn.
    fn receive(&mut self) -> usize {
        let waiting = self.vector.begin(&mut self.exits);
        let share = Share::new(&self.appetites);
        self.choose(&share);
        self.brought.clear();
        let mut fresh = 0;
        (0..FAR).for_each(|k| self.prepare(k, 0));
        (0..NEAR).for_each(|k| self.prepare(k, 1));
        for k in 0..self.asking.len() {
            let limit = share.limit.min(VECTOR - self.vector.len());
            if limit == 0 {
                self.turn = self.asking[k];
                self.asking[k..].iter().for_each(|q| self.appetites[*q].passed_over());
                break;
            }
            self.prepare(k + FAR, 0);
            self.prepare(k + NEAR, 1);
            fresh += self.ask(self.asking[k], limit);
        }
        let perf = &self.shared.perf;
        perf.rx_packets.add(fresh as u64);
        perf.recirculated.add(waiting as u64);
        waiting + fresh
    }

    /// Which queues are asked for packets, in which order.
    fn choose(&mut self, share: &Share) {
        let queues = self.rx.len();
        if queues == 0 {
            return self.asking.clear();
        }
        let turn = if self.turn < queues { self.turn } else { 0 };
        self.turn = turn + 1;
        match &mut self.sleep {
            Some(s) => {
                s.look();
                self.asking.clear();
                let all = (0..queues).map(|k| (turn + k) % queues);
                self.asking.extend(all.filter(|q| s.is_ready(&*self.rx[*q].rx)));
            }
            None => share::choose(&mut self.appetites, share, turn, &mut self.asking),
        }
    }

    /// Lets the `k`-th queue that is asked fetch what it will read.
    #[inline]
    fn prepare(&mut self, k: usize, step: usize) {
        if let Some(q) = self.asking.get(k) {
            self.rx[*q].rx.prepare(step);
        }
        if let Some(q) = self.asking.get(k + FAR) {
            prefetch(&*self.rx[*q]);
        }
    }

    /// Takes up to `limit` packets from queue `q`, and counts them; how many, with those that are more than it may bring.
    fn ask(&mut self, q: usize, limit: usize) -> usize {
        let slot = &mut self.rx[q];
        let police = slot.police.as_deref();
        let (n, bytes) = self.vector.receive(&mut *slot.rx, slot.port, limit, police);
        self.appetites[q].asked(limit, n);
        if let (Some(s), true) = (&mut self.sleep, n < limit) {
            s.drained(&*slot.rx);
        }
        if n > 0 {
            slot.stats.rx_packets.add(n as u64);
            slot.stats.rx_bytes.add(bytes);
            slot.cell.packets.add(n as u64);
            if police.is_some() {
                let refused = self.vector.take_refused(&mut self.exits);
                slot.stats.lost(Drop::Policed, refused);
            }
            self.brought.push((q, n));
            if slot.rx.notifies() {
                self.untold.push(q);
            }
        }
        n
    }

    /// Lets queues tell the other side of what was received.
    fn notify(&mut self) {
        if self.untold.is_empty() {
            return;
        }
        let all = self.exits.notify_all;
        fence(Ordering::SeqCst);
        self.untold.iter().for_each(|q| self.rx[*q].rx.notify(all));
        if all {
            self.untold.clear();
        }
    }

    /// Packets other workers want sent here.
    fn take_inbound(&mut self) -> usize {
        let mut n = 0;
        for ring in &mut self.inbound {
            for _ in 0..VECTOR {
                let Some((port, packet)) = ring.pop() else { break };
                self.exits.send(port, packet);
                n += 1;
            }
        }
        n
    }

    /// Counts an iteration with `n` packets: its cycles, and those of receiving and parsing, of lookup, and of the rest.
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
        let tally = self.vector.table.take_tally();
        perf.cache_hits.add(tally.cache_hits);
        perf.flow_hits.add(tally.flow_hits);
        perf.subtable_lookups.add(tally.visits);
        // What the vector cost is charged to the queues that filled it, but for what the other sides of ports made it
        // cost: their own queues owe that.
        let all = all.saturating_sub(port::take_lost());
        if let [(q, _)] = self.brought[..] {
            return self.rx[q].cell.cycles.add(all);
        }
        let fresh: u64 = self.brought.iter().map(|(_, n)| *n as u64).sum();
        let share = all.checked_div(fresh).unwrap_or(0);
        for (q, n) in &self.brought {
            self.rx[*q].cell.cycles.add(share * *n as u64);
        }
    }

    /// Once per millisecond.
    fn housekeeping(&mut self, now: u64) {
        self.next_tick = now + self.tick;
        self.exits.now_ms = now_ms();
        self.vector.catch_up();
        self.vector.take_limit();
        if self.exits.now_ms >= self.tuned_ms + TUNE_MS {
            self.tuned_ms = self.exits.now_ms;
            self.vector.table.tune(self.settings.signature_cache);
            self.rx.iter_mut().for_each(|slot| slot.cell.cycles.add(slot.rx.owed()));
            if self.exits.now_ms >= self.told_ms + TELL_MS {
                self.told_ms = self.exits.now_ms;
                self.vector.tell_lookups();
            }
        }
        let table = &self.vector.table;
        self.shared.flows.store(table.live, Ordering::Relaxed);
        self.shared.masks.store(table.masks() as u32, Ordering::Relaxed);
        self.shared.cache_on.store(table.cache_on, Ordering::Relaxed);
        self.inbound.retain_mut(|r| !r.is_abandoned() || !r.is_empty());
    }

    /// Executes control's commands.
    fn obey(&mut self) {
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
            Command::AddPort(no, stats) => self.exits.add_port(no, stats),
            Command::DelPort(no) => {
                let queue = self.exits.del_port(no);
                self.give_back(no, queue);
            }
            Command::SetRoute(no, route) => {
                let queue = self.exits.set_route(no, route);
                self.give_back(no, queue);
            }
            Command::Limit(no, bytes) => self.exits.set_limit(no, bytes),
            Command::Police(port, police) => {
                let slots = self.rx.iter_mut().filter(|slot| slot.port == port);
                slots.for_each(|slot| slot.police = police.clone());
            }
            Command::AddRx(slot) => {
                if let (Some(s), Some(fd)) = (&mut self.sleep, slot.rx.fd()) {
                    s.watch(fd);
                }
                self.rx.push(slot);
                self.appetites.push(Appetite::default());
            }
            Command::DelRx(port, queue) => self.return_rx(port, queue),
            Command::Settings(s) => {
                self.exits.configure(&s);
                if self.sleep.is_some() {
                    self.exits.hold_nothing();
                }
                self.vector.configure(&s);
                self.vector.table.tune(s.signature_cache);
                (self.recorder.on, self.recorder.log) = (s.perf_metrics, s.perf_log);
                self.settings = *s;
            }
            Command::Unlink(rules) => self.vector.unlink(rules),
            Command::Release(rules) => rules.iter().for_each(|i| self.vector.table.release(*i)),
            Command::Execute(e) => self.vector.inject(&e, &mut self.exits),
            Command::AddPeer(slot, ring, wake) => self.exits.add_peer(slot, ring, wake),
            Command::DelPeer(slot) => self.exits.del_peer(slot),
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
            self.untold.drain(..).for_each(|q| self.rx[q].rx.notify(true));
            self.brought.clear();
            let slot = self.rx.remove(i);
            self.appetites.remove(i);
            if let (Some(s), Some(fd)) = (&mut self.sleep, slot.rx.fd()) {
                s.forget(fd);
            }
            self.vector.report(Report::RxBack(slot));
        }
    }

    /// Lets go of every packet and tells what is left to tell (as far as there is room).
    fn stop(&mut self) {
        while self.take_inbound() > 0 {}
        self.vector.shut_down(&mut self.exits);
        self.exits.shut_down();
        self.vector.catch_up();
        self.stopping = true;
    }

    /// After the thread ended: what could not be told before; call until true.
    pub fn drained(&mut self) -> bool {
        self.vector.catch_up();
        self.vector.told()
    }

    /// A PMD thread's rest when little is to do: one microsecond longer each time.
    fn nap(&mut self, n: usize) {
        let max = self.settings.pmd_sleep_max_us;
        if max == 0 || n >= BURST / 2 || self.vector.carries() {
            self.nap_us = 0;
        }
        if n > 0 {
            return;
        }
        if max == 0 || self.vector.carries() {
            return std::hint::spin_loop();
        }
        self.nap_us = (self.nap_us + 1).min(max);
        let t = cycles();
        self.reader.offline();
        std::thread::sleep(std::time::Duration::from_micros(self.nap_us));
        self.reader.online();
        self.slept(t);
    }

    /// The kernel worker's rest: see `kernel.rs`.
    fn sleep_in_kernel(&mut self, n: usize) {
        let Some(s) = &mut self.sleep else { return };
        let news = std::mem::take(&mut self.vector.news) | std::mem::take(&mut self.exits.news);
        if let Some(bell) = &self.shared.bell {
            if news {
                bell.wake();
            }
            bell.answer();
        }
        if n > 0 || self.vector.carries() || self.exits.waits() {
            return s.busy();
        }
        let t = cycles();
        let unwatched = self.rx.iter().any(|r| !s.watches(&*r.rx));
        let (rings, commands) = (&mut self.inbound, &mut self.commands);
        let quiet = || rings.iter_mut().all(|r| r.is_empty()) && commands.is_empty();
        s.rest(&self.reader, unwatched, quiet);
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
