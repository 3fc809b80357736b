//! What the packet half hands to the control side: events, traffic of decisions, and tickets of
//! changes.

use crate::settings::WorkerId;
use crate::stats::perf::Suspicious;
use action::{CachedDecision, Punt};
use flow::{Key, PortNo};
use std::any::Any;
use std::sync::Arc;

/// True if the decision may be another one now.
pub type Stale = Box<dyn Fn(&CachedDecision<'_>) -> bool + Send>;

/// A change that was started by `invalidate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub(crate) u64);

/// An event in the packet half that the control side acts on.
pub enum Event {
    /// A packet that `Op::Punt` handed over.
    Punt(Box<PuntEvent>),
    /// A kernel or a program differs from its twin: how, and on which packet.
    Differs(Box<str>),
    /// A PMD thread's iteration took suspiciously long ([`crate::PerfLog`]).
    Suspicious(WorkerId, Box<Suspicious>),
    /// A decision with effects was made.
    Decided {
        /// The effects.
        effects: PortEffects,
        /// Length of the packet if the decision is about this packet only, so that no [`Used`]
        /// counts it.
        alone: Option<u32>,
    },
    /// Effects of decisions about packets from this port were dropped, because the queue to the
    /// control side was full.
    PassedOver {
        /// The input port.
        port: PortNo,
        /// Number of decisions whose effects were dropped.
        n: u64,
    },
}

/// Effects of the decision about a packet from one port.
pub type PortEffects = Arc<dyn Any + Send + Sync>;

/// A packet that was punted to the control side.
pub struct PuntEvent {
    /// First bytes of the packet, at most `punt.max_len`.
    pub packet: Vec<u8>,
    /// Its key when it was punted.
    pub key: Key,
    /// The port on which it came in.
    pub in_port: PortNo,
    /// The pipeline's data about the punt.
    pub punt: Arc<Punt>,
    /// Length of the packet, bytes.
    pub total_len: usize,
}

/// Traffic of one decision since the last `collect`.
pub struct Used<'a> {
    /// The counters to credit.
    pub credits: &'a [u32],
    /// The decision's effects, to be refreshed.
    pub effects: Option<&'a Arc<dyn Any + Send + Sync>>,
    /// True if the only packet was the one for which the decision was made. Its effects were
    /// reported then ([`Event::Decided`]); applying them again would undo what later packets
    /// taught.
    pub reported: bool,
    /// Number of packets.
    pub packets: u64,
    /// Number of bytes.
    pub bytes: u64,
    /// When the decision was last used (`now_ms`).
    pub used_ms: u64,
}
