//! Before step 2: what marks say of the packets of a burst; the others are parsed.

use super::{MarkChange, MarkCounts, MarkHit, MarkTable};
use crate::actions::program::Kind;
use crate::batch::Vector;
use crate::tx::total;
use flow::PortNo;
use packet::BURST;
use std::ops::Range;

/// By port: its marks, if its adapter makes some.
#[derive(Default)]
pub(crate) struct PortMarks {
    tables: Vec<Option<Box<MarkTable>>>,
    /// Packets of this vector whose megaflow is known by their mark.
    pub known: usize,
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
}

/// Does what this program does need a packet's key or where its headers are?
fn needs_key(kind: Kind) -> bool {
    !matches!(
        kind,
        Kind::Drop | Kind::Output | Kind::SetEthOutput | Kind::PushVlanOutput | Kind::PopVlanOutput
    )
}

impl Vector {
    /// Does what control says of a port's marks.
    pub fn change_marks(&mut self, port: PortNo, change: MarkChange) {
        let no = usize::from(port);
        let tables = &mut self.marks.tables;
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
            MarkChange::Bind(b) => table.bind(&self.table.store, &b),
            MarkChange::Unbind(slot, megaflow) => table.unbind(slot, megaflow),
            MarkChange::Table(_) => {}
        }
    }

    /// As [`Vector::parse_received`], of a port whose packets may be marked.
    #[inline(never)]
    pub(crate) fn parse_unmarked(
        &mut self,
        range: Range<usize>,
        since: usize,
        port: PortNo,
    ) -> u64 {
        let mut hits = [MarkHit::default(); BURST];
        let Some(Some(table)) = self.marks.tables.get(usize::from(port)) else { return 0 };
        let counts = table.find(&self.table.store, &self.packets[range.clone()], &mut hits);
        self.marks.counts.add(counts);
        if counts.hits == 0 {
            self.parse(range.clone(), since, port);
            return total(&self.columns.len[range]);
        }
        self.marks.known += counts.hits as usize;
        let (from, end, mut i) = (range.start, range.end, range.start);
        while i < end {
            let skip = |i: usize| self.skips(hits[i - from]);
            let (start, skipped) = (i, skip(i));
            i += 1 + (i + 1..end).take_while(|i| skip(*i) == skipped).count();
            if skipped {
                self.pass(start..i);
            } else {
                let alone = start > from || start > since && self.columns.known[start - 1];
                self.parse(start..i, if alone { start } else { since }, port);
            }
        }
        for (i, hit) in range.clone().zip(&hits).filter(|(_, hit)| hit.megaflow != 0) {
            (self.keys.megaflow[i], self.keys.program[i]) = (hit.megaflow, hit.program);
            (self.columns.known[i], self.columns.same[i]) = (true, false);
        }
        total(&self.columns.len[range])
    }

    /// Is a packet's megaflow known, and its key not needed?
    #[inline]
    fn skips(&self, hit: MarkHit) -> bool {
        hit.megaflow != 0 && !self.validate && !needs_key(self.programs.get(hit.program).kind)
    }

    /// Packets that are not parsed.
    #[inline]
    fn pass(&mut self, range: Range<usize>) {
        for i in range {
            self.columns.len[i] = self.packets[i].len() as u16;
            self.keys.have[i] = 0;
        }
    }
}
