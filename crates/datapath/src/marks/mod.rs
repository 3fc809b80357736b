//! Marks of adapters: a marked packet needs no parsing and no lookup if its first bytes are those
//! of the megaflow that the mark stands for.
//!
//! A mark is a hint. For each port whose adapter marks packets a worker has a table: which of its
//! megaflows each mark stands for, and the first bytes of that megaflow's packets. Only the worker
//! changes the table, by commands of the control side ([`MarkChange`]), in the order of all its
//! commands: a mark is unbound before its megaflow's index is used again. A megaflow that was
//! marked dead is not found by its mark either, so barriers do not wait for an adapter.

mod mark_table;
pub(crate) mod step;

pub(crate) use mark_table::{MarkMemory, MarkTable};

use offload::{FirstBytes, Mark};

/// Forms that all bindings of one port may have: which bytes are compared, and which lengths are
/// checked.
pub(crate) const MARK_FORMS_MAX: usize = 256;

/// A command of the control side about a port's marks.
pub(crate) enum MarkChange {
    /// Some: packets of this port may be marked from now on. None: no longer.
    Table(Option<Box<MarkTable>>),
    /// Ignore the port's marks, or use them again; bindings are kept either way.
    Ignore(bool),
    Bind(Box<MarkBinding>),
    /// The slot's mark does not stand for this megaflow any more.
    Unbind(u16, u32),
}

/// Binds a mark to a megaflow: packets with this mark and these first bytes belong to it.
pub(crate) struct MarkBinding {
    pub mark: Mark,
    pub megaflow: u32,
    pub bytes: FirstBytes,
    /// The number of the form, among those of the port.
    pub form: u8,
}

/// Counts of marked packets.
#[derive(Default, Clone, Copy)]
pub(crate) struct MarkCounts {
    /// Packets of the megaflow that their mark stands for.
    pub hits: u64,
    /// Packets whose mark stands for no megaflow, or for one that ended.
    pub stale: u64,
    /// Packets that are not of the megaflow that their mark stands for.
    pub wrong: u64,
}

impl MarkCounts {
    pub fn add(&mut self, o: MarkCounts) {
        self.hits += o.hits;
        self.stale += o.stale;
        self.wrong += o.wrong;
    }
}
