//! Rules that forward: the host does not see their packets. What they did is counted as their
//! megaflows', and a change of tables is complete only when the rules that it ends are gone.

use super::{Offload, OffloadPort, rule_counts, show_refusals};
use crate::vlog;
use action::Op;
use datapath::{Datapath, FlowDump, PortStats, WatchId};
use flow::{Key, Mask, PortNo, at};
use offload::full::{self, ForwardTable, Id, Outer, Plan, Step, join, plan};
use offload::{FlowId, Limits, Reason};
use port::{AdapterPort, Fate, RuleError};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;
use std::sync::Arc;

const MODULE: &str = "netdev_offload";
/// A change that would wait longer for single rules ends all rules of the adapter at once.
const VALVE_MS: u64 = 50;
/// How long a change waits for adapters at most; then it counts as complete, and the log says so.
const WAIT_MS_MAX: u64 = 2000;
/// Milliseconds that idle timeouts wait, at most, for an adapter that does not say what its rules
/// had.
const SILENCE_MS_MAX: u64 = 10_000;
/// Megaflows that take off the same tunnel's outer headers and are joined with those of the inner
/// packets, by port: the first that were found, the busiest among them.
const OUTERS_MAX: usize = 16;

/// Where a port is on an adapter.
#[derive(Clone, Copy)]
pub struct Spot {
    /// The adapter, and the port's place on it.
    pub place: AdapterPort,
    /// The host limits what the port brings or is sent: no adapter forwards such packets.
    pub limited: bool,
}

/// Which ports are where on adapters.
pub type Spots = BTreeMap<PortNo, Spot>;
/// What a megaflow is: key, mask, operations.
pub type Flow = (Key, Mask, Arc<[Op]>);

/// A port's rules that forward.
pub struct Full {
    /// Where the port is on its adapter.
    pub spot: Spot,
    /// The rules that the adapter has, and those that it should have.
    pub table: ForwardTable,
    /// Megaflows of the port that take outer headers off, by the datapath port where the inner
    /// packets come in.
    outers: BTreeMap<PortNo, Vec<Outer>>,
    /// The megaflows of a rule; true: its packets are theirs.
    watches: HashMap<Id, Vec<(WatchId, bool)>>,
    /// All rules are being ended at once.
    pub flushing: bool,
}

/// Changes of tables that wait for adapters.
#[derive(Default)]
pub struct Waits {
    now: Option<Wait>,
    /// Number of packets that waited.
    n: u64,
    /// The longest, milliseconds.
    longest_ms: u64,
    /// Changes of tables that were reported complete after the longest wait, before the adapter had
    /// ended the old rules.
    pub overdue: u64,
    /// Times that all rules of an adapter were ended for a change.
    valves: u64,
}

struct Wait {
    since_ms: u64,
    /// How many changes of tables wait together, at least 1.
    changes: usize,
    /// Rules up to this number, by port.
    rules: BTreeMap<PortNo, u64>,
    tables: BTreeSet<super::TableId>,
}

impl Waits {
    /// The text of `offload/show`.
    pub fn text(&self) -> String {
        format!(
            "changes that waited for rules to go: {}, the longest {} ms (at most {WAIT_MS_MAX}), all rules ended {} times, overdue {}\n",
            self.n, self.longest_ms, self.valves, self.overdue
        )
    }
}

impl Full {
    /// An adapter without rules.
    pub fn new(spot: Spot, limits: Limits, now_ms: u64) -> Full {
        let table = ForwardTable::new(limits, now_ms);
        let (outers, watches) = (BTreeMap::new(), HashMap::new());
        Full { spot, table, outers, watches, flushing: false }
    }

    /// Ok if the adapter could forward the megaflow's packets; else the reason why it could not.
    pub fn could(&self, now_ms: u64, spots: &Spots, id: FlowId, f: &Flow) -> Result<(), Reason> {
        let mut why = Reason::NotFirstPass;
        for plan in plans(self.spot, &self.outers, spots, id, f) {
            match plan.and_then(|p| self.table.takes(now_ms, &p.rule)) {
                Ok(()) => return Ok(()),
                Err(e) => why = e,
            }
        }
        Err(why)
    }

    /// Forgets outer megaflows that are not what they were. `no`: the port.
    fn look_at_outers(&mut self, no: PortNo, dp: &Datapath) {
        self.outers.retain(|tunnel, all| {
            all.retain(|o| still(dp, no, *tunnel, o));
            !all.is_empty()
        });
    }

    /// Tunnels' datapath ports whose packets come in here.
    pub fn tunnels(&self) -> impl Iterator<Item = PortNo> {
        self.outers.keys().copied()
    }

    /// True if inner packets of this worker's megaflow, which come in on the tunnel's port, may
    /// have come in on this adapter.
    pub fn brings(&self, tunnel: PortNo, worker: u32) -> bool {
        self.outers.get(&tunnel).is_some_and(|all| all.iter().any(|o| o.id.worker == worker))
    }

    /// The adapter was asked to end all rules. If it does not, it is asked again every second.
    pub fn flushed(&mut self, result: &Result<(), RuleError>) {
        let gone = |e: &RuleError| [libc::ENODEV, libc::ENOSYS].contains(&e.errno);
        if result.as_ref().err().is_none_or(gone) {
            self.table.flushed();
            self.flushing = false;
        }
    }

    /// Nothing will be heard of its rules any more.
    pub fn forget(&mut self, dp: &mut Datapath) {
        let all = self.watches.drain().flat_map(|(_, list)| list);
        all.for_each(|(watch, _)| dp.unwatch(watch));
    }

    /// Appends the text of `offload/show`.
    pub fn show(&self, out: &mut String) {
        let (t, stats) = (&self.table, self.table.stats());
        let room = t.capacity().map_or("unknown".into(), |n| n.to_string());
        let _ = writeln!(
            out,
            "  rules that forward: {} (room: {room}, requests waiting: {}), worth it from {:.0} packets/s on",
            t.rules(),
            t.waiting(),
            t.enter_pps()
        );
        let (rules, packets, back) = (rule_counts(&stats.rules), stats.packets, stats.went_back);
        let _ = writeln!(out, "    {rules}, packets: {packets}, counters that went back: {back}");
        let _ = writeln!(
            out,
            "    found out: {} shapes of rules that match more than is asked for, {} rules that forward nothing",
            stats.rules.wider, stats.rules.silent
        );
        show_refusals(out, "    ", &stats.rules);
    }

    /// What the datapath is to do, of the port with this number.
    fn steps(&mut self, no: PortNo, to: &HashMap<u16, PortNo>, dp: &mut Datapath, now_ms: u64) {
        while let Some(step) = self.table.next_step() {
            match step {
                Step::Watch { id, flow, outer_bytes, counts } => {
                    match dp.watch(flow, outer_bytes) {
                        Some(w) => self.watches.entry(id).or_default().push((w, counts)),
                        None => self.table.gone(now_ms, flow),
                    }
                }
                Step::Unwatch(id) => {
                    let list = self.watches.remove(&id).unwrap_or_default();
                    list.into_iter().for_each(|(w, _)| dp.unwatch(w));
                }
                Step::Credit { id, more, sent_bytes, fate } => {
                    for (w, counts) in self.watches.get(&id).into_iter().flatten() {
                        let (packets, bytes) =
                            if *counts { (more.packets, more.bytes) } else { (0, 0) };
                        dp.credit_watch(*w, packets, bytes, now_ms);
                    }
                    let mut rx = PortStats {
                        rx_packets: more.packets,
                        rx_bytes: more.bytes,
                        ..PortStats::default()
                    };
                    match fate {
                        Fate::Port(port) => {
                            let tx = PortStats {
                                tx_packets: more.packets,
                                tx_bytes: sent_bytes,
                                ..PortStats::default()
                            };
                            // A port that went takes its counters along.
                            to.get(&port).inspect(|no| dp.credit_port(**no, &tx));
                        }
                        Fate::Drop => rx.drops[telemetry::Drop::Policy as usize] = more.packets,
                        // Those are counted when the host has them.
                        Fate::Host => continue,
                    }
                    dp.credit_port(no, &rx);
                }
            }
        }
    }
}

/// The rules that a megaflow could be on an adapter, or why it could not: one for each megaflow
/// that may have taken its packets' outer headers off.
fn plans(
    own: Spot,
    outers: &BTreeMap<PortNo, Vec<Outer>>,
    spots: &Spots,
    id: FlowId,
    (key, mask, ops): &Flow,
) -> Vec<Result<Plan, Reason>> {
    if own.limited {
        return vec![Err(Reason::Limited)];
    }
    let to = |no: PortNo| match spots.get(&no) {
        Some(to) if to.place.adapter != own.place.adapter => Err(Reason::OtherAdapter),
        Some(Spot { limited: true, .. }) => Err(Reason::Limited),
        Some(to) => Ok(to.place.port),
        None => Err(Reason::OtherAdapter),
    };
    let flow = full::Flow { key, mask, ops };
    match outers.get(&key.u16(at::IN_PORT)) {
        None => vec![plan(&flow, &to)],
        Some(outers) => {
            let own = outers.iter().filter(|o| o.id.worker == id.worker);
            own.map(|o| join(o, &flow, &to)).collect()
        }
    }
}

/// What is still so.
fn still(dp: &Datapath, no: PortNo, tunnel: PortNo, outer: &Outer) -> bool {
    dp.megaflow(outer.id).is_some_and(|(key, mask, ops)| {
        let same = key == outer.key && mask == outer.mask && key.u16(at::IN_PORT) == no;
        same && Outer::new(outer.id, &key, &mask, &ops).is_some_and(|(port, _)| port == tunnel)
    })
}

impl OffloadPort {
    /// The second ends: which flows the adapter is to forward.
    pub(super) fn decide_full(&mut self, no: PortNo, dp: &Datapath, spots: &Spots, now_ms: u64) {
        let Some(full) = self.full.as_mut().filter(|_| !self.port.is_down()) else { return };
        full.look_at_outers(no, dp);
        let Full { table, outers, spot, .. } = full;
        table.decide(now_ms, &mut |id| {
            let Some(f) = dp.megaflow(id) else { return Vec::new() };
            if let Some((tunnel, outer)) = Outer::new(id, &f.0, &f.1, &f.2) {
                let all = outers.entry(tunnel).or_default();
                if all.len() < OUTERS_MAX && all.iter().all(|o| o.id != id) {
                    all.push(outer);
                }
            }
            plans(*spot, outers, spots, id, &f).into_iter().flatten().collect()
        });
    }

    /// All its rules end, by one call.
    pub(super) fn flush(&mut self, no: PortNo, threads: &mut [super::Thread], now_ms: u64) {
        let Some(full) = &mut self.full else { return };
        full.table.leave_all(now_ms);
        full.flushing = true;
        self.held = None;
        self.port.fall_ill(now_ms);
        threads[self.thread].flush((no, self.serial));
    }
}

impl Offload {
    /// Megaflows with rules that forward which ended, and those that came in their places.
    pub(super) fn take_ended(&mut self, dp: &mut Datapath, now_ms: u64) {
        for flow in dp.take_ended_watches() {
            let all = self.ports.values_mut().filter_map(|e| e.full.as_mut());
            all.for_each(|f| f.table.gone(now_ms, flow));
        }
        let expects = |e: &OffloadPort| e.full.as_ref().is_some_and(|f| f.table.expects());
        let came = dp.take_new_megaflows(self.ports.values().any(expects));
        if came.is_empty() {
            return;
        }
        for (no, e) in &mut self.ports {
            if let Some(f) = &mut e.full {
                f.look_at_outers(*no, dp);
            }
        }
        let spots = self.spots();
        for (id, f) in came.into_iter().filter_map(|id| Some((id, dp.megaflow(id)?))) {
            let no = f.0.u16(at::IN_PORT);
            for (own, e) in self.ports.iter_mut().filter(|(_, e)| !e.port.is_down()) {
                let Some(full) = e.full.as_mut() else { continue };
                if (*own == no || full.brings(no, id.worker)) && full.table.expects() {
                    let all = plans(full.spot, &full.outers, &spots, id, &f);
                    all.into_iter().flatten().for_each(|p| full.table.follow(now_ms, id, p));
                }
            }
        }
    }

    /// What was decided about rules that forward reaches datapath and adapters.
    pub(super) fn drive_full(&mut self, dp: &mut Datapath, now_ms: u64) {
        let to = self.spots().iter().map(|(no, s)| (s.place.port, *no)).collect();
        let mut known = None;
        for (no, e) in &mut self.ports {
            let down = e.port.is_down();
            if e.full.as_ref().is_some_and(|f| down && !f.flushing && !f.table.is_empty()) {
                e.flush(*no, &mut self.threads, now_ms);
            }
            let Some(full) = &mut e.full else { continue };
            full.table.count(now_ms);
            full.steps(*no, &to, dp, now_ms);
            let thread = &mut self.threads[e.thread];
            while thread.has_room()
                && let Some(request) = full.table.next_request()
            {
                thread.ask_full((*no, e.serial), request);
            }
            if !full.table.is_empty() {
                let at = full.table.counted_ms().max(now_ms.saturating_sub(SILENCE_MS_MAX));
                known = Some(known.map_or(at, |k: u64| k.min(at)));
            }
        }
        dp.set_hardware_credited(known);
    }

    /// How many of the `done` changes of tables, complete for packets that the host forwards, are
    /// complete for packets that adapters forward, too.
    pub fn pass(&mut self, dp: &mut Datapath, now_ms: u64, done: usize) -> usize {
        if done == 0 || (self.ports.is_empty() && self.closing.is_empty()) {
            return done;
        }
        self.take_answers(now_ms);
        if self.waits.now.is_none() {
            self.take_ended(dp, now_ms);
            let Some(wait) = self.begin_wait(now_ms, done) else { return done };
            self.waits.now = Some(wait);
            self.waits.n += 1;
        }
        self.drive_full(dp, now_ms);
        let wait = self.waits.now.as_ref().expect("one began");
        let (changes, waited_ms) = (wait.changes, now_ms.saturating_sub(wait.since_ms));
        let overdue = waited_ms > WAIT_MS_MAX;
        let gone = self.is_over(wait);
        if !gone && !overdue {
            self.open_valves(now_ms, waited_ms);
            return 0;
        }
        self.waits.longest_ms = self.waits.longest_ms.max(waited_ms);
        self.waits.now = None;
        if !gone {
            self.waits.overdue += 1;
            vlog::err!(
                MODULE,
                "an adapter has not ended its rules for {waited_ms} ms: it may still forward by old ones"
            );
        }
        changes
    }

    fn begin_wait(&self, now_ms: u64, changes: usize) -> Option<Wait> {
        let leaving = |(no, e): (&PortNo, &OffloadPort)| {
            let (last, first) = e.full.as_ref()?.table.leaving();
            first.map(|_| (*no, last))
        };
        let rules: BTreeMap<PortNo, u64> = self.ports.iter().filter_map(leaving).collect();
        let tables = self.closing.clone();
        let any = !rules.is_empty() || !tables.is_empty();
        any.then_some(Wait { since_ms: now_ms, changes, rules, tables })
    }

    fn is_over(&self, wait: &Wait) -> bool {
        let is_gone = |(no, last): (&PortNo, &u64)| {
            let full = self.ports.get(no).and_then(|e| e.full.as_ref());
            let first = full.and_then(|f| f.table.leaving().1);
            first.is_none_or(|first| first > *last)
        };
        wait.rules.iter().all(is_gone) && wait.tables.is_disjoint(&self.closing)
    }

    /// Where it takes too long to end rules one by one, all end at once.
    fn open_valves(&mut self, now_ms: u64, waited_ms: u64) {
        for (no, e) in &mut self.ports {
            let Some(full) = e.full.as_ref().filter(|f| !f.flushing) else { continue };
            let leaves = full.table.leaving().1.is_some();
            if leaves && full.table.leaving_ms().max(waited_ms) > VALVE_MS {
                self.waits.valves += 1;
                e.flush(*no, &mut self.threads, now_ms);
            }
        }
    }

    /// Why a megaflow is forwarded by an adapter, or is not yet; or why it never will be.
    pub(super) fn full_reason(
        &self,
        now_ms: u64,
        e: &OffloadPort,
        f: &FlowDump,
    ) -> Result<Reason, Reason> {
        let full = e.full.as_ref().ok_or(Reason::PortType)?;
        if full.table.has(f.id) {
            return Ok(if full.table.is_in(f.id) { Reason::Full } else { Reason::Pending });
        }
        full.could(now_ms, &self.spots(), f.id, &(f.key, f.mask, f.ops.clone()))?;
        if e.port.is_down() {
            return Ok(Reason::PortDown);
        }
        Ok(full.table.reason(now_ms, f.id, f.pps as f32))
    }

    /// Where the megaflow's packets come in: out of a tunnel, on the port of the outer ones.
    pub(super) fn entry_of(&self, f: &FlowDump) -> Option<&OffloadPort> {
        let no = f.key.u16(at::IN_PORT);
        let brings = |e: &&OffloadPort| e.full.as_ref().is_some_and(|x| x.brings(no, f.id.worker));
        self.ports.get(&no).or_else(|| self.ports.values().find(brings))
    }

    /// Why a megaflow of a port with an adapter that forwards is not one that it can forward.
    pub fn why_not_full(&self, now_ms: u64, f: &FlowDump) -> Option<Reason> {
        let e = self.entry_of(f)?;
        e.full.as_ref()?;
        self.full_reason(now_ms, e, f).err()
    }
}
