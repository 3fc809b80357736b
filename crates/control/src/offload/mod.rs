//! `other_config:hw-offload`: megaflows of ports with an adapter become rules that mark their packets.
//!
//! This is the wiring: once a second megaflows are sampled, some thousands at a time; [`offload::Port`] decides;
//! threads of their own ([`thread`]) ask adapters; the datapath binds marks to megaflows. Nothing waits for an adapter,
//! and a barrier does not either: marks decide nothing (see `datapath`'s `marks`).

pub mod thread;

use crate::state::State;
use crate::vlog;
use action::Op;
use datapath::{FlowDump, SampleCursor};
use flow::PortNo;
use offload::{Binding, Limits, Outcome, Port, Reason, Request};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use thread::Thread;

const MODULE: &str = "netdev_offload";
/// Megaflows that are looked at in one turn, at most: about a millisecond's work.
const SAMPLE_MEGAFLOWS_MAX: usize = 8192;
/// How often flows are sampled and ports looked at.
const SECOND_MS: u64 = 1000;
/// As in ovs-vswitchd.
const THREADS_MAX: u64 = 10;
/// A port's refusals are logged so often at most.
const REFUSAL_LOG_MS: u64 = 1000;

/// A port with an adapter.
pub struct Entry {
    /// The port's name.
    pub name: String,
    serial: u64,
    thread: usize,
    /// Its rules.
    pub port: Port,
    /// A request that found no room.
    held: Option<Request>,
    /// Packets with wrong marks so far, by slot.
    wrong: HashMap<u16, u32>,
    logged_ms: u64,
}

/// Everything about offload.
#[derive(Default)]
pub struct Offload {
    /// `hw-offload` is true, and a thread could be started.
    pub enabled: bool,
    /// Those that ask adapters.
    pub threads: Vec<Thread>,
    /// Ports with an adapter.
    pub ports: BTreeMap<PortNo, Entry>,
    /// Ports that were asked and have no rule table.
    others: BTreeSet<PortNo>,
    serial: u64,
    cursor: SampleCursor,
    sampling: bool,
    second_ms: u64,
    /// Seconds between the last two samples.
    seconds: f32,
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
    if !s.offload.enabled {
        return;
    }
    let mut o = std::mem::take(&mut s.offload);
    o.take_answers(now_ms);
    for flow in s.dp.take_ended_marks() {
        o.ports.values_mut().for_each(|e| e.port.gone(now_ms, flow));
    }
    let due = now_ms >= o.second_ms + SECOND_MS;
    if due && !o.sampling {
        o.seconds = ((now_ms - o.second_ms) as f32 / 1000.0).clamp(0.1, 10.0);
        (o.second_ms, o.sampling) = (now_ms, true);
    }
    if o.sampling {
        o.sample(s, now_ms);
    }
    o.pass_on(s, now_ms);
    s.offload = o;
    if due {
        look_at_ports(s);
    }
}

impl Offload {
    fn take_answers(&mut self, now_ms: u64) {
        for thread in &mut self.threads {
            while let Some(done) = thread.answer() {
                let (no, serial) = done.table;
                let Some(e) = self.ports.get_mut(&no).filter(|e| e.serial == serial) else {
                    continue;
                };
                if let Outcome::Created(_, Err(why)) = &done.answer.outcome
                    && now_ms >= e.logged_ms + REFUSAL_LOG_MS
                {
                    e.logged_ms = now_ms;
                    vlog::warn!(
                        "netdev_offload_dpdk",
                        "{}: rte_flow creation failed: {} ({}).",
                        e.name,
                        why.kind,
                        why.message
                    );
                }
                e.port.answer(now_ms, done.answer);
            }
        }
    }

    /// Looks at some megaflows; when all came by, decides.
    fn sample(&mut self, s: &mut State, now_ms: u64) {
        let (ports, seconds) = (&mut self.ports, self.seconds);
        let more = s.dp.sample(&mut self.cursor, SAMPLE_MEGAFLOWS_MAX, &mut |flow, no, packets| {
            if let Some(e) = ports.get_mut(&no) {
                e.port.observe(flow, packets as f32 / seconds);
            }
        });
        if more {
            return;
        }
        self.sampling = false;
        for (no, e) in &mut self.ports {
            for mark in e.port.marks() {
                let now = s.dp.wrong_marks(*no, mark.slot());
                let before = e.wrong.insert(mark.slot(), now).unwrap_or(now);
                e.port.compared(now_ms, mark, now.wrapping_sub(before));
            }
            let dp = &s.dp;
            e.port.decide(now_ms, &mut |flow| {
                let (key, mask, ops) = dp.megaflow(flow)?;
                unhelped(&ops).is_none().then_some((key, mask))
            });
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

    /// Rules in adapters that thread `i` keeps.
    pub fn rules_of(&self, i: usize) -> usize {
        self.ports.values().filter(|e| e.thread == i).map(|e| e.port.rules()).sum()
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
        let Some(e) = self.ports.get(&f.key.u16(flow::at::IN_PORT)) else {
            return Reason::PortType;
        };
        let reason = e.port.reason(now_ms, f.id, &f.key, &f.mask, f.pps as f32);
        match unhelped(&f.ops) {
            Some(what) if reason != Reason::Partial => Reason::Action(what.into()),
            _ => reason,
        }
    }

    /// Is the megaflow's rule in an adapter?
    pub fn is_in(&self, f: &FlowDump) -> bool {
        let e = self.ports.get(&f.key.u16(flow::at::IN_PORT));
        e.is_some_and(|e| e.port.is_in(f.id))
    }
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
    let port = Port::new(limits, datapath::now_ms());
    let (held, wrong) = (None, HashMap::new());
    let entry = Entry { name, serial, thread, port, held, wrong, logged_ms: 0 };
    o.ports.insert(no, entry);
}

/// A port is gone, or is not offloaded any more.
fn close(s: &mut State, no: PortNo) {
    s.dp.disable_marks(no);
    if let Some(e) = s.offload.ports.remove(&no) {
        s.offload.threads[e.thread].close((no, e.serial));
    }
}
