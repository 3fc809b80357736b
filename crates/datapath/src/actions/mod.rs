//! The actions step: executes each packet's program.

pub(crate) mod copies;
pub(crate) mod ct;
pub(crate) mod fragments;
pub(crate) mod inject;
pub(crate) mod injected;
pub(crate) mod interpret;
mod mpls_payload;
mod nsh;
pub(crate) mod patch;
pub(crate) mod program;
pub(crate) mod rewrite;
#[cfg(test)]
pub(crate) mod same_effect;
pub(crate) mod sequence;
mod track;

use crate::actions::interpret::Sink;
use crate::actions::program::{Kind, Program, Programs};
use crate::actions::rewrite::Place;
use crate::actions::track::SecondLookup;
use crate::batch::Batch;
use crate::batch::keys::run_length;
use crate::capture::Capture;
use crate::lookup::table::Table;
use crate::mem::prefetch;
use crate::report::Reports;
use crate::settings::Settings;
use crate::tunnel;
use crate::tunnel::decap::Decap;
use crate::tx::{TxState, total};
use crate::verify::{self, Twin};
use flow::PortNo;
use packet::Packet;
use telemetry::Drop;

/// How many packets ahead the line is prefetched that an outer header is written to.
const OUTER_HEADER_PREFETCH_PACKETS: usize = 16;

/// How many packets ahead headers are prefetched that are read or written again.
const HEADER_PREFETCH_PACKETS: usize = 8;

/// Executes the programs of a worker's packets.
#[derive(Default)]
pub(crate) struct Actions {
    pub programs: Programs,
    /// Compare compiled programs with the interpreter, packet by packet.
    validate: bool,
    /// Some: packets are captured for a client.
    pub capture: Option<Box<Capture>>,
    /// Working memory of [`track::run`].
    tracked: Option<Box<[track::Group; 2]>>,
    /// Packets are validated or captured before their programs run, so each needs its whole key.
    inspected: bool,
}

impl Actions {
    /// Takes over new settings.
    pub fn configure(&mut self, s: &Settings) {
        self.validate = s.validate;
        self.inspected = s.validate || self.capture.is_some();
    }

    /// Credits all packets to their megaflows and executes their programs. Packets that are looked
    /// up again stay in the batch.
    pub fn run(
        &mut self,
        batch: &mut Batch,
        table: &Table,
        decap: &mut Decap,
        tx: &mut TxState,
        reports: &mut Reports,
    ) {
        self.count_all(batch, table, tx.now_ms);
        if self.inspected {
            self.inspect(batch, table, reports);
        }
        let again = SecondLookup { programs: &self.programs, table, inspected: self.inspected };
        let (mut n, end) = (0, batch.len());
        while n < end {
            let program = self.programs.get(batch.keys.program[n]);
            n += match program.kind {
                Kind::Output => {
                    let run = run_length(&batch.keys.program[n..end]);
                    let lengths = &batch.columns.len[n..n + run];
                    // SAFETY: the batch forgets its own handles at the end of the pass; likewise
                    // below.
                    unsafe {
                        match &batch.packets[n..n + run] {
                            // One packet alone, as when packets go to many ports in turn.
                            [one] => tx.send_one(program.out, one.duplicate(), lengths[0].into()),
                            packets => tx.send_all(program.out, packets, lengths),
                        }
                    }
                    run
                }
                Kind::TunnelPushOutput => self.encapsulate_run(batch, program.out, n, tx),
                Kind::Copies if !admit(batch, n, program, tx) => {
                    tx.dropped(batch.in_port[n], Drop::ActionTime);
                    // SAFETY: as above.
                    tx.free(unsafe { batch.packets[n].duplicate() });
                    1
                }
                Kind::Track => {
                    let mut groups = self.tracked.take().unwrap_or_default();
                    let run = track::run(batch, again, n, tx, &mut groups);
                    self.tracked = Some(groups);
                    run
                }
                kind => {
                    prefetch_headers(batch, n);
                    // SAFETY: as above.
                    let p = unsafe { batch.packets[n].duplicate() };
                    execute(batch, program, n, p, tx);
                    if kind == Kind::TunnelPop {
                        decap.learn(table, batch.keys.megaflow[n], &program.ops);
                    }
                    1
                }
            };
        }
        inject::resume(tx);
        batch.end_pass();
    }

    /// Captures packets and validates programs, as far as configured.
    #[cold]
    fn inspect(&mut self, batch: &Batch, table: &Table, reports: &mut Reports) {
        if let Some(capture) = &mut self.capture {
            capture.pass(batch, &table.store, &self.programs);
        }
        if self.validate {
            self.validate_programs(batch, reports);
        }
    }

    /// Credits packets to their megaflows, each run of packets of one megaflow at once.
    fn count_all(&self, batch: &Batch, table: &Table, now_ms: u64) {
        let (mut n, end) = (0, batch.packets.len());
        while n < end {
            let run = run_length(&batch.keys.megaflow[n..end]);
            let bytes = total(&batch.columns.len[n..n + run]);
            prefetch(self.programs.get(batch.keys.program[n]));
            count(table, batch.keys.megaflow[n], run as u64, bytes, now_ms);
            n += run;
        }
    }

    /// Compares what compiled programs do with what the interpreter does.
    fn validate_programs(&self, batch: &Batch, reports: &mut Reports) {
        let fast = |i: &usize| {
            let program = self.programs.get(batch.keys.program[*i]);
            // `ct` is validated at the second lookup, by comparing keys; samples cannot be
            // compared, as they are random, nor headers with numbers of their own.
            let interpreted = match program.kind {
                Kind::Generic | Kind::TunnelPop | Kind::Track | Kind::Sampled => true,
                Kind::Copies => program.sequence.is_none(),
                _ => false,
            };
            let numbered =
                matches!(program.ops.first(), Some(action::Op::TunnelPush(t)) if t.sequence());
            !interpreted && !numbered
        };
        let fast: Vec<_> = (0..batch.packets.len()).filter(fast).collect();
        let found: Vec<_> = fast.iter().filter_map(|i| self.compare(batch, *i)).collect();
        reports.count_validated(Twin::Interpreter, fast.len(), found);
    }

    /// The difference between what program and interpreter do with packet `i`; None: there is none.
    fn compare(&self, batch: &Batch, i: usize) -> Option<String> {
        let program = self.programs.get(batch.keys.program[i]);
        verify::compare(
            batch.packets[i].data(),
            |sink, p| execute(batch, program, i, p, sink),
            |sink, p| interpret_one(batch, program, i, p, sink),
        )
    }

    /// Executes the programs of packets from `n` on that are encapsulated and sent to port `out`;
    /// returns how many they are.
    fn encapsulate_run(&self, batch: &mut Batch, out: PortNo, n: usize, tx: &mut TxState) -> usize {
        let (mut unsent, mut i) = (n, n);
        while i < batch.packets.len() {
            let program = self.programs.get(batch.keys.program[i]);
            if program.kind != Kind::TunnelPushOutput || program.out != out {
                break;
            }
            if let Some(later) = batch.packets.get(i + 2 * OUTER_HEADER_PREFETCH_PACKETS) {
                prefetch(later.as_raw());
            }
            if let Some(next) = batch.packets.get(i + OUTER_HEADER_PREFETCH_PACKETS) {
                prefetch(next.data().as_ptr().wrapping_sub(64));
            }
            // SAFETY: only one of the two handles is used from here on.
            let mut p = unsafe { batch.packets[i].duplicate() };
            match encapsulate(batch, program, i, &mut p) {
                Ok(()) => batch.columns.len[i] = p.len() as u16,
                Err(why) => {
                    let lengths = &batch.columns.len[unsent..i];
                    // SAFETY: as in `run`.
                    unsafe { tx.send_all(out, &batch.packets[unsent..i], lengths) };
                    tx.dropped(batch.in_port[i], why);
                    tx.free(p);
                    unsent = i + 1;
                }
            }
            i += 1;
        }
        // SAFETY: as in `run`.
        unsafe { tx.send_all(out, &batch.packets[unsent..i], &batch.columns.len[unsent..i]) };
        i - n
    }
}

/// Prefetches the headers of a packet some places behind packet `i`. Parsing has read them, but a
/// vector's headers do not fit into the level 1 cache.
#[inline(always)]
fn prefetch_headers(batch: &Batch, i: usize) {
    if let Some(later) = batch.packets.get(i + 2 * HEADER_PREFETCH_PACKETS) {
        prefetch(later.as_raw());
    }
    if let Some(soon) = batch.packets.get(i + HEADER_PREFETCH_PACKETS) {
        prefetch(soon.data().as_ptr());
    }
}

/// Credits a megaflow; number 0 is none.
#[inline]
fn count(table: &Table, megaflow: u32, packets: u64, bytes: u64, now_ms: u64) {
    if megaflow != 0 {
        table.store.counters(megaflow).add(packets, bytes, now_ms);
    }
}

/// Executes all rewrites of a program, without its patch.
#[inline(never)]
fn rewrite_all(batch: &Batch, program: &Program, i: usize, p: &mut Packet) -> Result<(), Drop> {
    let place = Place { line: &batch.keys.line.0[i], layout: batch.columns.layout[i] };
    for op in program.ops.iter() {
        if let action::Op::Set(rw) | action::Op::PushEth(rw) = op {
            rewrite::apply(p, &place, rw)?;
        }
    }
    Ok(())
}

/// Pushes the tunnel header of a program, from its template if it has one.
#[inline]
fn encapsulate(batch: &Batch, program: &Program, i: usize, p: &mut Packet) -> Result<(), Drop> {
    let k = batch.keys.get(i);
    let entropy = tunnel::entropy(k.line, &k.ext[0], k.have);
    match (&program.template, program.ops.first()) {
        (Some(template), _) => template.push(p, entropy),
        (None, Some(action::Op::TunnelPush(t))) => tunnel::push(p, t, entropy),
        _ => Ok(()),
    }
}

/// Executes a compiled sequence, or the interpreter if the sequence does not claim the packet.
#[inline(never)]
fn run_sequence<S: Sink>(batch: &Batch, program: &Program, i: usize, p: Packet, tx: &mut S) {
    let at = (&batch.keys.line.0[i], batch.columns.layout[i]);
    match &program.sequence {
        Some(sequence) if sequence.claims(p.len(), at.0, at.1) => {
            sequence.run(tx, p, at, [batch.in_port[i], program.out]);
        }
        _ => interpret_one(batch, program, i, p, tx),
    }
}

/// Samples some packets, and then executes the rest of the program on all.
#[inline(never)]
fn sampled<S: Sink>(batch: &Batch, program: &Program, i: usize, p: Packet, tx: &mut S) {
    let Some(s) = &program.sampled else { return interpret_one(batch, program, i, p, tx) };
    if tx.random() < s.chance {
        tx.copies(batch.in_port[i], 1);
        match tx.copy(&p) {
            Some(copy) => interpret::run(tx, &s.ops, Drop::SampleFull, copy, batch.frame(i)),
            None => tx.dropped(batch.in_port[i], Drop::NoBuffer),
        }
    }
    execute(batch, &s.rest, i, p, tx);
}

/// Executes a program by the interpreter.
#[inline(never)]
fn interpret_one<S: Sink>(batch: &Batch, program: &Program, i: usize, p: Packet, tx: &mut S) {
    interpret::run(tx, &program.ops, program.drop, p, batch.frame(i));
}

/// Executes a program on one packet, which it consumes.
#[inline]
fn execute<S: Sink>(batch: &Batch, program: &Program, i: usize, mut p: Packet, tx: &mut S) {
    let done = match program.kind {
        Kind::Output => Ok(()),
        Kind::Drop => Err(program.drop),
        Kind::SetEthOutput => {
            program.patch.ethernet(p.data_mut());
            Ok(())
        }
        Kind::PatchOutput => {
            let (line, layout) = (&batch.keys.line.0[i], batch.columns.layout[i]);
            match program.patch.apply(p.data_mut(), line, layout) {
                true => Ok(()),
                false => rewrite_all(batch, program, i, &mut p),
            }
        }
        Kind::SetOutput => rewrite_all(batch, program, i, &mut p),
        Kind::PushVlanOutput => rewrite::push_vlan(&mut p, program.tpid, program.tci),
        Kind::PopVlanOutput => {
            rewrite::pop_vlan(&mut p);
            Ok(())
        }
        Kind::Sequence | Kind::Copies => return run_sequence(batch, program, i, p, tx),
        Kind::Sampled => return sampled(batch, program, i, p, tx),
        Kind::TunnelPushOutput => encapsulate(batch, program, i, &mut p),
        Kind::Generic | Kind::TunnelPop | Kind::Track => {
            return interpret_one(batch, program, i, p, tx);
        }
    };
    match done {
        Ok(()) => tx.output(program.out, p),
        Err(why) => {
            tx.dropped(batch.in_port[i], why);
            tx.free(p);
        }
    }
}

/// True if a packet's program, of kind [`Kind::Copies`], may be executed; then its port was
/// charged.
fn admit(batch: &Batch, n: usize, program: &Program, tx: &mut TxState) -> bool {
    let port = batch.in_port[n];
    let again = n < batch.waited && batch.columns.depth[n] > 0
        || tx.copies.owes_too_much(port) && program.recirculates();
    tx.copies.admit(port, program.weight.into(), again)
}
