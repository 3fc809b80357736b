//! One port's marks for one worker: which megaflow a mark stands for, and the comparison.
//!
//! A marked packet's way reads one line of this table, the form's (which few share) and a byte that
//! says whether the megaflow ended; the megaflow's own line is not touched.

use super::{MARK_FORMS_MAX, MarkBinding, MarkCounts};
use crate::batch::Batch;
use crate::cpu::Level;
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

/// Where a packet's 16-bit length begins at most, of the bytes that are compared.
const LENGTH_AT_MAX: u8 = 62;

/// What one mark stands for. All zero: nothing, as no mark is 0.
#[derive(Clone, Copy, Default)]
#[repr(C, align(64))]
struct Entry {
    value: [u64; WORDS],
    mark: u32,
    megaflow: u32,
    program: u32,
    form: u8,
    /// What the program does needs the packet's key or where its headers are.
    needs_key: bool,
    spare: u16,
}

const _: () = assert!(size_of::<Entry>() == 64);

impl Entry {
    /// All of it, so that a packet is compared by whole vectors: no form compares the last words.
    #[inline(always)]
    fn words(&self) -> &[u64; WORDS + TAIL_WORDS] {
        // SAFETY: as many bytes, none of which is padding.
        unsafe { &*std::ptr::from_ref(self).cast() }
    }
}

/// Which bytes are compared, and which lengths are checked.
#[derive(Clone, Copy, Default)]
#[repr(C, align(64))]
struct Form {
    /// Of an entry's words; zero for those behind the value.
    mask: [u64; WORDS + TAIL_WORDS],
    tail: [u64; TAIL_WORDS],
    least: u16,
    /// 0: there is no length.
    length_mask: u16,
    length_at: u8,
    end_base: u8,
    end_least: u8,
    has_tail: bool,
}

/// A table's memory. The worker reads and writes it; the control side made it, gives it back to the
/// system, and reads what is atomic.
pub(crate) struct MarkMemory {
    entries: Reserved<Entry>,
    /// By slot: the value's last words, of forms that have them.
    tails: Reserved<[u64; TAIL_WORDS]>,
    forms: Reserved<Form>,
    /// By slot: packets that did not begin as the megaflow's do.
    wrong: Reserved<AtomicU32>,
    /// By slot: not 0 if packets came with its mark that were the megaflow's, since the control
    /// side looked.
    came: Reserved<AtomicU8>,
}

impl MarkMemory {
    pub fn new() -> MarkMemory {
        MarkMemory {
            // In huge pages: a TLB miss would cost as much as the comparison.
            entries: Reserved::new(SLOTS),
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
    /// Its port's packets are treated as if they had no marks.
    pub ignored: bool,
}

/// What became of a burst's packets: a bit for each.
#[derive(Default)]
pub(crate) struct Found {
    /// Packets whose megaflow is known by their mark, one bit each.
    pub known: u32,
    /// Packets that have to be parsed, one bit each.
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

/// The numbers of bits that are 1.
#[inline(always)]
fn ones(mut bits: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let k = bits.trailing_zeros() as usize;
        (bits != 0).then(|| {
            bits &= bits - 1;
            // Of 32 bits.
            k % BURST
        })
    })
}

fn slot_of(mark: u32) -> u16 {
    (mark >> 8) as u16
}

impl MarkTable {
    pub fn new(memory: Arc<MarkMemory>, ignored: bool) -> MarkTable {
        MarkTable { memory, ignored }
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
        let (value_mask, tail) = divided(&b.bytes.mask);
        let mut mask = [0; WORDS + TAIL_WORDS];
        mask[..WORDS].copy_from_slice(&value_mask);
        let has_tail = tail != [0; TAIL_WORDS];
        let form = match length_at {
            0 => Form { mask, tail, least, has_tail, ..Form::default() },
            _ => {
                let (length_at, length_mask) = (length_at.min(LENGTH_AT_MAX), u16::MAX);
                Form { mask, tail, least, length_mask, length_at, end_base, end_least, has_tail }
            }
        };
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
            spare: 0,
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
    pub fn find(
        &self,
        level: Level,
        store: &Store,
        batch: &mut Batch,
        range: Range<usize>,
    ) -> Found {
        match level {
            Level::Scalar => self.find_here::<false>(store, batch, range),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a level is used only where `is_available` found it, AVX-512 with AVX2.
            _ => unsafe { self.find_avx2(store, batch, range) },
            #[cfg(not(target_arch = "x86_64"))]
            _ => self.find_here::<false>(store, batch, range),
        }
    }

    /// # Safety
    /// The CPU has AVX2, BMI1 and BMI2.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2")]
    unsafe fn find_avx2(&self, store: &Store, batch: &mut Batch, range: Range<usize>) -> Found {
        self.find_here::<true>(store, batch, range)
    }

    /// `AVX2`: the CPU has it.
    #[inline(always)]
    fn find_here<const AVX2: bool>(
        &self,
        store: &Store,
        batch: &mut Batch,
        range: Range<usize>,
    ) -> Found {
        let (start, n) = (range.start, range.len());
        assert!(n <= BURST && range.end <= VECTOR && range.end <= batch.packets.len());
        let packets = &batch.packets[range];
        let (mut marks, mut marked) = ([0; BURST], 0u32);
        for (k, (p, to)) in packets.iter().zip(&mut marks).enumerate() {
            *to = p.mark();
            marked |= u32::from(*to != 0) << k;
            prefetch(p.data().as_ptr());
            prefetch(self.memory.entries.at(slot_of(*to).into()));
        }
        // Entries come from afar if there are thousands: all are waited for at once here, and what
        // they lead to is asked for.
        for k in ones(marked) {
            let megaflow = self.entry(slot_of(marks[k])).megaflow;
            store.prefetch_ended(megaflow);
            prefetch(store.counters(megaflow));
        }
        let mut found = Found { parse: u32::MAX >> (BURST - n), ..Found::default() };
        let lens = batch.columns.len[start..].as_mut_ptr();
        let megaflows = batch.keys.megaflow[start..].as_mut_ptr();
        let programs = batch.keys.program[start..].as_mut_ptr();
        for k in ones(marked) {
            let slot = slot_of(marks[k]);
            let e = self.entry(slot);
            // SAFETY: bits of packets alone are 1.
            let p = unsafe { packets.get_unchecked(k) };
            let stale = (e.mark != marks[k]) | store.is_ended(e.megaflow);
            if stale | !self.claims::<AVX2>(e, p, slot) {
                self.count_refused(stale, slot, &mut found.counts);
                continue;
            }
            let came = self.memory.came(slot);
            if came.load(Ordering::Relaxed) == 0 {
                came.store(1, Ordering::Relaxed);
            }
            found.known |= 1 << k;
            found.parse &= !(u32::from(!e.needs_key) << k);
            // SAFETY: as many packets are in a vector, whose columns these are.
            unsafe {
                *lens.add(k) = p.len() as u16;
                *megaflows.add(k) = e.megaflow;
                *programs.add(k) = e.program;
            }
        }
        found.counts.hits = found.known.count_ones().into();
        found
    }

    #[cold]
    #[inline(never)]
    fn count_refused(&self, stale: bool, slot: u16, counts: &mut MarkCounts) {
        if stale {
            counts.stale += 1;
            return;
        }
        counts.wrong += 1;
        let wrong = self.memory.wrong(slot);
        wrong.store(wrong.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// [`FirstBytes::claims`], on whole words, and with few branches.
    #[inline(always)]
    fn claims<const AVX2: bool>(&self, e: &Entry, p: &Packet, slot: u16) -> bool {
        let (len, form) = (p.len() as i64, self.form(e.form));
        let Some(first) = p.first_64() else { return false };
        let end = i64::from(form.end_base) + i64::from(form.length(first));
        // Negative if something is too short.
        let short = (len - i64::from(form.least)) | (end - i64::from(form.end_least)) | (len - end);
        let odd = (short < 0) | (p.segments() != 1);
        let other = odd | differ::<AVX2>(first, e, form);
        !(other || form.has_tail && self.differ_behind(first, e, slot))
    }

    /// The words that do not fit an entry.
    #[inline(never)]
    fn differ_behind(&self, first: &[u8; 64], e: &Entry, slot: u16) -> bool {
        // SAFETY: every slot is inside; those of forms with a tail were written.
        let tail = unsafe { &*self.memory.tails.at(slot.into()) };
        let (all, form) = (words(first), self.form(e.form));
        let differ = (0..TAIL_WORDS).fold(0, |d, i| d | (all[WORDS + i] ^ tail[i]) & form.tail[i]);
        differ != 0
    }
}

impl Form {
    /// The packet's 16-bit length; 0 if the form has none.
    #[inline(always)]
    fn length(&self, first: &[u8; 64]) -> u16 {
        debug_assert!(self.length_at <= LENGTH_AT_MAX);
        // SAFETY: two bytes from there on are inside, as `bind` sees to.
        let at = unsafe { first.as_ptr().add(self.length_at.into()) };
        // SAFETY: as above; unaligned.
        u16::from_be(unsafe { at.cast::<u16>().read_unaligned() }) & self.length_mask
    }
}

/// Do packet and entry differ in what the form compares, except for the words that do not fit an
/// entry? `AVX2`: the CPU has it.
#[inline(always)]
fn differ<const AVX2: bool>(first: &[u8; 64], e: &Entry, form: &Form) -> bool {
    #[cfg(target_arch = "x86_64")]
    if AVX2 {
        // SAFETY: the caller's.
        return unsafe { differ_avx2(first, e.words(), &form.mask) };
    }
    let (all, value) = (words(first), e.words());
    (0..all.len()).fold(0, |d, i| d | (all[i] ^ value[i]) & form.mask[i]) != 0
}

/// # Safety
/// The CPU has AVX2.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn differ_avx2(first: &[u8; 64], value: &[u64; 8], mask: &[u64; 8]) -> bool {
    use std::arch::x86_64::*;
    let half = |i: usize| {
        // SAFETY: both halves of 64 bytes; unaligned.
        let [a, b, c] = unsafe {
            [first.as_ptr().cast(), value.as_ptr().cast(), mask.as_ptr().cast()]
                .map(|at: *const __m256i| _mm256_loadu_si256(at.add(i)))
        };
        _mm256_and_si256(_mm256_xor_si256(a, b), c)
    };
    let differ = _mm256_or_si256(half(0), half(1));
    _mm256_testz_si256(differ, differ) == 0
}
