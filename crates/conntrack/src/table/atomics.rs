//! What the lock-free code is made of. The models in `tests/model.rs` compile the same code with
//! another module of this name, whose types try every order of loads and stores.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Attempts between two that yield the core.
const SPINS_MAX: usize = 32;

/// Passes the time after a failed attempt, of which there were `attempts` before.
pub(crate) fn wait(attempts: usize) {
    match (attempts + 1) % SPINS_MAX {
        0 => std::thread::yield_now(),
        _ => std::hint::spin_loop(),
    }
}

/// Asks for a cache line.
#[inline]
pub(crate) fn prefetch(line: &Line) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint; any address is allowed.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(line).cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = line;
}

/// A cache line of eight words.
#[repr(C, align(64))]
pub(crate) struct Line(pub [AtomicU64; 8]);

/// Bytes from which on lines are in huge pages, if the system has some: two of 2 MiB.
const HUGE_BYTES_MIN: usize = 4 << 20;

/// Lines that are all zero at first. Their memory is not touched: pages come when they are used.
pub(crate) struct Lines {
    base: *mut Line,
    count: usize,
}

// SAFETY: plain memory of atomic words, which any thread may use.
unsafe impl Send for Lines {}
// SAFETY: as above.
unsafe impl Sync for Lines {}

impl Lines {
    /// So many, in small pages.
    pub fn new(count: usize) -> Self {
        let bytes = count * size_of::<Line>();
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh anonymous mapping; checked below.
        let p = unsafe { libc::mmap(std::ptr::null_mut(), bytes, prot, flags, -1, 0) };
        assert!(p != libc::MAP_FAILED, "cannot reserve {bytes} bytes of address space");
        Lines { base: p.cast(), count }
    }

    /// So many that nearly all will be used.
    pub fn dense(count: usize) -> Self {
        let new = Lines::new(count);
        let bytes = count * size_of::<Line>();
        if bytes >= HUGE_BYTES_MIN && !cfg!(miri) {
            // SAFETY: advice on our own mapping; failure is harmless.
            unsafe { libc::madvise(new.base.cast(), bytes, libc::MADV_HUGEPAGE) };
        }
        new
    }

    /// Has the pages come now, on a thread that may wait for them.
    pub fn touch(&self) {
        const PAGE_LINES: usize = 64;
        self.iter().step_by(PAGE_LINES).for_each(|line| line.0[0].store(0, Ordering::Relaxed));
    }
}

impl std::ops::Deref for Lines {
    type Target = [Line];

    #[inline]
    fn deref(&self) -> &[Line] {
        // SAFETY: the mapping has so many lines and is aligned to a page; all-zero bytes are lines.
        unsafe { std::slice::from_raw_parts(self.base, self.count) }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        // SAFETY: our own mapping, no reference to it is left.
        unsafe { libc::munmap(self.base.cast(), self.count * size_of::<Line>()) };
    }
}
