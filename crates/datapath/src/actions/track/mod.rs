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
use crate::batch::keys::{Layout, run_length};
use crate::tx::TxState;
use action::{Ct, Op};
use conntrack::{Arrival, Bad, FastPacket, FastTracked, IpHeader, Meta, Seen, state};
use read::{Ahead, GROUP_PACKETS, prefetch_entries, read_group};
use second_lookup::{look_up_again, write_ct_fields};
use telemetry::Drop;

/// Executes the programs of packets from `n` on, as long as they are of kind
/// [`Kind::Track`](crate::actions::program::Kind::Track); returns how many these are. Each group is
/// read before the group in front of it is tracked, so that its cache misses overlap with both
/// steps.
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
        next.clear();
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
    group: &mut Group,
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
        let end = k + run_length(&batch.keys.program[n + k..n + group.count]);
        while k < end {
            let fast = group.fast_run(k).min(end - k);
            k += track_fast(batch, &shared, (n, k), fast, tx, group);
            if k < end {
                track_one(batch, &shared, (n, k), tx, group);
                k += 1;
            }
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

/// Executes the program of packet `k` of a group whose first packet is `n`, which the fast path did
/// not claim.
#[inline(never)]
fn track_one(
    batch: &mut Batch,
    shared: &Shared<'_>,
    (n, k): (usize, usize),
    tx: &mut TxState,
    group: &Group,
) {
    let (i, program) = (n + k, (shared.program, shared.ct));
    if group.is_fast(k) {
        return track_first(batch, program, i, &group.fast[k], tx);
    }
    match group.ahead[k] {
        Ahead::Read(_) => track(batch, program, i, Some(&group.seen[k]), tx),
        Ahead::Tracked => track(batch, program, i, None, tx),
        Ahead::Other => {
            // SAFETY: the batch forgets its own handle at the end of the pass.
            let p = unsafe { batch.packets[i].duplicate() };
            interpret_one(batch, shared.program, i, p, tx);
        }
    }
}

/// Executes the programs of `count` packets of a group from packet `k` on, all read for the fast
/// path, up to the first one that it does not claim; returns how many these are.
fn track_fast(
    batch: &mut Batch,
    shared: &Shared<'_>,
    (n, k): (usize, usize),
    count: usize,
    tx: &mut TxState,
    group: &mut Group,
) -> usize {
    let (ct, first) = (shared.ct, n + k);
    let (packets, tracked) = (&group.fast[k..k + count], &mut group.tracked[..count]);
    let count = tx.ct.worker.track_fast(ct, packets, tx.now_ms, tracked);
    let tracked = &mut tracked[..count];
    if ct.nat.is_some() {
        for (i, (p, tracked)) in packets.iter().zip(&mut *tracked).enumerate() {
            let data = batch.packets[first + i].data_mut();
            tx.ct.worker.translate_fast(p, tracked, data);
        }
    }
    let fresh = first.max(batch.waited)..first + count;
    if !fresh.is_empty() {
        batch.columns.depth[fresh].fill(0);
    }
    match shared.recirc {
        Some(id) if tx.recirculated.is_empty() => {
            look_up_again(batch, shared, id, (first, tracked), tx);
        }
        _ => (first..).zip(&*tracked).for_each(|(i, t)| finish(batch, shared, i, t, tx)),
    }
    count
}

/// Sends a packet that the fast path tracked, or has it looked up again without a prediction.
#[inline(never)]
fn finish(
    batch: &mut Batch,
    shared: &Shared<'_>,
    i: usize,
    tracked: &FastTracked,
    tx: &mut TxState,
) {
    tx.ct.worker.describe(shared.ct, tracked, &mut batch.columns.ct[i]);
    send_or_recirculate(batch, shared.program, i, tx);
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
            let ip =
                IpHeader { l3: batch.columns.layout[i].l3.into(), sound: p.has_sound_checksums() };
            conntrack::track(&mut tx.ct.worker, ct, p.data_mut(), ip, meta, came)
        }
    };
    if let Some(edit) = edit {
        match ct::replace(p, &edit) {
            // The next pass reads where the IP packet ends.
            true => move_end(&mut batch.columns.layout[i], edit.growth()),
            false => meta.state = state::INV | state::TRK,
        }
        batch.columns.len[i] = p.len() as u16;
    }
    send_or_recirculate(batch, program, i, tx);
}

/// Moves the end of an IP packet whose text was replaced by one that is `growth` bytes longer.
fn move_end(layout: &mut Layout, growth: isize) {
    layout.end = layout.end.saturating_add_signed(growth as i16);
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
