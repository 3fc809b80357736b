//! Steps 2 to 4 on a vector of packets: parse, lookup (misses resolved inline), act.

use crate::clock::cycles;
use crate::events::{Cold, Credit, Report, Shared};
use crate::interpret::{self, Frame, Sink, keep_metadata};
use crate::level::Level;
use crate::lookup::mask::Words;
use crate::lookup::{Keys, Table, prefetch};
use crate::parse::{Columns, Job, Study, bytes_mut};
use crate::program::{Kind, Program, Programs};
use crate::rewrite::{self, Place};
use crate::terminate::Terminators;
use crate::tunnel;
use crate::tx::{Exits, Pending, total};
use crate::types::Settings;
use crate::validate;
use action::{Decision, Pipeline, Request};
use flow::{Key, PortNo};
use packet::{Packet, VECTOR};
use port::RxQueue;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use sync::Producer;
use telemetry::Drop;

/// Decisions that were used and not stored, merged by credits and effects.
type Uncached = HashMap<(Box<[u32]>, usize), Credit>;

/// Distinct effects remembered in [`Uncached`]; beyond, only credits are.
const UNCACHED: usize = 4096;

/// A missed packet is looked up again in the subtables that got rules during its vector, unless they
/// are more than this: then asking the pipeline costs less.
const FEW: u32 = 2;

/// With a full table one decision in so many is stored.
const STORED: u32 = 8;

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
    /// Packets that profiles claimed, and cycles of parsing, since they were taken.
    claimed: u64,
    parse_cycles: u64,
    /// Packets that end at this step, and why.
    failed: Vec<(u8, Drop)>,
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
    uncached: Uncached,
    decision: Decision,
    pipeline: Arc<dyn Pipeline>,
    reports: Producer<Report>,
    /// Reports that found the ring full.
    late: Vec<Report>,
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
            parse_cycles: 0,
            failed: Vec::new(),
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
            uncached: HashMap::new(),
            decision: Decision::default(),
            pipeline,
            reports,
            late: Vec::new(),
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
        self.validate = s.validate;
        self.one_pass = s.one_pass;
        self.terminators.clear();
        self.budget = s.miss_budget.max(1);
        self.limit = s.flow_limit.min(self.table.store.capacity() as u32);
    }

    /// Packets gathered.
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Starts a vector with what was carried over and recirculated; returns how many those are.
    pub fn begin(&mut self, exits: &mut Exits) -> usize {
        self.meta.clear();
        if self.carry.is_empty() && exits.again.is_empty() {
            return 0;
        }
        let (mut carry, again) = (std::mem::take(&mut self.carry), &mut exits.again);
        let fits = |have: usize, more: usize| (VECTOR - have).min(more);
        let n = fits(0, again.len());
        let from_again: Vec<Pending> = again.drain(..n).collect();
        let m = fits(n, carry.len());
        for p in from_again.into_iter().chain(carry.drain(..m)) {
            self.depth[self.packets.len()] = p.depth;
            self.packets.push(p.packet);
            self.in_port.push(p.in_port);
            self.meta.push(p.meta);
        }
        self.carry = carry;
        self.parse_again();
        n + m
    }

    /// Steps 1 and 2: receives up to `limit` packets, for which there is room, from a queue while it
    /// returns full bursts, and parses each burst while it is near; returns how many.
    #[inline]
    pub fn receive(&mut self, rx: &mut dyn RxQueue, port: PortNo, limit: usize) -> usize {
        let since = self.packets.len();
        while self.packets.len() < since + limit {
            let start = self.packets.len();
            let want = (since + limit - start).min(packet::BURST);
            let n = rx.rx(&mut self.packets, want);
            if n == 0 {
                break;
            }
            self.in_port.resize(start + n, port);
            self.parse(start..start + n, since, port);
            if n < want || want < packet::BURST {
                break;
            }
        }
        self.packets.len() - since
    }

    /// Bytes of the packets at these places, which were received and parsed.
    pub fn bytes(&self, range: Range<usize>) -> u64 {
        total(&self.columns.len[range])
    }

    /// Parses packets of one port, which since `since` are all of that port.
    fn parse(&mut self, range: Range<usize>, since: usize, port: PortNo) {
        let no = port as usize;
        if self.studies.len() <= no {
            self.studies.resize_with(no + 1, Study::default);
        }
        let (start, n) = (cycles(), range.len() as u64);
        let mut job = Job {
            packets: &self.packets,
            range,
            since,
            in_port: port,
            vlan_limit: self.vlan_limit,
            keys: &mut self.keys,
            columns: &mut self.columns,
            study: &mut self.studies[no],
            failed: &mut self.failed,
        };
        self.claimed += job.run(self.level) as u64;
        self.parse_cycles += cycles() - start;
        if self.validate {
            let found = validate::compare_parse(&job);
            self.validated(n, found);
        }
    }

    /// Parses the packets a vector starts with: their metadata stays.
    fn parse_again(&mut self) {
        let (mut start, n) = (0, self.packets.len());
        while start < n {
            let port = self.in_port[start];
            let run = self.in_port[start..n].iter().take_while(|p| **p == port).count();
            self.parse(start..start + run, start, port);
            start += run;
        }
        self.restore_metadata();
    }

    /// Packets that profiles claimed, and cycles of parsing, since the last call.
    pub fn take_parsed(&mut self) -> (u64, u64) {
        (std::mem::take(&mut self.claimed), std::mem::take(&mut self.parse_cycles))
    }

    /// Ends packets that could not be parsed.
    pub fn drop_failed(&mut self, exits: &mut Exits) {
        if self.failed.is_empty() {
            return;
        }
        let mut gone = [false; VECTOR];
        for (i, why) in self.failed.drain(..) {
            let i = i as usize;
            gone[i] = true;
            exits.dropped(self.in_port[i], why);
            exits.free(self.packets[i]);
        }
        self.close_up(&gone);
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

    fn restore_metadata(&mut self) {
        for (i, meta) in self.meta.iter().enumerate() {
            if let Some(f) = meta {
                keep_metadata(&f.line, &mut self.keys.line.0[i]);
                self.keys.ext[i][1] = f.ext[1];
                self.keys.ext[i][2] = f.ext[2];
                self.keys.have[i] |= f.have & !1;
            }
        }
        self.columns.same[..self.meta.len()].fill(false);
    }

    /// Before step 3: packets that known rules decapsulate become their inner packets.
    #[inline]
    pub fn decapsulate(&mut self, now_ms: u64) {
        if !self.terminators.is_empty() {
            self.terminate(now_ms);
        }
    }

    fn terminate(&mut self, now_ms: u64) {
        self.terminators.refresh(&self.table.store);
        let (first, end) = (self.meta.len(), self.packets.len());
        let mut by = [None; VECTOR];
        for (i, by) in by.iter_mut().enumerate().take(end).skip(first) {
            *by = self.terminators.find(&self.keys.line.0[i]).map(|t| t as u8);
            if by.is_some() {
                prefetch(self.packets[i].data().as_ptr().wrapping_add(64));
            }
        }
        let mut i = first;
        while i < end {
            let (start, t) = (i, by[i]);
            while i < end && by[i] == t && t.is_some_and(|t| self.strip(i, t as usize)) {
                i += 1;
            }
            if i > start {
                self.inner_keys(start..i);
            }
            if t.is_some() && i < end {
                // What it would have followed has gone another way.
                self.columns.same[i] = false;
            }
            i += usize::from(i == start);
        }
        let n = self.terminators.count(&self.table.store, now_ms);
        self.table.followed(n);
    }

    /// Takes the outer header from packet `i`, and leaves its tunnel's fields in its key's lines.
    #[inline]
    fn strip(&mut self, i: usize, t: usize) -> bool {
        let Some(s) = tunnel::strip(&mut self.packets[i], &self.columns.lay[i]) else {
            return false;
        };
        let t = self.terminators.get(t);
        t.packets += 1;
        t.bytes += u64::from(self.columns.len[i]);
        self.in_port[i] = t.port;
        self.keys.ext[i][1] = s.ext2;
        self.stripped[i] = s.word6;
        true
    }

    /// Parses inner packets of one tunnels' port.
    fn inner_keys(&mut self, range: Range<usize>) {
        self.parse(range.clone(), range.start, self.in_port[range.start]);
        let mut before = None;
        for i in range {
            let line = &mut self.keys.line.0[i];
            let tos = self.keys.ext[i][1][0].to_ne_bytes()[6];
            bytes_mut(line)[flow::at::FLAGS] |= tunnel::tunnel_flags(tos);
            line[6] = self.stripped[i];
            self.keys.have[i] |= tunnel::EXT2;
            let e = &self.keys.ext[i][1];
            let from = Some((line[6], e[0], e[5]));
            self.columns.same[i] &= before == from;
            before = from;
        }
    }

    /// Step 3.
    pub fn lookup(&mut self, now_ms: u64) {
        let mut todo = std::mem::take(&mut self.todo);
        self.leaders(&mut todo);
        self.table.classify(&mut self.keys, &mut todo);
        if self.runs < self.packets.len() {
            self.follow(&mut todo);
        }
        if !todo.is_empty() {
            self.misses(&todo, now_ms);
        }
        self.todo = todo;
    }

    /// Packets whose key is that of the packet before them need no lookup of their own.
    fn leaders(&mut self, todo: &mut Vec<u8>) {
        self.runs = 0;
        for (i, same) in self.columns.same[..self.packets.len()].iter().enumerate() {
            self.leaders[self.runs] = i as u8;
            self.runs += !same as usize;
        }
        todo.clear();
        todo.extend_from_slice(&self.leaders[..self.runs]);
    }

    /// Gives followers what their leaders found. Those whose leader found nothing are misses too:
    /// each of them is decided about, in its turn.
    fn follow(&mut self, todo: &mut Vec<u8>) {
        let mut missed = [false; VECTOR];
        todo.iter().for_each(|i| missed[*i as usize] = true);
        let (before, mut hits) = (todo.len(), 0);
        for run in 0..self.runs {
            let leader = self.leaders[run] as usize;
            let end = match run + 1 < self.runs {
                true => self.leaders[run + 1] as usize,
                false => self.packets.len(),
            };
            if missed[leader] {
                todo.extend((leader + 1..end).map(|i| i as u8));
            } else {
                let (first, rest) = (self.keys.rule[leader], leader + 1..end);
                self.keys.rule[rest.clone()].fill(first);
                let first = self.keys.program[leader];
                hits += rest.len() as u64;
                self.keys.program[rest].fill(first);
            }
        }
        self.table.followed(hits);
        if todo.len() > before {
            todo.sort_unstable();
        }
    }

    /// Decides about packets that no rule matched, in order.
    fn misses(&mut self, todo: &[u8], now_ms: u64) {
        let start = cycles();
        let (mut left, mut stored) = (self.budget, 0u64);
        let mut later = [false; VECTOR];
        for i in todo.iter().map(|n| *n as usize) {
            if left == 0 {
                later[i] = true;
                continue;
            }
            if stored.count_ones() <= FEW && self.was_stored(i, stored) {
                continue;
            }
            left -= 1;
            stored |= self.resolve(i, now_ms);
        }
        if left == 0 {
            self.postpone(&later);
        }
        let perf = &self.shared.perf;
        perf.misses.add((self.budget - left) as u64);
        perf.miss_cycles.add(cycles() - start);
    }

    fn postpone(&mut self, later: &[bool; VECTOR]) {
        for i in (0..self.packets.len()).filter(|i| later[*i]) {
            self.carry.push(Pending {
                packet: self.packets[i],
                in_port: self.in_port[i],
                depth: if i < self.meta.len() { self.depth[i] } else { 0 },
                meta: match self.meta.get_mut(i) {
                    Some(meta) => meta.take(),
                    // The outer header that its tunnel's fields came from is gone.
                    None => (self.keys.have[i] & tunnel::EXT2 != 0).then(|| self.frame(i).into()),
                },
            });
        }
        self.close_up(later);
    }

    /// Is there a rule for packet `i` in the subtables that got new ones during this vector?
    fn was_stored(&mut self, i: usize, subtables: u64) -> bool {
        let Some(found) = self.table.among(subtables, &self.keys.get(i)) else { return false };
        (self.keys.rule[i], self.keys.program[i]) = found;
        true
    }

    /// Asks the pipeline about packet `i`, and stores the decision unless a packet before it with the
    /// same one made that needless. Says where (a bit for the subtable).
    fn resolve(&mut self, i: usize, now_ms: u64) -> u64 {
        let kref = self.keys.get(i);
        let words = kref.words();
        let mut key = Key::ZERO;
        key.words[..32].copy_from_slice(&words);
        self.decision.clear();
        let request = Request { key: &key, packet: self.packets[i].data() };
        self.pipeline.resolve(&request, &mut self.decision);
        let mask: Words = self.decision.mask.words[..32].try_into().unwrap();
        let spot = self.decision.cacheable.then(|| self.table.spot(&words, &mask));
        if let Some((rule, program)) = spot.as_ref().and_then(|s| self.table.known(s)) {
            (self.keys.rule[i], self.keys.program[i]) = (rule, program);
            return 0;
        }
        let d = &mut self.decision;
        let program = self.programs.intern(&d.ops, d.drop);
        self.keys.program[i] = program;
        let room = self.late.is_empty() && self.reports.room() > 0 && self.may_store();
        let spot = spot.filter(|_| room);
        let rule = spot.as_ref().and_then(|s| self.table.install(s, program, self.limit));
        self.keys.rule[i] = rule.unwrap_or(0);
        match rule {
            Some(idx) => self.report_installed(idx, program, now_ms),
            None => self.use_once(i, program, now_ms),
        }
        rule.and(spot).map_or(0, |s| 1 << s.slot)
    }

    /// Is there room in the table? When it is full only some decisions are stored: those that are used
    /// often get in, and flows that come by once do not push each other out.
    fn may_store(&mut self) -> bool {
        self.missed = self.missed.wrapping_add(1);
        let full = self.table.live + 4 * self.margin() > self.limit;
        !full || self.missed.is_multiple_of(STORED)
    }

    /// Rules that are evicted at once when the table is full.
    fn margin(&self) -> u32 {
        (self.limit / 8).min(64)
    }

    fn report_installed(&mut self, idx: u32, program: u32, now_ms: u64) {
        let d = &mut self.decision;
        let cold = Cold {
            ops: self.programs.get(program).ops.clone(),
            credits: d.credits.as_slice().into(),
            effects: d.effects.take(),
            packets: 0,
            bytes: 0,
            leaving: false,
        };
        // Its age counts from now.
        self.table.store.counters(idx).used_ms.store(now_ms, Ordering::Relaxed);
        self.shared.perf.installed.add(1);
        self.report(Report::Installed(idx, cold));
    }

    /// The decision holds for this packet only: credit it, and drop its program after the vector.
    fn use_once(&mut self, i: usize, program: u32, now_ms: u64) {
        self.passing.push(program);
        self.shared.perf.not_installed.add(1);
        let d = &mut self.decision;
        let mut effects = d.effects.take();
        if self.uncached.len() >= UNCACHED {
            effects = None;
        }
        let tag = effects.as_ref().map_or(0, |e| Arc::as_ptr(e).cast::<u8>() as usize);
        let credits: Box<[u32]> = d.credits.as_slice().into();
        let c = self.uncached.entry((credits, tag)).or_insert_with_key(|(credits, _)| Credit {
            credits: credits.clone(),
            effects,
            packets: 0,
            bytes: 0,
            used_ms: now_ms,
        });
        c.packets += 1;
        c.bytes += self.packets[i].len() as u64;
        c.used_ms = now_ms;
    }

    /// Tells control; keeps what does not fit for later.
    pub fn report(&mut self, r: Report) {
        self.news = true;
        if !self.late.is_empty() {
            self.late.push(r);
        } else if let Err(r) = self.reports.push(r) {
            self.late.push(r);
        }
    }

    /// Step 4. Clears the vector.
    pub fn act(&mut self, exits: &mut Exits) {
        let now_ms = exits.now_ms;
        self.count_all(now_ms);
        let (mut n, end) = (0, self.packets.len());
        if self.validate {
            let found: Vec<_> = (0..end).filter_map(|i| self.compare(i)).collect();
            self.validated(end as u64, found);
        }
        while n < end {
            let program = self.programs.get(self.keys.program[n]);
            let mut run = 1;
            if program.kind == Kind::Output {
                run = run_length(&self.keys.program[n..end]);
                let lengths = &self.columns.len[n..n + run];
                exits.send_all(program.out, &self.packets[n..n + run], lengths);
            } else {
                self.execute(program, n, self.packets[n], exits);
                if program.kind == Kind::TunnelPop && self.one_pass {
                    self.terminators.learn(&self.table.store, self.keys.rule[n], program.out);
                }
            }
            n += run;
        }
        self.packets.clear();
        self.in_port.clear();
        self.finish();
    }

    /// Credits the rules. A run of packets of one rule counts once.
    fn count_all(&self, now_ms: u64) {
        let (mut n, end) = (0, self.packets.len());
        while n < end {
            let run = run_length(&self.keys.rule[n..end]);
            let bytes = total(&self.columns.len[n..n + run]);
            prefetch(self.programs.get(self.keys.program[n]));
            self.count(self.keys.rule[n], run as u64, bytes, now_ms);
            n += run;
        }
    }

    /// Credits a rule; 0 is none.
    #[inline]
    fn count(&self, rule: u32, packets: u64, bytes: u64, now_ms: u64) {
        if rule != 0 {
            self.table.store.counters(rule).add(packets, bytes, now_ms);
        }
    }

    /// What program and interpreter do differently with packet `i`.
    fn compare(&self, i: usize) -> Option<String> {
        let program = self.programs.get(self.keys.program[i]);
        if matches!(program.kind, Kind::Generic | Kind::TunnelPop) {
            return None;
        }
        validate::compare(
            self.packets[i].data(),
            |sink, p| self.execute(program, i, p, sink),
            |sink, p| interpret::run(sink, &program.ops, program.drop, p, self.frame(i)),
        )
    }

    /// Counts comparisons, and tells of differences.
    fn validated(&mut self, n: u64, found: impl IntoIterator<Item = String>) {
        self.shared.perf.validated.add(n);
        for how in found {
            self.shared.perf.differences.add(1);
            if self.shared.perf.differences.get() <= validate::TOLD {
                self.report(Report::Differs(how.into()));
            }
        }
    }

    #[inline]
    fn execute<S: Sink>(&self, program: &Program, i: usize, mut p: Packet, exits: &mut S) {
        let done = match program.kind {
            Kind::Output => Ok(()),
            Kind::Drop => Err(program.drop),
            Kind::SetEthOutput => {
                program.patch.ethernet(p.data_mut());
                Ok(())
            }
            Kind::PatchOutput => {
                let (line, lay) = (&self.keys.line.0[i], self.columns.lay[i]);
                match program.patch.apply(p.data_mut(), line, lay) {
                    true => Ok(()),
                    false => self.rewrite(program, i, &mut p),
                }
            }
            Kind::SetOutput => self.rewrite(program, i, &mut p),
            Kind::PushVlanOutput => rewrite::push_vlan(&mut p, program.tpid, program.tci),
            Kind::PopVlanOutput => {
                rewrite::pop_vlan(&mut p);
                Ok(())
            }
            Kind::Multi => {
                self.copies(program, i, &p, exits);
                Ok(())
            }
            Kind::TunnelPushOutput => self.encapsulate(program, i, &mut p),
            Kind::Generic | Kind::TunnelPop => {
                return interpret::run(exits, &program.ops, program.drop, p, self.frame(i));
            }
        };
        match done {
            Ok(()) => exits.output(program.out, p),
            Err(why) => {
                exits.dropped(self.in_port[i], why);
                exits.free(p);
            }
        }
    }

    fn rewrite(&self, program: &Program, i: usize, p: &mut Packet) -> Result<(), Drop> {
        let place = Place { line: &self.keys.line.0[i], lay: self.columns.lay[i] };
        for op in program.ops.iter() {
            if let action::Op::Set(rw) = op {
                rewrite::apply(p, &place, rw)?;
            }
        }
        Ok(())
    }

    #[inline]
    fn encapsulate(&self, program: &Program, i: usize, p: &mut Packet) -> Result<(), Drop> {
        let Some(action::Op::TunnelPush(t)) = program.ops.first() else { return Ok(()) };
        let k = self.keys.get(i);
        tunnel::push(p, t, tunnel::entropy(k.line, &k.ext[0], k.have))
    }

    /// All outputs but the last.
    fn copies<S: Sink>(&self, program: &Program, i: usize, p: &Packet, exits: &mut S) {
        let (_, firsts) = program.ops.split_last().expect("a multi program has outputs");
        for op in firsts {
            if let action::Op::Output(port) = op {
                match exits.copy(p) {
                    Some(copy) => exits.output(*port, copy),
                    None => exits.dropped(self.in_port[i], Drop::NoBuffer),
                }
            }
        }
        exits.copies(self.in_port[i], firsts.len() as u64);
    }

    /// Packet `i` as the interpreter wants it.
    fn frame(&self, i: usize) -> Frame {
        let k = self.keys.get(i);
        let mut ext = [[0; 8]; 3];
        for (l, e) in ext.iter_mut().enumerate().filter(|(l, _)| k.have & (1 << l) != 0) {
            *e = k.ext[l];
        }
        Frame {
            line: *k.line,
            ext,
            have: k.have,
            lay: self.columns.lay[i],
            vlan_limit: self.vlan_limit,
            tags: self.vlan_limit,
            depth: if i < self.meta.len() { self.depth[i] } else { 0 },
        }
    }

    /// After the last use of rule numbers and programs of this vector.
    fn finish(&mut self) {
        for id in std::mem::take(&mut self.passing) {
            self.programs.release(id);
        }
        let dead = self.table.take_dead();
        self.unlink(dead);
        // Room is made before it is needed: an index comes back only after control folded it.
        let margin = self.margin();
        if self.table.live + margin > self.limit {
            for _ in 0..margin.max(1) {
                let Some(v) = self.table.victim() else { break };
                self.shared.perf.evicted.add(1);
                self.unlink([v]);
            }
        }
    }

    /// Unlinks rules and says so.
    pub fn unlink(&mut self, rules: impl IntoIterator<Item = u32>) {
        for idx in rules {
            if let Some(program) = self.table.unlink(idx) {
                self.programs.release(program);
                self.report(Report::Unlinked(idx));
            }
        }
    }

    /// Sends what waited for room in the report ring; called about once per millisecond.
    pub fn catch_up(&mut self) {
        let mut late = std::mem::take(&mut self.late).into_iter();
        for r in late.by_ref() {
            if let Err(r) = self.reports.push(r) {
                self.late.push(r);
                break;
            }
        }
        self.late.extend(late);
        while self.late.is_empty() && !self.uncached.is_empty() && self.reports.room() > 0 {
            let key = self.uncached.keys().next().unwrap().clone();
            let credit = self.uncached.remove(&key).unwrap();
            let _ = self.reports.push(Report::Uncached(Box::new(credit)));
        }
    }

    /// Is everything told?
    pub fn told(&self) -> bool {
        self.late.is_empty() && self.uncached.is_empty()
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

    /// Executes operations on an injected packet.
    pub fn inject(&mut self, e: &crate::events::Execute, exits: &mut Exits) {
        exits.stats(e.in_port).injected.add(1);
        let frame = Frame::new(&e.packet, e.in_port, self.vlan_limit);
        match (frame, exits.make(&e.packet)) {
            (Some(f), Some(p)) => interpret::run(exits, &e.ops, Drop::Policy, p, f),
            (None, made) => {
                exits.dropped(e.in_port, Drop::Truncated);
                made.into_iter().for_each(|p| exits.free(p));
            }
            (_, None) => exits.dropped(e.in_port, Drop::NoBuffer),
        }
    }
}

/// How many of the first entries are equal; there is at least one.
#[inline]
fn run_length(of: &[u32]) -> usize {
    let first = of[0];
    match of.get(1) {
        Some(second) if *second == first => {}
        _ => return 1,
    }
    let whole = of.chunks_exact(8).take_while(|c| c.iter().fold(0, |d, x| d | (x ^ first)) == 0);
    let n = whole.count() * 8;
    n + of[n..].iter().take_while(|x| **x == first).count()
}
