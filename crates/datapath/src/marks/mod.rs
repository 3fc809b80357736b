//! Marks of adapters: a packet that comes marked needs no parsing and no lookup, once its first
//! bytes were compared with the megaflow's.
//!
//! A mark is a hint. A worker has a table for each port whose adapter marks packets: which megaflow
//! of its own a mark stands for, and what the packets of that begin with. Only the worker changes
//! it, as the control side says ([`MarkChange`]), in the order of its other commands: a mark is
//! unbound before its megaflow's index is used again. A megaflow that was marked dead is not found
//! by its mark either, so that barriers do not wait for an adapter.

mod mark_table;
pub(crate) mod step;

pub(crate) use mark_table::{MarkMemory, MarkTable};

use offload::{FirstBytes, Mark};

/// Forms that bindings of one port can have between them: which bytes are compared, and which
/// lengths are checked.
pub(crate) const MARK_FORMS_MAX: usize = 256;

/// What the control side says of marks.
pub(crate) enum MarkChange {
    /// Packets of this port may be marked from now on, or are not any more.
    Table(Option<Box<MarkTable>>),
    /// The port's marks are ignored, or are not any more; what they stand for is kept either way.
    Ignore(bool),
    Bind(Box<MarkBinding>),
    /// The slot does not stand for this megaflow any more.
    Unbind(u16, u32),
}

/// Packets with this mark belong to this megaflow if they begin so.
pub(crate) struct MarkBinding {
    pub mark: Mark,
    pub megaflow: u32,
    pub bytes: FirstBytes,
    /// The form's place among the port's.
    pub form: u8,
}

/// What became of marked packets.
#[derive(Default, Clone, Copy)]
pub(crate) struct MarkCounts {
    /// Packets of the megaflow that their mark stands for.
    pub hits: u64,
    /// Packets whose mark stands for nothing, or nothing any more.
    pub stale: u64,
    /// The packet is not of the megaflow that the mark stands for.
    pub wrong: u64,
}

impl MarkCounts {
    pub fn add(&mut self, o: MarkCounts) {
        self.hits += o.hits;
        self.stale += o.stale;
        self.wrong += o.wrong;
    }
}
