//! The memory of megaflows: lines, extension lines and counters, read by two threads.
//!
//! The owning worker writes a megaflow's place while it is not live, and makes it live by a release
//! store to word 7 ([`Payload`]). The control thread reads live lines and marks them dead through
//! word 7. It gives an index back only after it has folded the counters, so a line never changes
//! under a reader.

use crate::batch::keys::Line;
use crate::batch::keys::PWORDS;
use crate::mem::prefetch;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Masks that a table may have; number 0 is the full mask. A mask's number fits a payload's 8 bits.
pub(crate) const MASKS: usize = 256;
/// Flag bit of a payload: the megaflow is linked.
pub(crate) const LIVE: u64 = 1 << 40;
/// Flag bit of a payload: the control thread has marked the megaflow dead.
pub(crate) const DEAD: u64 = 1 << 41;

/// Word 7 of a megaflow: `{program u32, mask_id u8, flags u8, gen u16}`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Payload(pub u64);

impl Payload {
    pub fn new(program: u32, mask: u8, generation: u16) -> Self {
        Payload(program as u64 | (mask as u64) << 32 | LIVE | (generation as u64) << 48)
    }
    #[inline]
    pub fn program(self) -> u32 {
        self.0 as u32
    }
    #[inline]
    pub fn mask(self) -> usize {
        (self.0 >> 32) as u8 as usize
    }
    /// True if the megaflow is live and not dead.
    #[inline]
    pub fn usable(self) -> bool {
        self.0 & (LIVE | DEAD) == LIVE
    }
}

/// A megaflow's full hash, and its counters, which its worker writes and the control thread reads.
/// The packet for which the megaflow was made does not count as the megaflow's own, as in
/// ovs-vswitchd: packets begin at -1 and bytes at minus that packet's length, and both become 0
/// when that packet is counted like all others.
#[repr(C, align(32))]
pub(crate) struct Counters {
    pub packets: AtomicU64,
    pub bytes: AtomicU64,
    pub used_ms: AtomicU64,
    /// The key's hash under the megaflow's mask. Only the worker uses it.
    pub hash: AtomicU64,
}

/// The initial value of a counter that is to be 0 after `amount` was added.
pub(crate) fn before_first(amount: u64) -> u64 {
    0u64.wrapping_sub(amount)
}

impl Counters {
    /// Adds traffic. Only the owning worker calls this.
    #[inline]
    pub fn add(&self, packets: u64, bytes: u64, now_ms: u64) {
        let o = Ordering::Relaxed;
        self.packets.store(self.packets.load(o).wrapping_add(packets), o);
        self.bytes.store(self.bytes.load(o).wrapping_add(bytes), o);
        if self.used_ms.load(o) != now_ms {
            self.used_ms.store(now_ms, o);
        }
    }

    /// Begins counting for a new megaflow that was made for a packet of `bytes` bytes, which is
    /// still to be counted. Its age counts from `now_ms`. Only the owning worker calls this.
    pub fn begin(&self, bytes: u16, now_ms: u64) {
        let o = Ordering::Relaxed;
        self.packets.store(before_first(1), o);
        self.bytes.store(before_first(bytes.into()), o);
        self.used_ms.store(now_ms, o);
    }

    /// The megaflow's own packets and bytes: 0 and 0 until the packet for which it was made is
    /// counted.
    pub fn own(&self) -> (u64, u64) {
        let o = Ordering::Relaxed;
        let packets = self.packets.load(o);
        if packets as i64 <= 0 { (0, 0) } else { (packets, self.bytes.load(o)) }
    }
}

/// Reserved address space, zero at first: a page takes memory when it is first touched.
pub(crate) struct Reserved<T> {
    base: *mut T,
    len: usize,
}

// SAFETY: plain memory; the module's doc says which thread may touch what.
unsafe impl<T> Send for Reserved<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Reserved<T> {}

impl<T> Reserved<T> {
    /// Reserves `len` values whose all-zero pattern is valid, in huge pages if they are long enough
    /// for that. Panics when address space is exhausted.
    pub fn new(len: usize) -> Self {
        let new = Reserved::<T>::small(len);
        let bytes = len * size_of::<T>();
        if bytes >= 4 << 20 {
            // SAFETY: advice on our own mapping; failure is harmless.
            unsafe { libc::madvise(new.base.cast(), bytes, libc::MADV_HUGEPAGE) };
        }
        new
    }
    /// Reserves `len` values in pages of 4 KB, for values of which few may ever be used.
    pub fn small(len: usize) -> Self {
        let bytes = (len * size_of::<T>()).max(4096);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh anonymous mapping; checked below.
        let p = unsafe { libc::mmap(std::ptr::null_mut(), bytes, prot, flags, -1, 0) };
        assert!(p != libc::MAP_FAILED, "cannot reserve {bytes} bytes of address space");
        Reserved { base: p.cast(), len }
    }
    /// The address of entry `i`, which is below `len`.
    #[inline]
    pub fn at(&self, i: usize) -> *mut T {
        debug_assert!(i < self.len);
        // SAFETY: inside the mapping (callers keep i < len).
        unsafe { self.base.add(i) }
    }
    pub fn len(&self) -> usize {
        self.len
    }
    /// Makes the system provide the memory of these entries now, so that no page fault delays a
    /// worker later. Contents stay; any thread may call this.
    pub fn populate(&self, entries: Range<usize>) {
        const PAGE: usize = 4096;
        let end = entries.end.min(self.len) * size_of::<T>();
        let start = entries.start * size_of::<T>() / PAGE * PAGE;
        if start < end {
            // SAFETY: inside our own mapping; the call changes no contents, and failure is
            // harmless.
            unsafe {
                let at = self.base.cast::<u8>().add(start);
                libc::madvise(at.cast(), end - start, libc::MADV_POPULATE_WRITE)
            };
        }
    }
}

impl<T> Drop for Reserved<T> {
    fn drop(&mut self) {
        let bytes = (self.len * size_of::<T>()).max(4096);
        // SAFETY: our own mapping, no reference to it is left.
        unsafe { libc::munmap(self.base.cast(), bytes) };
    }
}

/// A value for each megaflow, zero at first, with one owner. Indices that were never used take no
/// memory, and nothing moves as more are used.
pub(crate) struct Column<T: Zero>(Reserved<T>);

/// # Safety
/// All zeros are a value.
pub(crate) unsafe trait Zero: Copy {}
// SAFETY: so they are.
unsafe impl Zero for u32 {}

impl<T: Zero> Column<T> {
    pub fn new(len: usize) -> Self {
        Column(Reserved::new(len))
    }
}

impl<T: Zero> Deref for Column<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: `len` values that are zero or were written; no other thread has the memory.
        unsafe { std::slice::from_raw_parts(self.0.at(0), self.0.len()) }
    }
}

impl<T: Zero> DerefMut for Column<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.0.at(0), self.0.len()) }
    }
}

/// One worker's megaflows.
pub(crate) struct Store {
    lines: Reserved<Line>,
    ext: Reserved<[Line; 3]>,
    counters: Reserved<Counters>,
    /// 1 for megaflows that were marked dead or unlinked: a dense copy of these bits of word 7.
    ended: Reserved<AtomicU8>,
    masks: [[AtomicU64; PWORDS]; MASKS],
    /// Indices from this one on were never used.
    pub high: AtomicU32,
}

/// The addresses of a store's lines and counters, by value: a loop over packets keeps them in
/// registers, whereas the store's own fields would be read again after each write.
#[derive(Clone, Copy)]
pub(crate) struct StoredLines<'a> {
    lines: *const Line,
    counters: *const Counters,
    of: PhantomData<&'a Store>,
}

impl StoredLines<'_> {
    /// The address of megaflow `i`'s line; `i` is an index of the store, or 0.
    #[inline(always)]
    pub fn line(self, i: u32) -> *const Line {
        // SAFETY: indices are inside the reserved memory.
        unsafe { self.lines.add(i as usize) }
    }

    /// The megaflow's payload now.
    #[inline(always)]
    pub fn payload(self, i: u32) -> Payload {
        // SAFETY: the store is there; word 7 is only ever accessed atomically.
        let word = unsafe { AtomicU64::from_ptr(self.line(i).cast_mut().cast::<u64>().add(7)) };
        Payload(word.load(Ordering::Acquire))
    }

    /// The address of the megaflow's counters, to be prefetched.
    #[inline(always)]
    pub fn counters(self, i: u32) -> *const Counters {
        // SAFETY: as for lines.
        unsafe { self.counters.add(i as usize) }
    }
}

impl Store {
    /// A store for `capacity` megaflows; index 0 is never used.
    pub fn new(capacity: usize) -> Self {
        Store {
            lines: Reserved::new(capacity + 1),
            ext: Reserved::new(capacity + 1),
            counters: Reserved::new(capacity + 1),
            ended: Reserved::new(capacity + 1),
            masks: std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0))),
            high: AtomicU32::new(1),
        }
    }

    /// Makes the system provide memory for these megaflows: the control thread calls this ahead of
    /// the worker.
    pub fn populate(&self, megaflows: Range<usize>) {
        self.lines.populate(megaflows.clone());
        self.counters.populate(megaflows);
    }

    /// Megaflows for which there is room.
    pub fn capacity(&self) -> usize {
        self.lines.len() - 1
    }

    fn word7(&self, i: u32) -> &AtomicU64 {
        // SAFETY: i is inside; word 7 is only ever accessed atomically.
        unsafe { AtomicU64::from_ptr(self.lines.at(i as usize).cast::<u64>().add(7)) }
    }

    /// The megaflow's payload now.
    #[inline]
    pub fn payload(&self, i: u32) -> Payload {
        Payload(self.word7(i).load(Ordering::Acquire))
    }

    /// Words 0 to 6 of the megaflow's line 0.
    #[inline]
    pub fn line(&self, i: u32) -> &[u64; 7] {
        // SAFETY: written only while the megaflow is not live; see the module doc.
        unsafe { &*self.lines.at(i as usize).cast() }
    }

    fn ended(&self, i: u32) -> &AtomicU8 {
        // SAFETY: i is inside; only ever accessed atomically, and zero is valid.
        unsafe { &*self.ended.at(i as usize) }
    }

    /// True if a megaflow that was live is not usable any more. [`Store::kill`] and
    /// [`Store::unlink`] set this before they return.
    #[inline]
    pub fn is_ended(&self, i: u32) -> bool {
        self.ended(i).load(Ordering::Acquire) != 0
    }

    /// Prefetches what [`Store::is_ended`] reads.
    #[inline]
    pub fn prefetch_ended(&self, i: u32) {
        prefetch(self.ended.at(i as usize));
    }

    /// The addresses of lines and counters, for a loop over many packets.
    #[inline]
    pub fn lines(&self) -> StoredLines<'_> {
        let (lines, counters) = (self.lines.at(0), self.counters.at(0));
        StoredLines { lines, counters, of: PhantomData }
    }

    /// The address of the megaflow's line, to be prefetched.
    #[inline]
    pub fn line_ptr(&self, i: u32) -> *const Line {
        self.lines.at(i as usize)
    }

    /// Lines 1 to 3 of the megaflow, valid where its mask has bits.
    #[inline]
    pub fn ext(&self, i: u32) -> &[Line; 3] {
        // SAFETY: as `line`.
        unsafe { &*self.ext.at(i as usize) }
    }

    /// Word `w` (not 7) of the megaflow's key, valid where its mask has bits.
    #[inline]
    pub fn word(&self, i: u32, w: usize) -> u64 {
        match w {
            0..7 => self.line(i)[w],
            7 => 0,
            _ => self.ext(i)[(w - 8) / 8][w % 8],
        }
    }

    /// The megaflow's counters.
    #[inline]
    pub fn counters(&self, i: u32) -> &Counters {
        // SAFETY: all fields are atomics; zero is valid.
        unsafe { &*self.counters.at(i as usize) }
    }

    /// Word `w` of mask `m`.
    #[inline]
    pub fn mask_word(&self, m: usize, w: usize) -> u64 {
        self.masks[m][w].load(Ordering::Relaxed)
    }

    /// All words of mask `m`.
    pub fn mask(&self, m: usize) -> [u64; PWORDS] {
        std::array::from_fn(|w| self.mask_word(m, w))
    }

    /// Writes mask `m`. Only the worker calls this, before any megaflow uses the mask.
    pub fn set_mask(&self, m: usize, mask: &[u64; PWORDS]) {
        for (cell, w) in self.masks[m].iter().zip(mask) {
            cell.store(*w, Ordering::Relaxed);
        }
    }

    /// Writes a megaflow and makes it live. Only the worker calls this, for a free index. `ext`:
    /// its mask has bits in lines 1 to 3.
    pub fn write(&self, i: u32, key: &[u64; PWORDS], ext: bool, payload: Payload, hash: u64) {
        let line = self.lines.at(i as usize).cast::<u64>();
        // SAFETY: the megaflow is the worker's until it is live.
        unsafe { std::ptr::copy_nonoverlapping(key.as_ptr(), line, 7) };
        if ext {
            // SAFETY: as above; 24 words behind the first 8.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    key.as_ptr().add(8),
                    self.ext.at(i as usize).cast(),
                    24,
                );
            }
        }
        let c = self.counters(i);
        for cell in [&c.packets, &c.bytes, &c.used_ms] {
            cell.store(0, Ordering::Relaxed);
        }
        c.hash.store(hash, Ordering::Relaxed);
        // The control thread gave the index back, so no thread reads the megaflow that had it
        // before.
        self.ended(i).store(0, Ordering::Relaxed);
        self.word7(i).store(payload.0, Ordering::Release);
        if i >= self.high.load(Ordering::Relaxed) {
            self.high.store(i + 1, Ordering::Release);
        }
    }

    /// Makes a megaflow not live. Only the worker calls this.
    pub fn unlink(&self, i: u32) {
        self.word7(i).fetch_and(!LIVE, Ordering::AcqRel);
        self.ended(i).store(1, Ordering::Release);
    }

    /// Marks a megaflow dead whose payload is still `seen`; false if it was not live or already
    /// dead. Only the control thread calls this.
    pub fn kill(&self, i: u32, seen: Payload) -> bool {
        let word = self.word7(i);
        let o = Ordering::SeqCst;
        let killed = seen.usable() && word.compare_exchange(seen.0, seen.0 | DEAD, o, o).is_ok();
        if killed {
            self.ended(i).store(1, o);
        }
        killed
    }

    /// The megaflow's key under its mask, as packet-side words.
    pub fn key_words(&self, i: u32, mask: &[u64; PWORDS]) -> [u64; PWORDS] {
        let mut k = [0; PWORDS];
        k[..7].copy_from_slice(self.line(i));
        if mask[8..].iter().any(|w| *w != 0) {
            let e = self.ext(i);
            for w in 8..PWORDS {
                k[w] = e[(w - 8) / 8][w % 8] & mask[w];
            }
        }
        k
    }
}
