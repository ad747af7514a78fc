// Products of quantised weights with integers of x, for one instruction set.
//
// A chunk of a tile times a row is a sum of integers, which is exact. What follows are the same float operations in the
// same order whichever kernel takes the row.
#pragma once

#include <type_traits>

#include "gemm_steps.h"

namespace mlxcel::MLXCEL_ISA {

// Loops over sums are unrolled, so that the sums can be in registers; these are as many as the registers hold.
#if defined(__AVX512F__)
constexpr size_t sum_bytes = 12 * sizeof(f32x16);
constexpr int unrolled = 16;
#elif defined(__AVX2__) || defined(__ARM_NEON)
constexpr size_t sum_bytes = 4 * sizeof(f32x16);
constexpr int unrolled = 16;
#else
constexpr size_t sum_bytes = 4 * sizeof(f32x16);
constexpr int unrolled = 1;
#endif

// With few rows the weights come from memory, faster than the processor would ask for them by itself: from far ahead into
// the second cache, where many lines may be under way at once, and from there into the nearest.
MLXCEL_INLINE void prefetch_weights(const std::byte* values) {
  __builtin_prefetch(values + 16384, 0, 1);
  __builtin_prefetch(values + 2048);
}

MLXCEL_INLINE f32x16 load_scalars(const std::byte* p, Scalar type) {
  if (type == Scalar::Float16) return load_f16(reinterpret_cast<const uint16_t*>(p));
  if (type == Scalar::BFloat16) return load_bf16(reinterpret_cast<const uint16_t*>(p));
  return load(reinterpret_cast<const float*>(p));
}

// How a kernel takes its weights: as they are packed, or from a panel, which is a part of a tile that was unpacked for
// many rows.
template <Storage storage, int planes_, bool panel_>
struct IntegerForm {
  static constexpr int planes = planes_;  // of 32 bytes, in x
  static constexpr bool panel = panel_;
  static constexpr bool words = words_for_default && planes == 2;
  // Planes that are multiplied with the same weights; or one plane, with two halves of the weights in turn.
  static constexpr int products = words ? 1 : planes;
  static constexpr bool halves = panel && storage == Storage::Bytes && !words;
#if defined(__AVX2__) && !defined(__AVXVNNI__) && !defined(__AVX512VNNI__)
  using WordForm = std::conditional_t<panel, WordStep,
                                      std::conditional_t<storage == Storage::Nibbles, NibbleWordStep, ByteWordStep>>;
#else
  using WordForm = void;
#endif
  using ByteForm =
      std::conditional_t<panel, SmallByteStep, std::conditional_t<storage == Storage::Nibbles, NibbleStep, ByteStep>>;
  using Step = std::conditional_t<words, WordForm, ByteForm>;
  static constexpr size_t chunk_values = chunk_cols / Step::cols * 64 * (halves ? 2 : 1);
  static constexpr size_t panel_group_bytes(int group) {
    return group / chunk_cols * chunk_values + 2 * tile_outputs * sizeof(float);
  }
};

// One chunk of a tile times planes [first, first + together) of `count` rows.
template <class Form, int count, int together>
MLXCEL_INLINE void sum_chunk(const std::byte* values, const Rows<count>& x, int first,
                             typename Form::Step::Sum (&sums)[together][count]) {
  using Step = typename Form::Step;
  constexpr int x_bytes = Form::words ? 2 : 1;
#pragma GCC unroll unrolled
  for (int p = 0; p < together; p++)
#pragma GCC unroll unrolled
    for (int m = 0; m < count; m++) sums[p][m].clear();
  // Weights that were unpacked for the other plane are not worth the registers.
  asm("" : "+r"(values));
#pragma GCC unroll unrolled
  for (int k = 0; k < chunk_cols; k += Step::cols, values += 64) {
    if constexpr (count < few_rows && !Form::panel) prefetch_weights(values);
#pragma GCC unroll unrolled
    for (int part = 0; part < Step::parts; part++) {
      const auto w = Step::weights(values, part);
#pragma GCC unroll unrolled
      for (int m = 0; m < count; m++)
#pragma GCC unroll unrolled
        for (int p = 0; p < together; p++)
          Step::add(sums[p][m], w, x.part(m, (first + p) * chunk_cols + k * x_bytes, Form::planes * chunk_cols), part);
    }
  }
}

// whole[m] = the integer product of row m with a chunk of a tile. With two planes high_unit * high + low, rounded once:
// high and low are exact.
template <class Form, int count>
MLXCEL_INLINE void multiply_chunk(const std::byte* values, const Rows<count>& x, f32x16 (&whole)[count]) {
  using Sum = typename Form::Step::Sum;
  constexpr int products = Form::products;
  constexpr int together = products * count * sizeof(Sum) <= sum_bytes ? products : 1;
  Sum sums[together][count];
  sum_chunk<Form>(values, x, 0, sums);
  if constexpr (Form::halves) {
    i32x16 low[count];
#pragma GCC unroll unrolled
    for (int m = 0; m < count; m++) low[m] = sums[0][m].total();
    sum_chunk<Form>(values + Form::chunk_values / 2, x, 0, sums);
#pragma GCC unroll unrolled
    for (int m = 0; m < count; m++) whole[m] = to_f32(add(low[m], sums[0][m].times(16)));
    return;
  }
#pragma GCC unroll unrolled
  for (int m = 0; m < count; m++) whole[m] = to_f32(sums[0][m].total());
  if constexpr (products == 2) {
    if constexpr (together == 1) sum_chunk<Form>(values, x, 1, sums);
#pragma GCC unroll unrolled
    for (int m = 0; m < count; m++) whole[m] = fma(whole[m], splat(high_unit), to_f32(sums[together - 1][m].total()));
  }
}

// Groups [first, last) of one tile times `count` rows; `values` is where the first group's record starts. Groups after
// the first continue the sums in `out`.
template <class Form, int count>
MLXCEL_INLINE void integer_tile(const std::byte* values, Scalar scale_type, const Activations& activations, int row,
                                int first, int last, float* out, size_t stride) {
  Rows<count> x(activations, row, first);
  const size_t chunk_bytes = activations.chunk_bytes(), scales_at = x.interleaved * Form::planes * chunk_cols;
  const int chunks = activations.group / chunk_cols;
  const size_t biases_at = tile_outputs * size_of(scale_type);
  f32x16 result[count];
#pragma GCC unroll unrolled
  for (int m = 0; m < count; m++) result[m] = first == 0 ? splat(0.0f) : load(out + m * stride);
  for (int g = first; g < last; g++) {
    f32x16 products[count];
    for (f32x16& p : products) p = splat(0.0f);
    for (int c = 0; c < chunks; c++, values += Form::chunk_values) {
      f32x16 whole[count];
      multiply_chunk<Form>(values, x, whole);
#pragma GCC unroll unrolled
      for (int m = 0; m < count; m++)
        products[m] = fma(whole[m], splat_at(x.part(m, scales_at, sizeof(float))), products[m]);
      x.advance(chunk_bytes);
    }
    const f32x16 scales = load_scalars(values, scale_type), biases = load_scalars(values + biases_at, scale_type);
    if constexpr (count < few_rows && !Form::panel) prefetch_weights(values);
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

// Columns of groups [first, last) of a tile, or of some tiles at a distance of tile_bytes, ready to be multiplied.
struct Panel {
  const std::byte* values;
  size_t tile_bytes;
  int first, last;
};

template <Storage storage, int planes>
struct IntegerProduct {
  using Direct = IntegerForm<storage, planes, false>;
  using Unpacked = IntegerForm<storage, planes, true>;
  // Tiles side by side.
  static constexpr int width(int) { return 1; }
  static constexpr int panel_width = 1;
  // As many columns as stay in the nearest cache, with a block of x, while rows pass.
  static constexpr int panel_cols = Unpacked::words || Unpacked::halves ? 640 : 1024;
  static constexpr size_t panel_bytes = panel_cols / 32 * Unpacked::panel_group_bytes(32);
  // Whether many rows take panels: not where one instruction unpacks 64 bytes, or where nothing is packed.
#if defined(__AVX512F__)
  static constexpr bool panels = false;
#else
  static constexpr bool panels = storage == Storage::Nibbles || words_for_default;
#endif
  // With more rows than this it pays to unpack weights once for all of them.
  static constexpr int most_direct_rows = 2 * few_rows;

  static Panel panel(const PackedWeights& weights, int tile, int, int first, int last, std::byte* memory) {
    std::byte* panel = memory;
    const std::byte* values = weights.tile(tile) + first * weights.record_bytes();
    const Scalar type = weights.scale_type();
    const auto put = [&](bytes64 a) {
      std::memcpy(panel, &a, sizeof a);
      panel += sizeof a;
    };
    for (int g = first; g < last; g++) {
      for (const std::byte* end = values + weights.values_bytes(); values != end; values += 64) {
        if constexpr (!Unpacked::words && storage == Storage::Nibbles) {
          put(low_nibbles(load64(values)));
          put(high_nibbles(load64(values)));
        } else if constexpr (!Unpacked::words) {
          const bytes64 low = low_nibbles(load64(values)), high = high_nibbles(load64(values));
          std::memcpy(panel, &low, sizeof low);
          std::memcpy(panel + Unpacked::chunk_values / 2, &high, sizeof high);
          panel += sizeof low;
          if ((end - values) / 64 % (chunk_cols / 4) == 1) panel += Unpacked::chunk_values / 2;
        }
#if defined(__AVX2__) && !defined(__AVXVNNI__) && !defined(__AVX512VNNI__)
        else if constexpr (storage == Storage::Nibbles) {
          for (int part : {0, 2, 1, 3}) put(NibbleWordStep::weights(values, part));
        } else {
          for (int part : {0, 1}) put(ByteWordStep::weights(values, part));
        }
#endif
      }
      for (int i = 0; i < 2; i++, values += tile_outputs * size_of(type), panel += tile_outputs * sizeof(float))
        store(reinterpret_cast<float*>(panel), load_scalars(values, type));
    }
    return {memory, 0, first, last};
  }

  template <int count, int tiles>
  static void run(const PackedWeights& weights, int tile, const Activations& x, int row, float* out, size_t stride) {
    integer_tile<Direct, count>(weights.tile(tile), weights.scale_type(), x, row, 0, weights.groups(), out, stride);
  }
  template <int count, int tiles>
  static void run_panel(const Panel& panel, const Activations& x, int row, float* out, size_t stride) {
    integer_tile<Unpacked, count>(panel.values, Scalar::Float32, x, row, panel.first, panel.last, out, stride);
  }
};

}  // namespace mlxcel::MLXCEL_ISA
