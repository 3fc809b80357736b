//! Hashing and prefetching of single words and lines.

/// 64x64 -> 128 bits, folded.
#[inline]
pub(crate) fn fold(x: u64) -> u64 {
    let p = (x ^ 0x9e37_79b9_7f4a_7c15) as u128 * 0xd6e8_feb8_6659_fd93_u128;
    (p as u64) ^ (p >> 64) as u64
}

/// Asks for a cache line.
#[inline]
pub(crate) fn prefetch<T>(p: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint; any address is allowed.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(p.cast())
    };
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = p;
}
