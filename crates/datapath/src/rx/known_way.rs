//! Replaces the parse step for bursts of a port whose only megaflow matches on nothing but the
//! port.
//!
//! The program of such packets is known before a byte of them is read, so they are neither parsed
//! nor looked up. If it is an output to a port whose queue was full, packets beyond the queue's
//! room are dropped here, as [`Drop::TxFull`](telemetry::Drop::TxFull) of that port, before they
//! cost more.

use crate::actions::program::{Kind, Programs};
use crate::batch::{Batch, Burst};
use crate::lookup::table::Table;
use crate::marks::step::needs_key;
use crate::tx::{TxState, total};
use std::ops::Range;

/// Shortest frame in bytes, as for the parser.
const FRAME_BYTES_MIN: usize = 14;

/// Gives the packets of a burst their megaflow and program, if the port has a known way; returns
/// the burst's bytes. None: the burst has to be parsed.
#[inline]
pub(crate) fn assign(
    batch: &mut Batch,
    burst: &Burst,
    table: &mut Table,
    programs: &Programs,
    tx: &mut TxState,
) -> Option<u64> {
    let (megaflow, program) = table.of_port(burst.port)?;
    let (kind, out) = (programs.get(program).kind, programs.get(program).out);
    if needs_key(kind) || !measure(batch, &burst.range) {
        return None;
    }
    let Range { start, end } = burst.range;
    let bytes = total(&batch.columns.len[start..end]);
    let n = match kind {
        Kind::Output => tx.room(out, end - start),
        _ => end - start,
    };
    if n < end - start {
        let refused = start + n..end;
        let bytes = total(&batch.columns.len[refused.clone()]);
        table.store.counters(megaflow).add(refused.len() as u64, bytes, tx.now_ms);
        tx.refuse(out, batch.packets.drain(refused));
        batch.in_port.truncate(start + n);
    }
    let kept = start..start + n;
    batch.keys.have[kept.clone()].fill(0);
    batch.keys.megaflow[kept.clone()].fill(megaflow);
    batch.keys.program[kept.clone()].fill(program);
    batch.columns.preset[kept.clone()].fill(true);
    batch.columns.same[kept].fill(false);
    batch.preset_count += n;
    table.followed((end - start) as u64);
    Some(bytes)
}

/// Writes the packets' lengths to their column. False: the parser would refuse one of the packets.
#[inline]
fn measure(batch: &mut Batch, range: &Range<usize>) -> bool {
    let lengths = &mut batch.columns.len[range.clone()];
    let plain = batch.packets[range.clone()].iter().zip(lengths).map(|(p, len)| {
        *len = p.len() as u16;
        p.segments() == 1 && p.len() >= FRAME_BYTES_MIN
    });
    plain.fold(true, |all, one| all & one)
}
