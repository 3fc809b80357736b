//! Programs that track packets' connections and then send them, or look them up again. A group of
//! packets takes each step together, so that a step prefetches the cache lines that the next one
//! reads. The interpreter is the twin.
//!
//! A packet that is looked up again stays in the batch. Its key is patched with the `ct` fields,
//! and with the fields that NAT translated.

mod read;
mod second_lookup;

pub(super) use read::Group;
pub(super) use second_lookup::SecondLookup;

use super::{ct, interpret_one};
use crate::actions::interpret::{RECIRC_LIMIT, Sink};
use crate::actions::program::Program;
use crate::batch::Batch;
use crate::tx::TxState;
use action::{Ct, Op};
use conntrack::{Arrival, At, Bad, FastPacket, Meta, Seen, state};
use read::{Ahead, GROUP_PACKETS, prefetch_entries, read_group};
use second_lookup::{take_prediction, write_ct_fields};
use telemetry::Drop;

/// Executes the programs of packets from `n` on, as long as they are of kind [`Kind::Track`](crate::actions::program::Kind::Track);
/// returns how many these are. Each group is read before the group in front of it is tracked, so
/// that its cache misses overlap with both steps.
#[inline(never)]
pub(super) fn run(
    batch: &mut Batch,
    again: SecondLookup<'_>,
    n: usize,
    tx: &mut TxState,
    groups: &mut [Group; 2],
) -> usize {
    let [mut now, mut next] = groups.each_mut();
    let mut at = n;
    read_group(batch, again.programs, at, tx, now);
    prefetch_entries(tx, now);
    while now.count > 0 {
        next.count = 0;
        if now.count == GROUP_PACKETS {
            read_group(batch, again.programs, at + now.count, tx, next);
        }
        track_group(batch, again, at, tx, now);
        prefetch_entries(tx, next);
        at += now.count;
        std::mem::swap(&mut now, &mut next);
    }
    at - n
}

/// Executes the programs of a group that was read; its first packet is `n`.
#[inline]
fn track_group(
    batch: &mut Batch,
    again: SecondLookup<'_>,
    n: usize,
    tx: &mut TxState,
    group: &Group,
) {
    let mut k = 0;
    while k < group.count {
        let id = batch.keys.program[n + k];
        let program = again.programs.get(id);
        let Some(Op::Ct(ct)) = program.ops.first() else { unreachable!("it was read by its ct") };
        let recirc = match program.ops.last() {
            Some(Op::Recirc(id)) => Some(*id),
            _ => None,
        };
        let shared = Shared { again, program, ct, recirc };
        while k < group.count && batch.keys.program[n + k] == id {
            track_one(batch, &shared, (n, k), tx, group);
            k += 1;
        }
    }
}

/// What the packets of a group with the same program share.
struct Shared<'a> {
    again: SecondLookup<'a>,
    program: &'a Program,
    ct: &'a Ct,
    /// The id with which packets are looked up again; None: the program sends them.
    recirc: Option<u32>,
}

/// Executes the program of packet `k` of a group whose first packet is `n`.
#[inline(always)]
fn track_one(
    batch: &mut Batch,
    shared: &Shared<'_>,
    (n, k): (usize, usize),
    tx: &mut TxState,
    group: &Group,
) {
    let (i, program) = (n + k, (shared.program, shared.ct));
    match group.ahead[k] {
        Ahead::Fast => track_fast(batch, shared, i, &group.fast[k], tx),
        Ahead::Read(_) => track(batch, program, i, Some(&group.seen[k]), tx),
        Ahead::Known => track(batch, program, i, None, tx),
        Ahead::Other => {
            // SAFETY: the batch forgets its own handle at the end of the pass.
            let p = unsafe { batch.packets[i].duplicate() };
            interpret_one(batch, shared.program, i, p, tx);
        }
    }
}

/// Executes one program, by the fast path if the packet can take it.
#[inline]
fn track_fast(
    batch: &mut Batch,
    shared: &Shared<'_>,
    i: usize,
    fast: &FastPacket,
    tx: &mut TxState,
) {
    let (program, ct) = (shared.program, shared.ct);
    let p = &mut batch.packets[i];
    let Some(tracked) = tx.ct.worker.track_fast(ct, fast, p.data_mut(), tx.now_ms) else {
        return track_first(batch, (program, ct), i, fast, tx);
    };
    if i >= batch.waited {
        batch.columns.depth[i] = 0;
    }
    if let Some(id) = shared.recirc
        && batch.columns.depth[i] < RECIRC_LIMIT
        && tx.recirculated.is_empty()
        && take_prediction(batch, (ct, id, shared.again), i, &tracked, tx)
    {
        return;
    }
    tx.ct.worker.describe(ct, &tracked, &mut batch.columns.ct[i]);
    send_or_recirculate(batch, program, i, tx);
}

/// Executes one program, for a packet whose connection the fast path did not find.
#[inline(never)]
fn track_first(
    batch: &mut Batch,
    (program, ct): (&Program, &Ct),
    i: usize,
    fast: &FastPacket,
    tx: &mut TxState,
) {
    if !tx.ct.worker.begin_fast(ct, fast, &mut batch.columns.ct[i], tx.now_ms) {
        return track(batch, (program, ct), i, Some(&Ok(fast.seen())), tx);
    }
    if i >= batch.waited {
        batch.columns.depth[i] = 0;
    }
    send_or_recirculate(batch, program, i, tx);
}

/// Executes one program without the fast path.
#[inline]
fn track(
    batch: &mut Batch,
    (program, ct): (&Program, &Ct),
    i: usize,
    seen: Option<&Result<Seen, Bad>>,
    tx: &mut TxState,
) {
    if i >= batch.waited {
        (batch.columns.ct[i], batch.columns.depth[i]) = (Meta::default(), 0);
    }
    let p = &mut batch.packets[i];
    let meta = &mut batch.columns.ct[i];
    let came = Arrival { port: batch.in_port[i], now: tx.now_ms };
    let edit = match seen {
        Some(seen) => conntrack::track_seen(&mut tx.ct.worker, ct, p.data_mut(), seen, meta, came),
        None => {
            let at = At { l3: batch.columns.layout[i].l3.into(), sound: p.has_sound_checksums() };
            conntrack::track(&mut tx.ct.worker, ct, p.data_mut(), at, meta, came)
        }
    };
    if let Some(edit) = edit {
        if !ct::replace(p, &edit) {
            meta.state = state::INV | state::TRK;
        }
        batch.columns.len[i] = p.len() as u16;
    }
    send_or_recirculate(batch, program, i, tx);
}

/// Sends a packet that was tracked, or has it looked up again.
#[inline]
fn send_or_recirculate(batch: &mut Batch, program: &Program, i: usize, tx: &mut TxState) {
    // SAFETY: the batch forgets its own handle at the end of the pass; if the packet stays in the
    // batch, this handle is forgotten.
    let p = unsafe { batch.packets[i].duplicate() };
    let id = match program.ops.last() {
        Some(Op::Recirc(id)) => *id,
        _ => return tx.output(program.out, p),
    };
    if batch.columns.depth[i] >= RECIRC_LIMIT {
        tx.dropped(batch.in_port[i], Drop::RecircLimit);
        return tx.free(p);
    }
    write_ct_fields(batch, i);
    // Packets in front of this one went through the interpreter and are in `recirculated`: this one
    // goes behind them, to keep the order.
    if !tx.recirculated.is_empty() {
        let mut frame = batch.frame(i);
        (frame.ct, frame.depth) = (batch.columns.ct[i], batch.columns.depth[i]);
        return tx.recirculate(id, p, &frame);
    }
    batch.stay(i, id);
}
