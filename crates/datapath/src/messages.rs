//! The bounded queues between the control side and a worker: commands one way, reports the other.

use crate::capture::Capture;
use crate::events::PortEffects;
use crate::lookup::port_classifier::PortLookup;
use crate::marks::MarkChange;
use crate::police::Policer;
use crate::settings::Settings;
use crate::stats::perf::{Metrics, Suspicious};
use crate::stats::port::{PortCell, RxqCell};
use crate::stats::worker_stats::PerfCell;
use crate::tx::bond::Bond;
use crate::wake::Wake;
use action::Op;
use flow::{Key, PortNo};
use packet::Packet;
use port::{RxQueue, TxQueue};
use std::any::Any;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use sync::{Consumer, Producer};

/// Entries of a worker's ring of commands.
pub(crate) const COMMANDS_MAX: usize = 1024;
/// Entries of a worker's ring of reports.
pub(crate) const REPORTS_MAX: usize = 8192;
/// Entries of a worker's ring of punts.
pub(crate) const PUNTS_MAX: usize = 4096;
/// Entries of each ring from one worker to another.
pub(crate) const HANDOFFS_MAX: usize = 2048;
/// Effects of one port that may wait for the control side: a burst of packets to learn from, which
/// the control side processes in a few milliseconds.
pub(crate) const PORT_EFFECTS_MAX: usize = 4096;

/// Effects of a decision, opaque here. The control side gets them when the decision is used.
pub(crate) type Effects = Option<Arc<dyn Any + Send + Sync>>;

/// How a worker sends to a port.
pub(crate) enum Route {
    /// Not at all: packets are dropped.
    None,
    /// The worker sends on a queue of its own.
    Queue(Box<dyn TxQueue>),
    /// Through the worker with this number, which has a queue.
    Via(usize),
}

/// A packet for a port to which another worker sends.
pub(crate) type Handoff = (PortNo, Packet);

/// A command from the control side to a worker. Commands are executed in order, between vectors.
pub(crate) enum Command {
    /// Add a port, which got its number as the n-th one of all.
    AddPort(PortNo, Arc<PortCell>, u64),
    /// Remove a port: buffered packets are sent first, later ones and those that wait for a vector
    /// are `NoPort`. Answer: `TxBack` if the worker had a queue.
    DelPort(PortNo),
    /// Set how to send to a port. Answer: `TxBack` if the worker had a queue.
    SetRoute(PortNo, Route),
    /// Set the longest frame that the port takes, bytes.
    Limit(PortNo, usize),
    /// Set the bond behind this number; None: there is none.
    Bond(PortNo, Option<Arc<Bond>>),
    /// Set the limit of what the port's receive queues may receive; None: no limit.
    Police(PortNo, Option<Arc<Policer>>),
    /// Set the limit of what may be sent to the port; None: no limit.
    PoliceTx(PortNo, Option<Arc<Policer>>),
    /// Change the marks of packets of this port.
    Mark(PortNo, MarkChange),
    AddRx(Box<RxqEntry>),
    /// Give a receive queue back. Answer: `RxBack`.
    DelRx(PortNo, usize),
    Settings(Box<Settings>),
    /// Begin a capture, or with None end it.
    Capture(Option<Box<Capture>>),
    /// Unlink these megaflows. Answer: `Unlinked` for those that were linked.
    Unlink(Vec<u32>),
    /// The indices of these megaflows may be used again.
    Release(Vec<u32>),
    Execute(Box<Execute>),
    /// Hand packets for queues of this worker over by this ring.
    AddPeer(usize, Producer<Handoff>, Option<Arc<Wake>>),
    DelPeer(usize),
    AddInbound(Consumer<Handoff>),
    /// Send what other workers have handed over so far.
    TakeInbound,
    Stop,
}

/// A report from a worker to the control side.
pub(crate) enum Report {
    /// The operations of a program, sent before megaflows that have it.
    Program(u32, Arc<[Op]>),
    /// A megaflow was stored: its input port, the length of the packet for which it was made, the
    /// counters to credit, and the effects that are due when it is used.
    Installed {
        idx: u32,
        port: PortNo,
        bytes: u16,
        credits: Credits,
        effects: Effects,
    },
    /// Keep an object alive until the megaflow is unlinked.
    KeepAlive(u32, Arc<dyn Any + Send + Sync>),
    Unlinked(u32),
    Uncached(Box<UncachedReport>),
    RxBack(Box<RxqEntry>),
    TxBack(PortNo, Box<dyn TxQueue>),
    /// The key of a missed packet.
    Missed(Box<Key>),
    /// A difference that the validating mode found.
    Differs(Box<str>),
    /// An iteration that took suspiciously long.
    Suspicious(Box<Suspicious>),
    /// Lookup statistics by input port, if they changed.
    Lookups(Box<[PortLookup]>),
}

/// A packet to inject, and its operations.
pub(crate) struct Execute {
    pub packet: Vec<u8>,
    pub in_port: PortNo,
    pub ops: Arc<[Op]>,
}

/// A receive queue, with its counters and its limit.
pub(crate) struct RxqEntry {
    pub port: PortNo,
    pub queue: usize,
    pub rx: Box<dyn RxQueue>,
    pub cell: Arc<RxqCell>,
    pub stats: Arc<PortCell>,
    /// The limit of what the port may receive; None: no limit.
    pub police: Option<Arc<Policer>>,
}

/// Counters to credit. Most lists are short.
#[derive(Clone)]
pub(crate) enum Credits {
    Few(u8, [u32; 3]),
    #[allow(clippy::box_collection)] // one pointer, not three words
    Many(Box<Vec<u32>>),
}

impl From<&[u32]> for Credits {
    fn from(list: &[u32]) -> Self {
        let mut few = [0; 3];
        match few.get_mut(..list.len()) {
            Some(part) => part.copy_from_slice(list),
            None => return Credits::Many(Box::new(list.to_vec())),
        }
        Credits::Few(list.len() as u8, few)
    }
}

impl Default for Credits {
    fn default() -> Self {
        Credits::Few(0, [0; 3])
    }
}

impl PartialEq for Credits {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Credits {}

impl Hash for Credits {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl std::ops::Deref for Credits {
    type Target = [u32];
    fn deref(&self) -> &[u32] {
        match self {
            Credits::Few(n, few) => &few[..usize::from(*n)],
            Credits::Many(list) => list,
        }
    }
}

/// Traffic of decisions that were not stored.
pub(crate) struct UncachedReport {
    /// Sums of packets and bytes; a counter may be there several times.
    pub sums: Vec<Sum>,
    /// Effects, with the input port and the length of the packet.
    pub effects: Vec<(PortNo, PortEffects, u32)>,
    /// Number of effects for which there was no room, by input port.
    pub lost: Vec<(PortNo, u64)>,
    pub used_ms: u64,
}

/// Packets and bytes of one counter.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sum {
    pub counter: u32,
    pub packets: u64,
    pub bytes: u64,
}

/// Traffic of a decision that is not credited yet, of a worker or an account that ended.
pub(crate) struct Credit {
    pub credits: Box<[u32]>,
    pub effects: Effects,
    pub reported: bool,
    pub packets: u64,
    pub bytes: u64,
    pub used_ms: u64,
}

/// State that a worker and the control side share.
pub(crate) struct Shared {
    pub perf: PerfCell,
    pub metrics: Metrics,
    /// Counters of packets whose port does not exist.
    pub orphan: PortCell,
    /// Number of commands that the worker executed.
    pub processed: AtomicU64,
    /// Number of the control side's packets with which the worker has done everything.
    pub injected: AtomicU64,
    pub flows: AtomicU32,
    pub masks: AtomicU32,
    pub cache_on: AtomicBool,
    /// Megaflows that the worker may have: its share of the limit over all workers.
    pub limit: AtomicU32,
    /// Number of [`Report::Uncached`] lists that the control side has read.
    pub taken: AtomicU64,
    /// Rung when there are reports for the control side. Only the kernel worker has it: ringing is
    /// a system call.
    pub bell: Option<Arc<Wake>>,
}
