// AVX2 with FMA and F16C (and AVX-VNNI where the compiler may use it): two registers for sixteen lanes. See simd.h.
#pragma once

#include <immintrin.h>

namespace mlxcel::MLXCEL_ISA {

struct f32x16 {
  __m256 lo, hi;
};
struct i32x16 {
  __m256i lo, hi;
};
// 64 bytes: sixteen lanes of four, as `dot` takes them.
struct bytes64 {
  __m256i lo, hi;
};
// Bytes below 16, for which `dot` has a shorter form without AVX-VNNI. Keep the type (`auto`) to use it.
struct nibbles64 : bytes64 {};

// --- float lanes
MLXCEL_INLINE f32x16 splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
MLXCEL_INLINE f32x16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
MLXCEL_INLINE void store(float* p, f32x16 a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
// Tells the compiler to hold a value that is used several times in registers, not to load it each time.
MLXCEL_INLINE void hold(f32x16& a) { asm("" : "+x"(a.lo), "+x"(a.hi)); }
// All bits set in the lanes below n; `from` is the index of the first lane.
MLXCEL_INLINE __m256i lanes_below(int n, int from) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n - from), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
// The first n (0 to 16) lanes; the others are 0, or are left alone in memory.
MLXCEL_INLINE f32x16 load_first(const float* p, int n) {
  return {_mm256_maskload_ps(p, lanes_below(n, 0)), _mm256_maskload_ps(p + 8, lanes_below(n, 8))};
}
MLXCEL_INLINE void store_first(float* p, f32x16 a, int n) {
  _mm256_maskstore_ps(p, lanes_below(n, 0), a.lo);
  _mm256_maskstore_ps(p + 8, lanes_below(n, 8), a.hi);
}
MLXCEL_INLINE f32x16 load_f16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)),
          _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))};
}
MLXCEL_INLINE void store_f16(uint16_t* p, f32x16 a) {
  _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  _mm_storeu_si128((__m128i*)(p + 8), _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
MLXCEL_INLINE __m256 widen_bf16(__m128i half) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
MLXCEL_INLINE f32x16 load_bf16(const uint16_t* p) {
  return {widen_bf16(_mm_loadu_si128((const __m128i*)p)), widen_bf16(_mm_loadu_si128((const __m128i*)(p + 8)))};
}
// The bfloat16 of each lane in its low half.
MLXCEL_INLINE __m256i narrow_bf16(__m256 a) {
  __m256i bits = _mm256_castps_si256(a);
  __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc00000), nan), 16);
}
// Round to nearest even; NaN stays NaN.
MLXCEL_INLINE void store_bf16(uint16_t* p, f32x16 a) {
  __m256i packed = _mm256_packus_epi32(narrow_bf16(a.lo), narrow_bf16(a.hi));  // by 128-bit halves
  _mm256_storeu_si256((__m256i*)p, _mm256_permute4x64_epi64(packed, _MM_SHUFFLE(3, 1, 2, 0)));
}
MLXCEL_INLINE f32x16 add(f32x16 a, f32x16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
MLXCEL_INLINE f32x16 sub(f32x16 a, f32x16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
MLXCEL_INLINE f32x16 mul(f32x16 a, f32x16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
MLXCEL_INLINE f32x16 div(f32x16 a, f32x16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
MLXCEL_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {  // a * b + c
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
// NaN in either operand may come out or not; use any_nan where it matters.
MLXCEL_INLINE f32x16 max(f32x16 a, f32x16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
MLXCEL_INLINE f32x16 min(f32x16 a, f32x16 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
MLXCEL_INLINE f32x16 abs(f32x16 a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
MLXCEL_INLINE bool any_nan(f32x16 a) {
  __m256 nan = _mm256_or_ps(_mm256_cmp_ps(a.lo, a.lo, _CMP_UNORD_Q), _mm256_cmp_ps(a.hi, a.hi, _CMP_UNORD_Q));
  return _mm256_movemask_ps(nan) != 0;
}
// Lanes below n from a, the others from b.
MLXCEL_INLINE f32x16 first(int n, f32x16 a, f32x16 b) {
  return {_mm256_blendv_ps(b.lo, a.lo, _mm256_castsi256_ps(lanes_below(n, 0))),
          _mm256_blendv_ps(b.hi, a.hi, _mm256_castsi256_ps(lanes_below(n, 8)))};
}
// Bit i: whether a >= b in lane i. False where either is NaN.
MLXCEL_INLINE uint32_t lanes_at_least(f32x16 a, f32x16 b) {
  return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_GE_OQ)) |
         (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_GE_OQ)) << 8;
}
// Sums and maxima over the lanes, in a fixed order.
MLXCEL_INLINE float sum(f32x16 a) {
  __m256 eight = _mm256_add_ps(a.lo, a.hi);
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
MLXCEL_INLINE float max_of(f32x16 a) {
  __m256 eight = _mm256_max_ps(a.lo, a.hi);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
// The largest magnitude of 32 values; infinite or NaN if one of them is not finite.
MLXCEL_INLINE float peak_of(f32x16 a, f32x16 b) {
  // The bits of magnitudes are in the order of their values, NaN last.
  const auto bits = [](f32x16 x) {
    x = abs(x);
    return _mm256_max_epi32(_mm256_castps_si256(x.lo), _mm256_castps_si256(x.hi));
  };
  const __m256i eight = _mm256_max_epi32(bits(a), bits(b));
  __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, _MM_SHUFFLE(1, 0, 3, 2)));
  return _mm_cvtss_f32(_mm_castsi128_ps(_mm_max_epi32(four, _mm_shuffle_epi32(four, _MM_SHUFFLE(2, 3, 0, 1)))));
}
MLXCEL_INLINE __m256 exp2_whole(__m256 n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
// 2^n for whole n in [-126, 127], n given as floats.
MLXCEL_INLINE f32x16 exp2_whole(f32x16 n) { return {exp2_whole(n.lo), exp2_whole(n.hi)}; }
MLXCEL_INLINE f32x16 round_even(f32x16 a) {
  return {_mm256_round_ps(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
          _mm256_round_ps(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// Lanes of a that are below b; the others are 0.
MLXCEL_INLINE f32x16 zero_unless_below(f32x16 a, f32x16 b) {
  return {_mm256_and_ps(a.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
          _mm256_and_ps(a.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}

// --- double lanes
struct f64x16 {
  __m256d v[4];
};
// f(register) for each register.
template <class Quarter>
MLXCEL_INLINE f64x16 double_quarters(Quarter&& f) {
  return {{f(0), f(1), f(2), f(3)}};
}
MLXCEL_INLINE f64x16 zero_f64() {
  return double_quarters([](int) { return _mm256_setzero_pd(); });
}
MLXCEL_INLINE void store(double* p, f64x16 a) {
  for (int i = 0; i < 4; i++) _mm256_storeu_pd(p + 4 * i, a.v[i]);
}
MLXCEL_INLINE f64x16 to_f64(f32x16 a) {
  return {{_mm256_cvtps_pd(_mm256_castps256_ps128(a.lo)), _mm256_cvtps_pd(_mm256_extractf128_ps(a.lo, 1)),
           _mm256_cvtps_pd(_mm256_castps256_ps128(a.hi)), _mm256_cvtps_pd(_mm256_extractf128_ps(a.hi, 1))}};
}
MLXCEL_INLINE f64x16 add(f64x16 a, f64x16 b) {
  return double_quarters([&](int i) { return _mm256_add_pd(a.v[i], b.v[i]); });
}
MLXCEL_INLINE f64x16 mul(f64x16 a, f64x16 b) {
  return double_quarters([&](int i) { return _mm256_mul_pd(a.v[i], b.v[i]); });
}

// --- integer lanes
MLXCEL_INLINE i32x16 zero_i32() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
MLXCEL_INLINE i32x16 splat_i32(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
MLXCEL_INLINE i32x16 add(i32x16 a, i32x16 b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
MLXCEL_INLINE i32x16 sub(i32x16 a, i32x16 b) { return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)}; }
template <int bits>
MLXCEL_INLINE i32x16 shift_left(i32x16 a) {
  return {_mm256_slli_epi32(a.lo, bits), _mm256_slli_epi32(a.hi, bits)};
}
template <int bits>
MLXCEL_INLINE i32x16 shift_right(i32x16 a) {  // arithmetic
  return {_mm256_srai_epi32(a.lo, bits), _mm256_srai_epi32(a.hi, bits)};
}
MLXCEL_INLINE int32_t sum(i32x16 a) {
  __m256i eight = _mm256_add_epi32(a.lo, a.hi);
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, _MM_SHUFFLE(1, 0, 3, 2)));
  return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, _MM_SHUFFLE(2, 3, 0, 1))));
}
MLXCEL_INLINE i32x16 to_i32(f32x16 a) {
  return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)};
}  // nearest, ties to even
MLXCEL_INLINE f32x16 to_f32(i32x16 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
// Saturating to [-128, 127].
MLXCEL_INLINE void store_i8(int8_t* p, i32x16 a) {
  __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), _MM_SHUFFLE(3, 1, 2, 0));
  _mm_storeu_si128((__m128i*)p, _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}

// As 32 bytes of sixteen-bit integers, saturating; of each eight lanes in the order 0 2 1 3 4 6 5 7.
MLXCEL_INLINE void store_word_pairs(int8_t* p, i32x16 a) {
  const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15,  //
                                         0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
  __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), _MM_SHUFFLE(3, 1, 2, 0));
  _mm256_storeu_si256((__m256i*)p, _mm256_shuffle_epi8(words, order));
}

// --- packed bytes
MLXCEL_INLINE bytes64 load64(const void* p) {
  return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)p + 1)};
}
MLXCEL_INLINE nibbles64 low_nibbles(bytes64 a) {
  const __m256i mask = _mm256_set1_epi8(15);
  return {{_mm256_and_si256(a.lo, mask), _mm256_and_si256(a.hi, mask)}};
}
MLXCEL_INLINE nibbles64 high_nibbles(bytes64 a) {
  return low_nibbles({_mm256_srli_epi16(a.lo, 4), _mm256_srli_epi16(a.hi, 4)});
}
#if defined(__AVXVNNI__)
MLXCEL_INLINE __m256i dot(__m256i acc, __m256i w, __m256i x) { return _mm256_dpbusd_avx_epi32(acc, w, x); }
MLXCEL_INLINE __m256i dot_nibbles(__m256i acc, __m256i w, __m256i x) { return dot(acc, w, x); }
#else
// maddubs adds two products in sixteen bits and saturates; so even and odd bytes go separate ways.
MLXCEL_INLINE __m256i dot(__m256i acc, __m256i w, __m256i x) {
  __m256i even =
      _mm256_madd_epi16(_mm256_and_si256(w, _mm256_set1_epi16(255)), _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8));
  __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(w, 8), _mm256_srai_epi16(x, 8));
  return _mm256_add_epi32(acc, _mm256_add_epi32(even, odd));
}
// 2 * 15 * 128 is far from sixteen bits' end.
MLXCEL_INLINE __m256i dot_nibbles(__m256i acc, __m256i w, __m256i x) {
  return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1)));
}
#endif
// Each lane: acc + the dot product of its four unsigned bytes with the four signed bytes of `x`. Exact.
MLXCEL_INLINE i32x16 dot(i32x16 acc, bytes64 w, int32_t x) {
  return {dot(acc.lo, w.lo, _mm256_set1_epi32(x)), dot(acc.hi, w.hi, _mm256_set1_epi32(x))};
}
MLXCEL_INLINE i32x16 dot(i32x16 acc, nibbles64 w, int32_t x) {
  return {dot_nibbles(acc.lo, w.lo, _mm256_set1_epi32(x)), dot_nibbles(acc.hi, w.hi, _mm256_set1_epi32(x))};
}

// --- bfloat16 pairs
MLXCEL_INLINE __m256 dot_bf16(__m256 acc, __m256i w, __m256i x) {
  const __m256i high = _mm256_set1_epi32((int)0xffff0000u);
  __m256 odd = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_and_si256(w, high)),
                               _mm256_castsi256_ps(_mm256_and_si256(x, high)), acc);
  return _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_slli_epi32(w, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)),
                         odd);
}
// Each lane: acc + lo(w) * lo(x) + hi(w) * hi(x); `pairs` holds sixteen lanes of two bfloat16 each.
MLXCEL_INLINE f32x16 dot_bf16(f32x16 acc, const uint16_t* pairs, uint32_t x) {
  const bytes64 w = load64(pairs);
  return {dot_bf16(acc.lo, w.lo, _mm256_set1_epi32((int)x)), dot_bf16(acc.hi, w.hi, _mm256_set1_epi32((int)x))};
}

}  // namespace mlxcel::MLXCEL_ISA
