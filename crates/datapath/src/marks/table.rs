//! One port's marks for one worker: which megaflow a mark stands for, and the comparison.
//!
//! A marked packet's way reads one line of this table, the form's (which few share) and a byte that
//! says whether the megaflow ended; the megaflow's own line is not touched.

use super::{MARK_FORMS_MAX, MarkBinding, MarkCounts};
use crate::batch::Batch;
use crate::lookup::flow_store::{Reserved, Store};
use crate::mem::prefetch;
use offload::{FirstBytes, SLOTS};
use packet::{BURST, Packet, VECTOR};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

/// Of the compared bytes, as words: those of an entry, and those behind, which IPv6 has.
const WORDS: usize = 6;
const TAIL_WORDS: usize = 2;

/// What one mark stands for. All zero: nothing, as no mark is 0.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Entry {
    value: [u64; WORDS],
    mark: u32,
    megaflow: u32,
    program: u32,
    form: u8,
    /// What the program does needs the packet's key or where its headers are.
    needs_key: bool,
}

const _: () = assert!(size_of::<Entry>() == 64);

/// Which bytes are compared, and which lengths are checked.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Form {
    mask: [u64; WORDS],
    tail: [u64; TAIL_WORDS],
    least: u16,
    length_at: u8,
    end_base: u8,
    end_least: u8,
    has_tail: bool,
}

/// A table's memory. The worker reads and writes it; control made it, gives it back to the system,
/// and reads what is atomic.
pub(crate) struct MarkMemory {
    entries: Reserved<Entry>,
    /// By slot: the value's last words, of forms that have them.
    tails: Reserved<[u64; TAIL_WORDS]>,
    forms: Reserved<Form>,
    /// By slot: packets that did not begin as the megaflow's do.
    wrong: Reserved<AtomicU32>,
    /// By slot: not 0 if packets came with its mark that were the megaflow's, since control looked.
    came: Reserved<AtomicU8>,
}

impl MarkMemory {
    pub fn new() -> MarkMemory {
        MarkMemory {
            entries: Reserved::small(SLOTS),
            tails: Reserved::small(SLOTS),
            forms: Reserved::small(MARK_FORMS_MAX),
            wrong: Reserved::small(SLOTS),
            came: Reserved::small(SLOTS),
        }
    }

    /// Packets that came with a mark of this slot and were others'.
    pub fn wrong(&self, slot: u16) -> &AtomicU32 {
        // SAFETY: every slot is inside; zero is valid, and all access is atomic.
        unsafe { &*self.wrong.at(slot.into()) }
    }

    /// Did packets come with this slot's mark that were the megaflow's, since the last call?
    pub fn take_came(&self, slot: u16) -> bool {
        self.came(slot).swap(0, Ordering::Relaxed) != 0
    }

    #[inline]
    fn came(&self, slot: u16) -> &AtomicU8 {
        // SAFETY: as above.
        unsafe { &*self.came.at(slot.into()) }
    }
}

/// One port's marks for one worker.
pub(crate) struct MarkTable {
    memory: Arc<MarkMemory>,
}

/// What became of a burst's packets: a bit for each.
#[derive(Default)]
pub(crate) struct Found {
    /// Their megaflow is known by their mark.
    pub known: u32,
    /// They have to be parsed.
    pub parse: u32,
    pub counts: MarkCounts,
}

const _: () = assert!(BURST == u32::BITS as usize);

fn words(bytes: &[u8; 64]) -> [u64; WORDS + TAIL_WORDS] {
    std::array::from_fn(|i| u64::from_ne_bytes(bytes[8 * i..8 * i + 8].try_into().expect("8")))
}

/// The first words, and those behind.
fn divided(bytes: &[u8; 64]) -> ([u64; WORDS], [u64; TAIL_WORDS]) {
    let all = words(bytes);
    (std::array::from_fn(|i| all[i]), std::array::from_fn(|i| all[WORDS + i]))
}

fn slot_of(mark: u32) -> u16 {
    (mark >> 8) as u16
}

impl MarkTable {
    pub fn new(memory: Arc<MarkMemory>) -> MarkTable {
        MarkTable { memory }
    }

    #[inline]
    fn entry(&self, slot: u16) -> &Entry {
        // SAFETY: every slot is inside, zero is valid, and only the worker, who calls this, writes.
        unsafe { &*self.memory.entries.at(slot.into()) }
    }

    #[inline]
    fn form(&self, form: u8) -> &Form {
        // SAFETY: 256 forms fit; otherwise as above.
        unsafe { &*self.memory.forms.at(form.into()) }
    }

    fn set(&mut self, slot: u16, entry: Entry) {
        // SAFETY: as above; there is no other reference.
        unsafe { *self.memory.entries.at(slot.into()) = entry };
    }

    /// From now on; nothing happens if the megaflow is not live any more. `needs_key`: by program.
    pub fn bind(&mut self, store: &Store, b: &MarkBinding, needs_key: &dyn Fn(u32) -> bool) {
        let payload = store.payload(b.megaflow);
        if !payload.usable() {
            return;
        }
        let FirstBytes { least, length_at, end_base, end_least, .. } = b.bytes;
        let (mask, tail) = divided(&b.bytes.mask);
        let has_tail = tail != [0; TAIL_WORDS];
        let form = Form { mask, tail, least, length_at, end_base, end_least, has_tail };
        let (value, tail) = divided(&b.bytes.value);
        let slot = b.mark.slot();
        // SAFETY: all forms and slots fit; only the worker, who calls this, reads and writes them.
        unsafe {
            *self.memory.forms.at(b.form.into()) = form;
            if has_tail {
                *self.memory.tails.at(slot.into()) = tail;
            }
        }
        let program = payload.program();
        let entry = Entry {
            value,
            mark: b.mark.number(),
            megaflow: b.megaflow,
            program,
            form: b.form,
            needs_key: needs_key(program),
        };
        self.set(slot, entry);
    }

    /// If it is this megaflow that the slot stands for.
    pub fn unbind(&mut self, slot: u16, megaflow: u32) {
        if self.entry(slot).megaflow == megaflow {
            let entry = Entry { mark: 0, megaflow: 0, ..*self.entry(slot) };
            self.set(slot, entry);
        }
    }

    /// Writes megaflow, program and length of the packets whose marks say what is true.
    pub fn find(&self, store: &Store, batch: &mut Batch, range: Range<usize>) -> Found {
        let (start, n) = (range.start, range.len());
        assert!(n <= BURST && range.end <= VECTOR && range.end <= batch.packets.len());
        let (mut marks, mut marked) = ([0; BURST], 0u32);
        for (k, p) in batch.packets[range].iter().enumerate() {
            prefetch(p.data().as_ptr());
            // Without a branch: it would be mispredicted where some packets are marked.
            let mark = p.mark();
            marked |= u32::from(mark.is_some()) << k;
            marks[k] = mark.unwrap_or(0);
            prefetch(self.memory.entries.at(slot_of(marks[k]).into()));
        }
        let mut found = Found { parse: u32::MAX >> (BURST - n), ..Found::default() };
        while marked != 0 {
            let k = marked.trailing_zeros() as usize;
            marked &= marked - 1;
            let (i, bit, mark) = (start + k, 1 << k, marks[k]);
            let e = self.entry(slot_of(mark));
            if e.mark != mark || mark == 0 || store.is_ended(e.megaflow) {
                found.counts.stale += 1;
                continue;
            }
            let p = &batch.packets[i];
            if !self.claims(e, p, slot_of(mark)) {
                self.count_wrong(slot_of(mark));
                found.counts.wrong += 1;
                continue;
            }
            prefetch(store.counters(e.megaflow));
            let came = self.memory.came(slot_of(mark));
            if came.load(Ordering::Relaxed) == 0 {
                came.store(1, Ordering::Relaxed);
            }
            found.known |= bit;
            found.parse &= if e.needs_key { !0 } else { !bit };
            batch.columns.len[i] = p.len() as u16;
            (batch.keys.megaflow[i], batch.keys.program[i]) = (e.megaflow, e.program);
        }
        found.counts.hits = found.known.count_ones().into();
        found
    }

    #[cold]
    fn count_wrong(&self, slot: u16) {
        let wrong = self.memory.wrong(slot);
        wrong.store(wrong.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// [`FirstBytes::claims`], on whole words.
    #[inline]
    fn claims(&self, e: &Entry, p: &Packet, slot: u16) -> bool {
        let (len, form) = (p.len(), self.form(e.form));
        let Some(first) = p.first_64() else { return false };
        if len < usize::from(form.least) || p.segments() != 1 {
            return false;
        }
        let all = words(first);
        let differ = (0..WORDS).fold(0, |d, i| d | (all[i] ^ e.value[i]) & form.mask[i]);
        if differ != 0 || (form.has_tail && self.differs_behind(&all, form, slot)) {
            return false;
        }
        if form.length_at == 0 {
            return true;
        }
        let at = usize::from(form.length_at & 63).min(62);
        let length = usize::from(u16::from_be_bytes([first[at], first[at + 1]]));
        let end = usize::from(form.end_base) + length;
        end >= usize::from(form.end_least) && end <= len
    }

    /// The words that do not fit an entry.
    #[inline(never)]
    fn differs_behind(&self, all: &[u64; WORDS + TAIL_WORDS], form: &Form, slot: u16) -> bool {
        // SAFETY: every slot is inside; those of forms with a tail were written.
        let tail = unsafe { &*self.memory.tails.at(slot.into()) };
        let differ = (0..TAIL_WORDS).fold(0, |d, i| d | (all[WORDS + i] ^ tail[i]) & form.tail[i]);
        differ != 0
    }
}
