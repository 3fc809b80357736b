//! What a tracked packet's second lookup needs: its `ct` fields, and the prediction of its megaflow.

use crate::actions::ct;
use crate::actions::program::Programs;
use crate::batch::Batch;
use crate::batch::keys::{Line, bytes_mut};
use crate::lookup::table::Table;
use crate::marks::step::needs_key;
use crate::parse::scalar::{IPV4, SCTP, TCP, UDP};
use crate::tx::TxState;
use action::Ct;
use conntrack::{FastTracked, Meta, state};
use flow::at;

/// What tracked packets need for their second lookup.
#[derive(Clone, Copy)]
pub(in crate::actions) struct SecondLookup<'a> {
    pub programs: &'a Programs,
    /// The table of the second lookup.
    pub table: &'a Table,
    /// Packets are validated or captured before their programs run, so each needs its whole key.
    pub watched: bool,
}

/// Gives a packet that is looked up again the predicted megaflow, if it matches; false: it has to
/// be looked up. Writes the `ct` fields as far as the comparison and the next program need them.
#[inline]
pub(super) fn take_prediction(
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
