//! Programs that send packets through connection tracking and then out, or to a second lookup: step
//! by step for a group of packets, so that each step asks for the cache lines of the next. The
//! interpreter is the twin.
//!
//! A packet that is looked up again stays in the batch. Its key is patched: what `ct` says, and
//! what a translation changes of it.

use super::{ct, interpret_one};
use crate::actions::interpret::{RECIRC_LIMIT, Sink};
use crate::actions::program::{Kind, Program, Programs};
use crate::batch::Batch;
use crate::batch::keys::{bytes, bytes_mut};
use crate::parse::scalar::{IPV4, IPV6, SCTP, TCP, UDP};
use crate::tx::TxState;
use action::{Ct, Op};
use conntrack::{Arrival, Asked, At, Bad, FastPacket, Meta, Seen, extract, is_fast, state};
use flow::{at, frag};
use telemetry::Drop;

/// Packets of a group: enough for memory to answer meanwhile.
const GROUP_PACKETS: usize = 32;

/// What is known about a packet before connection tracking sees it.
#[derive(Clone, Copy)]
enum Ahead {
    /// Not one that programs of this kind claim.
    Other,
    /// An earlier `ct` found its connection.
    Known,
    /// It was read, and this is where it is looked up.
    Read(Asked),
    /// It was read for the fast path.
    Fast,
}

/// Executes the programs of packets from `n` on, as far as they are of this kind; returns how many
/// packets those are, at most a group.
pub(super) fn run(batch: &mut Batch, programs: &Programs, n: usize, tx: &mut TxState) -> usize {
    let end = batch.len().min(n + GROUP_PACKETS);
    let mut group = Group {
        ahead: [Ahead::Other; GROUP_PACKETS],
        seen: [const { Err(Bad::Shape) }; GROUP_PACKETS],
        fast: [FastPacket::NONE; GROUP_PACKETS],
    };
    let mut count = 0;
    for i in n..end {
        let program = programs.get(batch.keys.program[i]);
        let (Kind::Track, Some(Op::Ct(ct))) = (program.kind, program.ops.first()) else { break };
        group.ahead[count] =
            read(batch, ct, i, tx, (&mut group.seen[count], &mut group.fast[count]));
        count += 1;
    }
    for (ahead, fast) in group.ahead[..count].iter().zip(&mut group.fast) {
        match ahead {
            Ahead::Fast => tx.conntrack.ask_fast_entry(fast),
            Ahead::Read(asked) => tx.conntrack.ask_entries(*asked),
            Ahead::Other | Ahead::Known => {}
        }
    }
    for k in 0..count {
        let i = n + k;
        let program = programs.get(batch.keys.program[i]);
        let Some(Op::Ct(ct)) = program.ops.first() else { unreachable!("it was read by its ct") };
        match group.ahead[k] {
            Ahead::Fast => track_fast(batch, (program, ct), i, &group.fast[k], tx),
            Ahead::Read(_) => track(batch, (program, ct), i, Some(&group.seen[k]), tx),
            Ahead::Known => track(batch, (program, ct), i, None, tx),
            Ahead::Other => {
                // SAFETY: the batch's own is forgotten at the end of the pass.
                let p = unsafe { batch.packets[i].duplicate() };
                interpret_one(batch, program, i, p, tx);
            }
        }
    }
    count
}

/// What was read of a group of packets. It is written where it stays, as a copy costs as much as a
/// step.
struct Group {
    ahead: [Ahead; GROUP_PACKETS],
    seen: [Result<Seen, Bad>; GROUP_PACKETS],
    fast: [FastPacket; GROUP_PACKETS],
}

/// Reads a packet, and asks for its place in the index.
#[inline]
fn read(
    batch: &Batch,
    ct: &Ct,
    i: usize,
    tx: &TxState,
    (seen, fast): (&mut Result<Seen, Bad>, &mut FastPacket),
) -> Ahead {
    let (line, layout) = (bytes(&batch.keys.line.0[i]), batch.columns.layout[i]);
    let eth_type = u16::from_be_bytes([line[at::ETH_TYPE], line[at::ETH_TYPE + 1]]);
    let ip = matches!(eth_type, IPV4 | IPV6);
    if !ip || !layout.sane || layout.l4 == 0 || line[at::FRAG] & frag::ANY != 0 {
        return Ahead::Other;
    }
    let p = &batch.packets[i];
    let sound = ct::is_sound(p);
    let before = &batch.columns.ct[i];
    let waited = i < batch.waited && before.state != 0;
    if sound
        && !(waited && before.zone == ct.zone)
        && is_fast(ct)
        && fast.read(p.data(), layout.l3.into(), ct.zone).is_some()
    {
        tx.conntrack.ask_fast(fast);
        return Ahead::Fast;
    }
    if waited && before.conn.is_some() {
        return Ahead::Known;
    }
    *seen = extract(p.data(), layout.l3.into(), ct.zone, sound);
    let asked = seen.as_ref().map_or(Asked::default(), |seen| tx.conntrack.ask(&seen.tuple));
    Ahead::Read(asked)
}

/// Executes one program, whose packet may be one for the fast path.
#[inline]
fn track_fast(
    batch: &mut Batch,
    (program, ct): (&Program, &Ct),
    i: usize,
    fast: &FastPacket,
    tx: &mut TxState,
) {
    let p = &mut batch.packets[i];
    let meta = &mut batch.columns.ct[i];
    if !tx.conntrack.track_fast(ct, fast, p.data_mut(), meta, tx.now_ms) {
        let seen = extract(p.data(), batch.columns.layout[i].l3.into(), ct.zone, true);
        return track(batch, (program, ct), i, Some(&seen), tx);
    }
    if i >= batch.waited {
        batch.columns.depth[i] = 0;
    }
    go_on(batch, program, i, tx);
}

/// Executes one program. `seen`: what was read of a packet of which no connection is known.
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
        Some(seen) => conntrack::track_seen(&mut tx.conntrack, ct, p.data_mut(), seen, meta, came),
        None => {
            let at = At { l3: batch.columns.layout[i].l3.into(), sound: ct::is_sound(p) };
            conntrack::track(&mut tx.conntrack, ct, p.data_mut(), at, meta, came)
        }
    };
    if let Some(edit) = edit {
        if !ct::replace(p, &edit) {
            meta.state = state::INV | state::TRK;
        }
        batch.columns.len[i] = p.len() as u16;
    }
    go_on(batch, program, i, tx);
}

/// Sends a packet that was tracked out, or to its next lookup.
#[inline]
fn go_on(batch: &mut Batch, program: &Program, i: usize, tx: &mut TxState) {
    // SAFETY: the batch's own is forgotten at the end of the pass; if it stays, this one is.
    let p = unsafe { batch.packets[i].duplicate() };
    let id = match program.ops.last() {
        Some(Op::Recirc(id)) => *id,
        _ => return tx.output(program.out, p),
    };
    if batch.columns.depth[i] >= RECIRC_LIMIT {
        tx.dropped(batch.in_port[i], Drop::RecircLimit);
        return tx.free(p);
    }
    show(batch, i);
    // Behind those that went through the interpreter, as it came behind them.
    if !tx.recirculated.is_empty() {
        let mut frame = batch.frame(i);
        (frame.ct, frame.depth) = (batch.columns.ct[i], batch.columns.depth[i]);
        return tx.recirculate(id, p, &frame);
    }
    batch.stay(i, id);
}

/// Patches a packet's key.
#[inline]
fn show(batch: &mut Batch, i: usize) {
    let (keys, layout) = (&mut batch.keys, batch.columns.layout[i]);
    let line = &mut keys.line.0[i];
    let meta = &batch.columns.ct[i];
    ct::show(meta, line, &mut keys.ext[i][2], &mut keys.have[i]);
    if meta.state & (state::SNAT | state::DNAT) == 0 {
        return;
    }
    // It was translated, so all of its headers is there.
    let (l3, l4, d) = (usize::from(layout.l3), usize::from(layout.l4), batch.packets[i].data());
    let line = bytes_mut(line);
    if u16::from_be_bytes([line[at::ETH_TYPE], line[at::ETH_TYPE + 1]]) == IPV4 {
        line[at::IP_SRC..at::IP_SRC + 8].copy_from_slice(&d[l3 + 12..l3 + 20]);
    } else {
        bytes_mut(&mut keys.ext[i][0])[..32].copy_from_slice(&d[l3 + 8..l3 + 40]);
    }
    if matches!(line[at::PROTO], TCP | UDP | SCTP)
        && let Some(ports) = d.get(l4..l4 + 4)
    {
        line[at::TP_SRC..at::TP_SRC + 4].copy_from_slice(ports);
    }
}
