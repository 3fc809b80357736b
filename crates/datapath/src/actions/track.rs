//! Programs that track packets' connections and then send them, or look them up again. A group of
//! packets takes each step together, so that a step prefetches the cache lines that the next one
//! reads. The interpreter is the twin.
//!
//! A packet that is looked up again stays in the batch. Its key is patched with the `ct` fields,
//! and with the fields that NAT translated.

use super::{ct, interpret_one, prefetch_headers};
use crate::actions::interpret::{RECIRC_LIMIT, Sink};
use crate::actions::program::{Kind, Program, Programs};
use crate::batch::Batch;
use crate::batch::keys::{Line, bytes, bytes_mut};
use crate::lookup::table::Table;
use crate::marks::step::needs_key;
use crate::parse::scalar::{IPV4, IPV6, SCTP, TCP, UDP};
use crate::tx::TxState;
use action::{Ct, Op};
use conntrack::{
    Arrival, At, Bad, FastHeaders, FastPacket, FastTracked, Meta, Prefetched, Seen, extract,
    is_fast, state,
};
use flow::{at, frag};
use telemetry::Drop;

/// Packets of a group, at most: so many that prefetched lines arrive while the others are worked
/// on.
const GROUP_PACKETS: usize = 32;

/// What is known about a packet before its connection is tracked.
#[derive(Clone, Copy)]
enum Ahead {
    /// The packet is not claimed: it goes to the interpreter.
    Other,
    /// An earlier `ct` found its connection.
    Known,
    /// The packet was read; this names the bucket of the index where its connection is.
    Read(Prefetched),
    /// The packet was read for the fast path.
    Fast,
}

/// What tracked packets need for their second lookup.
#[derive(Clone, Copy)]
pub(super) struct SecondLookup<'a> {
    pub programs: &'a Programs,
    /// The table of the second lookup.
    pub table: &'a Table,
    /// Packets are validated or captured before their programs run, so each needs its whole key.
    pub watched: bool,
}

/// Executes the programs of packets from `n` on, as long as they are of kind [`Kind::Track`];
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

/// Reads a group of packets from `n` on, and prefetches the buckets of the index where their
/// connections are.
#[inline]
fn read_group(batch: &Batch, programs: &Programs, n: usize, tx: &TxState, group: &mut Group) {
    let most = (batch.len() - n).min(GROUP_PACKETS);
    let (mut count, mut last) = (0, None);
    while count < most {
        prefetch_headers(batch, n + count);
        let id = batch.keys.program[n + count];
        let ct = match last {
            Some((of, ct)) if of == id => ct,
            _ => {
                let program = programs.get(id);
                let (Kind::Track, Some(Op::Ct(ct))) = (program.kind, program.ops.first()) else {
                    break;
                };
                let ct = (&**ct, is_fast(ct));
                last = Some((id, ct));
                ct
            }
        };
        group.ahead[count] = match read_fast(batch, ct, n + count, &mut group.fast[count]) {
            true => {
                tx.ct.worker.prefetch_fast(&mut group.fast[count]);
                Ahead::Fast
            }
            false => read(batch, ct.0, n + count, tx, &mut group.seen[count]),
        };
        group.replies[count] = prefetch_reply((batch, n + count), ct.0, (group, count), tx);
        count += 1;
    }
    group.count = count;
}

/// Prefetches the bucket of the reply tuple for packet `i`, if it begins a connection that NAT
/// translates.
#[inline]
fn prefetch_reply(
    (batch, i): (&Batch, usize),
    ct: &Ct,
    (group, k): (&Group, usize),
    tx: &TxState,
) -> Option<Prefetched> {
    let nat = ct.nat.as_ref().filter(|nat| ct.commit && nat.side.is_some())?;
    let begins = i < batch.waited && batch.columns.ct[i].state & state::NEW != 0;
    let tuple = match group.ahead[k] {
        Ahead::Fast => group.fast[k].seen().tuple,
        Ahead::Read(_) => group.seen[k].as_ref().ok()?.tuple,
        Ahead::Other | Ahead::Known => return None,
    };
    begins.then(|| tx.ct.worker.prefetch_reply(&tuple, nat))?
}

/// Prefetches the connections of a group.
#[inline]
fn prefetch_entries(tx: &TxState, group: &mut Group) {
    for reply in group.replies[..group.count].iter().flatten() {
        tx.ct.worker.prefetch_entries(*reply);
    }
    for (ahead, fast) in group.ahead[..group.count].iter().zip(&mut group.fast) {
        match ahead {
            Ahead::Fast => tx.ct.worker.prefetch_fast_entry(fast),
            Ahead::Read(prefetched) => tx.ct.worker.prefetch_entries(*prefetched),
            Ahead::Other | Ahead::Known => {}
        }
    }
}

/// What was read of a group of packets. It is written in place, as copying it would cost as much as
/// a step. Entries of a packet are read only if they were written for that packet.
pub(super) struct Group {
    /// Number of packets.
    count: usize,
    ahead: [Ahead; GROUP_PACKETS],
    /// The prefetched buckets of reply tuples.
    replies: [Option<Prefetched>; GROUP_PACKETS],
    seen: [Result<Seen, Bad>; GROUP_PACKETS],
    fast: [FastPacket; GROUP_PACKETS],
}

impl Default for Group {
    fn default() -> Self {
        Group {
            count: 0,
            ahead: [Ahead::Other; GROUP_PACKETS],
            replies: [None; GROUP_PACKETS],
            seen: [const { Err(Bad::Shape) }; GROUP_PACKETS],
            fast: [FastPacket::NONE; GROUP_PACKETS],
        }
    }
}

/// Reads packet `i` for the fast path; false: the packet cannot take it.
#[inline(always)]
fn read_fast(batch: &Batch, (ct, fast): (&Ct, bool), i: usize, to: &mut FastPacket) -> bool {
    let (line, layout) = (&batch.keys.line.0[i], batch.columns.layout[i]);
    let eth_type = u16::from_be_bytes([bytes(line)[at::ETH_TYPE], bytes(line)[at::ETH_TYPE + 1]]);
    let is_ip = eth_type == IPV4 || eth_type == IPV6;
    let whole = layout.sane && layout.l4 != 0 && bytes(line)[at::FRAG] & frag::ANY == 0;
    let p = &batch.packets[i];
    if !(is_ip && whole && fast) || is_known(batch, ct, i) {
        return false;
    }
    const { assert!(at::IP_SRC == 16 && at::IP_DST == 20 && at::TP_SRC == 24 && at::PROTO == 28) };
    const { assert!(at::IPV6_SRC == 64 && at::IPV6_DST == 80) };
    let ports = u64::from_be(line[3]);
    let (ports, proto) = ((ports >> 32) as u32, (ports >> 24) as u8);
    let headers = FastHeaders { ports, proto, l3: layout.l3, l4: layout.l4 };
    let (data, sound) = (p.data(), p.has_sound_checksums());
    let read = match eth_type == IPV4 {
        true => to.read_v4(data, (headers, u64::from_be(line[2])), ct.zone, sound),
        false => {
            let addresses = [0, 1, 2, 3].map(|w| u64::from_be(batch.keys.ext[i][0][w]));
            to.read_v6(data, (headers, addresses), ct.zone, sound)
        }
    };
    read.is_some()
}

/// True if packet `i` was tracked in this zone before, and did not begin a connection.
#[inline(always)]
fn is_known(batch: &Batch, ct: &Ct, i: usize) -> bool {
    if i >= batch.waited {
        return false;
    }
    let before = &batch.columns.ct[i];
    let begins = before.state == state::TRK | state::NEW && before.conn.is_none();
    before.state != 0 && before.zone == ct.zone && !begins
}

/// Reads packet `i`, and prefetches its bucket of the index.
fn read(batch: &Batch, ct: &Ct, i: usize, tx: &TxState, seen: &mut Result<Seen, Bad>) -> Ahead {
    let (line, layout) = (bytes(&batch.keys.line.0[i]), batch.columns.layout[i]);
    let eth_type = u16::from_be_bytes([line[at::ETH_TYPE], line[at::ETH_TYPE + 1]]);
    let ip = matches!(eth_type, IPV4 | IPV6);
    if !ip || !layout.sane || layout.l4 == 0 || line[at::FRAG] & frag::ANY != 0 {
        return Ahead::Other;
    }
    let before = &batch.columns.ct[i];
    if i < batch.waited && before.state != 0 && before.conn.is_some() {
        return Ahead::Known;
    }
    let p = &batch.packets[i];
    *seen = extract(p.data(), layout.l3.into(), ct.zone, p.has_sound_checksums());
    let prefetched = seen
        .as_ref()
        .map_or(Prefetched::default(), |seen| tx.ct.worker.prefetch_bucket(&seen.tuple));
    Ahead::Read(prefetched)
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

/// Gives a packet that is looked up again the predicted megaflow, if it matches; false: it has to
/// be looked up. Writes the `ct` fields as far as the comparison and the next program need them.
#[inline]
fn take_prediction(
    batch: &mut Batch,
    (ct, id, again): (&Ct, u32, SecondLookup<'_>),
    i: usize,
    tracked: &FastTracked,
    tx: &TxState,
) -> bool {
    if tracked.state & (state::SNAT | state::DNAT) != 0 {
        write_translation(batch, i);
    }
    let line = &mut batch.keys.line.0[i];
    let words = tracked_words(line, tracked, id);
    (line[4], line[5]) = words;
    let Some(prediction) = again.table.predict_recirculated(line) else { return false };
    let whole = again.watched || needs_key(again.programs.get(prediction.program).kind);
    if prediction.more || whole {
        let mut own = Meta::default();
        // Meta data that no later step reads stays on the stack.
        let meta = if whole { &mut batch.columns.ct[i] } else { &mut own };
        tx.ct.worker.describe(ct, tracked, meta);
        let keys = &mut batch.keys;
        ct::write_ct_fields(meta, &mut keys.line.0[i], &mut keys.ext[i][2], &mut keys.have[i]);
        if !again.table.confirms(&prediction, &keys.get(i)) {
            return false;
        }
    }
    batch.stay_known(i, (prediction.megaflow, prediction.program));
    true
}

/// Words 4 and 5 of a key, with the fast path's `ct` fields, recirculated with `id`.
#[inline]
fn tracked_words(line: &Line, tracked: &FastTracked, id: u32) -> (u64, u64) {
    const { assert!(at::CT_STATE == 38 && at::CT_MARK == 40 && at::RECIRC == 44) };
    let mut word4 = line[4].to_ne_bytes();
    word4[at::CT_STATE - 32] = tracked.state;
    let word5 = u64::from(tracked.mark) << 32 | u64::from(id);
    (u64::from_ne_bytes(word4), word5.to_be())
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

/// Writes the `ct` fields to a packet's key.
#[inline]
fn write_ct_fields(batch: &mut Batch, i: usize) {
    let keys = &mut batch.keys;
    let line = &mut keys.line.0[i];
    let meta = &batch.columns.ct[i];
    ct::write_ct_fields(meta, line, &mut keys.ext[i][2], &mut keys.have[i]);
    if meta.state & (state::SNAT | state::DNAT) != 0 {
        write_translation(batch, i);
    }
}

/// Writes the addresses and ports of a packet that NAT translated to its key. Such a packet has all
/// of its headers.
#[inline]
fn write_translation(batch: &mut Batch, i: usize) {
    let (keys, layout) = (&mut batch.keys, batch.columns.layout[i]);
    let line = &mut keys.line.0[i];
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
