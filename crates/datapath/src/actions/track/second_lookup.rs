//! What the second lookup of tracked packets needs: their `ct` fields, and the predictions of their
//! megaflows.

use super::{Shared, finish};
use crate::actions::ct;
use crate::actions::interpret::RECIRC_LIMIT;
use crate::actions::program::Programs;
use crate::batch::Batch;
use crate::batch::keys::{Line, bytes_mut};
use crate::cpu::Level;
#[cfg(target_arch = "x86_64")]
use crate::lookup::compare::Avx2;
use crate::lookup::compare::{Probe, Scalar};
use crate::lookup::recirc_memo::{Prediction, Predictions};
use crate::lookup::table::Table;
use crate::marks::step::needs_key;
use crate::parse::scalar::{IPV4, SCTP, TCP, UDP};
use crate::tx::TxState;
use conntrack::{FastTracked, Meta, state};
use flow::at;
use std::ops::Range;

/// What tracked packets need for their second lookup.
#[derive(Clone, Copy)]
pub(in crate::actions) struct SecondLookup<'a> {
    pub programs: &'a Programs,
    /// The table of the second lookup.
    pub table: &'a Table,
    /// Packets are validated or captured before their programs run, so each needs its whole key.
    pub inspected: bool,
}

/// Gives packets from `first` on, which the fast path tracked and which are looked up again with
/// this id, the predicted megaflows; packets that no megaflow is predicted for are looked up.
#[inline]
pub(super) fn look_up_again(
    batch: &mut Batch,
    shared: &Shared<'_>,
    id: u32,
    (first, tracked): (usize, &[FastTracked]),
    tx: &mut TxState,
) {
    if shared.ct.nat.is_some() {
        for (i, _) in (first..).zip(tracked).filter(|(_, t)| t.is_translated()) {
            write_translation(batch, i);
        }
    }
    for (line, tracked) in batch.keys.line.0[first..].iter_mut().zip(tracked) {
        (line[4], line[5]) = tracked_words(line, tracked, id);
    }
    let depths = &batch.columns.depth[first..first + tracked.len()];
    match shared.again.table.predictions() {
        Some(all) if depths.iter().all(|depth| *depth < RECIRC_LIMIT) => {
            predict(batch, (shared, all), (first, tracked), tx);
        }
        _ => (first..).zip(tracked).for_each(|(i, t)| finish(batch, shared, i, t, tx)),
    }
}

/// Gives packets the predicted megaflows, by the table's level.
fn predict(
    batch: &mut Batch,
    how: (&Shared<'_>, Predictions<'_>),
    packets: (usize, &[FastTracked]),
    tx: &mut TxState,
) {
    match how.0.again.table.level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a level is used only where `is_available` found it, and AVX-512's has AVX2's
        // instructions.
        Level::Avx2 | Level::Avx512 => unsafe { predict_avx2(batch, how, packets, tx) },
        _ => predict_by::<Scalar>(batch, how, packets, tx),
    }
}

/// # Safety
/// AVX2, BMI1 and BMI2 are there.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2")]
unsafe fn predict_avx2(
    batch: &mut Batch,
    how: (&Shared<'_>, Predictions<'_>),
    packets: (usize, &[FastTracked]),
    tx: &mut TxState,
) {
    predict_by::<Avx2>(batch, how, packets, tx);
}

#[inline(always)]
fn predict_by<P: Probe>(
    batch: &mut Batch,
    (shared, predictions): (&Shared<'_>, Predictions<'_>),
    (first, tracked): (usize, &[FastTracked]),
    tx: &mut TxState,
) {
    let (mut stay, mut i, end) = (first, first, first + tracked.len());
    loop {
        let (n, prediction) = predict_run::<P>(batch, shared.again, predictions, i..end);
        i += n;
        let Some(tracked) = tracked.get(i - first) else { break };
        if !prediction.is_some_and(|p| confirm(batch, shared, (i, tracked), &p, tx)) {
            batch.stay_preset(stay..i);
            finish(batch, shared, i, tracked, tx);
            stay = i + 1;
        }
        i += 1;
    }
    batch.stay_preset(stay..end);
}

/// Writes the predicted megaflows and programs of these packets, up to the first one that is not
/// predicted or needs more than line 0 of its key; returns how many these are, and that packet's
/// prediction.
#[inline(always)]
fn predict_run<P: Probe>(
    batch: &mut Batch,
    again: SecondLookup<'_>,
    predictions: Predictions<'_>,
    these: Range<usize>,
) -> (usize, Option<Prediction>) {
    let count = these.len();
    let lines = &batch.keys.line.0[these.clone()];
    let megaflows = &mut batch.keys.megaflow[these.clone()];
    let programs = &mut batch.keys.program[these];
    for (n, ((line, megaflow), program)) in lines.iter().zip(megaflows).zip(programs).enumerate() {
        let prediction = predictions.predict::<P>(line);
        match prediction {
            Some(p) if !p.more && !needs_whole_key(again, &p) => {
                (*megaflow, *program) = (p.megaflow, p.program);
            }
            _ => return (n, prediction),
        }
    }
    (count, None)
}

/// True if a step of the next pass reads more than line 0 of the packet's key, or its metadata.
#[inline(always)]
fn needs_whole_key(again: SecondLookup<'_>, p: &Prediction) -> bool {
    again.inspected || needs_key(again.programs.get(p.program).kind)
}

/// Writes all `ct` fields of a packet to its key, and to its metadata if a later step reads that.
/// True: the packet takes the predicted megaflow, which is written to its key's columns.
#[inline(always)]
fn confirm(
    batch: &mut Batch,
    shared: &Shared<'_>,
    (i, tracked): (usize, &FastTracked),
    p: &Prediction,
    tx: &TxState,
) -> bool {
    let mut own = Meta::default();
    // Metadata that no later step reads stays on the stack.
    let meta = match needs_whole_key(shared.again, p) {
        true => &mut batch.columns.ct[i],
        false => &mut own,
    };
    tx.ct.worker.describe(shared.ct, tracked, meta);
    let keys = &mut batch.keys;
    ct::write_ct_fields(meta, &mut keys.line.0[i], &mut keys.ext[i][2], &mut keys.have[i]);
    (keys.megaflow[i], keys.program[i]) = (p.megaflow, p.program);
    shared.again.table.confirms(p, &keys.get(i))
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

/// Writes the `ct` fields to a packet's key.
#[inline]
pub(super) fn write_ct_fields(batch: &mut Batch, i: usize) {
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
