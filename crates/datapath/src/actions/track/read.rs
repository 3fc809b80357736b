//! Reads groups of packets before their connections are tracked, and prefetches what tracking
//! them reads.

use crate::actions::program::{Kind, Programs};
use crate::batch::Batch;
use crate::batch::keys::{Layout, Line, bytes, run_length};
use crate::parse::scalar::{IPV4, IPV6};
use crate::tx::TxState;
use action::{Ct, Op};
use conntrack::{
    Bad, FastHeaders, FastPacket, FastTracked, Prefetched, Seen, extract, is_fast, state,
};
use flow::{at, frag};
use packet::Packet;
use std::ops::Range;

/// Packets of a group, at most: so many that prefetched lines arrive while the others are worked
/// on.
pub(super) const GROUP_PACKETS: usize = 32;

/// What is known about a packet that the fast path does not claim, before it is tracked.
#[derive(Clone, Copy)]
pub(super) enum Ahead {
    /// The packet is not claimed: it goes to the interpreter.
    Other,
    /// An earlier `ct` found its connection.
    Tracked,
    /// The packet was read; this names the bucket of the index where its connection is.
    Read(Prefetched),
}

/// What was read of a group of packets. It is written in place, as copying it would cost as much as
/// a step. Entries of a packet are read only if they were written for that packet.
pub(in crate::actions) struct Group {
    /// Number of packets.
    pub(super) count: usize,
    /// The packets that were read for the fast path, a bit each.
    fast_mask: u32,
    pub(super) fast: [FastPacket; GROUP_PACKETS],
    /// What the fast path says of packets that follow one another.
    pub(super) tracked: [FastTracked; GROUP_PACKETS],
    /// What is known about packets that are not in `fast_mask`.
    pub(super) ahead: [Ahead; GROUP_PACKETS],
    pub(super) seen: [Result<Seen, Bad>; GROUP_PACKETS],
    /// The prefetched buckets of reply tuples.
    replies: [Prefetched; GROUP_PACKETS],
    replies_count: usize,
}

const _: () = assert!(GROUP_PACKETS == u32::BITS as usize);

impl Group {
    /// Removes all packets.
    pub(super) fn clear(&mut self) {
        (self.count, self.fast_mask, self.replies_count) = (0, 0, 0);
    }

    /// True if packet `k` was read for the fast path.
    pub(super) fn is_fast(&self, k: usize) -> bool {
        self.fast_mask >> k & 1 != 0
    }

    /// Number of packets from packet `k` on that were read for the fast path.
    pub(super) fn fast_run(&self, k: usize) -> usize {
        (self.fast_mask >> k).trailing_ones() as usize
    }
}

impl Default for Group {
    fn default() -> Self {
        Group {
            count: 0,
            fast_mask: 0,
            fast: [FastPacket::NONE; GROUP_PACKETS],
            tracked: [FastTracked::NONE; GROUP_PACKETS],
            ahead: [Ahead::Other; GROUP_PACKETS],
            seen: [const { Err(Bad::Shape) }; GROUP_PACKETS],
            replies: [Prefetched::default(); GROUP_PACKETS],
            replies_count: 0,
        }
    }
}

/// Reads a group of packets from `n` on, and prefetches the buckets of the index where their
/// connections are.
pub(super) fn read_group(
    batch: &Batch,
    programs: &Programs,
    n: usize,
    tx: &TxState,
    group: &mut Group,
) {
    group.clear();
    let ids = &batch.keys.program[n..batch.len().min(n + GROUP_PACKETS)];
    while group.count < ids.len() {
        let program = programs.get(ids[group.count]);
        let (Kind::Track, Some(Op::Ct(ct))) = (program.kind, program.ops.first()) else { break };
        let run = group.count..group.count + run_length(&ids[group.count..]);
        read_run(batch, ct, (n, run), tx, group);
    }
}

/// Reads the packets of a group that have the same program; its first packet is `n`.
fn read_run(
    batch: &Batch,
    ct: &Ct,
    (n, run): (usize, Range<usize>),
    tx: &TxState,
    group: &mut Group,
) {
    let fast = match is_fast(ct) {
        true => read_fast(batch, ct, n + run.start, tx, &mut group.fast[run.clone()]),
        false => 0,
    };
    group.fast_mask |= fast << run.start;
    group.count = run.end;
    if fast.count_ones() as usize != run.len() {
        for k in run.clone().filter(|k| fast >> (k - run.start) & 1 == 0) {
            group.ahead[k] = read(batch, ct, n + k, tx, &mut group.seen[k]);
        }
    }
    if ct.commit && ct.nat.as_ref().is_some_and(|nat| nat.side.is_some()) {
        run.for_each(|k| prefetch_reply((batch, n + k), ct, (group, k), tx));
    }
}

/// Prefetches the bucket of the reply tuple for packet `i`, if it begins a connection that NAT
/// translates.
fn prefetch_reply(
    (batch, i): (&Batch, usize),
    ct: &Ct,
    (group, k): (&mut Group, usize),
    tx: &TxState,
) {
    let begins = i < batch.waited && batch.columns.ct[i].state & state::NEW != 0;
    let (Some(nat), true) = (&ct.nat, begins) else { return };
    let tuple = match (group.is_fast(k), group.ahead[k], &group.seen[k]) {
        (true, ..) => group.fast[k].seen().tuple,
        (_, Ahead::Read(_), Ok(seen)) => seen.tuple,
        _ => return,
    };
    if let Some(prefetched) = tx.ct.worker.prefetch_reply(&tuple, nat) {
        group.replies[group.replies_count] = prefetched;
        group.replies_count += 1;
    }
}

/// Prefetches the connections of a group.
#[inline(never)]
pub(super) fn prefetch_entries(tx: &TxState, group: &mut Group) {
    let worker = &tx.ct.worker;
    let (mask, count) = (group.fast_mask, group.count);
    worker.prefetch_fast_entries(marked(&mut group.fast, mask));
    if mask.count_ones() as usize != count {
        for k in (0..count).filter(|k| mask >> k & 1 == 0) {
            if let Ahead::Read(prefetched) = group.ahead[k] {
                worker.prefetch_entries(prefetched);
            }
        }
    }
    group.replies[..group.replies_count].iter().for_each(|r| worker.prefetch_entries(*r));
}

/// The packets that have a bit in `mask`.
#[inline(always)]
fn marked(packets: &mut [FastPacket], mask: u32) -> impl Iterator<Item = &mut FastPacket> {
    packets.iter_mut().enumerate().filter(move |(k, _)| mask >> k & 1 != 0).map(|(_, p)| p)
}

/// Reads packets from `first` on for the fast path, and prefetches their buckets of the index;
/// returns a bit for each packet that the fast path may take.
fn read_fast(batch: &Batch, ct: &Ct, first: usize, tx: &TxState, to: &mut [FastPacket]) -> u32 {
    let mask = read_all(batch, ct, first, to);
    prefetch_buckets(tx, mask, to);
    mask
}

#[inline(never)]
fn prefetch_buckets(tx: &TxState, mask: u32, packets: &mut [FastPacket]) {
    tx.ct.worker.prefetch_fast(marked(packets, mask));
}

/// Reads packets from `first` on for the fast path; returns a bit for each that may take it.
#[inline(never)]
fn read_all(batch: &Batch, ct: &Ct, first: usize, to: &mut [FastPacket]) -> u32 {
    let all = first..first + to.len();
    let lines = &batch.keys.line.0[all.clone()];
    let exts = &batch.keys.ext[all.clone()];
    let layouts = &batch.columns.layout[all.clone()];
    let packets = &batch.packets[all.clone()];
    let waited = batch.waited.saturating_sub(first);
    let (zone, mut mask, mut bit) = (ct.zone, 0, 1);
    for (k, ((((line, ext), layout), packet), to)) in
        lines.iter().zip(exts).zip(layouts).zip(packets).zip(to).enumerate()
    {
        let tracked = k < waited && was_tracked(batch, ct, first + k);
        if !tracked && read_one((line, &ext[0]), *layout, packet, zone, to).is_some() {
            mask |= bit;
        }
        bit <<= 1;
    }
    mask
}

/// Reads a packet, whose key has this line 0 and line 1, for the fast path; None: it cannot take
/// it.
#[inline(always)]
fn read_one(
    (line, ext): (&Line, &Line),
    layout: Layout,
    p: &Packet,
    zone: u16,
    to: &mut FastPacket,
) -> Option<()> {
    const { assert!(at::IP_SRC == 16 && at::IP_DST == 20 && at::TP_SRC == 24 && at::PROTO == 28) };
    const { assert!(at::IPV6_SRC == 64 && at::IPV6_DST == 80) };
    if !layout.sane || layout.l4 == 0 || bytes(line)[at::FRAG] & frag::ANY != 0 {
        return None;
    }
    let rest = u64::from_be(line[3]);
    let (ports, proto) = ((rest >> 32) as u32, (rest >> 24) as u8);
    let Layout { l3, l4, end, .. } = layout;
    let headers = FastHeaders { ports, proto, l3, l4, end };
    let sound = p.has_sound_checksums();
    match u16::from_be_bytes([bytes(line)[at::ETH_TYPE], bytes(line)[at::ETH_TYPE + 1]]) {
        IPV4 => to.read_v4(p.data(), (headers, u64::from_be(line[2])), zone, sound),
        IPV6 => {
            let addresses = [0, 1, 2, 3].map(|w| u64::from_be(ext[w]));
            to.read_v6(p.data(), (headers, addresses), zone, sound)
        }
        _ => None,
    }
}

/// True if packet `i` was tracked in this zone before, and did not begin a connection.
#[inline(always)]
fn was_tracked(batch: &Batch, ct: &Ct, i: usize) -> bool {
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
        return Ahead::Tracked;
    }
    let p = &batch.packets[i];
    *seen = extract(p.data(), layout.l3.into(), ct.zone, p.has_sound_checksums());
    let prefetched = seen
        .as_ref()
        .map_or(Prefetched::default(), |seen| tx.ct.worker.prefetch_bucket(&seen.tuple));
    Ahead::Read(prefetched)
}
