//! The parse kernels of x86-64.

use super::job::{KeyBuilder, ParseJob, run};
use super::profile::{PROBE_AT, Profile};
use crate::batch::keys::{Line, bytes};
use flow::at;
use std::arch::x86_64::*;

/// Builds keys in lanes of 16 bytes, by byte shuffles.
struct Avx2;

/// A profile, in registers.
#[derive(Clone, Copy)]
struct Ready {
    probe_mask: __m128i,
    probe: __m128i,
    keep: __m128i,
    from_window: __m128i,
    from_probe: __m128i,
    constant: __m256i,
    rest: __m128i,
    window: usize,
    flags_at: usize,
    flags_mask: u16,
}

/// # Safety
/// The CPU has AVX2, BMI1 and BMI2; the job's range is valid (see [`run`]).
#[target_feature(enable = "avx2,bmi1,bmi2")]
pub(crate) unsafe fn avx2(job: &mut ParseJob<'_>) -> usize {
    // SAFETY: the caller's.
    unsafe { run::<Avx2>(job) }
}

#[inline(always)]
unsafe fn load16(d: *const u8, at: usize) -> __m128i {
    // SAFETY: the caller's; unaligned.
    unsafe { _mm_loadu_si128(d.add(at).cast()) }
}

#[allow(clippy::undocumented_unsafe_blocks)] // the trait says what all of them need
impl KeyBuilder for Avx2 {
    type Head = __m128i;
    type Key = (__m256i, __m256i);
    type Ready = Ready;

    #[inline(always)]
    unsafe fn ready(p: &Profile, port: u64) -> Ready {
        unsafe {
            let port = _mm_cvtsi64_si128(port as i64);
            Ready {
                probe_mask: load16(p.probe_mask.as_ptr(), 0),
                probe: load16(p.probe.as_ptr(), 0),
                keep: load16(p.keep.as_ptr(), 0),
                from_window: load16(p.from_window.as_ptr(), 0),
                from_probe: load16(p.from_probe.as_ptr(), 0),
                constant: _mm256_loadu_si256(p.or.as_ptr().cast()),
                rest: _mm_or_si128(port, load16(p.or.as_ptr(), 32)),
                window: p.window as usize,
                flags_at: p.flags_at as usize,
                flags_mask: p.flags_mask,
            }
        }
    }

    #[inline(always)]
    unsafe fn head(d: *const u8, _: usize) -> __m128i {
        unsafe { load16(d, PROBE_AT) }
    }

    #[inline(always)]
    unsafe fn claims(head: __m128i, r: &Ready) -> bool {
        unsafe {
            let differ = _mm_xor_si128(_mm_and_si128(head, r.probe_mask), r.probe);
            _mm_testz_si128(differ, differ) != 0
        }
    }

    #[inline(always)]
    unsafe fn key<const FLAGS: bool>(head: __m128i, d: *const u8, r: &Ready) -> Self::Key {
        unsafe {
            let low = _mm_and_si128(load16(d, 0), r.keep);
            let high = _mm_or_si128(
                _mm_shuffle_epi8(load16(d, r.window), r.from_window),
                _mm_shuffle_epi8(head, r.from_probe),
            );
            let half = _mm256_or_si256(_mm256_set_m128i(high, low), r.constant);
            let mut rest = r.rest;
            if FLAGS {
                let flags = d.add(r.flags_at).cast::<u16>().read_unaligned() & r.flags_mask;
                rest = _mm_or_si128(rest, _mm_cvtsi32_si128(flags.into()));
            }
            (half, _mm256_zextsi128_si256(rest))
        }
    }

    #[inline(always)]
    unsafe fn with_tos(key: Self::Key, tos: u8) -> Self::Key {
        unsafe { (_mm256_insert_epi8::<{ at::TOS as i32 }>(key.0, tos as i8), key.1) }
    }

    #[inline(always)]
    unsafe fn agree(a: Self::Key, b: Self::Key, bits: Self::Key) -> bool {
        unsafe {
            let low = _mm256_and_si256(_mm256_xor_si256(a.0, b.0), bits.0);
            let high = _mm256_and_si256(_mm256_xor_si256(a.1, b.1), bits.1);
            let differ = _mm256_or_si256(low, high);
            _mm256_testz_si256(differ, differ) != 0
        }
    }

    #[inline(always)]
    unsafe fn store(key: Self::Key, to: *mut Line) {
        let to = to.cast::<__m256i>();
        unsafe {
            _mm256_storeu_si256(to, key.0);
            _mm256_storeu_si256(to.add(1), key.1);
        }
    }

    #[inline(always)]
    unsafe fn load(from: &Line) -> Self::Key {
        let from = from.as_ptr().cast::<__m256i>();
        unsafe { (_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1))) }
    }
}

/// Builds a whole line by one permutation of 64 bytes.
struct Avx512;

/// A profile, in registers.
#[derive(Clone, Copy)]
struct Ready512 {
    probe_mask: __m128i,
    probe: __m128i,
    pick: __m512i,
    /// Key bytes that come from the packet, a bit each.
    some: u64,
    and: __m512i,
    or: __m512i,
    /// Offset and mask of the TCP flags, if they are behind the first 64 bytes.
    far_flags: Option<(usize, u16)>,
}

/// # Safety
/// The CPU has AVX-512 F, BW, VL and VBMI, BMI1 and BMI2; the job's range is valid (see [`run`]).
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx2,bmi1,bmi2")]
pub(crate) unsafe fn avx512(job: &mut ParseJob<'_>) -> usize {
    // SAFETY: the caller's.
    unsafe { run::<Avx512>(job) }
}

#[inline(always)]
unsafe fn load64(b: &[u8; 64]) -> __m512i {
    // SAFETY: the caller has AVX-512; unaligned.
    unsafe { _mm512_loadu_si512(b.as_ptr().cast()) }
}

#[allow(clippy::undocumented_unsafe_blocks)] // the trait says what all of them need
impl KeyBuilder for Avx512 {
    type Head = __m512i;
    type Key = __m512i;
    type Ready = Ready512;

    #[inline(always)]
    unsafe fn ready(p: &Profile, port: u64) -> Ready512 {
        unsafe {
            let (pick, port) = (load64(&p.pick), _mm512_set1_epi64(port as i64));
            Ready512 {
                probe_mask: load16(p.probe_mask.as_ptr(), 0),
                probe: load16(p.probe.as_ptr(), 0),
                pick,
                some: _mm512_testn_epi8_mask(pick, _mm512_set1_epi8(0x80u8 as i8)),
                and: load64(&p.and),
                or: _mm512_or_si512(
                    load64(&p.or),
                    _mm512_maskz_mov_epi64(1 << (at::IN_PORT / 8), port),
                ),
                far_flags: (p.flags_mask != 0 && p.flags_at > 62)
                    .then_some((p.flags_at as usize, p.flags_mask)),
            }
        }
    }

    #[inline(always)]
    unsafe fn head(d: *const u8, len: usize) -> __m512i {
        // Bytes behind the packet's end are neither read nor matched.
        unsafe { _mm512_maskz_loadu_epi8(_bzhi_u64(!0, len.min(64) as u32), d.cast()) }
    }

    #[inline(always)]
    unsafe fn claims(head: __m512i, r: &Ready512) -> bool {
        unsafe {
            let probe = _mm512_castsi512_si128(_mm512_alignr_epi32::<3>(head, head));
            let differ = _mm_xor_si128(_mm_and_si128(probe, r.probe_mask), r.probe);
            _mm_testz_si128(differ, differ) != 0
        }
    }

    #[inline(always)]
    unsafe fn key<const FLAGS: bool>(head: __m512i, d: *const u8, r: &Ready512) -> __m512i {
        const LANE: i32 = at::TCP_FLAGS as i32 / 16;
        unsafe {
            let picked = _mm512_maskz_permutexvar_epi8(r.some, r.pick, head);
            let key = _mm512_or_si512(_mm512_and_si512(picked, r.and), r.or);
            let Some((at, mask)) = r.far_flags.filter(|_| FLAGS) else { return key };
            // The flags of TCP over IPv6: the permutation put other bytes in their place.
            let flags = d.add(at).cast::<u16>().read_unaligned() & mask;
            let lane = _mm512_extracti32x4_epi32::<LANE>(key);
            let lane = _mm_insert_epi16::<{ at::TCP_FLAGS as i32 % 16 / 2 }>(lane, flags.into());
            _mm512_inserti32x4::<LANE>(key, lane)
        }
    }

    #[inline(always)]
    unsafe fn with_tos(key: __m512i, tos: u8) -> __m512i {
        const LANE: i32 = at::TOS as i32 / 16;
        unsafe {
            let lane = _mm512_extracti32x4_epi32::<LANE>(key);
            let lane = _mm_insert_epi8::<{ at::TOS as i32 % 16 }>(lane, tos.into());
            _mm512_inserti32x4::<LANE>(key, lane)
        }
    }

    #[inline(always)]
    unsafe fn agree(a: __m512i, b: __m512i, bits: __m512i) -> bool {
        unsafe { _mm512_test_epi64_mask(_mm512_xor_si512(a, b), bits) == 0 }
    }

    #[inline(always)]
    unsafe fn store(key: __m512i, to: *mut Line) {
        unsafe { _mm512_storeu_si512(to.cast(), key) }
    }

    #[inline(always)]
    unsafe fn load(from: &Line) -> __m512i {
        unsafe { load64(bytes(from)) }
    }
}
