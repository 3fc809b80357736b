//! Compares a packet's key with a megaflow under its mask: all of line 0 at once, by the
//! instructions of a level.

use crate::batch::keys::Line;

/// The mask of a subtable on line 0. The masks of all subtables are adjacent, apart from the
/// subtables.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct MaskLine {
    pub words: [u64; 7],
    /// True if the mask has bits in lines 1 to 3, too.
    pub ext: bool,
}

/// How a kernel compares a key with a megaflow.
///
/// # Safety
///
/// For all functions: the CPU has the kernel's instructions, and `megaflow` points to a megaflow's
/// line. Word 7 of it is not read: other threads may write it.
pub(crate) trait Probe {
    /// A mask as the kernel uses it, made once for many packets.
    type Mask: Copy;
    unsafe fn mask(m: &MaskLine) -> Self::Mask;
    unsafe fn equal(key: &Line, mask: Self::Mask, megaflow: *const u64) -> bool;
}

/// Compares word by word: the twin of the other levels.
pub(crate) struct Scalar;

#[allow(clippy::undocumented_unsafe_blocks)] // the trait says what all of them need
impl Probe for Scalar {
    type Mask = [u64; 7];

    #[inline(always)]
    unsafe fn mask(m: &MaskLine) -> [u64; 7] {
        m.words
    }

    #[inline(always)]
    unsafe fn equal(key: &Line, mask: [u64; 7], megaflow: *const u64) -> bool {
        (0..7).fold(0, |d, w| d | (key[w] & mask[w]) ^ unsafe { *megaflow.add(w) }) == 0
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use simd::Avx2;
#[cfg(target_arch = "x86_64")]
pub(super) use simd::Avx512;

#[cfg(target_arch = "x86_64")]
#[allow(clippy::undocumented_unsafe_blocks)] // the trait says what all of them need
mod simd {
    use super::*;
    use std::arch::x86_64::*;

    /// Compares a line in two halves.
    pub(crate) struct Avx2;

    impl Probe for Avx2 {
        type Mask = (__m256i, __m256i);

        #[inline(always)]
        unsafe fn mask(m: &MaskLine) -> Self::Mask {
            let words = m.words.as_ptr();
            unsafe { (_mm256_loadu_si256(words.cast()), three(words.add(4))) }
        }

        #[inline(always)]
        unsafe fn equal(key: &Line, mask: Self::Mask, megaflow: *const u64) -> bool {
            unsafe {
                let key = key.as_ptr().cast::<__m256i>();
                let (low, high) = (_mm256_loadu_si256(key), _mm256_loadu_si256(key.add(1)));
                let low = _mm256_cmpeq_epi64(
                    _mm256_and_si256(low, mask.0),
                    _mm256_loadu_si256(megaflow.cast()),
                );
                let high =
                    _mm256_cmpeq_epi64(_mm256_and_si256(high, mask.1), three(megaflow.add(4)));
                _mm256_movemask_epi8(_mm256_and_si256(low, high)) == -1
            }
        }
    }

    /// Loads three words and a zero.
    #[inline(always)]
    unsafe fn three(words: *const u64) -> __m256i {
        unsafe { _mm256_maskload_epi64(words.cast(), _mm256_setr_epi64x(-1, -1, -1, 0)) }
    }

    /// Compares a whole line at once.
    pub(in crate::lookup) struct Avx512;

    impl Probe for Avx512 {
        type Mask = __m512i;

        #[inline(always)]
        unsafe fn mask(m: &MaskLine) -> __m512i {
            unsafe { seven(m.words.as_ptr()) }
        }

        #[inline(always)]
        unsafe fn equal(key: &Line, mask: __m512i, megaflow: *const u64) -> bool {
            unsafe {
                let key = _mm512_and_si512(_mm512_loadu_si512(key.as_ptr().cast()), mask);
                _mm512_cmpneq_epi64_mask(key, seven(megaflow)) == 0
            }
        }
    }

    /// Loads seven words and a zero.
    #[inline(always)]
    unsafe fn seven(words: *const u64) -> __m512i {
        unsafe { _mm512_maskz_loadu_epi64(0x7f, words.cast()) }
    }
}

/// True if the level's comparison finds every single bit that differs, and no other.
pub(crate) fn agrees(level: crate::cpu::Level) -> bool {
    use crate::cpu::Level;
    match level {
        Level::Scalar => finds_bits::<Scalar>(),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller asks about levels whose instructions the CPU has.
        Level::Avx2 => unsafe { avx2_finds_bits() },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Level::Avx512 => unsafe { avx512_finds_bits() },
        #[cfg(not(target_arch = "x86_64"))]
        _ => false,
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2")]
unsafe fn avx2_finds_bits() -> bool {
    finds_bits::<Avx2>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,bmi1,bmi2")]
unsafe fn avx512_finds_bits() -> bool {
    finds_bits::<Avx512>()
}

#[inline(always)]
fn finds_bits<P: Probe>() -> bool {
    let key: Line = std::array::from_fn(|w| if w == 7 { 0 } else { crate::mem::fold(w as u64) });
    let mask: [u64; 7] = std::array::from_fn(|w| crate::mem::fold(99 + w as u64));
    let ready = MaskLine { words: mask, ext: true };
    let megaflow = |bit: usize| -> Line {
        std::array::from_fn(|w| {
            let value = if w == 7 { !0 } else { key[w] & mask[w] };
            if bit / 64 == w { value ^ 1 << (bit % 64) } else { value }
        })
    };
    (0..=512).all(|bit| {
        let megaflow = megaflow(bit);
        // SAFETY: the caller's; a whole line.
        let equal = unsafe { P::equal(&key, P::mask(&ready), megaflow.as_ptr()) };
        equal == (bit / 64 >= 7)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Level;

    #[test]
    fn every_level_finds_every_bit() {
        for level in Level::ALL.into_iter().filter(|l| l.detected()) {
            assert!(agrees(level), "{}", level.name());
        }
    }
}
