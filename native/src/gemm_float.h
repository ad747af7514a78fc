// Products of weights with float32 rows of x, for one instruction set.
#pragma once

#include "gemm_integer.h"

namespace mlxcel::MLXCEL_ISA {

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

// The scales and biases of a record, if it has any.
template <Storage storage>
MLXCEL_INLINE void load_record_scales(const PackedWeights& weights, const std::byte* record, f32x16& scales,
                                      f32x16& biases) {
  if constexpr (storage == Storage::Nibbles || storage == Storage::Bytes) {
    const std::byte* p = record + weights.values_bytes();
    scales = load_scalars(p, weights.scale_type());
    biases = load_scalars(p + tile_outputs * size_of(weights.scale_type()), weights.scale_type());
  } else {
    scales = biases = splat(0.0f);
  }
}

// One chunk of `width` tiles times `count` rows, added to `result`. Each chunk of columns is summed by itself: shorter
// sums, smaller errors.
template <Storage storage, int count, int width>
MLXCEL_INLINE void float_chunk(const std::byte* values, size_t tile_bytes, const f32x16 (&scales)[width],
                               const f32x16 (&biases)[width], const Rows<count>& x, f32x16 (&result)[width][count]) {
  constexpr bool quantised = storage == Storage::Nibbles || storage == Storage::Bytes;
  constexpr int unroll = quantised || count * width < 8 ? 8 : 4;
  constexpr size_t column_bytes = storage == Storage::Float32   ? 64
                                  : storage == Storage::Nibbles ? 8
                                  : storage == Storage::Bytes   ? 16
                                                                : 32;
  f32x16 sums[width][count];
  for (auto& tile_sums : sums)
    for (f32x16& s : tile_sums) s = splat(0.0f);
  for (int k0 = 0; k0 < chunk_cols; k0 += unroll) {
#pragma GCC unroll unrolled
    for (int k = 0; k < unroll; k++) {
      f32x16 w[width];
#pragma GCC unroll unrolled
      for (int t = 0; t < width; t++) {
        w[t] = column<storage>(values + t * tile_bytes + k0 * column_bytes, k, scales[t], biases[t]);
        if constexpr (count > 1) hold(w[t]);
      }
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
}

// `width` tiles times `count` rows.
template <Storage storage, int count, int width>
MLXCEL_INLINE void float_tiles(const PackedWeights& weights, int tile, const Activations& activations, int row,
                               float* out, size_t stride) {
  Rows<count> x(activations, row, 0);
  const int chunks = weights.group() / chunk_cols, groups = weights.groups();
  const size_t chunk_values = weights.values_bytes() / chunks, tile_bytes = weights.tile_bytes(),
               chunk_bytes = activations.chunk_bytes();
  const std::byte* record = weights.tile(tile);
  f32x16 result[width][count];
  for (auto& tile_results : result)
    for (f32x16& r : tile_results) r = splat(0.0f);
  for (int g = 0; g < groups; g++, record += weights.record_bytes()) {
    f32x16 scales[width], biases[width];
    for (int t = 0; t < width; t++)
      load_record_scales<storage>(weights, record + t * tile_bytes, scales[t], biases[t]);
    for (int c = 0; c < chunks; c++) {
      float_chunk<storage>(record + c * chunk_values, tile_bytes, scales, biases, x, result);
      x.advance(chunk_bytes);
    }
  }
  for (int t = 0; t < width; t++)
    for (int m = 0; m < count; m++) store(out + m * stride + t * tile_outputs, result[t][m]);
}

// A panel's columns are floats: `width` tiles times `count` rows. Chunks after the first continue the sums in `out`.
// A function of its own, for the sake of its registers.
template <int count, int width>
[[gnu::noinline]] static void float_panel(const Panel& panel, const Activations& activations, int row, float* out,
                                          size_t stride) {
  Rows<count> x(activations, row, panel.first);
  const size_t chunk_bytes = activations.chunk_bytes();
  f32x16 none[width], result[width][count];
  for (int t = 0; t < width; t++) {
    none[t] = splat(0.0f);
    for (int m = 0; m < count; m++)
      result[t][m] = panel.first == 0 ? splat(0.0f) : load(out + m * stride + t * tile_outputs);
  }
  const std::byte* values = panel.values;
  for (int c = panel.first; c < panel.last; c++, values += chunk_cols * tile_outputs * sizeof(float)) {
    float_chunk<Storage::Float32>(values, panel.tile_bytes, none, none, x, result);
    x.advance(chunk_bytes);
  }
  for (int t = 0; t < width; t++)
    for (int m = 0; m < count; m++) store(out + m * stride + t * tile_outputs, result[t][m]);
}

template <Storage storage>
struct FloatProduct {
  // Tiles side by side, for enough independent sums when there are few rows.
  static constexpr int width(int count) { return count == 1 ? 4 : count <= 3 ? 2 : 1; }
  static constexpr bool panels = true;
  static constexpr int most_direct_rows =
      storage == Storage::Nibbles || storage == Storage::Bytes ? few_rows : 2 * few_rows;
#if defined(__AVX512F__)
  static constexpr int panel_width = 2, panel_cols = 128;
#else
  static constexpr int panel_width = 1, panel_cols = 256;
#endif
  static constexpr size_t panel_bytes =
      storage == Storage::Float32 ? 1 : panel_width * panel_cols * tile_outputs * sizeof(float);

  static Panel panel(const PackedWeights& weights, int tile, int tiles, int first, int last, std::byte* memory) {
    const int chunks = weights.group() / chunk_cols;
    const std::byte* record = weights.tile(tile) + first * weights.record_bytes();
    const size_t tile_bytes = (last - first) * chunks * chunk_cols * tile_outputs * sizeof(float);
    if constexpr (storage == Storage::Float32) return {record, weights.tile_bytes(), first, last};
    auto* to = reinterpret_cast<float*>(memory);
    for (int t = 0; t < tiles; t++, record += weights.tile_bytes()) {
      for (int g = 0; g < last - first; g++) {
        const std::byte* values = record + g * weights.record_bytes();
        f32x16 scales, biases;
        load_record_scales<storage>(weights, values, scales, biases);
        for (int c = 0; c < chunks; c++, values += weights.values_bytes() / chunks)
#pragma GCC unroll 32
          for (int k = 0; k < chunk_cols; k++, to += tile_outputs)
            store(to, column<storage>(values, k, scales, biases));
      }
    }
    return {memory, tile_bytes, first * chunks, last * chunks};
  }

  template <int count, int tiles>
  static void run(const PackedWeights& weights, int tile, const Activations& x, int row, float* out, size_t stride) {
    float_tiles<storage, count, tiles>(weights, tile, x, row, out, stride);
  }
  template <int count, int tiles>
  static void run_panel(const Panel& panel, const Activations& x, int row, float* out, size_t stride) {
    float_panel<count, tiles>(panel, x, row, out, stride);
  }
};

}  // namespace mlxcel::MLXCEL_ISA
