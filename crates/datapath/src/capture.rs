//! Captures: copies of packets that match a filter, each with the decision about it.
//!
//! Workers copy packets before their programs run, as far as the control side has given permits,
//! and hand the copies over in a ring of their own. While a capture is under way every packet is
//! parsed and takes every step, so that it has a key and no step is missing. Otherwise a capture
//! costs one flag, which [`Actions`](crate::actions::Actions) reads once per pass.

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

/// Captured packets of one worker that wait for the control side; beyond that packets are not
/// captured.
pub(crate) const CAPTURED_PACKETS_MAX: usize = 1024;

/// Which packets are captured, and how much of them.
#[derive(Clone)]
pub struct CaptureFilter {
    /// The values of the bits in `mask`, on the packet side's lines ([`flow::PACKET_LINES`]).
    pub key: Key,
    /// The bits that are compared.
    pub mask: Mask,
    /// Bytes that are copied of a packet, at most.
    pub snaplen: usize,
}

/// A captured packet, as it was before its program ran.
pub struct Captured {
    /// Cycle of the capture ([`crate::cycles`]).
    pub cycles: u64,
    /// The datapath port on which it came in.
    pub in_port: PortNo,
    /// Length of the packet, bytes.
    pub len: usize,
    /// First bytes of the packet.
    pub bytes: Vec<u8>,
    /// The decision about the packet.
    pub fate: Fate,
}

/// The decision about a captured packet.
pub enum Fate {
    /// The packet cannot be parsed, and is dropped for this reason.
    Unparsed(Drop),
    /// The packet has a megaflow, or was decided about by the pipeline.
    Decided {
        /// Key and mask of its megaflow; None: the decision holds for this packet only.
        megaflow: Option<Box<(Key, Mask)>>,
        /// Operations on the packet.
        ops: Arc<[Op]>,
        /// The reason of its drop if no operation sends it.
        drop: Drop,
    },
}

/// How many packets workers may capture now, and how many they left out for lack of permits.
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
    /// The words of the filter's mask that are not zero: number, value, mask.
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

    /// Captures the packets of a pass that match, before their programs run.
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

    /// Captures packet `i`, which cannot be parsed, if the filter matches a key of which only the
    /// port is known.
    pub fn unparsed(&mut self, batch: &Batch, i: usize, why: Drop) {
        let line = [0, 0, 0, 0, port_word(batch.in_port[i]), 0, 0, 0];
        if self.matches(&KeyRef { line: &line, ext: &[[0; 8]; 3], have: 0 }) {
            self.copy(batch, i, || Fate::Unparsed(why));
        }
    }

    fn matches(&self, key: &KeyRef<'_>) -> bool {
        self.words.iter().all(|(w, value, mask)| key.word(*w) & mask == *value)
    }

    /// Copies packet `i`, if there is a permit and the ring has room.
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

/// Key and mask of a megaflow; None for number 0.
fn megaflow(store: &Store, i: u32) -> Option<Box<(Key, Mask)>> {
    let words = (i != 0).then(|| store.mask(store.payload(i).mask()))?;
    let whole = |words: &[u64; PWORDS]| {
        let mut key = Key::ZERO;
        key.words[..PWORDS].copy_from_slice(words);
        key
    };
    Some(Box::new((whole(&store.key_words(i, &words)), whole(&words))))
}
