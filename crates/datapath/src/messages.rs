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

/// Entries of the rings.
pub(crate) const COMMANDS_MAX: usize = 1024;
pub(crate) const REPORTS_MAX: usize = 8192;
pub(crate) const PUNTS_MAX: usize = 4096;
pub(crate) const HANDOFFS_MAX: usize = 2048;

/// Effects of a decision, opaque here: the control side hears of them when the decision is used.
pub(crate) type Effects = Option<Arc<dyn Any + Send + Sync>>;

/// How a worker sends to a port.
pub(crate) enum Route {
    /// Not at all (yet).
    None,
    /// On a queue of its own.
    Queue(Box<dyn TxQueue>),
    /// Through the worker in this slot, which has one.
    Via(usize),
}

/// A packet for a port that another worker sends on.
pub(crate) type Handoff = (PortNo, Packet);

/// From the control side to a worker; executed in order, between vectors.
pub(crate) enum Command {
    AddPort(PortNo, Arc<PortCell>),
    /// Packets to it become `NoPort`; buffered ones are sent first. Answer: `TxBack` if it had one.
    DelPort(PortNo),
    /// How to send to a port. Answer: `TxBack` if it had a queue of its own.
    SetRoute(PortNo, Route),
    /// Longest frame, in bytes, that the port takes.
    Limit(PortNo, usize),
    /// The bond that packets to this number are spread over.
    Bond(PortNo, Option<Arc<Bond>>),
    /// What the port's receive queues may bring from now on.
    Police(PortNo, Option<Arc<Policer>>),
    /// What the port may be sent from now on.
    PoliceTx(PortNo, Option<Arc<Policer>>),
    /// What an adapter's marks of packets from this port stand for.
    Mark(PortNo, MarkChange),
    AddRx(Box<RxSlot>),
    /// Answer: `RxBack`.
    DelRx(PortNo, usize),
    Settings(Box<Settings>),
    /// Packets are captured from now on, or no longer.
    Capture(Option<Box<Capture>>),
    /// Unlink these megaflows. Answer: `Unlinked` for those that were linked.
    Unlink(Vec<u32>),
    /// The control side is done with these.
    Release(Vec<u32>),
    Execute(Box<Execute>),
    /// Packets for queues of worker `slot` go here.
    AddPeer(usize, Producer<Handoff>, Option<Arc<Wake>>),
    DelPeer(usize),
    AddInbound(Consumer<Handoff>),
    Stop,
}

/// From a worker to the control side.
pub(crate) enum Report {
    /// What a program does that megaflows reported from now on have.
    Program(u32, Arc<[Op]>),
    /// A megaflow came: the port that its packets come from, the length of the packet that it was
    /// made for, what it is credited to, and the effects that the control side hears of when it is
    /// used.
    Installed {
        idx: u32,
        port: PortNo,
        bytes: u16,
        credits: Credits,
        effects: Effects,
    },
    /// What must live until the megaflow is unlinked.
    KeepAlive(u32, Arc<dyn Any + Send + Sync>),
    Unlinked(u32),
    Uncached(Box<UncachedReport>),
    RxBack(Box<RxSlot>),
    TxBack(PortNo, Box<dyn TxQueue>),
    /// A packet with this key was missed.
    Missed(Box<Key>),
    /// What validation found.
    Differs(Box<str>),
    /// An iteration took long.
    Suspicious(Box<Suspicious>),
    /// How lookups go, by input port; it changed.
    Lookups(Box<[PortLookup]>),
}

/// A packet to inject.
pub(crate) struct Execute {
    pub packet: Vec<u8>,
    pub in_port: PortNo,
    pub ops: Arc<[Op]>,
}

/// A receive queue on its way or at work.
pub(crate) struct RxSlot {
    pub port: PortNo,
    pub queue: usize,
    pub rx: Box<dyn RxQueue>,
    pub cell: Arc<RxqCell>,
    pub stats: Arc<PortCell>,
    /// What the port may bring.
    pub police: Option<Arc<Policer>>,
}

/// Counters to credit: most lists are short.
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
    /// A counter may be there several times.
    pub sums: Vec<Sum>,
    /// With the port that the packet came from, and its bytes.
    pub effects: Vec<(PortNo, PortEffects, u32)>,
    /// Effects that there was no room for, by port.
    pub lost: Vec<(PortNo, u64)>,
    pub used_ms: u64,
}

/// What one counter counted.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sum {
    pub counter: u32,
    pub packets: u64,
    pub bytes: u64,
}

/// Traffic of flows that are gone.
pub(crate) struct Credit {
    pub credits: Box<[u32]>,
    pub effects: Effects,
    pub reported: bool,
    pub packets: u64,
    pub bytes: u64,
    pub used_ms: u64,
}

/// What both sides of a worker see.
pub(crate) struct Shared {
    pub perf: PerfCell,
    pub metrics: Metrics,
    /// Counters of packets whose port is gone or never was.
    pub orphan: PortCell,
    /// Commands executed.
    pub processed: AtomicU64,
    pub flows: AtomicU32,
    pub masks: AtomicU32,
    pub cache_on: AtomicBool,
    /// Megaflows it may have: its part of the limit over all workers.
    pub limit: AtomicU32,
    /// [`Report::Uncached`] that the control side has read.
    pub taken: AtomicU64,
    /// Rung when there are reports for the control side; only the kernel worker may (it is a system
    /// call).
    pub bell: Option<Arc<Wake>>,
}
