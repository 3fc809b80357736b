//! `other_config:hw-offload`: megaflows of ports with an adapter become rules that mark their
//! packets.
//!
//! This is the wiring: once a second megaflows are sampled, some thousands at a time;
//! [`offload::Port`] decides; threads of their own ([`thread`]) ask adapters; the datapath binds
//! marks to megaflows. Nothing waits for an adapter, and a barrier does not either: marks decide
//! nothing (see `datapath`'s `marks`).

pub mod full;
mod lanes;
pub mod thread;

use crate::state::State;
use crate::vlog;
use action::Op;
use datapath::{Datapath, FlowDump, SampleCursor};
use flow::PortNo;
use full::{Full, Spot, Spots, Waits};
use offload::{
    Binding, Judge, Limits, MarkRequest, Outcome, Port, Reason, Saved, StageTotals, Worth,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use thread::{Done, Reply, TableId, Thread};

const MODULE: &str = "netdev_offload";
/// Megaflows that are looked at in one turn, at most: about a millisecond's work.
const SAMPLE_MEGAFLOWS_MAX: usize = 8192;
/// How often flows are sampled and ports looked at.
const SECOND_MS: u64 = 1000;
/// As in ovs-vswitchd.
const THREADS_MAX: u64 = 10;
/// How often a port's refusals are logged, at most.
const REFUSAL_LOG_MS: u64 = 1000;
/// An adapter that has not answered for this long is named in the log.
const SILENCE_LOG: Duration = Duration::from_secs(5);

/// A port with an adapter.
pub struct OffloadPort {
    /// The port's name.
    pub name: String,
    serial: u64,
    thread: usize,
    /// Its rules that mark.
    pub port: Port,
    /// Its rules that forward; None: it is on no adapter that does.
    pub full: Option<Full>,
    /// Finds out whether the port's marks pay.
    pub judge: Judge,
    /// A request that found no room.
    held: Option<MarkRequest>,
    /// Packets with wrong marks so far, by slot.
    wrong: HashMap<u16, u32>,
    /// Packets that came with the mark of another flow, over all marks of the port.
    pub wrong_packets: u64,
    /// Resets and removals of the adapter, and how many control acted on.
    upsets: Option<(Arc<AtomicU32>, u32)>,
    logged: Logged,
}

/// What was logged of a port.
#[derive(Default)]
struct Logged {
    refusal_ms: u64,
    stats: offload::Stats,
    full: offload::full::ForwardStats,
    silent: bool,
}

/// Everything about offload.
#[derive(Default)]
pub struct Offload {
    /// `hw-offload` is true, and a thread could be started.
    pub enabled: bool,
    /// Threads that ask adapters.
    pub threads: Vec<Thread>,
    /// Ports with an adapter.
    pub ports: BTreeMap<PortNo, OffloadPort>,
    /// Ports that were asked and have no rule table.
    others: BTreeSet<PortNo>,
    serial: u64,
    cursor: SampleCursor,
    sampling: bool,
    second_ms: u64,
    /// Seconds between the last two samples.
    seconds: f32,
    /// Changes that wait until rules are gone.
    pub waits: Waits,
    /// Tables whose rules are ended.
    closing: BTreeSet<TableId>,
    /// What marks save.
    pub saved: Saved,
}

/// Takes over what the database says.
pub fn configure(s: &mut State, other_config: &BTreeMap<String, String>) {
    let on = other_config.get("hw-offload").is_some_and(|v| v == "true");
    if on == s.offload.enabled {
        return;
    }
    if !on {
        vlog::info!(MODULE, "netdev: Flow API Disabled");
        let numbers: Vec<PortNo> = s.offload.ports.keys().copied().collect();
        numbers.into_iter().for_each(|no| close(s, no));
        s.offload.enabled = false;
        s.offload.others.clear();
        return;
    }
    let asked = other_config.get("n-offload-threads");
    let number = asked.map_or(1, |n| n.parse::<u64>().unwrap_or(1));
    let n = match number {
        1..=THREADS_MAX => number as usize,
        wrong => {
            vlog::warn!(MODULE, "netdev: Invalid number of threads requested: {wrong}");
            1
        }
    };
    match asked {
        Some(_) => {
            let plural = if n > 1 { "s" } else { "" };
            vlog::info!(MODULE, "netdev: Flow API Enabled, using {n} thread{plural}");
        }
        None => vlog::info!(MODULE, "netdev: Flow API Enabled"),
    }
    // Those that are there stay, as many as they are.
    for i in s.offload.threads.len()..n {
        match Thread::start(i) {
            Ok(thread) => s.offload.threads.push(thread),
            Err(e) => vlog::err!(MODULE, "cannot start an offload thread: {e}"),
        }
    }
    s.offload.enabled = !s.offload.threads.is_empty();
    look_at_ports(s);
}

/// One turn: answers, some megaflows, and what was decided.
pub fn turn(s: &mut State, now_ms: u64) {
    if s.offload.threads.is_empty() {
        return;
    }
    let mut o = std::mem::take(&mut s.offload);
    o.take_answers(now_ms);
    let threads = &mut o.threads;
    o.ports.iter_mut().for_each(|(no, e)| e.heed_upsets(*no, threads, now_ms));
    for flow in s.dp.take_ended_marks() {
        o.ports.values_mut().for_each(|e| e.port.gone(now_ms, flow));
    }
    o.take_ended(&mut s.dp, now_ms);
    o.judge_marks(&mut s.dp, now_ms);
    let due = now_ms >= o.second_ms + SECOND_MS;
    if due && !o.sampling && o.enabled {
        o.seconds = ((now_ms - o.second_ms) as f32 / 1000.0).clamp(0.1, 10.0);
        (o.second_ms, o.sampling) = (now_ms, true);
    }
    if o.sampling {
        o.sample(s, now_ms);
    }
    o.pass_on(s, now_ms);
    o.drive_full(&mut s.dp, now_ms);
    s.offload = o;
    if due {
        look_at_ports(s);
    }
}

impl OffloadPort {
    /// After a reset the rules are forgotten, and offered again when the adapter answers.
    fn heed_upsets(&mut self, no: PortNo, threads: &mut [Thread], now_ms: u64) {
        let Some((count, heeded)) = &mut self.upsets else { return };
        let now = count.load(Ordering::Acquire);
        if now != *heeded {
            *heeded = now;
            vlog::warn!(
                MODULE,
                "{}: the adapter was reset or removed, its rules are gone",
                self.name
            );
            self.held = None;
            self.port.upset(now_ms);
            if let Some(full) = &mut self.full {
                full.table.doubt();
            }
            // Rules that forward are not, whatever the adapter says of them.
            self.flush(no, threads, now_ms);
        }
    }

    /// True if marks were ignored for at least a part of the last second.
    fn ignores_marks(&self) -> bool {
        self.judge.is_measuring() || !self.judge.marks_count()
    }

    /// As ovs-vswitchd does, once a second at most.
    fn log_refusal(&mut self, now_ms: u64, what: &str, why: &port::RuleError) {
        if now_ms >= self.logged.refusal_ms + REFUSAL_LOG_MS {
            self.logged.refusal_ms = now_ms;
            let (name, kind, message) = (&self.name, why.kind, &why.message);
            vlog::warn!(
                "netdev_offload_dpdk",
                "{name}: rte_flow {what} failed: {kind} ({message})."
            );
        }
    }

    /// What the adapter did since the last second that it was not asked for. `silence`: it owes an
    /// answer since then.
    fn log_changes(&mut self, silence: Duration) {
        let (now, before, name) = (self.port.stats(), &self.logged.stats, &self.name);
        if now.rules.wider > before.rules.wider {
            let n = now.rules.wider - before.rules.wider;
            vlog::warn!(
                MODULE,
                "{name}: packets of other flows came with the marks of {n} rules: withdrawn"
            );
        }
        if now.rules.silent > before.rules.silent {
            let n = now.rules.silent - before.rules.silent;
            vlog::warn!(MODULE, "{name}: no packet came with the marks of {n} rules: withdrawn");
        }
        if let Some(full) = &self.full {
            let (now, before) = (full.table.stats(), &self.logged.full);
            if now.rules.wider > before.rules.wider {
                vlog::warn!(
                    MODULE,
                    "{name}: the adapter matches more than rules ask for: it forwards no such flows"
                );
            }
            if now.rules.silent > before.rules.silent {
                let n = now.rules.silent - before.rules.silent;
                vlog::warn!(MODULE, "{name}: {n} rules forwarded nothing: withdrawn");
            }
            self.logged.full = now.clone();
        }
        let silent = silence >= SILENCE_LOG;
        if silent && !self.logged.silent {
            let s = silence.as_secs();
            vlog::warn!(MODULE, "{name}: the adapter has not answered for {s} s");
        }
        self.logged.stats = now.clone();
        self.logged.silent = silent;
    }
}

/// Whether a port's marks are used, and what was measured of it, for `offload/show` and the log.
pub fn worth_text(judge: &Judge) -> String {
    let what = match judge.worth() {
        Worth::Used => "used",
        Worth::Ignored => "ignored",
        Worth::Withdrawn => "ignored, the rules are withdrawn",
    };
    match judge.measured() {
        Some([with, without]) => {
            format!("{what} ({with:.0} cycles per packet with them, {without:.0} without)")
        }
        None => format!("{what} (not measured yet)"),
    }
}

/// What became of a port's rules, for `offload/show`.
pub fn rule_counts(rules: &offload::RuleStats) -> String {
    let offload::RuleStats { inserted, removed, swaps, stuck, .. } = rules;
    format!("inserted: {inserted}, removed: {removed}, swaps: {swaps}, stuck: {stuck}")
}

/// Appends a line for each error number that rules were refused with, for `offload/show`.
pub fn show_refusals(out: &mut String, indent: &str, rules: &offload::RuleStats) {
    for (errno, n) in &rules.refused {
        let what = std::io::Error::from_raw_os_error(*errno);
        let _ = writeln!(out, "{indent}refused: {n} ({what})");
    }
}

/// Counters of all packet threads.
fn stage_totals(s: &State) -> StageTotals {
    let mut all = StageTotals::default();
    for p in s.dp.pmd_info() {
        all.packets += p.perf.passes;
        all.marked += p.perf.mark_hits;
        all.cycles += p.perf.parse_cycles + p.perf.lookup_cycles;
    }
    all
}

impl Offload {
    fn take_answers(&mut self, now_ms: u64) {
        for thread in &mut self.threads {
            while let Some(Done { table, reply }) = thread.answer() {
                if let Reply::Closed = reply {
                    self.closing.remove(&table);
                    continue;
                }
                let (no, serial) = table;
                if let Some(e) = self.ports.get_mut(&no).filter(|e| e.serial == serial) {
                    e.take_answer(now_ms, reply);
                }
            }
        }
    }

    /// Looks at some megaflows; when all came by, decides.
    fn sample(&mut self, s: &mut State, now_ms: u64) {
        let tunnels = self.tunnels();
        let (ports, seconds) = (&mut self.ports, self.seconds);
        let pps = |packets: u32| packets as f32 / seconds;
        let more = s.dp.sample(&mut self.cursor, SAMPLE_MEGAFLOWS_MAX, &mut |flow, no, packets| {
            if let Some(e) = ports.get_mut(&no) {
                e.port.observe(flow, pps(packets));
                if let Some(f) = &mut e.full {
                    f.table.observe(flow, pps(packets));
                }
            }
            for from in tunnels.get(&no).into_iter().flatten() {
                let full = ports.get_mut(from).and_then(|e| e.full.as_mut());
                if let Some(f) = full.filter(|f| f.brings(no, flow.worker)) {
                    f.table.observe(flow, pps(packets));
                }
            }
        });
        if more {
            return;
        }
        self.sampling = false;
        let spots = self.spots();
        self.saved.second(stage_totals(s));
        let (cycles, _) = self.saved.cycles();
        for (no, e) in &mut self.ports {
            e.decide_full(*no, &s.dp, &spots, now_ms);
            e.port.set_saved_cycles(cycles);
            for mark in e.port.marks() {
                let now = s.dp.wrong_marks(*no, mark.slot());
                let before = e.wrong.insert(mark.slot(), now).unwrap_or(now);
                let wrong = now.wrapping_sub(before);
                e.wrong_packets += u64::from(wrong);
                let some = s.dp.take_marked(*no, mark.slot());
                e.port.compared(now_ms, mark, wrong, some || e.ignores_marks());
            }
            e.log_changes(self.threads[e.thread].silence());
            let (dp, full) = (&s.dp, &e.full);
            e.port.decide(now_ms, &mut |flow| {
                let f = dp.megaflow(flow)?;
                let forwards = full.as_ref().map(|x| x.could(now_ms, &spots, flow, &f));
                let helps = unhelped(&f.2).is_none() && forwards.is_none_or(|f| f.is_err());
                helps.then_some((f.0, f.1))
            });
        }
    }

    /// Measures whether the marks of ports pay, one port at a time.
    fn judge_marks(&mut self, dp: &mut Datapath, now_ms: u64) {
        let mut measuring = self.ports.values().any(|e| e.judge.is_measuring());
        for (no, e) in self.ports.iter_mut().filter(|(_, e)| e.judge.is_due(now_ms)) {
            if measuring && !e.judge.is_measuring() {
                continue;
            }
            let before = e.judge.worth();
            e.judge.advance(now_ms, e.port.marks_used(), dp.port_totals(*no));
            measuring |= e.judge.is_measuring();
            dp.ignore_marks(*no, !e.judge.marks_count());
            e.port.set_worth(e.judge.worth());
            if (before == Worth::Used) != (e.judge.worth() == Worth::Used) {
                vlog::info!(MODULE, "{}: marks are {}", e.name, worth_text(&e.judge));
            }
        }
    }

    /// What was decided reaches adapters and datapath.
    fn pass_on(&mut self, s: &mut State, now_ms: u64) {
        for (no, e) in &mut self.ports {
            while let Some(binding) = e.port.next_binding() {
                match binding {
                    Binding::Bind(flow, mark, bytes) => {
                        if !s.dp.bind_mark(flow, *no, mark, &bytes) {
                            e.port.gone(now_ms, flow);
                        }
                    }
                    Binding::Unbind(flow, mark) => s.dp.unbind_mark(flow, *no, mark),
                }
            }
            let thread = &mut self.threads[e.thread];
            while let Some(request) = e.held.take().or_else(|| e.port.next_request()) {
                e.held = thread.ask((*no, e.serial), request);
                if e.held.is_some() {
                    break;
                }
            }
        }
    }

    /// How long the port's adapter has owed an answer.
    pub fn silence_of(&self, e: &OffloadPort) -> Duration {
        self.threads[e.thread].silence()
    }

    /// Rules in adapters that thread `i` keeps.
    pub fn rules_of(&self, i: usize) -> usize {
        self.ports.values().filter(|e| e.thread == i).map(OffloadPort::rules).sum()
    }

    /// Requests for thread `i` that wait or are under way.
    pub fn waiting_of(&self, i: usize) -> usize {
        let waiting = self.ports.values().filter(|e| e.thread == i).map(|e| e.port.waiting());
        waiting.sum::<usize>() + self.threads[i].under_way
    }

    /// Why a megaflow is in an adapter, or why not.
    pub fn reason(&self, now_ms: u64, f: &FlowDump) -> Reason {
        if !self.enabled {
            return Reason::Disabled;
        }
        let Some(e) = self.entry_of(f) else { return Reason::PortType };
        if let Ok(reason) = self.full_reason(now_ms, e, f) {
            return reason;
        }
        let reason = e.port.reason(now_ms, f.id, &f.key, &f.mask, f.pps as f32);
        match unhelped(&f.ops) {
            Some(what) if reason != Reason::Partial => Reason::Action(what.into()),
            _ => reason,
        }
    }

    /// How the megaflow's rule in an adapter, if it has one, treats its packets.
    pub fn how(&self, f: &FlowDump) -> How {
        let Some(e) = self.entry_of(f) else { return How::Not };
        match &e.full {
            Some(full) if full.table.is_in(f.id) => How::Full,
            _ if e.port.is_in(f.id) => How::Partial,
            _ => How::Not,
        }
    }

    /// Which ports are where on adapters.
    fn spots(&self) -> Spots {
        let all = self.ports.iter();
        all.filter_map(|(no, e)| Some((*no, e.full.as_ref()?.spot))).collect()
    }

    /// Where outer packets come in, by the tunnels' datapath port: ports on adapters that forward.
    fn tunnels(&self) -> BTreeMap<PortNo, Vec<PortNo>> {
        let mut all = BTreeMap::<_, Vec<PortNo>>::new();
        for (no, full) in self.ports.iter().filter_map(|(no, e)| Some((no, e.full.as_ref()?))) {
            full.tunnels().for_each(|tunnel| all.entry(tunnel).or_default().push(*no));
        }
        all
    }
}

impl OffloadPort {
    /// Rules in the adapter.
    pub fn rules(&self) -> usize {
        self.port.rules() + self.full.as_ref().map_or(0, |f| f.table.rules())
    }

    fn take_answer(&mut self, now_ms: u64, reply: Reply) {
        match &reply {
            Reply::Mark(a) => match &a.outcome {
                Outcome::Created(_, Err(why)) => self.log_refusal(now_ms, "creation", why),
                Outcome::Destroyed(_, Err(why)) => self.log_refusal(now_ms, "destruction", why),
                _ => {}
            },
            Reply::Full(offload::full::Outcome::Created(_, Err(why)), ..) => {
                self.log_refusal(now_ms, "creation", why);
            }
            _ => {}
        }
        match reply {
            Reply::Mark(answer) => {
                if let (Outcome::Flushed(result), Some(full)) = (&answer.outcome, &mut self.full) {
                    full.flushed(result);
                }
                self.port.answer(now_ms, answer);
            }
            Reply::Full(outcome, took_us, cpu_us) => {
                let full = self.full.as_mut().expect("it asked");
                if full.table.answer(now_ms, outcome, took_us, cpu_us) {
                    self.port.fall_ill(now_ms);
                }
            }
            Reply::Closed => {}
        }
    }
}

/// What an adapter does for a megaflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// The megaflow has no rule.
    Not,
    /// The adapter marks packets.
    Partial,
    /// The adapter forwards packets.
    Full,
}

/// What a mark does not help with, if the megaflow does that.
fn unhelped(ops: &[Op]) -> Option<&'static str> {
    matches!(ops, [Op::TunnelPop { .. }, ..]).then_some("tnl_pop")
}

/// Ports come and go.
fn look_at_ports(s: &mut State) {
    if !s.offload.enabled {
        return;
    }
    let numbers: BTreeSet<PortNo> = s.dp.ports().collect();
    s.offload.others.retain(|no| numbers.contains(no));
    let gone: Vec<PortNo> =
        s.offload.ports.keys().filter(|no| !s.dp.has_marks(**no)).copied().collect();
    gone.into_iter().for_each(|no| close(s, no));
    for no in numbers {
        if !s.offload.ports.contains_key(&no) {
            open(s, no);
        }
    }
}

fn open(s: &mut State, no: PortNo) {
    let Some(port) = s.dp.port_mut(no) else { return };
    let (name, table) = (port.name().to_string(), port.rule_table());
    let place = table.as_ref().and_then(|t| t.place());
    let upsets = port.adapter_upsets().map(|count| {
        let now = count.load(Ordering::Acquire);
        (count, now)
    });
    let Some(table) = table else {
        if s.offload.others.insert(no) {
            vlog::info!(MODULE, "{name}: No suitable flow API found.");
        }
        return;
    };
    s.offload.others.remove(&no);
    vlog::info!(MODULE, "{name}: Assigned flow API 'dpdk_flow_api'.");
    s.dp.enable_marks(no);
    let o = &mut s.offload;
    o.serial += 1;
    let (serial, thread) = (o.serial, usize::from(no) % o.threads.len());
    o.threads[thread].open((no, serial), table);
    let cycles_per_us = datapath::cycles_per_second() as f32 / 1e6;
    let limits = Limits { cycles_per_us, ..Limits::default() };
    let now_ms = datapath::now_ms();
    let limited = s.dp.is_limited(no);
    let full = place.map(|place| Full::new(Spot { place, limited }, limits, now_ms));
    let port = Port::new(limits, now_ms);
    let (held, wrong) = (None, HashMap::new());
    let logged = Logged::default();
    let entry = OffloadPort {
        name,
        serial,
        thread,
        port,
        full,
        judge: Judge::new(now_ms),
        held,
        wrong,
        wrong_packets: 0,
        upsets,
        logged,
    };
    o.ports.insert(no, entry);
}

/// What the host limits of a port may have changed. If that begins, the port's adapter ends all its
/// rules that forward; those of other ports come back.
pub fn look_at_limits(s: &mut State, no: PortNo) {
    let (limited, now_ms) = (s.dp.is_limited(no), datapath::now_ms());
    let Offload { ports, threads, .. } = &mut s.offload;
    let Some(full) = ports.get_mut(&no).and_then(|e| e.full.as_mut()) else { return };
    let was = std::mem::replace(&mut full.spot.limited, limited);
    if !limited || was {
        return;
    }
    let adapter = full.spot.place.adapter;
    let has = |f: &Full| f.spot.place.adapter == adapter && !f.flushing && !f.table.is_empty();
    for (no, e) in ports.iter_mut().filter(|(_, e)| e.full.as_ref().is_some_and(has)) {
        e.flush(*no, threads, now_ms);
    }
}

/// A port is gone, or is not offloaded any more.
fn close(s: &mut State, no: PortNo) {
    s.dp.disable_marks(no);
    if let Some(mut e) = s.offload.ports.remove(&no) {
        if let Some(full) = &mut e.full {
            full.forget(&mut s.dp);
        }
        // What they forward they forward until then.
        s.offload.closing.insert((no, e.serial));
        s.offload.threads[e.thread].close((no, e.serial));
    }
}
