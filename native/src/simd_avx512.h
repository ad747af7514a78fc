// AVX-512 with VNNI (and BF16 where the compiler may use it). See simd.h; the other files give the same operations.
#pragma once

#include <immintrin.h>

namespace mlxcel::MLXCEL_ISA {

struct f32x16 {
  __m512 v;
};
struct i32x16 {
  __m512i v;
};
// 64 bytes: sixteen lanes of four, as `dot` takes them.
struct bytes64 {
  __m512i v;
};

// --- float lanes
MLXCEL_INLINE f32x16 splat(float x) { return {_mm512_set1_ps(x)}; }
MLXCEL_INLINE f32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
MLXCEL_INLINE void store(float* p, f32x16 a) { _mm512_storeu_ps(p, a.v); }
// Tells the compiler to hold a value that is used several times in registers, not to load it each time.
MLXCEL_INLINE void hold(f32x16& a) { asm("" : "+v"(a.v)); }
// The first n (0 to 16) lanes; the others are 0, or are left alone in memory.
MLXCEL_INLINE f32x16 load_first(const float* p, int n) { return {_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p)}; }
MLXCEL_INLINE void store_first(float* p, f32x16 a, int n) { _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), a.v); }
MLXCEL_INLINE f32x16 load_f16(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
MLXCEL_INLINE void store_f16(uint16_t* p, f32x16 a) {
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
MLXCEL_INLINE f32x16 load_bf16(const uint16_t* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16))};
}
// Round to nearest even; NaN stays NaN.
MLXCEL_INLINE void store_bf16(uint16_t* p, f32x16 a) {
  __m512i bits = _mm512_castps_si512(a.v);
  __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  rounded = _mm512_mask_blend_epi32(nan, rounded, _mm512_set1_epi32(0x7fc00000));
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}
MLXCEL_INLINE f32x16 add(f32x16 a, f32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
MLXCEL_INLINE f32x16 sub(f32x16 a, f32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
MLXCEL_INLINE f32x16 mul(f32x16 a, f32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
MLXCEL_INLINE f32x16 div(f32x16 a, f32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
MLXCEL_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }  // a * b + c
// NaN in either operand may come out or not; use is_nan_any where it matters.
MLXCEL_INLINE f32x16 max(f32x16 a, f32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
MLXCEL_INLINE f32x16 min(f32x16 a, f32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
MLXCEL_INLINE f32x16 abs(f32x16 a) { return {_mm512_abs_ps(a.v)}; }
MLXCEL_INLINE bool any_nan(f32x16 a) { return _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q) != 0; }
// Lanes below n from a, the others from b.
MLXCEL_INLINE f32x16 first(int n, f32x16 a, f32x16 b) {
  return {_mm512_mask_blend_ps((__mmask16)(n >= 16 ? 0xffff : (1u << n) - 1), b.v, a.v)};
}
// Bit i: whether a >= b in lane i. False where either is NaN.
MLXCEL_INLINE uint32_t lanes_at_least(f32x16 a, f32x16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ); }
// Sums and maxima over the lanes, in a fixed order.
MLXCEL_INLINE float sum(f32x16 a) { return _mm512_reduce_add_ps(a.v); }
MLXCEL_INLINE float max_of(f32x16 a) { return _mm512_reduce_max_ps(a.v); }
// The largest magnitude of 32 values; infinite or NaN if one of them is not finite.
MLXCEL_INLINE float peak_of(f32x16 a, f32x16 b) {
  // The bits of magnitudes are in the order of their values, NaN last.
  const __m512i peaks = _mm512_max_epi32(_mm512_castps_si512(abs(a).v), _mm512_castps_si512(abs(b).v));
  return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(_mm512_reduce_max_epi32(peaks))));
}
// 2^n for whole n in [-126, 127], n given as floats.
MLXCEL_INLINE f32x16 exp2_whole(f32x16 n) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127)), 23))};
}
MLXCEL_INLINE f32x16 round_even(f32x16 a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// Lanes of a that are below b; the others are 0.
MLXCEL_INLINE f32x16 zero_unless_below(f32x16 a, f32x16 b) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), a.v)};
}

// --- double lanes
struct f64x16 {
  __m512d lo, hi;
};
MLXCEL_INLINE f64x16 zero_f64() { return {_mm512_setzero_pd(), _mm512_setzero_pd()}; }
MLXCEL_INLINE void store(double* p, f64x16 a) {
  _mm512_storeu_pd(p, a.lo);
  _mm512_storeu_pd(p + 8, a.hi);
}
MLXCEL_INLINE f64x16 to_f64(f32x16 a) {
  return {_mm512_cvtps_pd(_mm512_castps512_ps256(a.v)), _mm512_cvtps_pd(_mm512_extractf32x8_ps(a.v, 1))};
}
MLXCEL_INLINE f64x16 add(f64x16 a, f64x16 b) { return {_mm512_add_pd(a.lo, b.lo), _mm512_add_pd(a.hi, b.hi)}; }
MLXCEL_INLINE f64x16 mul(f64x16 a, f64x16 b) { return {_mm512_mul_pd(a.lo, b.lo), _mm512_mul_pd(a.hi, b.hi)}; }

// --- integer lanes
MLXCEL_INLINE i32x16 zero_i32() { return {_mm512_setzero_si512()}; }
MLXCEL_INLINE i32x16 splat_i32(int32_t x) { return {_mm512_set1_epi32(x)}; }
MLXCEL_INLINE i32x16 add(i32x16 a, i32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
MLXCEL_INLINE i32x16 sub(i32x16 a, i32x16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
template <int bits>
MLXCEL_INLINE i32x16 shift_left(i32x16 a) {
  return {_mm512_slli_epi32(a.v, bits)};
}
template <int bits>
MLXCEL_INLINE i32x16 shift_right(i32x16 a) {  // arithmetic
  return {_mm512_srai_epi32(a.v, bits)};
}
// Modulo 2^32, which the compiler's own reduction does not promise.
MLXCEL_INLINE int32_t sum(i32x16 a) {
  const __m256i eight = _mm256_add_epi32(_mm512_castsi512_si256(a.v), _mm512_extracti64x4_epi64(a.v, 1));
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}
MLXCEL_INLINE i32x16 to_i32(f32x16 a) { return {_mm512_cvtps_epi32(a.v)}; }  // nearest, ties to even
MLXCEL_INLINE f32x16 to_f32(i32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
// Saturating to [-128, 127].
MLXCEL_INLINE void store_i8(int8_t* p, i32x16 a) { _mm_storeu_si128((__m128i*)p, _mm512_cvtsepi32_epi8(a.v)); }

// --- packed bytes
MLXCEL_INLINE bytes64 load64(const void* p) { return {_mm512_loadu_si512(p)}; }
MLXCEL_INLINE bytes64 low_nibbles(bytes64 a) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(15))}; }
MLXCEL_INLINE bytes64 high_nibbles(bytes64 a) {
  return {_mm512_and_si512(_mm512_srli_epi16(a.v, 4), _mm512_set1_epi8(15))};
}
// Each lane: acc + the dot product of its four unsigned bytes with the four signed bytes of `x`. Exact.
MLXCEL_INLINE i32x16 dot(i32x16 acc, bytes64 w, int32_t x) {
  return {_mm512_dpbusd_epi32(acc.v, w.v, _mm512_set1_epi32(x))};
}

// --- bfloat16 pairs
// Each lane: acc + lo(w) * lo(x) + hi(w) * hi(x); `pairs` holds sixteen lanes of two bfloat16 each.
MLXCEL_INLINE f32x16 dot_bf16(f32x16 acc, const uint16_t* pairs, uint32_t x) {
#if defined(__AVX512BF16__)
  return {_mm512_dpbf16_ps(acc.v, (__m512bh)_mm512_loadu_si512(pairs), (__m512bh)_mm512_set1_epi32((int)x))};
#else
  __m512i w = _mm512_loadu_si512(pairs), q = _mm512_set1_epi32((int)x);
  const __m512i high = _mm512_set1_epi32((int)0xffff0000u);
  __m512 odd = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(w, high)),
                               _mm512_castsi512_ps(_mm512_and_si512(q, high)), acc.v);
  return {_mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(w, 16)), _mm512_castsi512_ps(_mm512_slli_epi32(q, 16)), odd)};
#endif
}

}  // namespace mlxcel::MLXCEL_ISA
