//! Before step 2: what marks say of the packets of a burst; the others are parsed.

use super::{MarkChange, MarkCounts, MarkHit, MarkTable};
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
    pub fn change(&mut self, port: PortNo, change: MarkChange, store: &Store) {
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
            MarkChange::Bind(b) => table.bind(store, &b),
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
        (table, programs): (&Table, &Programs),
        reports: &mut Reports,
    ) -> u64 {
        let Burst { range, since, port } = burst;
        let mut hits = [MarkHit::default(); BURST];
        let Some(Some(marks)) = self.tables.get(usize::from(port)) else { return 0 };
        let counts = marks.find(&table.store, &batch.packets[range.clone()], &mut hits);
        self.counts.add(counts);
        if counts.hits == 0 {
            parser.parse(batch, range.clone(), since, port, reports);
            return total(&batch.columns.len[range]);
        }
        batch.marked += counts.hits as usize;
        let (from, end, mut i) = (range.start, range.end, range.start);
        while i < end {
            let skip = |i: usize| !parser.validate && skips(programs, hits[i - from]);
            let (start, skipped) = (i, skip(i));
            i += 1 + (i + 1..end).take_while(|i| skip(*i) == skipped).count();
            if skipped {
                pass(batch, start..i);
            } else {
                let alone = start > from || start > since && batch.columns.known[start - 1];
                let since = if alone { start } else { since };
                parser.parse(batch, start..i, since, port, reports);
            }
        }
        for (i, hit) in range.clone().zip(&hits).filter(|(_, hit)| hit.megaflow != 0) {
            (batch.keys.megaflow[i], batch.keys.program[i]) = (hit.megaflow, hit.program);
            (batch.columns.known[i], batch.columns.same[i]) = (true, false);
        }
        total(&batch.columns.len[range])
    }
}

/// Does what this program does need a packet's key or where its headers are?
fn needs_key(kind: Kind) -> bool {
    !matches!(
        kind,
        Kind::Drop | Kind::Output | Kind::SetEthOutput | Kind::PushVlanOutput | Kind::PopVlanOutput
    )
}

/// Is a packet's megaflow known, and its key not needed?
#[inline]
fn skips(programs: &Programs, hit: MarkHit) -> bool {
    hit.megaflow != 0 && !needs_key(programs.get(hit.program).kind)
}

/// Packets that are not parsed.
#[inline]
fn pass(batch: &mut Batch, range: Range<usize>) {
    for i in range {
        batch.columns.len[i] = batch.packets[i].len() as u16;
        batch.keys.have[i] = 0;
    }
}
