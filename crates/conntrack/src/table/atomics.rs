//! The atomic types, waiting and memory of the lock-free code. The models in `tests/model.rs`
//! compile the same code with another module of this name, whose types try every order of loads and
//! stores.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Failed attempts after which a thread yields its core.
const SPINS_MAX: usize = 32;

/// Waits a little after a failed attempt; there were `attempts` before it.
pub(crate) fn wait(attempts: usize) {
    match (attempts + 1) % SPINS_MAX {
        0 => std::thread::yield_now(),
        _ => std::hint::spin_loop(),
    }
}

/// Prefetches a cache line.
#[inline]
pub(crate) fn prefetch(line: &CacheLine) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint; any address is allowed.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(line).cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = line;
}

/// Which words of a line have this upper half: bit `i` is word `i`'s. As eight relaxed loads.
#[inline]
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) fn upper_halves(line: &CacheLine, half: u32) -> u32 {
    use std::arch::x86_64::*;
    let [a, b, c, d]: [__m128; 4];
    // SAFETY: SSE2 is part of x86-64. The loads are of an aligned line that is there; the processor
    // reads aligned words whole, whoever writes meanwhile, and the compiler does not see into them.
    unsafe {
        std::arch::asm!(
            "movaps {a}, [{at}]", "movaps {b}, [{at} + 16]",
            "movaps {c}, [{at} + 32]", "movaps {d}, [{at} + 48]",
            at = in(reg) line, a = out(xmm_reg) a, b = out(xmm_reg) b,
            c = out(xmm_reg) c, d = out(xmm_reg) d,
            options(readonly, nostack, preserves_flags)
        );
        let wanted = _mm_set1_epi32(half as i32);
        let equal = |a: __m128, b: __m128| {
            let halves = _mm_castps_si128(_mm_shuffle_ps::<0b11_01_11_01>(a, b));
            _mm_movemask_ps(_mm_castsi128_ps(_mm_cmpeq_epi32(halves, wanted))) as u32
        };
        equal(a, b) | equal(c, d) << 4
    }
}

/// Which words of a line have this upper half: bit `i` is word `i`'s.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(crate) fn upper_halves(line: &CacheLine, half: u32) -> u32 {
    let fits = |i: usize| line.0[i].load(Ordering::Relaxed) >> 32 == u64::from(half);
    (0..8).fold(0, |all, i| all | u32::from(fits(i)) << i)
}

/// A cache line of eight words.
#[repr(C, align(64))]
pub(crate) struct CacheLine(pub [AtomicU64; 8]);

/// Bytes from which on lines are in huge pages, if the system has some: two of 2 MiB.
const HUGE_BYTES_MIN: usize = 4 << 20;

/// Lines that are all zero at first. Their memory is not touched: pages come when they are used.
pub(crate) struct CacheLines {
    base: *mut CacheLine,
    count: usize,
}

// SAFETY: plain memory of atomic words, which any thread may use.
unsafe impl Send for CacheLines {}
// SAFETY: as above.
unsafe impl Sync for CacheLines {}

/// Where memory is made, None and `false` mean that the system has none, or that a limit of this
/// process forbids more (`RLIMIT_AS`, and `RLIMIT_MEMLOCK` of one that locks its memory).
impl CacheLines {
    /// `count` lines, in small pages.
    pub fn new(count: usize) -> Option<Self> {
        Self::map(count, libc::PROT_READ | libc::PROT_WRITE)
    }

    fn map(count: usize, prot: libc::c_int) -> Option<Self> {
        let bytes = count * size_of::<CacheLine>();
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh anonymous mapping; checked below.
        let p = unsafe { libc::mmap(std::ptr::null_mut(), bytes, prot, flags, -1, 0) };
        (p != libc::MAP_FAILED).then_some(CacheLines { base: p.cast(), count })
    }

    /// `count` lines of which nearly all will be used, in huge pages where there are some.
    pub fn dense(count: usize) -> Option<Self> {
        let new = CacheLines::new(count)?;
        new.in_huge_pages(count * size_of::<CacheLine>());
        Some(new)
    }

    /// Reserves address space for `count` lines, of which none may be used before
    /// [`CacheLines::provide`]. It costs no memory, even in a process that locks its memory.
    pub fn reserved(count: usize) -> Option<Self> {
        Self::map(count, libc::PROT_NONE)
    }

    /// Makes the first `count` reserved lines usable; nearly all of them will be used.
    pub fn provide(&self, count: usize) -> bool {
        let bytes = count * size_of::<CacheLine>();
        assert!(count <= self.count);
        // SAFETY: of our own mapping.
        let done =
            unsafe { libc::mprotect(self.base.cast(), bytes, libc::PROT_READ | libc::PROT_WRITE) };
        if done == 0 {
            self.in_huge_pages(bytes);
        }
        done == 0
    }

    fn in_huge_pages(&self, bytes: usize) {
        if bytes >= HUGE_BYTES_MIN && !cfg!(miri) {
            // SAFETY: advice on our own mapping; failure is harmless.
            unsafe { libc::madvise(self.base.cast(), bytes, libc::MADV_HUGEPAGE) };
        }
    }

    /// Makes the kernel provide the pages now, in a thread that may wait for them.
    pub fn touch(&self) {
        const PAGE_LINES: usize = 64;
        self.iter().step_by(PAGE_LINES).for_each(|line| line.0[0].store(0, Ordering::Relaxed));
    }
}

impl std::ops::Deref for CacheLines {
    type Target = [CacheLine];

    #[inline]
    fn deref(&self) -> &[CacheLine] {
        // SAFETY: the mapping has so many lines and is aligned to a page; all-zero bytes are lines.
        unsafe { std::slice::from_raw_parts(self.base, self.count) }
    }
}

impl Drop for CacheLines {
    fn drop(&mut self) {
        // SAFETY: our own mapping, no reference to it is left.
        unsafe { libc::munmap(self.base.cast(), self.count * size_of::<CacheLine>()) };
    }
}
