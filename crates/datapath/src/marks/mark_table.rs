//! The marks of one port for one worker: which megaflow each mark stands for, and the comparison of
//! a packet's first bytes with it.
//!
//! A marked packet reads one line of this table, the line of its form (of which there are few), and
//! a byte that says whether the megaflow ended. It does not read the megaflow's own line.

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

/// Words of the compared bytes that fit into an entry.
const WORDS: usize = 6;
/// Words of the compared bytes behind those; only forms of IPv6 compare them.
const TAIL_WORDS: usize = 2;

/// The largest offset of a packet's 16-bit length within the compared bytes.
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
    /// The program reads the packet's key or layout.
    needs_key: bool,
    spare: u16,
}

const _: () = assert!(size_of::<Entry>() == 64);

impl Entry {
    /// All words of the entry, so that a packet is compared by whole SIMD registers: no form has
    /// mask bits in the words behind the value.
    #[inline(always)]
    fn words(&self) -> &[u64; WORDS + TAIL_WORDS] {
        // SAFETY: as many bytes, none of which is padding.
        unsafe { &*std::ptr::from_ref(self).cast() }
    }
}

/// A form of entries: which bytes are compared, and which lengths are checked.
#[derive(Clone, Copy, Default)]
#[repr(C, align(64))]
struct Form {
    /// Mask of an entry's words; zero in the words behind the value.
    mask: [u64; WORDS + TAIL_WORDS],
    tail: [u64; TAIL_WORDS],
    least: u16,
    /// Mask of the 16-bit length; 0: the form has none.
    length_mask: u16,
    length_at: u8,
    end_base: u8,
    end_least: u8,
    has_tail: bool,
}

/// The memory of a table. The control side makes and frees it; the worker reads and writes it; the
/// control side reads the atomic parts.
pub(crate) struct MarkMemory {
    entries: Reserved<Entry>,
    /// Last words of the value, by slot, for forms that compare them.
    tails: Reserved<[u64; TAIL_WORDS]>,
    forms: Reserved<Form>,
    /// Packets whose first bytes were not those of the megaflow, by slot.
    wrong: Reserved<AtomicU32>,
    /// Not 0 if packets of the megaflow came with the slot's mark since the control side last took
    /// this; by slot.
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

    /// Number of packets that came with a mark of this slot and were of other flows.
    pub fn wrong(&self, slot: u16) -> &AtomicU32 {
        // SAFETY: every slot is inside; zero is valid, and all access is atomic.
        unsafe { &*self.wrong.at(slot.into()) }
    }

    /// True if packets of the megaflow came with this slot's mark since the last call.
    pub fn take_came(&self, slot: u16) -> bool {
        self.came(slot).swap(0, Ordering::Relaxed) != 0
    }

    #[inline]
    fn came(&self, slot: u16) -> &AtomicU8 {
        // SAFETY: as above.
        unsafe { &*self.came.at(slot.into()) }
    }
}

/// One worker's marks of one port.
pub(crate) struct MarkTable {
    memory: Arc<MarkMemory>,
    /// True: packets of the port are treated as if they had no marks.
    pub ignored: bool,
}

/// The result of [`MarkTable::find`] for a burst.
#[derive(Default)]
pub(crate) struct Found {
    /// Packets that are preset by their mark, one bit each.
    pub preset: u32,
    /// Packets that have to be parsed, one bit each.
    pub parse: u32,
    pub counts: MarkCounts,
}

const _: () = assert!(BURST == u32::BITS as usize);

fn words(bytes: &[u8; 64]) -> [u64; WORDS + TAIL_WORDS] {
    std::array::from_fn(|i| u64::from_ne_bytes(bytes[8 * i..8 * i + 8].try_into().expect("8")))
}

/// The first words, and the words behind them.
fn divided(bytes: &[u8; 64]) -> ([u64; WORDS], [u64; TAIL_WORDS]) {
    let all = words(bytes);
    (std::array::from_fn(|i| all[i]), std::array::from_fn(|i| all[WORDS + i]))
}

/// The numbers of the bits that are set.
#[inline(always)]
fn ones(mut bits: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let k = bits.trailing_zeros() as usize;
        (bits != 0).then(|| {
            bits &= bits - 1;
            // `k` is below 32; this spares a bounds check.
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

    /// Binds a slot's mark to a megaflow; does nothing if the megaflow is not live any more.
    /// `needs_key`: whether a program reads the packet's key or layout.
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
        // SAFETY: all forms and slots fit; only the worker, which calls this, reads and writes
        // them.
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

    /// Unbinds a slot's mark, if it stands for this megaflow.
    pub fn unbind(&mut self, slot: u16, megaflow: u32) {
        if self.entry(slot).megaflow == megaflow {
            let entry = Entry { mark: 0, megaflow: 0, ..*self.entry(slot) };
            self.set(slot, entry);
        }
    }

    /// Sets megaflow, program and length of the packets that are of their mark's megaflow.
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

    /// [`MarkTable::find`]. `AVX2`: the CPU has it.
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
        // With thousands of entries these are not in the cache: this loads all of the burst's, and
        // prefetches what they lead to.
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
            // SAFETY: only bits of packets are set.
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
            found.preset |= 1 << k;
            found.parse &= !(u32::from(!e.needs_key) << k);
            // SAFETY: as many packets are in a vector, whose columns these are.
            unsafe {
                *lens.add(k) = p.len() as u16;
                *megaflows.add(k) = e.megaflow;
                *programs.add(k) = e.program;
            }
        }
        found.counts.hits = found.preset.count_ones().into();
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

    /// As [`FirstBytes::claims`], on whole words, and with few branches.
    #[inline(always)]
    fn claims<const AVX2: bool>(&self, e: &Entry, p: &Packet, slot: u16) -> bool {
        let (len, form) = (p.len() as i64, self.form(e.form));
        let Some(first) = p.first_64() else { return false };
        let end = i64::from(form.end_base) + i64::from(form.length(first));
        // Negative if one of the lengths is too short.
        let short = (len - i64::from(form.least)) | (end - i64::from(form.end_least)) | (len - end);
        let odd = (short < 0) | (p.segments() != 1);
        let other = odd | differ::<AVX2>(first, e, form);
        !(other || form.has_tail && self.differ_behind(first, e, slot))
    }

    /// True if the words that do not fit into an entry differ.
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
    /// The 16-bit length in the packet; 0 if the form has none.
    #[inline(always)]
    fn length(&self, first: &[u8; 64]) -> u16 {
        debug_assert!(self.length_at <= LENGTH_AT_MAX);
        // SAFETY: `bind` makes sure that two bytes from there on are inside.
        let at = unsafe { first.as_ptr().add(self.length_at.into()) };
        // SAFETY: as above; unaligned.
        u16::from_be(unsafe { at.cast::<u16>().read_unaligned() }) & self.length_mask
    }
}

/// True if packet and entry differ in what the form compares, except for the words that do not fit
/// into an entry. `AVX2`: the CPU has it.
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
