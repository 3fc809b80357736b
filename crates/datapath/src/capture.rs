//! Captures: copies of packets that match a filter, each with what was decided about it.
//!
//! Workers copy packets before their programs run ([`Actions`](crate::actions::Actions) looks at
//! one flag per pass, for this and for the validating mode), as far as the control side gives
//! permits, and hand them over in a ring of their own. While a capture is under way every packet is
//! parsed and takes every step, so that it has a key and nothing is left out.

use crate::actions::program::Programs;
use crate::batch::Batch;
use crate::batch::keys::{KeyRef, PWORDS};
use crate::lookup::flow_store::Store;
use crate::parse::job::port_word;
use crate::stats::clock::cycles;
use action::Op;
use flow::{Key, Mask, PortNo};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sync::Producer;
use telemetry::Drop;

/// Packets of one worker that wait for the control side; more are not captured.
pub(crate) const CAPTURED_PACKETS_MAX: usize = 1024;

/// Which packets are captured, and how much of them.
#[derive(Clone)]
pub struct CaptureFilter {
    /// What they have in the bits of `mask`; of both the packet side's lines count
    /// ([`flow::PACKET_LINES`]).
    pub key: Key,
    /// Which bits those are.
    pub mask: Mask,
    /// Bytes that are copied of a packet, at most.
    pub snaplen: usize,
}

/// A packet as it was when it was decided about.
pub struct Captured {
    /// When ([`crate::cycles`]).
    pub cycles: u64,
    /// Datapath port.
    pub in_port: PortNo,
    /// Its length, bytes.
    pub len: usize,
    /// Its first bytes.
    pub bytes: Vec<u8>,
    /// What becomes of it.
    pub fate: Fate,
}

/// What was decided about a captured packet.
pub enum Fate {
    /// The packet cannot be parsed, and ends.
    Unparsed(Drop),
    /// The packet was looked up, or decided about.
    Decided {
        /// Key and mask of the megaflow that it takes; None: the decision is about this packet
        /// alone.
        megaflow: Option<Box<(Key, Mask)>>,
        /// What is done with it.
        ops: Arc<[Op]>,
        /// Why it ends, if that sends it nowhere.
        drop: Drop,
    },
}

/// How many packets workers may capture now, and how many they did not because of that.
#[derive(Default)]
pub(crate) struct Permits {
    pub left: AtomicU32,
    pub beyond: AtomicU64,
}

impl Permits {
    fn take(&self) -> bool {
        let o = Ordering::Relaxed;
        self.left.fetch_update(o, o, |left| left.checked_sub(1)).is_ok()
    }
}

/// A worker's part of a capture.
pub(crate) struct Capture {
    /// Words of the filter's mask that are not zero: number, value, mask.
    words: Vec<(usize, u64, u64)>,
    snaplen: usize,
    permits: Arc<Permits>,
    out: Producer<Box<Captured>>,
}

impl Capture {
    pub fn new(
        filter: &CaptureFilter,
        permits: Arc<Permits>,
        out: Producer<Box<Captured>>,
    ) -> Self {
        let CaptureFilter { key, mask, snaplen } = filter;
        let words = (0..PWORDS).map(|w| (w, key.words[w] & mask.words[w], mask.words[w]));
        let words = words.filter(|(.., mask)| *mask != 0).collect();
        Capture { words, snaplen: *snaplen, permits, out }
    }

    /// Captures those packets of a pass that match; their programs have not run yet.
    #[cold]
    pub fn pass(&mut self, batch: &Batch, store: &Store, programs: &Programs) {
        for i in 0..batch.len() {
            if !self.matches(&batch.keys.get(i)) {
                continue;
            }
            let program = programs.get(batch.keys.program[i]);
            let fate = || Fate::Decided {
                megaflow: megaflow(store, batch.keys.megaflow[i]),
                ops: program.ops.clone(),
                drop: program.drop,
            };
            self.copy(batch, i, fate);
        }
    }

    /// Captures packet `i`, which cannot be parsed, if a packet of which nothing but the port is
    /// known matches.
    pub fn unparsed(&mut self, batch: &Batch, i: usize, why: Drop) {
        let line = [0, 0, 0, 0, port_word(batch.in_port[i]), 0, 0, 0];
        if self.matches(&KeyRef { line: &line, ext: &[[0; 8]; 3], have: 0 }) {
            self.copy(batch, i, || Fate::Unparsed(why));
        }
    }

    fn matches(&self, key: &KeyRef<'_>) -> bool {
        self.words.iter().all(|(w, value, mask)| key.word(*w) & mask == *value)
    }

    /// Copies packet `i`, if it may and there is room.
    fn copy(&mut self, batch: &Batch, i: usize, fate: impl FnOnce() -> Fate) {
        if self.out.room() == 0 || !self.permits.take() {
            self.permits.beyond.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let (packet, in_port) = (&batch.packets[i], batch.in_port[i]);
        let bytes = packet.data();
        let one = Captured {
            cycles: cycles(),
            in_port,
            len: packet.len(),
            bytes: bytes[..bytes.len().min(self.snaplen)].to_vec(),
            fate: fate(),
        };
        let pushed = self.out.push(Box::new(one)).is_ok();
        debug_assert!(pushed, "there was room");
    }
}

/// Key and mask of a megaflow; 0 is none.
fn megaflow(store: &Store, i: u32) -> Option<Box<(Key, Mask)>> {
    let words = (i != 0).then(|| store.mask(store.payload(i).mask()))?;
    let whole = |words: &[u64; PWORDS]| {
        let mut key = Key::ZERO;
        key.words[..PWORDS].copy_from_slice(words);
        key
    };
    Some(Box::new((whole(&store.key_words(i, &words)), whole(&words))))
}
