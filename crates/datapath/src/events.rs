//! What the packet side hands to the control side: events, traffic of decisions; and the tickets
//! of changes.

use crate::settings::WorkerId;
use crate::stats::perf::Suspicious;
use action::Punt;
use flow::{Key, PortNo};
use std::any::Any;
use std::sync::Arc;

/// Tells by what a decision is credited to, and by its effects, whether the decision may have
/// changed.
pub type Stale = Box<dyn Fn(&[u32], Option<&(dyn Any + Send + Sync)>) -> bool + Send>;

/// A change that was asked for with `invalidate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub(crate) u64);

/// What happened in the packet half that the control side acts on.
pub enum Event {
    /// A packet that `Op::Punt` handed over.
    Punt(Box<PuntEvent>),
    /// A kernel or a program differs from its twin: how, and on which packet.
    Differs(Box<str>),
    /// A PMD thread's iteration took long ([`PerfLog`]).
    Suspicious(WorkerId, Box<Suspicious>),
    /// A decision with effects was made.
    Decided {
        /// What the pipeline said besides.
        effects: PortEffects,
        /// Bytes of the packet if the decision is about it alone: no [`Used`] will count it.
        alone: Option<u32>,
    },
    /// Effects of decisions about packets from this port were dropped, as the queue to the control
    /// side was full.
    PassedOver {
        /// Where the packets came in.
        port: PortNo,
        /// How many.
        n: u64,
    },
}

/// What the pipeline said of a packet besides what to do with it.
pub type PortEffects = Arc<dyn Any + Send + Sync>;

/// A packet on its way to the control side.
pub struct PuntEvent {
    /// Its bytes (at most `punt.max_len`).
    pub packet: Vec<u8>,
    /// Its key when it was punted.
    pub key: Key,
    /// Where it came in.
    pub in_port: PortNo,
    /// What the pipeline wanted to remember.
    pub punt: Arc<Punt>,
    /// Bytes before cutting.
    pub total_len: usize,
}

/// Traffic of one decision since the last `collect`.
pub struct Used<'a> {
    /// The counters to credit.
    pub credits: &'a [u32],
    /// The decision's effects, to be refreshed.
    pub effects: Option<&'a Arc<dyn Any + Send + Sync>>,
    /// Nothing but the packet that the decision was made for came: its effects were reported then
    /// ([`Event::Decided`]), and reporting them again would undo what other packets taught since.
    pub reported: bool,
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
    /// When it was last used (`now_ms`).
    pub used_ms: u64,
}
