// Rows of x in the form that the kernels read, for one instruction set. See gemm.h for the layout.
#pragma once

#include <cfloat>
#include <cstring>

#include "gemm.h"
#include "simd.h"

namespace mlxcel::MLXCEL_ISA {

// Rows of x that are interleaved: what a multiplication of tiles takes, or what the registers hold sums for everywhere.
#if defined(__AMX_INT8__)
constexpr int block_rows = 16;
#else
constexpr int block_rows = 4;
#endif

// The integers of Default are high_unit * high + low.
#if defined(__AMX_INT8__)
constexpr int low_bits = 4;  // gemm_tiles.h says why
#else
constexpr int low_bits = 8;
#endif
constexpr float high_unit = 1 << low_bits;

// Without an instruction that adds four products of bytes, 16-bit integers take no more multiplications than two planes
// of bytes, and the kernel has one sum instead of two: the two planes of Default hold words instead.
#if defined(__AVX2__) && !defined(__AVXVNNI__) && !defined(__AVX512VNNI__)
constexpr bool words_for_default = true;

// 32 integers, for Default.
MLXCEL_INLINE void store_integers(int8_t* plane, i32x16 a, i32x16 b) {
  store_word_pairs(plane, a);
  store_word_pairs(plane + 32, b);
}
#else
constexpr bool words_for_default = false;

// 32 integers, for Default. high is rounded half up, so that low lies in [-high_unit / 2, high_unit / 2).
MLXCEL_INLINE void store_integers(int8_t* plane, i32x16 a, i32x16 b) {
  const auto high = [](i32x16 q) { return shift_right<low_bits>(add(q, splat_i32(1 << (low_bits - 1)))); };
  const i32x16 ha = high(a), hb = high(b);
  store_i8(plane, ha);
  store_i8(plane + 16, hb);
  store_i8(plane + 32, sub(a, shift_left<low_bits>(ha)));
  store_i8(plane + 48, sub(b, shift_left<low_bits>(hb)));
}
#endif

MLXCEL_INLINE f32x16 splat_at(const std::byte* p) {
  float x;
  std::memcpy(&x, p, sizeof x);
  return splat(x);
}

MLXCEL_INLINE int32_t four_at(const std::byte* p) {
  int32_t x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

// One chunk: 32 values to `planes` times 32 bytes and a scale. Returns the sum of the integers. A value that is not
// finite makes the scale NaN, and so every output of the row.
template <int planes>
MLXCEL_INLINE float quantise_chunk(const float* x, std::byte* bytes, float* scale) {
  const f32x16 a = load(x), b = load(x + 16);
  float peak = peak_of(a, b);
  if (!(peak <= FLT_MAX)) {
    std::memset(bytes, 0, planes * chunk_cols);
    *scale = __builtin_nanf("");
    return 0.0f;
  }
  if (peak < 1e-30f) peak = 1e-30f;  // tiny values round to 0, so that 1 / d is finite
  constexpr float most = planes == 1 ? 127.0f : 127.0f * high_unit;
  *scale = peak / most;
  const f32x16 inverse = splat(most / peak);
  const i32x16 qa = to_i32(mul(a, inverse)), qb = to_i32(mul(b, inverse));
  auto* plane = reinterpret_cast<int8_t*>(bytes);
  if constexpr (planes == 1) {
    store_i8(plane, qa);
    store_i8(plane + 16, qb);
  } else {
    store_integers(plane, qa, qb);
  }
  return static_cast<float>(sum(add(qa, qb)));
}

template <int planes>
static void quantise_groups(const float* x, const Activations& to, int row, int first, int last) {
  // In registers: what is written might be `to`, for all the compiler knows.
  const int interleaved = to.interleaved(), lane = row % interleaved, chunks = to.group / chunk_cols;
  const size_t group_bytes = to.group_bytes(), chunk_bytes = to.chunk_bytes();
  std::byte* group = to.data + row / interleaved * to.block_bytes() + first * group_bytes;
  for (int g = first; g < last; g++, group += group_bytes) {
    std::byte* chunk = group;
    float total = 0;
    for (int c = 0; c < chunks; c++, x += chunk_cols, chunk += chunk_bytes) {
      float scale;
      const float integers = quantise_chunk<planes>(x, chunk + lane * planes * chunk_cols, &scale);
      reinterpret_cast<float*>(chunk + interleaved * planes * chunk_cols)[lane] = scale;
      total += scale * integers;
    }
    reinterpret_cast<float*>(chunk)[lane] = total;
  }
}

static void quantise(const float* x, const Activations& to, int row, int first_col, int cols) {
  if (to.precision == Precision::Fast)
    return quantise_groups<1>(x, to, row, first_col / to.group, (first_col + cols) / to.group);
  if (to.precision == Precision::Default)
    return quantise_groups<2>(x, to, row, first_col / to.group, (first_col + cols) / to.group);
  const int interleaved = to.interleaved();
  std::byte* start = to.data + row / interleaved * to.block_bytes() + row % interleaved * to.row_chunk_bytes();
  for (int k = 0; k < cols; k += chunk_cols) {
    auto* chunk = reinterpret_cast<float*>(start + (first_col + k) / chunk_cols * to.chunk_bytes());
    const int n = std::min(chunk_cols, cols - k);
    std::memcpy(chunk, x + k, n * sizeof(float));
    std::memset(chunk + n, 0, (chunk_cols - n) * sizeof(float));
  }
}

// The chunks of `count` neighbouring rows, from a group on: within one block, or whole blocks, which advance together.
template <int count>
struct Rows {
  static constexpr int blocks = (count + block_rows - 1) / block_rows;
  const std::byte* chunk[blocks];
  int interleaved, lane;

  // A constant where only whole blocks have so many rows: simpler addresses.
  Rows(const Activations& x, int row, int group)
      : interleaved(count >= block_rows ? block_rows : x.interleaved()),
        lane(count >= block_rows ? 0 : row % interleaved) {
    const std::byte* block = x.data + row / interleaved * x.block_bytes() + group * x.group_bytes();
    for (int b = 0; b < blocks; b++) chunk[b] = block + b * x.block_bytes();
  }
  // Where row m's part starts, if each row of the block has `bytes` from `offset` on.
  [[gnu::always_inline]] inline const std::byte* part(int m, size_t offset, size_t bytes) const {
    return chunk[m / block_rows] + offset + lane * bytes + m % block_rows * bytes;
  }
  [[gnu::always_inline]] inline void advance(size_t bytes) {
    for (const std::byte*& p : chunk) p += bytes;
  }
};

}  // namespace mlxcel::MLXCEL_ISA
