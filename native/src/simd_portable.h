// The vectors of GCC and Clang, which any machine has in some form: four of sixteen bytes for sixteen lanes. See
// simd.h.
#pragma once

namespace mlxcel::MLXCEL_ISA {

typedef float float4 __attribute__((vector_size(16)));
typedef double double2 __attribute__((vector_size(16)));
typedef int32_t int4 __attribute__((vector_size(16)));
typedef uint32_t uint4 __attribute__((vector_size(16)));
typedef int16_t short8 __attribute__((vector_size(16)));
typedef uint16_t ushort4 __attribute__((vector_size(8)));

struct f32x16 {
  float4 v[4];
};
struct i32x16 {
  int4 v[4];
};
// 64 bytes: sixteen lanes of four, as `dot` takes them.
struct bytes64 {
  uint4 v[4];
};

// --- one vector. Casts between vectors keep the bits.
template <class Vector>
MLXCEL_INLINE Vector read(const void* p) {
  Vector v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
MLXCEL_INLINE float4 splat4(float x) { return float4{x, x, x, x}; }
MLXCEL_INLINE int4 index4(int from) { return int4{from, from + 1, from + 2, from + 3}; }
// Comparisons give all bits set or none.
MLXCEL_INLINE uint4 select(int4 condition, uint4 a, uint4 b) {
  return (uint4)(((int4)a & condition) | ((int4)b & ~condition));
}
MLXCEL_INLINE float4 select(int4 condition, float4 a, float4 b) {
  return (float4)select(condition, (uint4)a, (uint4)b);
}
MLXCEL_INLINE uint4 magnitude(float4 a) { return (uint4)a & 0x7fffffffu; }
MLXCEL_INLINE uint4 sign(float4 a) { return (uint4)a & 0x80000000u; }
MLXCEL_INLINE uint4 widen(const uint16_t* p) { return __builtin_convertvector(read<ushort4>(p), uint4); }
MLXCEL_INLINE void narrow(uint16_t* p, uint4 a) {
  const ushort4 low = __builtin_convertvector(a, ushort4);
  std::memcpy(p, &low, sizeof low);
}
MLXCEL_INLINE uint4 to_bf16(float4 a) {
  const uint4 bits = (uint4)a, rounded = bits + 0x7fffu + (bits >> 16 & 1u);
  return select(a == a, rounded, (uint4)splat4(__builtin_nanf(""))) >> 16;
}
// A float16's exponent and fraction are a float's, 112 powers of two too small: right for subnormals too.
MLXCEL_INLINE float4 from_f16(uint4 half) {
  const uint4 small = (half & 0x7fffu) << 13, scaled = (uint4)((float4)small * 0x1p112f);
  return (float4)(select((int4)small >= 0x0f800000, small | 0x7f800000u, scaled) | (half & 0x8000u) << 16);
}
MLXCEL_INLINE uint4 to_f16(float4 a) {
  const uint4 size = magnitude(a), none = {};
  // Normal: move the exponent, and round to nearest even by carry; too large ends at infinity.
  const uint4 normal = (size - 0x38000000u + 0xfffu + (size >> 13 & 1u)) >> 13;
  // Subnormal: adding 0.5 leaves units of 2^-24 at the end of the fraction, rounded.
  const uint4 subnormal = (uint4)((float4)size + 0.5f) - 0x3f000000u;
  const uint4 finite = select((int4)size < 0x38800000, subnormal, normal);
  const uint4 special = select((int4)size > 0x7f800000, none + 0x7e00u, none + 0x7c00u);
  return select((int4)size >= 0x47800000, special, finite) | sign(a) >> 16;
}
MLXCEL_INLINE float4 round_even(float4 a) {
  const float whole = 0x1p23f;  // from here on every float is whole
  const float4 size = (float4)magnitude(a), rounded = (size + whole) - whole;
  return (float4)((uint4)select(size < whole, rounded, size) | sign(a));
}
// Out of range: the least integer.
MLXCEL_INLINE int4 to_i32(float4 a) {
  const int4 fits = (float4)magnitude(a) < 0x1p31f;
  const int4 whole = __builtin_convertvector(select(fits, round_even(a), splat4(0.0f)), int4);
  return (whole & fits) | (~fits & INT32_MIN);
}
// Products of bytes fit into sixteen bits.
MLXCEL_INLINE int4 dot(int4 acc, uint4 w, int4 x) {
  const short8 even = (short8)(w & 0x00ff00ffu) * ((short8)x << 8 >> 8);
  const short8 odd = (short8)(w >> 8 & 0x00ff00ffu) * ((short8)x >> 8);
  return acc + ((int4)even >> 16) + ((int4)odd >> 16) + ((int4)even << 16 >> 16) + ((int4)odd << 16 >> 16);
}

// f(vector) for each of the four.
template <class Quarter>
MLXCEL_INLINE f32x16 float_quarters(Quarter&& f) {
  return {{f(0), f(1), f(2), f(3)}};
}
template <class Quarter>
MLXCEL_INLINE i32x16 int_quarters(Quarter&& f) {
  return {{f(0), f(1), f(2), f(3)}};
}
template <class Quarter>
MLXCEL_INLINE bytes64 byte_quarters(Quarter&& f) {
  return {{f(0), f(1), f(2), f(3)}};
}

// --- float lanes
MLXCEL_INLINE f32x16 splat(float x) {
  return float_quarters([&](int) { return splat4(x); });
}
MLXCEL_INLINE f32x16 load(const float* p) {
  return float_quarters([&](int i) { return read<float4>(p + 4 * i); });
}
MLXCEL_INLINE void store(float* p, f32x16 a) { std::memcpy(p, &a, sizeof a); }
// Tells the compiler to hold a value that is used several times in registers, not to load it each time.
MLXCEL_INLINE void hold(f32x16&) {}
// The first n (0 to 16) lanes; the others are 0, or are left alone in memory.
MLXCEL_INLINE f32x16 load_first(const float* p, int n) {
  float lanes[16] = {};
  std::memcpy(lanes, p, (size_t)n * sizeof *p);
  return load(lanes);
}
MLXCEL_INLINE void store_first(float* p, f32x16 a, int n) { std::memcpy(p, &a, (size_t)n * sizeof *p); }
MLXCEL_INLINE f32x16 load_f16(const uint16_t* p) {
  return float_quarters([&](int i) { return from_f16(widen(p + 4 * i)); });
}
MLXCEL_INLINE void store_f16(uint16_t* p, f32x16 a) {
  for (int i = 0; i < 4; i++) narrow(p + 4 * i, to_f16(a.v[i]));
}
MLXCEL_INLINE f32x16 load_bf16(const uint16_t* p) {
  return float_quarters([&](int i) { return (float4)(widen(p + 4 * i) << 16); });
}
// Round to nearest even; NaN stays NaN.
MLXCEL_INLINE void store_bf16(uint16_t* p, f32x16 a) {
  for (int i = 0; i < 4; i++) narrow(p + 4 * i, to_bf16(a.v[i]));
}
MLXCEL_INLINE f32x16 add(f32x16 a, f32x16 b) {
  return float_quarters([&](int i) { return a.v[i] + b.v[i]; });
}
MLXCEL_INLINE f32x16 sub(f32x16 a, f32x16 b) {
  return float_quarters([&](int i) { return a.v[i] - b.v[i]; });
}
MLXCEL_INLINE f32x16 mul(f32x16 a, f32x16 b) {
  return float_quarters([&](int i) { return a.v[i] * b.v[i]; });
}
MLXCEL_INLINE f32x16 div(f32x16 a, f32x16 b) {
  return float_quarters([&](int i) { return a.v[i] / b.v[i]; });
}
// a * b + c, here rounded twice: without the instruction, one rounding is a slow library call.
MLXCEL_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
  return float_quarters([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
}
// NaN in either operand may come out or not; use any_nan where it matters.
MLXCEL_INLINE f32x16 max(f32x16 a, f32x16 b) {
  return float_quarters([&](int i) { return select(a.v[i] > b.v[i], a.v[i], b.v[i]); });
}
MLXCEL_INLINE f32x16 min(f32x16 a, f32x16 b) {
  return float_quarters([&](int i) { return select(a.v[i] < b.v[i], a.v[i], b.v[i]); });
}
MLXCEL_INLINE f32x16 abs(f32x16 a) {
  return float_quarters([&](int i) { return (float4)magnitude(a.v[i]); });
}
MLXCEL_INLINE bool any_nan(f32x16 a) {
  int4 nan = a.v[0] != a.v[0];
  for (int i = 1; i < 4; i++) nan |= a.v[i] != a.v[i];
  return nan[0] | nan[1] | nan[2] | nan[3];
}
// Lanes below n from a, the others from b.
MLXCEL_INLINE f32x16 first(int n, f32x16 a, f32x16 b) {
  return float_quarters([&](int i) { return select(index4(4 * i) < n, a.v[i], b.v[i]); });
}
// Bit i: whether a >= b in lane i. False where either is NaN.
MLXCEL_INLINE uint32_t lanes_at_least(f32x16 a, f32x16 b) {
  uint32_t lanes = 0;
  for (int i = 0; i < 4; i++) {
    const uint4 bits = (uint4)(a.v[i] >= b.v[i]) & uint4{1, 2, 4, 8};
    lanes |= (bits[0] | bits[1] | bits[2] | bits[3]) << 4 * i;
  }
  return lanes;
}
// Sums and maxima over the lanes, in a fixed order.
MLXCEL_INLINE float sum(f32x16 a) {
  const float4 four = (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]);
  return (four[0] + four[2]) + (four[1] + four[3]);
}
MLXCEL_INLINE float max_of(f32x16 a) {
  float4 four = a.v[0];
  for (int i = 1; i < 4; i++) four = select(a.v[i] > four, a.v[i], four);
  float one = four[0];
  for (int i = 1; i < 4; i++) one = four[i] > one ? four[i] : one;
  return one;
}
// The largest magnitude of 32 values; infinite or NaN if one of them is not finite.
MLXCEL_INLINE float peak_of(f32x16 a, f32x16 b) {
  // The bits of magnitudes are in the order of their values, NaN last.
  uint4 peaks{};
  for (int i = 0; i < 4; i++) {
    const uint4 x = magnitude(a.v[i]), y = magnitude(b.v[i]);
    peaks = peaks > x ? peaks : x;
    peaks = peaks > y ? peaks : y;
  }
  uint32_t peak = peaks[0];
  for (int i = 1; i < 4; i++) peak = peaks[i] > peak ? peaks[i] : peak;
  float value;
  std::memcpy(&value, &peak, sizeof value);
  return value;
}
// 2^n for whole n in [-126, 127], n given as floats.
MLXCEL_INLINE f32x16 exp2_whole(f32x16 n) {
  return float_quarters([&](int i) { return (float4)(((uint4) __builtin_convertvector(n.v[i], int4) + 127u) << 23); });
}
MLXCEL_INLINE f32x16 round_even(f32x16 a) {
  return float_quarters([&](int i) { return round_even(a.v[i]); });
}
// Lanes of a that are below b; the others are 0.
MLXCEL_INLINE f32x16 zero_unless_below(f32x16 a, f32x16 b) {
  return float_quarters([&](int i) { return (float4)((int4)a.v[i] & (a.v[i] < b.v[i])); });
}

// --- double lanes
struct f64x16 {
  double2 v[8];
};
// f(vector) for each of the eight.
template <class Eighth>
MLXCEL_INLINE f64x16 double_eighths(Eighth&& f) {
  return {{f(0), f(1), f(2), f(3), f(4), f(5), f(6), f(7)}};
}
MLXCEL_INLINE f64x16 zero_f64() { return {}; }
MLXCEL_INLINE void store(double* p, f64x16 a) { std::memcpy(p, &a, sizeof a); }
MLXCEL_INLINE f64x16 to_f64(f32x16 a) {
  return double_eighths([&](int i) { return double2{a.v[i / 2][i % 2 * 2], a.v[i / 2][i % 2 * 2 + 1]}; });
}
MLXCEL_INLINE f64x16 add(f64x16 a, f64x16 b) {
  return double_eighths([&](int i) { return a.v[i] + b.v[i]; });
}
MLXCEL_INLINE f64x16 mul(f64x16 a, f64x16 b) {
  return double_eighths([&](int i) { return a.v[i] * b.v[i]; });
}

// --- integer lanes
MLXCEL_INLINE i32x16 zero_i32() { return {}; }
MLXCEL_INLINE i32x16 splat_i32(int32_t x) {
  return int_quarters([&](int) { return int4{x, x, x, x}; });
}
MLXCEL_INLINE i32x16 add(i32x16 a, i32x16 b) {
  return int_quarters([&](int i) { return (int4)((uint4)a.v[i] + (uint4)b.v[i]); });
}
MLXCEL_INLINE i32x16 sub(i32x16 a, i32x16 b) {
  return int_quarters([&](int i) { return (int4)((uint4)a.v[i] - (uint4)b.v[i]); });
}
template <int bits>
MLXCEL_INLINE i32x16 shift_left(i32x16 a) {
  return int_quarters([&](int i) { return (int4)((uint4)a.v[i] << bits); });
}
template <int bits>
MLXCEL_INLINE i32x16 shift_right(i32x16 a) {  // arithmetic
  return int_quarters([&](int i) { return a.v[i] >> bits; });
}
MLXCEL_INLINE int32_t sum(i32x16 a) {
  const uint4 four = (uint4)a.v[0] + (uint4)a.v[1] + (uint4)a.v[2] + (uint4)a.v[3];
  return (int32_t)(four[0] + four[1] + four[2] + four[3]);
}
MLXCEL_INLINE i32x16 to_i32(f32x16 a) {  // nearest, ties to even
  return int_quarters([&](int i) { return to_i32(a.v[i]); });
}
MLXCEL_INLINE f32x16 to_f32(i32x16 a) {
  return float_quarters([&](int i) { return __builtin_convertvector(a.v[i], float4); });
}
// Saturating to [-128, 127].
MLXCEL_INLINE void store_i8(int8_t* p, i32x16 a) {
  for (int i = 0; i < 16; i++) {
    const int32_t lane = a.v[i / 4][i % 4];
    p[i] = (int8_t)(lane < -128 ? -128 : lane > 127 ? 127 : lane);
  }
}

// --- packed bytes
MLXCEL_INLINE bytes64 load64(const void* p) {
  return byte_quarters([&](int i) { return read<uint4>((const uint8_t*)p + 16 * i); });
}
MLXCEL_INLINE bytes64 low_nibbles(bytes64 a) {
  return byte_quarters([&](int i) { return a.v[i] & 0x0f0f0f0fu; });
}
MLXCEL_INLINE bytes64 high_nibbles(bytes64 a) {
  return byte_quarters([&](int i) { return a.v[i] >> 4 & 0x0f0f0f0fu; });
}
// Each lane: acc + the dot product of its four unsigned bytes with the four signed bytes of `x`. Exact.
MLXCEL_INLINE i32x16 dot(i32x16 acc, bytes64 w, int32_t x) {
  return int_quarters([&](int i) { return dot(acc.v[i], w.v[i], int4{x, x, x, x}); });
}

// --- bfloat16 pairs
// Each lane: acc + lo(w) * lo(x) + hi(w) * hi(x); `pairs` holds sixteen lanes of two bfloat16 each.
MLXCEL_INLINE f32x16 dot_bf16(f32x16 acc, const uint16_t* pairs, uint32_t x) {
  const float lo = __builtin_bit_cast(float, x << 16), hi = __builtin_bit_cast(float, x & 0xffff0000u);
  return float_quarters([&](int i) {
    const uint4 w = read<uint4>(pairs + 8 * i);
    return (acc.v[i] + (float4)(w & 0xffff0000u) * hi) + (float4)(w << 16) * lo;
  });
}

}  // namespace mlxcel::MLXCEL_ISA
