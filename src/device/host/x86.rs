//! The vector levels of x86-64: SSE2, which every machine has; AVX2 with F16C; AVX-512.

use std::arch::x86_64::{
    __m128i, __m256i, __m512i, _CMP_UNORD_Q, _MM_FROUND_TO_NEAREST_INT, _mm_cvtph_ps, _mm_cvtps_ph, _mm_cvtsi32_si128,
    _mm_cvtsi128_si32, _mm_cvtss_f32, _mm_loadu_si128, _mm_set_ss, _mm_sfence, _mm_storeu_si128, _mm_stream_si128,
    _mm256_blendv_ps, _mm256_cmp_ps, _mm256_cvtph_ps, _mm256_cvtps_ph, _mm256_loadu_ps, _mm256_loadu_si256,
    _mm256_set1_ps, _mm256_storeu_ps, _mm256_storeu_si256, _mm256_stream_si256, _mm512_cmp_ps_mask, _mm512_cvtph_ps,
    _mm512_cvtps_ph, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_mask_blend_ps, _mm512_set1_ps, _mm512_storeu_ps,
    _mm512_stream_si512,
};
use std::mem::MaybeUninit;

use crate::device::host::block;
use crate::device::host::copy;
use crate::device::host::fold::Fold;
use crate::device::host::lane::Lane;
use crate::device::host::vectors::{LINE, Vectors};
use crate::device::host::{Body, Kernel, Pass};

/// The vector levels of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    /// SSE2.
    Baseline,
    /// AVX2 and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ, VL, on machines that also have VBMI2: the first generations of AVX-512 lack it, and lower
    /// their clock for a while whenever 512-bit vectors run.
    Avx512,
}

impl Level {
    /// The best level that the machine has. The standard library caches the detection, so this costs a few loads.
    #[inline]
    pub(super) fn detect() -> Level {
        if !(is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c")) {
            Level::Baseline
        } else if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vbmi2")
        {
            Level::Avx512
        } else {
            Level::Avx2
        }
    }

    /// All levels that the machine has.
    #[cfg(test)]
    pub(super) fn available() -> Vec<Level> {
        [Level::Baseline, Level::Avx2, Level::Avx512].into_iter().filter(|level| *level <= Level::detect()).collect()
    }
}

/// The function that reduces lanes `L` with `O` at `level`.
#[inline]
pub(super) fn bind<L: Lane, O: Fold<L::Wide>>(level: Level) -> Body {
    match level {
        Level::Baseline => reduce_baseline::<L, O>,
        Level::Avx2 => reduce_avx2::<L, O>,
        Level::Avx512 => reduce_avx512::<L, O>,
    }
}

/// The function that copies at `level`.
#[inline]
pub(super) fn bind_copy(level: Level) -> Body {
    match level {
        Level::Baseline => copy_baseline,
        Level::Avx2 => copy_avx2,
        Level::Avx512 => copy_avx512,
    }
}

// The generic functions are inlined into one function for each level, where the compiler may use that level's vectors.

unsafe fn reduce_baseline<L: Lane, O: Fold<L::Wide>>(kernel: &Kernel, pass: &Pass<'_>) {
    // SAFETY: the caller's contract; every x86-64 has the level.
    unsafe { block::reduce::<Baseline, L, O>(kernel, pass) };
}

#[target_feature(enable = "avx2,f16c")]
unsafe fn reduce_avx2<L: Lane, O: Fold<L::Wide>>(kernel: &Kernel, pass: &Pass<'_>) {
    // SAFETY: the caller's contract, which has the level in it.
    unsafe { block::reduce::<Avx2, L, O>(kernel, pass) };
}

#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn reduce_avx512<L: Lane, O: Fold<L::Wide>>(kernel: &Kernel, pass: &Pass<'_>) {
    // SAFETY: the caller's contract, which has the level in it.
    unsafe { block::reduce::<Avx512, L, O>(kernel, pass) };
}

unsafe fn copy_baseline(kernel: &Kernel, pass: &Pass<'_>) {
    // SAFETY: the caller's contract; every x86-64 has the level.
    unsafe { copy::copy::<Baseline>(kernel, pass) };
}

#[target_feature(enable = "avx2")]
unsafe fn copy_avx2(kernel: &Kernel, pass: &Pass<'_>) {
    // SAFETY: the caller's contract, which has the level in it.
    unsafe { copy::copy::<Avx2>(kernel, pass) };
}

#[target_feature(enable = "avx512f")]
unsafe fn copy_avx512(kernel: &Kernel, pass: &Pass<'_>) {
    // SAFETY: the caller's contract, which has the level in it.
    unsafe { copy::copy::<Avx512>(kernel, pass) };
}

/// Copies whole lines by non-temporal stores of one vector type.
macro_rules! stream_lines {
    ($vector:ty, $load:ident, $stream:ident, $source:expr, $target:expr, $bytes:expr) => {
        for offset in (0..$bytes).step_by(size_of::<$vector>()) {
            // SAFETY: the caller vouches for `bytes` of the source, and the vector's size divides it.
            let from = unsafe { $source.add(offset).cast::<$vector>() };
            // SAFETY: likewise of the target.
            let to = unsafe { $target.add(offset).cast::<$vector>() };
            // SAFETY: readable as said; the load takes any alignment.
            let vector = unsafe { $load(from) };
            // SAFETY: writable as said; the target is aligned to a line and the offset to the vector.
            unsafe { $stream(to, vector) };
        }
    };
}

/// SSE2.
struct Baseline;

impl Vectors for Baseline {
    #[inline(always)]
    unsafe fn stream(source: *const u8, target: *mut u8, bytes: usize) {
        stream_lines!(__m128i, _mm_loadu_si128, _mm_stream_si128, source, target, bytes);
    }

    #[inline(always)]
    fn fence() {
        // SAFETY: every x86-64 has SSE.
        unsafe { _mm_sfence() };
    }

    unsafe fn widen_half(_source: &[[u8; 2]], _wide: &mut [MaybeUninit<f32>]) {
        unreachable!("HALF is false");
    }

    unsafe fn narrow_half(_wide: &[f32], _target: &mut [MaybeUninit<[u8; 2]>]) {
        unreachable!("HALF is false");
    }
}

/// AVX2 and F16C.
struct Avx2;

impl Vectors for Avx2 {
    const HALF: bool = true;

    #[inline(always)]
    unsafe fn stream(source: *const u8, target: *mut u8, bytes: usize) {
        stream_lines!(__m256i, _mm256_loadu_si256, _mm256_stream_si256, source, target, bytes);
    }

    #[inline(always)]
    fn fence() {
        // SAFETY: every x86-64 has SSE.
        unsafe { _mm_sfence() };
    }

    #[inline(always)]
    unsafe fn widen_half(source: &[[u8; 2]], wide: &mut [MaybeUninit<f32>]) {
        // SAFETY: the caller vouches for the level.
        unsafe { widen_half_8(source, wide) };
    }

    #[inline(always)]
    unsafe fn narrow_half(wide: &[f32], target: &mut [MaybeUninit<[u8; 2]>]) {
        // SAFETY: the caller vouches for the level.
        unsafe { narrow_half_8(wide, target) };
    }
}

/// AVX-512.
struct Avx512;

impl Vectors for Avx512 {
    const HALF: bool = true;

    #[inline(always)]
    unsafe fn stream(source: *const u8, target: *mut u8, bytes: usize) {
        stream_lines!(__m512i, _mm512_loadu_si512, _mm512_stream_si512, source, target, bytes);
    }

    #[inline(always)]
    fn fence() {
        // SAFETY: every x86-64 has SSE.
        unsafe { _mm_sfence() };
    }

    #[inline(always)]
    unsafe fn widen_half(source: &[[u8; 2]], wide: &mut [MaybeUninit<f32>]) {
        // SAFETY: the caller vouches for the level.
        unsafe { widen_half_16(source, wide) };
    }

    #[inline(always)]
    unsafe fn narrow_half(wide: &[f32], target: &mut [MaybeUninit<[u8; 2]>]) {
        // SAFETY: the caller vouches for the level.
        unsafe { narrow_half_16(wide, target) };
    }
}

/// Widens 8 at a time, the rest one by one.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn widen_half_8(source: &[[u8; 2]], wide: &mut [MaybeUninit<f32>]) {
    let (sources, source_rest) = source.as_chunks::<8>();
    let (wides, wide_rest) = wide.as_chunks_mut::<8>();
    for (halves, values) in sources.iter().zip(wides) {
        // SAFETY: 8 halves are 16 bytes; the load takes any alignment.
        let halves = unsafe { _mm_loadu_si128(halves.as_ptr().cast()) };
        let widened = _mm256_cvtph_ps(halves);
        // SAFETY: 8 values are 32 bytes; the store takes any alignment.
        unsafe { _mm256_storeu_ps(values.as_mut_ptr().cast(), widened) };
    }
    widen_rest(source_rest, wide_rest);
}

/// Narrows 8 at a time, the rest one by one.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn narrow_half_8(wide: &[f32], target: &mut [MaybeUninit<[u8; 2]>]) {
    let (wides, wide_rest) = wide.as_chunks::<8>();
    let (targets, target_rest) = target.as_chunks_mut::<8>();
    for (values, halves) in wides.iter().zip(targets) {
        // SAFETY: 8 values are 32 bytes; the load takes any alignment.
        let values = unsafe { _mm256_loadu_ps(values.as_ptr()) };
        let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(values, values);
        let settled = _mm256_blendv_ps(values, _mm256_set1_ps(f32::NAN), nan);
        let narrow = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(settled);
        // SAFETY: 8 halves are 16 bytes; the store takes any alignment.
        unsafe { _mm_storeu_si128(halves.as_mut_ptr().cast(), narrow) };
    }
    narrow_rest(wide_rest, target_rest);
}

/// Widens 16 at a time, the rest one by one.
#[inline]
#[target_feature(enable = "avx2,f16c,avx512f")]
fn widen_half_16(source: &[[u8; 2]], wide: &mut [MaybeUninit<f32>]) {
    let (sources, source_rest) = source.as_chunks::<16>();
    let (wides, wide_rest) = wide.as_chunks_mut::<16>();
    for (halves, values) in sources.iter().zip(wides) {
        // SAFETY: 16 halves are 32 bytes; the load takes any alignment.
        let halves = unsafe { _mm256_loadu_si256(halves.as_ptr().cast()) };
        let widened = _mm512_cvtph_ps(halves);
        // SAFETY: 16 values are 64 bytes; the store takes any alignment.
        unsafe { _mm512_storeu_ps(values.as_mut_ptr().cast(), widened) };
    }
    widen_rest(source_rest, wide_rest);
}

/// Narrows 16 at a time, the rest one by one.
#[inline]
#[target_feature(enable = "avx2,f16c,avx512f")]
fn narrow_half_16(wide: &[f32], target: &mut [MaybeUninit<[u8; 2]>]) {
    let (wides, wide_rest) = wide.as_chunks::<16>();
    let (targets, target_rest) = target.as_chunks_mut::<16>();
    for (values, halves) in wides.iter().zip(targets) {
        // SAFETY: 16 values are 64 bytes; the load takes any alignment.
        let values = unsafe { _mm512_loadu_ps(values.as_ptr()) };
        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(values, values);
        let settled = _mm512_mask_blend_ps(nan, values, _mm512_set1_ps(f32::NAN));
        let narrow = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(settled);
        // SAFETY: 16 halves are 32 bytes; the store takes any alignment.
        unsafe { _mm256_storeu_si256(halves.as_mut_ptr().cast(), narrow) };
    }
    narrow_rest(wide_rest, target_rest);
}

/// Widens one by one.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn widen_rest(source: &[[u8; 2]], wide: &mut [MaybeUninit<f32>]) {
    for (half, value) in source.iter().zip(wide) {
        let half = _mm_cvtsi32_si128(i32::from(u16::from_ne_bytes(*half)));
        value.write(_mm_cvtss_f32(_mm_cvtph_ps(half)));
    }
}

/// Narrows one by one.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn narrow_rest(wide: &[f32], target: &mut [MaybeUninit<[u8; 2]>]) {
    for (value, half) in wide.iter().zip(target) {
        let settled = _mm_set_ss(if value.is_nan() { f32::NAN } else { *value });
        let narrow = _mm_cvtsi128_si32(_mm_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(settled));
        let [low, high, ..] = narrow.to_ne_bytes();
        half.write([low, high]);
    }
}

const _: () = assert!(LINE.is_multiple_of(size_of::<__m512i>()));
