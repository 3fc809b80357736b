//! Before step 2: what marks say of the packets of a burst; the others are parsed.

use super::table::Found;
use super::{MarkChange, MarkCounts, MarkTable};
use crate::actions::program::Kind;
use crate::actions::program::Programs;
use crate::batch::{Batch, Burst};
use crate::lookup::flow_store::Store;
use crate::lookup::table::Table;
use crate::parse::Parser;
use crate::report::Reports;
use crate::tx::total;
use flow::PortNo;
use packet::BURST;
use std::ops::Range;

/// Unknown packets of a burst that are parsed alone; with more of them all are, known or not.
/// Each stretch costs about as much as eight packets of a whole burst.
const PARSED_APART_MAX: u32 = 4;

/// By port: its marks, if its adapter makes some.
#[derive(Default)]
pub(crate) struct PortMarks {
    tables: Vec<Option<Box<MarkTable>>>,
    counts: MarkCounts,
}

impl PortMarks {
    /// Has the port an adapter that marks packets?
    #[inline]
    pub fn serve(&self, port: PortNo) -> bool {
        self.tables.get(usize::from(port)).is_some_and(Option::is_some)
    }

    pub fn take_counts(&mut self) -> MarkCounts {
        std::mem::take(&mut self.counts)
    }

    /// Does what control says of a port's marks.
    pub fn change(
        &mut self,
        port: PortNo,
        change: MarkChange,
        (store, programs): (&Store, &Programs),
    ) {
        let no = usize::from(port);
        let tables = &mut self.tables;
        if let MarkChange::Table(table) = change {
            if tables.len() <= no {
                tables.resize_with(no + 1, || None);
            }
            tables[no] = table;
            if tables.iter().all(Option::is_none) {
                tables.clear();
            }
            return;
        }
        let Some(Some(table)) = tables.get_mut(no) else { return };
        match change {
            MarkChange::Bind(b) => {
                table.bind(store, &b, &|program| needs_key(programs.get(program).kind));
            }
            MarkChange::Unbind(slot, megaflow) => table.unbind(slot, megaflow),
            MarkChange::Table(_) => {}
        }
    }

    /// Parses a burst of a port whose packets may be marked; returns its bytes.
    #[inline(never)]
    pub fn parse(
        &mut self,
        parser: &mut Parser,
        batch: &mut Batch,
        burst: Burst,
        table: &Table,
        reports: &mut Reports,
    ) -> u64 {
        let Burst { range, since, port } = burst;
        let Some(Some(marks)) = self.tables.get(usize::from(port)) else { return 0 };
        let mut found = marks.find(&table.store, batch, range.clone());
        self.counts.add(found.counts);
        let all = u32::MAX >> (BURST - range.len());
        if parser.all {
            found.parse = all;
        }
        if found.known == 0 {
            parser.parse(batch, range.clone(), since, port, reports);
            return total(&batch.columns.len[range]);
        }
        batch.marked += found.counts.hits as usize;
        if found.parse.count_ones() > PARSED_APART_MAX {
            found.parse = all;
        }
        if found.parse != 0 {
            parse_some(parser, batch, &range, (since, port), found.parse, reports);
        }
        if found.known & !found.parse == all {
            batch.keys.have[range.clone()].fill(0);
            batch.columns.known[range.clone()].fill(true);
            batch.columns.same[range.clone()].fill(false);
        } else {
            settle(batch, &range, &found);
        }
        total(&batch.columns.len[range])
    }
}

/// Parses the packets of a burst that have a bit in `which`, stretch by stretch.
#[inline(never)]
fn parse_some(
    parser: &mut Parser,
    batch: &mut Batch,
    range: &Range<usize>,
    (since, port): (usize, PortNo),
    mut which: u32,
    reports: &mut Reports,
) {
    let from = range.start;
    while which != 0 {
        let first = which.trailing_zeros();
        let n = (which >> first).trailing_ones();
        let start = from + first as usize;
        // The packet before has no key, or none that is looked up.
        let alone = start > from || start > since && batch.columns.known[start - 1];
        let since = if alone { start } else { since };
        parser.parse(batch, start..start + n as usize, since, port, reports);
        which &= u32::MAX.checked_shl(first + n).unwrap_or(0);
    }
}

/// What is known of the packets of a burst some of which are known by their marks. The megaflow of
/// such a packet is not copied to the packet behind it. Without branches: they would be
/// mispredicted.
fn settle(batch: &mut Batch, range: &Range<usize>, found: &Found) {
    let looked_at = !(found.known | found.known << 1);
    let has_key = !found.known | found.parse;
    for (k, i) in range.clone().enumerate() {
        let is = |bits: u32| bits >> k & 1 != 0;
        batch.columns.known[i] = is(found.known);
        batch.columns.same[i] &= is(looked_at);
        batch.keys.have[i] &= 0u8.wrapping_sub(is(has_key).into());
    }
}

/// Does what this program does need a packet's key or where its headers are?
pub(crate) fn needs_key(kind: Kind) -> bool {
    !matches!(
        kind,
        Kind::Drop | Kind::Output | Kind::SetEthOutput | Kind::PushVlanOutput | Kind::PopVlanOutput
    )
}
