//! Reads groups of packets before their connections are tracked, and prefetches what tracking
//! them reads.

use crate::actions::prefetch_headers;
use crate::actions::program::{Kind, Programs};
use crate::batch::Batch;
use crate::batch::keys::bytes;
use crate::parse::scalar::{IPV4, IPV6};
use crate::tx::TxState;
use action::{Ct, Op};
use conntrack::{Bad, FastHeaders, FastPacket, Prefetched, Seen, extract, is_fast, state};
use flow::{at, frag};

/// Packets of a group, at most: so many that prefetched lines arrive while the others are worked
/// on.
pub(super) const GROUP_PACKETS: usize = 32;

/// What is known about a packet before its connection is tracked.
#[derive(Clone, Copy)]
pub(super) enum Ahead {
    /// The packet is not claimed: it goes to the interpreter.
    Other,
    /// An earlier `ct` found its connection.
    Known,
    /// The packet was read; this names the bucket of the index where its connection is.
    Read(Prefetched),
    /// The packet was read for the fast path.
    Fast,
}

/// Reads a group of packets from `n` on, and prefetches the buckets of the index where their
/// connections are.
#[inline]
pub(super) fn read_group(
    batch: &Batch,
    programs: &Programs,
    n: usize,
    tx: &TxState,
    group: &mut Group,
) {
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
pub(super) fn prefetch_entries(tx: &TxState, group: &mut Group) {
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
pub(in crate::actions) struct Group {
    /// Number of packets.
    pub(super) count: usize,
    pub(super) ahead: [Ahead; GROUP_PACKETS],
    /// The prefetched buckets of reply tuples.
    replies: [Option<Prefetched>; GROUP_PACKETS],
    pub(super) seen: [Result<Seen, Bad>; GROUP_PACKETS],
    pub(super) fast: [FastPacket; GROUP_PACKETS],
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
