//! Marks of adapters: a packet that comes marked needs no parsing and no lookup, once its first
//! bytes were compared with the megaflow's.
//!
//! A mark is a hint. A worker has a table for each port whose adapter marks packets: which megaflow
//! of its own a mark stands for, and what the packets of that begin with. Only the worker changes
//! it, as control says ([`MarkChange`]), in the order of its other commands: a mark is unbound
//! before its megaflow's index is used again. A megaflow that was marked dead is not found by its
//! mark either, so that barriers do not wait for an adapter.

pub(crate) mod step;

use crate::lookup::flow_store::{Payload, Reserved, Store};
use crate::mem::prefetch;
use offload::{FirstBytes, Mark, SLOTS};
use packet::{BURST, Packet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// 64 bytes as words.
pub(crate) type Head = [u64; 8];

/// Masks that bindings of one port can have between them.
pub(crate) const MARK_MASKS_MAX: usize = 256;

/// What one mark stands for. All zero: nothing.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Entry {
    value: Head,
    /// The megaflow's, when it was bound.
    payload: u64,
    megaflow: u32,
    least: u16,
    generation: u8,
    mask: u8,
    length_at: u8,
    end_base: u8,
    end_least: u8,
}

const _: () = assert!(size_of::<Entry>() == 128);

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct MaskBytes(Head);

/// A table's memory. The worker reads and writes it; control made it, gives it back to the system,
/// and reads what is atomic.
pub(crate) struct MarkMemory {
    entries: Reserved<Entry>,
    masks: Reserved<MaskBytes>,
    /// By slot: packets that did not begin as the megaflow's do.
    wrong: Reserved<AtomicU32>,
}

impl MarkMemory {
    pub fn new() -> MarkMemory {
        MarkMemory {
            entries: Reserved::small(SLOTS),
            masks: Reserved::small(MARK_MASKS_MAX),
            wrong: Reserved::small(SLOTS),
        }
    }

    /// Packets that came with a mark of this slot and were others'.
    pub fn wrong(&self, slot: u16) -> &AtomicU32 {
        // SAFETY: every slot is inside; zero is valid, and all access is atomic.
        unsafe { &*self.wrong.at(slot.into()) }
    }
}

/// What control says of marks.
pub(crate) enum MarkChange {
    /// Packets of this port may be marked from now on, or are not any more.
    Table(Option<Box<MarkTable>>),
    Bind(Box<MarkBinding>),
    /// The slot does not stand for this megaflow any more.
    Unbind(u16, u32),
}

/// Packets with this mark belong to this megaflow if they begin so.
pub(crate) struct MarkBinding {
    pub mark: Mark,
    pub megaflow: u32,
    pub bytes: FirstBytes,
    /// The mask's place among the port's.
    pub mask: u8,
}

/// What became of marked packets.
#[derive(Default, Clone, Copy)]
pub(crate) struct MarkCounts {
    /// They were their megaflow's.
    pub hits: u64,
    /// The mark stands for nothing, or nothing any more.
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

/// A packet's megaflow and program; megaflow 0: none by mark.
#[derive(Clone, Copy, Default)]
pub(crate) struct MarkHit {
    pub megaflow: u32,
    pub program: u32,
}

/// One port's marks for one worker.
pub(crate) struct MarkTable {
    memory: Arc<MarkMemory>,
}

fn head(bytes: &[u8; 64]) -> Head {
    std::array::from_fn(|i| u64::from_ne_bytes(bytes[8 * i..8 * i + 8].try_into().expect("8")))
}

impl MarkTable {
    pub fn new(memory: Arc<MarkMemory>) -> MarkTable {
        MarkTable { memory }
    }

    fn entry(&self, slot: u16) -> &Entry {
        // SAFETY: every slot is inside, zero is valid, and only the worker, who calls this, writes.
        unsafe { &*self.memory.entries.at(slot.into()) }
    }

    fn set(&mut self, slot: u16, entry: Entry) {
        // SAFETY: as above; there is no other reference.
        unsafe { *self.memory.entries.at(slot.into()) = entry };
    }

    /// From now on; nothing happens if the megaflow is not live any more.
    pub fn bind(&mut self, store: &Store, b: &MarkBinding) {
        let payload = store.payload(b.megaflow);
        if !payload.usable() {
            return;
        }
        // SAFETY: 256 masks fit; only the worker, who calls this, reads and writes them.
        unsafe { *self.memory.masks.at(b.mask.into()) = MaskBytes(head(&b.bytes.mask)) };
        let entry = Entry {
            value: head(&b.bytes.value),
            payload: payload.0,
            megaflow: b.megaflow,
            least: b.bytes.least,
            generation: b.mark.generation(),
            mask: b.mask,
            length_at: b.bytes.length_at,
            end_base: b.bytes.end_base,
            end_least: b.bytes.end_least,
        };
        self.set(b.mark.slot(), entry);
    }

    /// If it is this megaflow that the slot stands for.
    pub fn unbind(&mut self, slot: u16, megaflow: u32) {
        if self.entry(slot).megaflow == megaflow {
            let entry = Entry { payload: 0, megaflow: 0, ..*self.entry(slot) };
            self.set(slot, entry);
        }
    }

    /// What packets' marks say, as far as it is true.
    pub fn find(
        &self,
        store: &Store,
        packets: &[Packet],
        hits: &mut [MarkHit; BURST],
    ) -> MarkCounts {
        let mut counts = MarkCounts::default();
        for p in packets {
            prefetch(p.data().as_ptr());
            if let Some(mark) = p.mark() {
                let entry = self.memory.entries.at(usize::from((mark >> 8) as u16));
                prefetch(entry);
                prefetch(entry.cast::<u8>().wrapping_add(64));
            }
        }
        for p in packets {
            if let Some(mark) = p.mark() {
                prefetch(store.line_ptr(self.entry((mark >> 8) as u16).megaflow));
            }
        }
        for (p, hit) in packets.iter().zip(hits) {
            *hit = MarkHit::default();
            if let Some(mark) = p.mark() {
                match self.check(store, p, mark) {
                    Ok(found) => {
                        prefetch(store.counters(found.megaflow));
                        *hit = found;
                        counts.hits += 1;
                    }
                    Err(Why::Stale) => counts.stale += 1,
                    Err(Why::Wrong) => counts.wrong += 1,
                }
            }
        }
        counts
    }

    #[inline]
    fn check(&self, store: &Store, p: &Packet, mark: u32) -> Result<MarkHit, Why> {
        let slot = (mark >> 8) as u16;
        let e = self.entry(slot);
        if mark >> 24 != 0 || mark as u8 != e.generation || e.megaflow == 0 {
            return Err(Why::Stale);
        }
        let payload = store.payload(e.megaflow);
        if payload.0 != e.payload || !Payload(e.payload).usable() {
            return Err(Why::Stale);
        }
        if !self.claims(e, p) {
            let wrong = self.memory.wrong(slot);
            wrong.store(wrong.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
            return Err(Why::Wrong);
        }
        Ok(MarkHit { megaflow: e.megaflow, program: payload.program() })
    }

    /// [`FirstBytes::claims`], on whole words.
    #[inline]
    fn claims(&self, e: &Entry, p: &Packet) -> bool {
        let len = p.len();
        let Some(first) = p.first_64() else { return false };
        if len < usize::from(e.least) || p.segments() != 1 {
            return false;
        }
        // SAFETY: masks of entries were written.
        let mask = unsafe { &(*self.memory.masks.at(e.mask.into())).0 };
        let words = head(first);
        let differs = (0..8).fold(0, |d, i| d | (words[i] ^ e.value[i]) & mask[i]);
        if differs != 0 {
            return false;
        }
        if e.length_at == 0 {
            return true;
        }
        let at = usize::from(e.length_at);
        let length = usize::from(u16::from_be_bytes([first[at], first[at + 1]]));
        let end = usize::from(e.end_base) + length;
        end >= usize::from(e.end_least) && end <= len
    }
}

enum Why {
    Stale,
    Wrong,
}
