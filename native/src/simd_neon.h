// NEON with the dot-product instructions (and those for 8-bit integers and bfloat16 where the compiler may use them):
// four registers for sixteen lanes. See simd.h.
#pragma once

#include <arm_neon.h>

namespace mlxcel::MLXCEL_ISA {

struct f32x16 {
  float32x4_t v[4];
};
struct i32x16 {
  int32x4_t v[4];
};
// 64 bytes: sixteen lanes of four, as `dot` takes them.
struct bytes64 {
  uint8x16_t v[4];
};
// Bytes below 16, for which `dot` has a shorter form without the i8mm instructions. Keep the type (`auto`) to use it.
struct nibbles64 : bytes64 {};

// f(register) for each register.
template <class Quarter>
MLXCEL_INLINE f32x16 float_quarters(Quarter&& f) {
  return {{f(0), f(1), f(2), f(3)}};
}
template <class Quarter>
MLXCEL_INLINE i32x16 int_quarters(Quarter&& f) {
  return {{f(0), f(1), f(2), f(3)}};
}

// --- float lanes
MLXCEL_INLINE f32x16 splat(float x) {
  return float_quarters([&](int) { return vdupq_n_f32(x); });
}
MLXCEL_INLINE f32x16 load(const float* p) {
  return float_quarters([&](int i) { return vld1q_f32(p + 4 * i); });
}
MLXCEL_INLINE void store(float* p, f32x16 a) {
  for (int i = 0; i < 4; i++) vst1q_f32(p + 4 * i, a.v[i]);
}
// Tells the compiler to hold a value that is used several times in registers, not to load it each time.
MLXCEL_INLINE void hold(f32x16& a) { asm("" : "+w"(a.v[0]), "+w"(a.v[1]), "+w"(a.v[2]), "+w"(a.v[3])); }
// The first n (0 to 16) lanes; the others are 0, or are left alone in memory.
MLXCEL_INLINE f32x16 load_first(const float* p, int n) {
  float lanes[16] = {};
  std::memcpy(lanes, p, (size_t)n * sizeof *p);
  return load(lanes);
}
MLXCEL_INLINE void store_first(float* p, f32x16 a, int n) {
  float lanes[16];
  store(lanes, a);
  std::memcpy(p, lanes, (size_t)n * sizeof *p);
}
MLXCEL_INLINE f32x16 load_f16(const uint16_t* p) {
  return float_quarters([&](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))); });
}
MLXCEL_INLINE void store_f16(uint16_t* p, f32x16 a) {
  for (int i = 0; i < 4; i++) vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(a.v[i])));
}
MLXCEL_INLINE f32x16 load_bf16(const uint16_t* p) {
  return float_quarters([&](int i) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)); });
}
// Round to nearest even; NaN stays NaN.
MLXCEL_INLINE void store_bf16(uint16_t* p, f32x16 a) {
  for (int i = 0; i < 4; i++) {
    uint32x4_t bits = vreinterpretq_u32_f32(a.v[i]);
    uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    rounded = vbslq_u32(vceqq_f32(a.v[i], a.v[i]), rounded, vdupq_n_u32(0x7fc00000));
    vst1_u16(p + 4 * i, vshrn_n_u32(rounded, 16));
  }
}
MLXCEL_INLINE f32x16 add(f32x16 a, f32x16 b) {
  return float_quarters([&](int i) { return vaddq_f32(a.v[i], b.v[i]); });
}
MLXCEL_INLINE f32x16 sub(f32x16 a, f32x16 b) {
  return float_quarters([&](int i) { return vsubq_f32(a.v[i], b.v[i]); });
}
MLXCEL_INLINE f32x16 mul(f32x16 a, f32x16 b) {
  return float_quarters([&](int i) { return vmulq_f32(a.v[i], b.v[i]); });
}
MLXCEL_INLINE f32x16 div(f32x16 a, f32x16 b) {
  return float_quarters([&](int i) { return vdivq_f32(a.v[i], b.v[i]); });
}
MLXCEL_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {  // a * b + c
  return float_quarters([&](int i) { return vfmaq_f32(c.v[i], a.v[i], b.v[i]); });
}
// NaN in either operand may come out or not; use any_nan where it matters.
MLXCEL_INLINE f32x16 max(f32x16 a, f32x16 b) {
  return float_quarters([&](int i) { return vmaxq_f32(a.v[i], b.v[i]); });
}
MLXCEL_INLINE f32x16 min(f32x16 a, f32x16 b) {
  return float_quarters([&](int i) { return vminq_f32(a.v[i], b.v[i]); });
}
MLXCEL_INLINE f32x16 abs(f32x16 a) {
  return float_quarters([&](int i) { return vabsq_f32(a.v[i]); });
}
MLXCEL_INLINE bool any_nan(f32x16 a) {
  uint32x4_t numbers = vceqq_f32(a.v[0], a.v[0]);
  for (int i = 1; i < 4; i++) numbers = vandq_u32(numbers, vceqq_f32(a.v[i], a.v[i]));
  return vminvq_u32(numbers) == 0;
}
// Lanes below n from a, the others from b.
MLXCEL_INLINE f32x16 first(int n, f32x16 a, f32x16 b) {
  const int32_t index[4] = {0, 1, 2, 3};
  return float_quarters(
      [&](int i) { return vbslq_f32(vcltq_s32(vld1q_s32(index), vdupq_n_s32(n - 4 * i)), a.v[i], b.v[i]); });
}
// Bit i: whether a >= b in lane i. False where either is NaN.
MLXCEL_INLINE uint32_t lanes_at_least(f32x16 a, f32x16 b) {
  const uint32_t bits[4] = {1, 2, 4, 8};
  uint32_t lanes = 0;
  for (int i = 0; i < 4; i++) lanes |= vaddvq_u32(vandq_u32(vcgeq_f32(a.v[i], b.v[i]), vld1q_u32(bits))) << 4 * i;
  return lanes;
}
// Sums and maxima over the lanes, in a fixed order.
MLXCEL_INLINE float sum(f32x16 a) {
  return vaddvq_f32(vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3])));
}
MLXCEL_INLINE float max_of(f32x16 a) {
  return vmaxvq_f32(vmaxq_f32(vmaxq_f32(a.v[0], a.v[2]), vmaxq_f32(a.v[1], a.v[3])));
}
// The largest magnitude of 32 values; infinite or NaN if one of them is not finite.
MLXCEL_INLINE float peak_of(f32x16 a, f32x16 b) {
  // The bits of magnitudes are in the order of their values, NaN last.
  uint32x4_t peaks = vdupq_n_u32(0);
  for (int i = 0; i < 4; i++) {
    peaks = vmaxq_u32(peaks, vreinterpretq_u32_f32(vabsq_f32(a.v[i])));
    peaks = vmaxq_u32(peaks, vreinterpretq_u32_f32(vabsq_f32(b.v[i])));
  }
  const uint32_t peak = vmaxvq_u32(peaks);
  return vgetq_lane_f32(vreinterpretq_f32_u32(vdupq_n_u32(peak)), 0);
}
// 2^n for whole n in [-126, 127], n given as floats.
MLXCEL_INLINE f32x16 exp2_whole(f32x16 n) {
  return float_quarters([&](int i) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n.v[i]), vdupq_n_s32(127)), 23));
  });
}
MLXCEL_INLINE f32x16 round_even(f32x16 a) {
  return float_quarters([&](int i) { return vrndnq_f32(a.v[i]); });
}
// Lanes of a that are below b; the others are 0.
MLXCEL_INLINE f32x16 zero_unless_below(f32x16 a, f32x16 b) {
  return float_quarters([&](int i) {
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(a.v[i]), vcltq_f32(a.v[i], b.v[i])));
  });
}

// --- double lanes
struct f64x16 {
  float64x2_t v[8];
};
// f(register) for each register.
template <class Eighth>
MLXCEL_INLINE f64x16 double_eighths(Eighth&& f) {
  return {{f(0), f(1), f(2), f(3), f(4), f(5), f(6), f(7)}};
}
MLXCEL_INLINE f64x16 zero_f64() {
  return double_eighths([](int) { return vdupq_n_f64(0.0); });
}
MLXCEL_INLINE void store(double* p, f64x16 a) {
  for (int i = 0; i < 8; i++) vst1q_f64(p + 2 * i, a.v[i]);
}
MLXCEL_INLINE f64x16 to_f64(f32x16 a) {
  return double_eighths([&](int i) {
    return i % 2 ? vcvt_high_f64_f32(a.v[i / 2]) : vcvt_f64_f32(vget_low_f32(a.v[i / 2]));
  });
}
MLXCEL_INLINE f64x16 add(f64x16 a, f64x16 b) {
  return double_eighths([&](int i) { return vaddq_f64(a.v[i], b.v[i]); });
}
MLXCEL_INLINE f64x16 mul(f64x16 a, f64x16 b) {
  return double_eighths([&](int i) { return vmulq_f64(a.v[i], b.v[i]); });
}

// --- integer lanes
MLXCEL_INLINE i32x16 splat_i32(int32_t x) {
  return int_quarters([&](int) { return vdupq_n_s32(x); });
}
MLXCEL_INLINE i32x16 zero_i32() {
  return int_quarters([](int) { return vdupq_n_s32(0); });
}
MLXCEL_INLINE i32x16 add(i32x16 a, i32x16 b) {
  return int_quarters([&](int i) { return vaddq_s32(a.v[i], b.v[i]); });
}
MLXCEL_INLINE i32x16 sub(i32x16 a, i32x16 b) {
  return int_quarters([&](int i) { return vsubq_s32(a.v[i], b.v[i]); });
}
template <int bits>
MLXCEL_INLINE i32x16 shift_left(i32x16 a) {
  return int_quarters([&](int i) { return vshlq_n_s32(a.v[i], bits); });
}
template <int bits>
MLXCEL_INLINE i32x16 shift_right(i32x16 a) {  // arithmetic
  return int_quarters([&](int i) { return vshrq_n_s32(a.v[i], bits); });
}
MLXCEL_INLINE int32_t sum(i32x16 a) {
  return vaddvq_s32(vaddq_s32(vaddq_s32(a.v[0], a.v[2]), vaddq_s32(a.v[1], a.v[3])));
}
MLXCEL_INLINE i32x16 to_i32(f32x16 a) {  // nearest, ties to even
  return int_quarters([&](int i) { return vcvtnq_s32_f32(a.v[i]); });
}
MLXCEL_INLINE f32x16 to_f32(i32x16 a) {
  return float_quarters([&](int i) { return vcvtq_f32_s32(a.v[i]); });
}
// Saturating to [-128, 127].
MLXCEL_INLINE void store_i8(int8_t* p, i32x16 a) {
  int16x8_t low = vcombine_s16(vqmovn_s32(a.v[0]), vqmovn_s32(a.v[1]));
  int16x8_t high = vcombine_s16(vqmovn_s32(a.v[2]), vqmovn_s32(a.v[3]));
  vst1q_s8(p, vcombine_s8(vqmovn_s16(low), vqmovn_s16(high)));
}

// --- packed bytes
MLXCEL_INLINE bytes64 load64(const void* p) {
  const uint8_t* bytes = (const uint8_t*)p;
  return {{vld1q_u8(bytes), vld1q_u8(bytes + 16), vld1q_u8(bytes + 32), vld1q_u8(bytes + 48)}};
}
MLXCEL_INLINE nibbles64 low_nibbles(bytes64 a) {
  for (uint8x16_t& quarter : a.v) quarter = vandq_u8(quarter, vdupq_n_u8(15));
  return {a};
}
MLXCEL_INLINE nibbles64 high_nibbles(bytes64 a) {
  for (uint8x16_t& quarter : a.v) quarter = vshrq_n_u8(quarter, 4);
  return {a};
}
// Each lane: acc + the dot product of its four unsigned bytes with the four signed bytes of `x`. Exact.
MLXCEL_INLINE i32x16 dot(i32x16 acc, bytes64 w, int32_t x) {
  const int8x16_t signed4 = vreinterpretq_s8_s32(vdupq_n_s32(x));
#if defined(__ARM_FEATURE_MATMUL_INT8)
  return int_quarters([&](int i) { return vusdotq_s32(acc.v[i], w.v[i], signed4); });
#else
  // Without mixed signs: w - 128 is a signed byte, and the rest, 128 * sum(x), is the same in all lanes.
  const int32x4_t rest = vdotq_s32(vdupq_n_s32(0), signed4, vdupq_n_s8(-128));
  return int_quarters([&](int i) {
    const int8x16_t shifted = vreinterpretq_s8_u8(veorq_u8(w.v[i], vdupq_n_u8(128)));
    return vdotq_s32(vsubq_s32(acc.v[i], rest), shifted, signed4);
  });
#endif
}
MLXCEL_INLINE i32x16 dot(i32x16 acc, nibbles64 w, int32_t x) {
  const int8x16_t signed4 = vreinterpretq_s8_s32(vdupq_n_s32(x));
  return int_quarters([&](int i) { return vdotq_s32(acc.v[i], vreinterpretq_s8_u8(w.v[i]), signed4); });
}

// --- bfloat16 pairs
// Each lane: acc + lo(w) * lo(x) + hi(w) * hi(x); `pairs` holds sixteen lanes of two bfloat16 each.
MLXCEL_INLINE f32x16 dot_bf16(f32x16 acc, const uint16_t* pairs, uint32_t x) {
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  // Not bfdot, which rounds in its own way.
  const bfloat16x8_t q = vreinterpretq_bf16_u32(vdupq_n_u32(x));
  return float_quarters([&](int i) {
    const bfloat16x8_t w = vreinterpretq_bf16_u16(vld1q_u16(pairs + 8 * i));
    return vbfmlalbq_f32(vbfmlaltq_f32(acc.v[i], w, q), w, q);
  });
#else
  const float32x4_t lo = vdupq_n_f32(__builtin_bit_cast(float, x << 16));
  const float32x4_t hi = vdupq_n_f32(__builtin_bit_cast(float, x & 0xffff0000u));
  return float_quarters([&](int i) {
    const uint32x4_t w = vreinterpretq_u32_u16(vld1q_u16(pairs + 8 * i));
    const float32x4_t odd = vfmaq_f32(acc.v[i], vreinterpretq_f32_u32(vandq_u32(w, vdupq_n_u32(0xffff0000u))), hi);
    return vfmaq_f32(odd, vreinterpretq_f32_u32(vshlq_n_u32(w, 16)), lo);
  });
#endif
}

}  // namespace mlxcel::MLXCEL_ISA
