//! Hashing and prefetching of single words and lines.

pub(crate) use sync::prefetch;

/// A 64x64-bit multiplication whose halves are combined.
#[inline]
pub(crate) fn fold(x: u64) -> u64 {
    let p = (x ^ 0x9e37_79b9_7f4a_7c15) as u128 * 0xd6e8_feb8_6659_fd93_u128;
    (p as u64) ^ (p >> 64) as u64
}
