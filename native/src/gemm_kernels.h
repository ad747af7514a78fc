// Matrix products with packed weights, for one instruction set. See gemm.h for the layouts.
//
// Every row goes through the same float operations in the same order whichever kernel takes it: sums of integers are
// exact, so only they may be split into chains or taken in another order.
#pragma once

#include <utility>

#include "gemm.h"
#include "simd.h"

namespace mlxcel::MLXCEL_ISA {

using Storage = PackedWeights::Storage;

// Rows that one kernel may take: up to as many as the registers hold sums for. Loops over sums are unrolled, so that
// the sums can be in registers.
#if defined(__AVX512F__)
using Heights = std::integer_sequence<int, 1, 2, 3, 4, 8, 12>;
constexpr size_t sum_bytes = 12 * sizeof(f32x16);
constexpr int unrolled = 16;
#elif defined(__AVX2__) || defined(__ARM_NEON)
using Heights = std::integer_sequence<int, 1, 2, 3, 4>;
constexpr size_t sum_bytes = 4 * sizeof(f32x16);
constexpr int unrolled = 16;
#else
using Heights = std::integer_sequence<int, 1, 2, 3, 4, 8>;
constexpr size_t sum_bytes = 4 * sizeof(f32x16);
constexpr int unrolled = 1;
#endif

// With few rows the weights come from memory, faster than the processor would ask for them by itself.
constexpr size_t prefetch_distance = 2048;

MLXCEL_INLINE f32x16 load_scalars(const std::byte* p, Scalar type) {
  if (type == Scalar::Float16) return load_f16(reinterpret_cast<const uint16_t*>(p));
  if (type == Scalar::BFloat16) return load_bf16(reinterpret_cast<const uint16_t*>(p));
  return load(reinterpret_cast<const float*>(p));
}

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

// --- activations

// One chunk: 32 values to `planes` times 32 bytes and a scale. Returns the sum of the rounded integers.
template <int planes>
MLXCEL_INLINE float quantise_chunk(const float* x, std::byte* bytes, float* scale) {
  const f32x16 a = load(x), b = load(x + 16);
  // Tiny values round to 0, so that 1 / d is finite. A value that is not finite makes the scale NaN, and so every
  // output of the row.
  const float peak = max_of(max(max(abs(a), abs(b)), splat(1e-30f)));
  const bool finite = !any_nan(mul(splat(0.0f), a)) && !any_nan(mul(splat(0.0f), b));
  constexpr float most = planes == 1 ? 127.0f : 127.0f * 256.0f;
  *scale = finite ? peak / most : __builtin_nanf("");
  const f32x16 inverse = splat(finite ? most / peak : 0.0f);
  const f32x16 qa = round_even(mul(a, inverse)), qb = round_even(mul(b, inverse));
  auto* plane = reinterpret_cast<int8_t*>(bytes);
  if constexpr (planes == 1) {
    store_i8(plane, to_i32(qa));
    store_i8(plane + 16, to_i32(qb));
  } else {
    // high is rounded half up, so that low = q - 256 high lies in [-128, 127].
    auto high = [](f32x16 q) { return round_even(fma(q, splat(1.0f / 256), splat(1.0f / 1024))); };
    const f32x16 ha = high(qa), hb = high(qb);
    store_i8(plane, to_i32(ha));
    store_i8(plane + 16, to_i32(hb));
    store_i8(plane + 32, to_i32(fma(ha, splat(-256.0f), qa)));
    store_i8(plane + 48, to_i32(fma(hb, splat(-256.0f), qb)));
  }
  return sum(add(qa, qb));
}

template <int planes>
static void quantise_groups(const float* x, const Activations& to, int row, int first, int last) {
  const int interleaved = to.interleaved(), lane = row % interleaved;
  std::byte* block = to.data + row / interleaved * to.block_bytes();
  for (int g = first; g < last; g++) {
    std::byte* chunk = block + g * to.group_bytes();
    float total = 0;
    for (int c = 0; c < to.group / chunk_cols; c++, x += chunk_cols, chunk += to.chunk_bytes()) {
      auto* scales = reinterpret_cast<float*>(chunk + interleaved * planes * chunk_cols);
      const float integers = quantise_chunk<planes>(x, chunk + lane * planes * chunk_cols, scales + lane);
      total += scales[lane] * integers;
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

// The chunks of `count` neighbouring rows: within one block, or whole blocks, which advance together.
template <int count>
struct Rows {
  static constexpr int blocks = (count + block_rows - 1) / block_rows;
  const std::byte* chunk[blocks];
  int interleaved, lane;

  Rows(const Activations& x, int row) : interleaved(x.interleaved()), lane(row % interleaved) {
    for (int b = 0; b < blocks; b++) chunk[b] = x.data + (row / interleaved + b) * x.block_bytes();
  }
  // Where row m's part starts, if each row of the block has `bytes` from `offset` on.
  [[gnu::always_inline]] inline const std::byte* part(int m, size_t offset, size_t bytes) const {
    return chunk[m / block_rows] + offset + lane * bytes + m % block_rows * bytes;
  }
  [[gnu::always_inline]] inline void advance(size_t bytes) {
    for (const std::byte*& p : chunk) p += bytes;
  }
};

// --- integer products

// A Sum holds, for sixteen outputs, the product of one plane of one row over a chunk; a Step is 64 bytes of weights,
// which `add_to` multiplies with `cols` columns of a row.
template <Storage storage>
struct Step;

#if defined(__AVX2__) && !defined(__AVXVNNI__) && !defined(__AVX512VNNI__)

// Products of bytes come as 16-bit sums of two, which saturate. With weights below 16, eight of them (a chunk) still
// fit: 8 * 2 * 15 * 128 = 30720. Wider weights are taken as two halves.
struct NibbleSum {
  __m256i lo, hi;  // outputs 0 to 7 and 8 to 15, two sums each

  [[gnu::always_inline]] inline void clear() { lo = hi = _mm256_setzero_si256(); }
  [[gnu::always_inline]] inline void add(nibbles64 w, const std::byte* x) {
    const __m256i four = _mm256_set1_epi32(four_at(x));
    lo = _mm256_add_epi16(lo, _mm256_maddubs_epi16(w.lo, four));
    hi = _mm256_add_epi16(hi, _mm256_maddubs_epi16(w.hi, four));
    // Keeps the compiler from turning the chain of additions into a tree, for which there are not enough registers.
    asm("" : "+x"(lo), "+x"(hi));
  }
  [[gnu::always_inline]] inline i32x16 times(short factor) const {
    return {_mm256_madd_epi16(lo, _mm256_set1_epi16(factor)), _mm256_madd_epi16(hi, _mm256_set1_epi16(factor))};
  }
  [[gnu::always_inline]] inline i32x16 total() const { return times(1); }
};

struct ByteSum {
  NibbleSum low, high;

  [[gnu::always_inline]] inline void clear() {
    low.clear();
    high.clear();
  }
  [[gnu::always_inline]] inline i32x16 total() const { return add(low.times(1), high.times(16)); }
};

template <>
struct Step<Storage::Bytes> {
  using Sum = ByteSum;
  static constexpr int cols = 4;
  nibbles64 low, high;

  [[gnu::always_inline]] inline explicit Step(const std::byte* weights)
      : low(low_nibbles(load64(weights))), high(high_nibbles(load64(weights))) {}
  [[gnu::always_inline]] inline void add_to(Sum& sum, const std::byte* x) const {
    sum.low.add(low, x);
    sum.high.add(high, x);
  }
};

#else

struct NibbleSum {
  i32x16 sums;

  [[gnu::always_inline]] inline void clear() { sums = zero_i32(); }
  template <class Bytes>
  [[gnu::always_inline]] inline void add(Bytes w, const std::byte* x) {
    sums = dot(sums, w, four_at(x));
  }
  [[gnu::always_inline]] inline i32x16 total() const { return sums; }
};

template <>
struct Step<Storage::Bytes> {
  using Sum = NibbleSum;  // takes any bytes
  static constexpr int cols = 4;
  bytes64 weights;

  [[gnu::always_inline]] inline explicit Step(const std::byte* from) : weights(load64(from)) {}
  [[gnu::always_inline]] inline void add_to(Sum& sum, const std::byte* x) const { sum.add(weights, x); }
};

#endif

template <>
struct Step<Storage::Nibbles> {
  using Sum = NibbleSum;
  static constexpr int cols = 8;
  decltype(low_nibbles(bytes64{})) low, high;  // a type of their own where bytes below 16 have a shorter `dot`

  [[gnu::always_inline]] inline explicit Step(const std::byte* weights)
      : low(low_nibbles(load64(weights))), high(high_nibbles(load64(weights))) {}
  [[gnu::always_inline]] inline void add_to(Sum& sum, const std::byte* x) const {
    sum.add(low, x);
    sum.add(high, x + 4);
  }
};

// One chunk of a tile times planes [first, first + together) of `count` rows.
template <Storage storage, int planes, int count, int together>
MLXCEL_INLINE void multiply_planes(const std::byte* values, const Rows<count>& x, int first,
                                   i32x16 (&totals)[together][count]) {
  using Chunk = Step<storage>;
  typename Chunk::Sum sums[together][count];
#pragma GCC unroll unrolled
  for (int p = 0; p < together; p++)
#pragma GCC unroll unrolled
    for (int m = 0; m < count; m++) sums[p][m].clear();
  // Weights that were unpacked for the other plane are not worth the registers.
  asm("" : "+r"(values));
#pragma GCC unroll unrolled
  for (int k = 0; k < chunk_cols; k += Chunk::cols, values += 64) {
    if constexpr (count < block_rows) __builtin_prefetch(values + prefetch_distance);
    const Chunk step(values);
#pragma GCC unroll unrolled
    for (int m = 0; m < count; m++)
#pragma GCC unroll unrolled
      for (int p = 0; p < together; p++)
        step.add_to(sums[p][m], x.part(m, (first + p) * chunk_cols + k, planes * chunk_cols));
  }
#pragma GCC unroll unrolled
  for (int p = 0; p < together; p++)
#pragma GCC unroll unrolled
    for (int m = 0; m < count; m++) totals[p][m] = sums[p][m].total();
}

// whole[m] = the integer product of row m with a chunk of a tile. With two planes 256 high + low, rounded once: high and
// low are exact.
template <Storage storage, int planes, int count>
MLXCEL_INLINE void multiply_chunk(const std::byte* values, const Rows<count>& x, f32x16 (&whole)[count]) {
  constexpr int together = planes * count * sizeof(typename Step<storage>::Sum) <= sum_bytes ? planes : 1;
  i32x16 totals[together][count];
  multiply_planes<storage, planes>(values, x, 0, totals);
#pragma GCC unroll unrolled
  for (int m = 0; m < count; m++) whole[m] = to_f32(totals[0][m]);
  if constexpr (planes == 2) {
    if constexpr (together == 1) multiply_planes<storage, planes>(values, x, 1, totals);
#pragma GCC unroll unrolled
    for (int m = 0; m < count; m++) whole[m] = fma(whole[m], splat(256.0f), to_f32(totals[together - 1][m]));
  }
}

// One tile times `count` rows.
template <Storage storage, int planes, int count>
MLXCEL_INLINE void integer_tile(const PackedWeights& weights, int tile, const Activations& activations, int row,
                                float* out, size_t stride) {
  constexpr size_t chunk_values = chunk_cols / Step<storage>::cols * 64;
  Rows<count> x(activations, row);
  const size_t chunk_bytes = activations.chunk_bytes(), scales_at = x.interleaved * planes * chunk_cols;
  const int chunks = weights.group() / chunk_cols, groups = weights.groups();
  const Scalar scale_type = weights.scale_type();
  const size_t biases_at = tile_outputs * size_of(scale_type);
  const std::byte* values = weights.tile(tile);
  f32x16 result[count];
  for (f32x16& r : result) r = splat(0.0f);
  for (int g = 0; g < groups; g++) {
    f32x16 products[count];
    for (f32x16& p : products) p = splat(0.0f);
    for (int c = 0; c < chunks; c++, values += chunk_values) {
      f32x16 whole[count];
      multiply_chunk<storage, planes>(values, x, whole);
#pragma GCC unroll unrolled
      for (int m = 0; m < count; m++)
        products[m] = fma(whole[m], splat_at(x.part(m, scales_at, sizeof(float))), products[m]);
      x.advance(chunk_bytes);
    }
    const f32x16 scales = load_scalars(values, scale_type), biases = load_scalars(values + biases_at, scale_type);
    values += 2 * biases_at;
#pragma GCC unroll unrolled
    for (int m = 0; m < count; m++) {
      result[m] = fma(scales, products[m], result[m]);
      result[m] = fma(biases, splat_at(x.part(m, 0, sizeof(float))), result[m]);
    }
    x.advance(x.interleaved * sizeof(float));
  }
  for (int m = 0; m < count; m++) store(out + m * stride, result[m]);
}

// --- float products

// Column k of a chunk as sixteen floats.
template <Storage storage>
MLXCEL_INLINE f32x16 column(const std::byte* values, int k, f32x16 scales, f32x16 biases) {
  if constexpr (storage == Storage::Float32) return load(reinterpret_cast<const float*>(values) + k * tile_outputs);
  if constexpr (storage == Storage::Float16)
    return load_f16(reinterpret_cast<const uint16_t*>(values) + k * tile_outputs);
  if constexpr (storage == Storage::BFloat16)
    return load_bf16(reinterpret_cast<const uint16_t*>(values) + k * tile_outputs);
  if constexpr (storage == Storage::Nibbles || storage == Storage::Bytes) {
    constexpr int step = storage == Storage::Nibbles ? 8 : 4;
    const bytes64 w = load64(values + k / step * 64);
    const bytes64 part = storage == Storage::Bytes ? w : k % step < 4 ? low_nibbles(w) : high_nibbles(w);
    return fma(to_f32(dot(zero_i32(), part, 1 << (8 * (k % 4)))), scales, biases);
  }
}

// `width` tiles times `count` rows. Each chunk of columns is summed by itself: shorter sums, smaller errors.
template <Storage storage, int count, int width>
MLXCEL_INLINE void float_tiles(const PackedWeights& weights, int tile, const Activations& activations, int row,
                               float* out, size_t stride) {
  constexpr bool quantised = storage == Storage::Nibbles || storage == Storage::Bytes;
  constexpr int unroll = quantised ? 8 : 4;
  Rows<count> x(activations, row);
  const int chunks = weights.group() / chunk_cols, groups = weights.groups();
  const size_t chunk_values = weights.values_bytes() / chunks, tile_bytes = weights.tile_bytes(),
               chunk_bytes = activations.chunk_bytes();
  const std::byte* record = weights.tile(tile);
  f32x16 result[width][count];
  for (auto& tile_results : result)
    for (f32x16& r : tile_results) r = splat(0.0f);
  for (int g = 0; g < groups; g++, record += weights.record_bytes()) {
    f32x16 scales[width], biases[width];
    if constexpr (quantised) {
      for (int t = 0; t < width; t++) {
        const std::byte* p = record + t * tile_bytes + weights.values_bytes();
        scales[t] = load_scalars(p, weights.scale_type());
        biases[t] = load_scalars(p + tile_outputs * size_of(weights.scale_type()), weights.scale_type());
      }
    }
    for (int c = 0; c < chunks; c++) {
      const std::byte* values = record + c * chunk_values;
      f32x16 sums[width][count];
      for (auto& tile_sums : sums)
        for (f32x16& s : tile_sums) s = splat(0.0f);
      for (int k0 = 0; k0 < chunk_cols; k0 += unroll) {
#pragma GCC unroll unrolled
        for (int k = 0; k < unroll; k++) {
          f32x16 w[width];
#pragma GCC unroll unrolled
          for (int t = 0; t < width; t++)
            w[t] = column<storage>(values + t * tile_bytes + k0 * (chunk_values / chunk_cols), k, scales[t], biases[t]);
#pragma GCC unroll unrolled
          for (int m = 0; m < count; m++) {
            const f32x16 value = splat_at(x.part(m, 0, chunk_cols * sizeof(float)) + (k0 + k) * sizeof(float));
#pragma GCC unroll unrolled
            for (int t = 0; t < width; t++) sums[t][m] = fma(w[t], value, sums[t][m]);
          }
        }
      }
#pragma GCC unroll unrolled
      for (int t = 0; t < width; t++)
#pragma GCC unroll unrolled
        for (int m = 0; m < count; m++) result[t][m] = add(result[t][m], sums[t][m]);
      x.advance(chunk_bytes);
    }
  }
  for (int t = 0; t < width; t++)
    for (int m = 0; m < count; m++) store(out + m * stride + t * tile_outputs, result[t][m]);
}

// --- choice of kernel

template <Storage storage>
struct FloatProduct {
  // Tiles side by side, for enough independent sums when there are few rows.
  static constexpr int widest = 4;
  static constexpr int width(int count) { return count == 1 ? widest : count <= 3 ? 2 : 1; }
  template <int count, int tiles>
  static void run(const PackedWeights& weights, int tile, const Activations& x, int row, float* out, size_t stride) {
    float_tiles<storage, count, tiles>(weights, tile, x, row, out, stride);
  }
};

template <Storage storage, int planes>
struct IntegerProduct {
  static constexpr int widest = 1;
  static constexpr int width(int) { return 1; }
  template <int count, int tiles>
  static void run(const PackedWeights& weights, int tile, const Activations& x, int row, float* out, size_t stride) {
    integer_tile<storage, planes, count>(weights, tile, x, row, out, stride);
  }
};

// `count` rows from `row` on times all tiles asked for.
template <class Product, int count>
static void multiply_rows(const PackedWeights& weights, int tile, int tiles, const Activations& x, int row, float* out,
                          size_t stride) {
  constexpr int width = Product::width(count);
  int t = 0;
  for (; t + width <= tiles; t += width)
    Product::template run<count, width>(weights, tile + t, x, row, out + t * tile_outputs, stride);
  if constexpr (width > 1)
    for (; t < tiles; t++) Product::template run<count, 1>(weights, tile + t, x, row, out + t * tile_outputs, stride);
}

// Rows [first, last) in the tallest pieces that fit: whole blocks where a block starts, otherwise up to its end.
template <class Product, int... heights>
static void multiply_all_rows(std::integer_sequence<int, heights...>, const PackedWeights& weights, int tile, int tiles,
                              const Activations& x, int first, int last, float* out, size_t stride) {
  const int interleaved = x.interleaved();
  for (int row = first, count = 0; row < last; row += count, out += count * stride) {
    count = std::min(interleaved - row % interleaved, last - row);
    if (count == block_rows) ((count = heights <= last - row ? heights : count), ...);
    ((count == heights ? multiply_rows<Product, heights>(weights, tile, tiles, x, row, out, stride) : void()), ...);
  }
}

// Many rows: a few tiles at a time, which then stay in the nearest cache while all rows pass.
template <class Product>
static void multiply_range(const PackedWeights& weights, int tile, int tiles, const Activations& x, int first, int last,
                           float* out, size_t stride) {
  const int at_once = last - first <= block_rows ? tiles : Product::widest;
  for (int t = 0; t < tiles; t += at_once)
    multiply_all_rows<Product>(Heights{}, weights, tile + t, std::min(at_once, tiles - t), x, first, last,
                               out + t * tile_outputs, stride);
}

template <Storage storage>
static void multiply_quantised(const PackedWeights& weights, int tile, int tiles, const Activations& x, int first,
                               int last, float* out, size_t stride) {
  switch (x.precision) {
    case Precision::Fast:
      return multiply_range<IntegerProduct<storage, 1>>(weights, tile, tiles, x, first, last, out, stride);
    case Precision::Default:
      return multiply_range<IntegerProduct<storage, 2>>(weights, tile, tiles, x, first, last, out, stride);
    case Precision::Exact:
      return multiply_range<FloatProduct<storage>>(weights, tile, tiles, x, first, last, out, stride);
  }
}

static void multiply(const PackedWeights& weights, int tile, int tiles, const Activations& x, int first, int last,
                     float* out, size_t stride) {
  switch (weights.storage()) {
    case Storage::Nibbles:
      return multiply_quantised<Storage::Nibbles>(weights, tile, tiles, x, first, last, out, stride);
    case Storage::Bytes: return multiply_quantised<Storage::Bytes>(weights, tile, tiles, x, first, last, out, stride);
    case Storage::Float32:
      return multiply_range<FloatProduct<Storage::Float32>>(weights, tile, tiles, x, first, last, out, stride);
    case Storage::Float16:
      return multiply_range<FloatProduct<Storage::Float16>>(weights, tile, tiles, x, first, last, out, stride);
    case Storage::BFloat16:
      return multiply_range<FloatProduct<Storage::BFloat16>>(weights, tile, tiles, x, first, last, out, stride);
  }
}

inline constexpr GemmKernels gemm_kernels{quantise, multiply};

}  // namespace mlxcel::MLXCEL_ISA
