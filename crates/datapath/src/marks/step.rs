//! Replaces the parse step for ports with marks: packets of known megaflows need no parsing; the
//! others of the burst are parsed.

use super::mark_table::Found;
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

/// The tables of ports whose adapters mark packets, by port number.
#[derive(Default)]
pub(crate) struct PortMarks {
    tables: Vec<Option<Box<MarkTable>>>,
    counts: MarkCounts,
}

impl PortMarks {
    /// True if the port's adapter marks packets, and its marks are used.
    #[inline]
    pub fn serve(&self, port: PortNo) -> bool {
        let table = self.tables.get(usize::from(port)).and_then(Option::as_ref);
        table.is_some_and(|t| !t.ignored)
    }

    pub fn take_counts(&mut self) -> MarkCounts {
        std::mem::take(&mut self.counts)
    }

    /// Executes a command of the control side about a port's marks.
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
            MarkChange::Ignore(ignored) => table.ignored = ignored,
            MarkChange::Unbind(slot, megaflow) => table.unbind(slot, megaflow),
            MarkChange::Table(_) => {}
        }
    }

    /// Parses a burst of a port whose packets may be marked; returns the burst's bytes.
    #[inline(never)]
    pub fn parse(
        &mut self,
        parser: &mut Parser,
        batch: &mut Batch,
        burst: Burst,
        table: &Table,
        reports: &mut Reports,
    ) -> u64 {
        let (range, port) = (burst.range.clone(), burst.port);
        let Some(Some(marks)) = self.tables.get(usize::from(port)) else { return 0 };
        let mut found = marks.find(parser.level, &table.store, batch, range.clone());
        self.counts.add(found.counts);
        let all = u32::MAX >> (BURST - range.len());
        if parser.all {
            found.parse = all;
        }
        if found.parse != 0 {
            let some = (found.parse != all).then_some(found.parse);
            parser.parse_places(batch, burst, some, table.matched(port), reports);
        }
        if found.preset & !found.parse == all {
            batch.keys.have[range.clone()].fill(0);
            batch.columns.preset[range.clone()].fill(true);
            batch.columns.same[range.clone()].fill(false);
        } else if found.preset != 0 {
            settle(batch, &range, &found);
        }
        batch.preset_count += found.counts.hits as usize;
        total(&batch.columns.len[range])
    }
}

/// Writes the columns of a burst some of whose packets are known by their marks. The packet behind
/// a known one never takes over its megaflow. There are no branches: they would be mispredicted.
fn settle(batch: &mut Batch, range: &Range<usize>, found: &Found) {
    let preset = spread(found.preset);
    let looked_at = spread(!(found.preset | found.preset << 1));
    let has_key = spread(!found.preset | found.parse);
    let (columns, keys) = (&mut batch.columns, &mut batch.keys);
    columns.preset[range.clone()].iter_mut().zip(preset).for_each(|(to, bit)| *to = bit != 0);
    columns.same[range.clone()].iter_mut().zip(looked_at).for_each(|(to, bit)| *to &= bit != 0);
    keys.have[range.clone()]
        .iter_mut()
        .zip(has_key)
        .for_each(|(to, bit)| *to &= bit.wrapping_neg());
}

/// The bits as bytes, 0 or 1 each.
fn spread(bits: u32) -> [u8; BURST] {
    const EACH: u64 = 0x0101_0101_0101_0101;
    // Bit k of byte k; the addition below turns it into bit 7.
    const DIAGONAL: u64 = 0x8040_2010_0804_0201;
    let mut all = [0; BURST];
    for (eight, bits) in all.chunks_exact_mut(8).zip(bits.to_le_bytes()) {
        let one_each = (u64::from(bits) * EACH) & DIAGONAL;
        eight.copy_from_slice(&(((one_each + 0x7f * EACH) >> 7) & EACH).to_le_bytes());
    }
    all
}

/// True if the program reads the packet's key or layout.
pub(crate) fn needs_key(kind: Kind) -> bool {
    !matches!(
        kind,
        Kind::Drop | Kind::Output | Kind::SetEthOutput | Kind::PushVlanOutput | Kind::PopVlanOutput
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_become_bytes() {
        for bits in [0, 1, 0x8000_0000, 0xffff_ffff, 0x1234_5678, 0xff00_80a5] {
            let bytes = spread(bits);
            assert!((0..BURST).all(|k| u32::from(bytes[k]) == bits >> k & 1), "{bits:x}");
        }
    }
}
