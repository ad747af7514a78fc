// How bytes of weights are multiplied with integers of x, for one instruction set.
//
// A Step takes 64 bytes of weights at a time, in `parts` that are multiplied one after the other: weights(from, part)
// brings a part into registers, add(sum, weights, x, part) multiplies it with one row, whose integers of the step's
// first column are at x. A Sum holds the products of sixteen outputs with one row over a chunk. Sums of integers are
// exact, so they may be taken in any order.
#pragma once

#include "gemm_activations.h"

namespace mlxcel::MLXCEL_ISA {

using Storage = PackedWeights::Storage;

#define MLXCEL_STEP [[gnu::always_inline]] static inline

#if defined(__AVX2__) && !defined(__AVXVNNI__) && !defined(__AVX512VNNI__)

// Products of bytes come as 16-bit sums of two, which saturate. With weights below 16, eight of them (a chunk) still
// fit: 8 * 2 * 15 * 128 = 30720. Wider weights are taken as two halves.
struct NibbleSum {
  __m256i lo, hi;  // outputs 0 to 7 and 8 to 15, two sums each

  [[gnu::always_inline]] inline void clear() { lo = hi = _mm256_setzero_si256(); }
  [[gnu::always_inline]] inline void add(nibbles64 w, int32_t x) {
    const __m256i four = _mm256_set1_epi32(x);
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

struct HalvesSum {
  NibbleSum low, high;

  [[gnu::always_inline]] inline void clear() {
    low.clear();
    high.clear();
  }
  [[gnu::always_inline]] inline i32x16 total() const {
    const i32x16 a = low.times(1), b = high.times(16);
    return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
  }
};

struct WordSum {
  __m256i lo, hi;  // outputs 0 to 7 and 8 to 15

  [[gnu::always_inline]] inline void clear() { lo = hi = _mm256_setzero_si256(); }
  [[gnu::always_inline]] inline void add(bytes64 w, int32_t x) {
    const __m256i two = _mm256_set1_epi32(x);
    lo = _mm256_add_epi32(lo, _mm256_madd_epi16(w.lo, two));
    hi = _mm256_add_epi32(hi, _mm256_madd_epi16(w.hi, two));
    asm("" : "+x"(lo), "+x"(hi));
  }
  [[gnu::always_inline]] inline i32x16 total() const { return {lo, hi}; }
};

struct ByteStep {
  using Sum = HalvesSum;
  static constexpr int cols = 4, parts = 2;

  MLXCEL_STEP nibbles64 weights(const std::byte* from, int part) {
    return part == 0 ? low_nibbles(load64(from)) : high_nibbles(load64(from));
  }
  MLXCEL_STEP void add(Sum& sum, nibbles64 w, const std::byte* x, int part) {
    (part == 0 ? sum.low : sum.high).add(w, four_at(x));
  }
};

// Steps with words of x, in the order 0 2 1 3 4 6 5 7 of each eight columns: masks and shifts bring columns that are
// two bytes apart into the two words of an output.
template <int bits>
MLXCEL_INLINE bytes64 every_word(const std::byte* from, int part) {
  const bytes64 w = load64(from);
  const __m256i mask = _mm256_set1_epi16((1 << bits) - 1);
  const int shift = bits * part;
  const __m256i lo = shift ? _mm256_srli_epi16(w.lo, shift) : w.lo, hi = shift ? _mm256_srli_epi16(w.hi, shift) : w.hi;
  if (shift + bits == 16) return {lo, hi};
  return {_mm256_and_si256(lo, mask), _mm256_and_si256(hi, mask)};
}

struct NibbleWordStep {
  using Sum = WordSum;
  static constexpr int cols = 8, parts = 4;

  // Columns 0 2, 4 6, 1 3, 5 7.
  MLXCEL_STEP bytes64 weights(const std::byte* from, int part) { return every_word<4>(from, part); }
  MLXCEL_STEP void add(Sum& sum, bytes64 w, const std::byte* x, int part) {
    sum.add(w, four_at(x + (part == 1 ? 8 : part == 2 ? 4 : 4 * part)));
  }
};

struct ByteWordStep {
  using Sum = WordSum;
  static constexpr int cols = 4, parts = 2;

  MLXCEL_STEP bytes64 weights(const std::byte* from, int part) { return every_word<8>(from, part); }
  MLXCEL_STEP void add(Sum& sum, bytes64 w, const std::byte* x, int part) { sum.add(w, four_at(x + 4 * part)); }
};

// Words that were unpacked before, two columns in the order of x.
struct WordStep {
  using Sum = WordSum;
  static constexpr int cols = 2, parts = 1;

  MLXCEL_STEP bytes64 weights(const std::byte* from, int) { return load64(from); }
  MLXCEL_STEP void add(Sum& sum, bytes64 w, const std::byte* x, int) { sum.add(w, four_at(x)); }
};

#else

struct NibbleSum {
  i32x16 sums;

  [[gnu::always_inline]] inline void clear() { sums = zero_i32(); }
  template <class Bytes>
  [[gnu::always_inline]] inline void add(Bytes w, int32_t x) {
    sums = dot(sums, w, x);
  }
  [[gnu::always_inline]] inline i32x16 total() const { return sums; }
};

struct ByteStep {
  using Sum = NibbleSum;  // takes any bytes
  static constexpr int cols = 4, parts = 1;

  MLXCEL_STEP bytes64 weights(const std::byte* from, int) { return load64(from); }
  MLXCEL_STEP void add(Sum& sum, bytes64 w, const std::byte* x, int) { sum.add(w, four_at(x)); }
};

#endif

struct NibbleStep {
  using Sum = NibbleSum;
  static constexpr int cols = 8, parts = 2;

  // The type says where bytes below 16 have a shorter `dot`.
  MLXCEL_STEP auto weights(const std::byte* from, int part) {
    return part == 0 ? low_nibbles(load64(from)) : high_nibbles(load64(from));
  }
  template <class Bytes>
  MLXCEL_STEP void add(Sum& sum, Bytes w, const std::byte* x, int part) {
    sum.add(w, four_at(x + 4 * part));
  }
};

// Bytes below 16 that were unpacked before.
struct SmallByteStep {
  using Sum = NibbleSum;
  using Weights = decltype(low_nibbles(bytes64{}));
  static constexpr int cols = 4, parts = 1;

  MLXCEL_STEP Weights weights(const std::byte* from, int) { return {load64(from)}; }
  MLXCEL_STEP void add(Sum& sum, Weights w, const std::byte* x, int) { sum.add(w, four_at(x)); }
};

}  // namespace mlxcel::MLXCEL_ISA
