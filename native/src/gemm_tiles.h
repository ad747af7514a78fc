// Products of quantised weights with many rows of x on a processor's matrix unit (Intel AMX): sixteen rows times sixteen
// outputs at a time.
//
// A chunk is one multiplication of tiles, which adds integers and is exact. The float operations after it are those of
// gemm_integer.h, in the same order, so that a row has the same bits here and there.
#pragma once

#include "gemm_integer.h"

#if defined(__AMX_INT8__)

#include "tiles.h"

namespace mlxcel::MLXCEL_ISA {

// With fewer rows unpacking for the unit takes longer than the products without it.
constexpr int least_tile_rows = 6;

template <Storage storage, int planes>
struct TileProduct {
  // Nibbles leave room in a byte for sixteen times the weight: high and low of x are one multiplication, of rows that
  // hold high, then low, with 16 w, then w. Bytes take two.
  static constexpr bool both = storage == Storage::Nibbles && planes == 2;
  static constexpr int products = planes == 2 && !both ? 2 : 1;
  static constexpr int x_bytes = both ? 2 * chunk_cols : chunk_cols;  // of a row, in one multiplication
  static constexpr size_t chunk_values = (both ? 2 : 1) * chunk_cols * tile_outputs;
  // Nibbles are unpacked for as many columns as stay in the nearest cache while rows pass. Bytes are read where they are.
  static constexpr int panel_cols = 1024;
  static constexpr size_t panel_bytes =
      storage == Storage::Nibbles
          ? panel_cols / chunk_cols * (chunk_values + 2 * tile_outputs * sizeof(float))
          : 1;

  // Tiles 0 and 1 are sums, 2 and 3 rows of x, 4 and 5 weights: two of each, so that one product can begin before the
  // last one ends.
  static constexpr TileShapes shapes(int rows) {
    const TileShape sums{rows, 64}, x{rows, x_bytes}, weights{x_bytes / 4, 64};
    return {{sums, sums, x, x, weights, weights, {}, {}}};
  }
  template <int slot>
  static void multiply_tiles(const std::byte* x, const std::byte* weights, int32_t* sums) {
    clear_tile<slot>();
    load_tile<2 + slot>(x, planes * chunk_cols);
    load_tile<4 + slot>(weights, 64);
    add_byte_product<slot, 2 + slot, 4 + slot>();
    store_tile<slot>(sums, tile_outputs * sizeof(int32_t));
  }

  static void unpack(const PackedWeights& weights, int tile, int first, int last, std::byte* to) {
    const std::byte* values = weights.tile(tile) + first * weights.record_bytes();
    const Scalar type = weights.scale_type();
    for (int g = first; g < last; g++) {
      for (const std::byte* end = values + weights.values_bytes(); values != end; to += chunk_values) {
        for (int k = 0; k < chunk_cols / 8; k++, values += 64) {
          const __m512i w = load64(values).v, mask = _mm512_set1_epi8(15);
          const __m512i low = _mm512_and_si512(w, mask), high = _mm512_and_si512(_mm512_srli_epi16(w, 4), mask);
          std::byte* small = to + (both ? chunk_values / 2 : 0) + 128 * k;
          _mm512_store_si512(small, low);
          _mm512_store_si512(small + 64, high);
          if constexpr (both) {
            _mm512_store_si512(to + 128 * k, _mm512_andnot_si512(mask, _mm512_slli_epi16(w, 4)));
            _mm512_store_si512(to + 128 * k + 64, _mm512_andnot_si512(mask, w));
          }
        }
      }
      for (int i = 0; i < 2; i++, values += tile_outputs * size_of(type), to += tile_outputs * sizeof(float))
        store(reinterpret_cast<float*>(to), load_scalars(values, type));
    }
  }

  // The integer products of a chunk, brought to memory.
  template <int slot>
  static void start_chunk(const std::byte* x, const std::byte* weights, int32_t* sums) {
    if constexpr (products == 1) {
      multiply_tiles<slot>(x, weights, sums);
    } else {
      multiply_tiles<0>(x, weights, sums);
      multiply_tiles<1>(x + chunk_cols, weights, sums + tile_rows * tile_outputs);
    }
  }

  static f32x16 whole(const int32_t* sums) {
    __m512i sum = _mm512_load_si512(sums);
    if constexpr (products == 2)
      sum = _mm512_add_epi32(_mm512_slli_epi32(sum, 4), _mm512_load_si512(sums + tile_rows * tile_outputs));
    return to_f32({sum});
  }

  // Groups [first, last) of a tile, from `values` on, times the first `height` rows of a block, of which [low, high)
  // are stored. out is row `low`'s.
  template <int chunks, int height>
  static void block(const std::byte* values, Scalar type, const Activations& x, int number, int first, int last,
                    int low, int high, float* out, size_t stride) {
    constexpr size_t sums_of_chunk = products * tile_rows * tile_outputs;
    alignas(64) int32_t sums[2][chunks * sums_of_chunk];
    const size_t chunk_bytes = block_rows * (planes * chunk_cols + sizeof(float));
    const size_t group_bytes = chunks * chunk_bytes + block_rows * sizeof(float);
    const size_t biases_at = tile_outputs * size_of(type), record_bytes = chunks * chunk_values + 2 * biases_at;
    const std::byte* x_group = x.data + number * x.block_bytes() + first * group_bytes;

    const auto start = [&](int g) {
      const std::byte* from = x_group + (g - first) * group_bytes;
      const std::byte* weights = values + (g - first) * record_bytes;
      for (int c = 0; c < chunks; c++, from += chunk_bytes, weights += chunk_values) {
        int32_t* to = sums[g & 1] + c * sums_of_chunk;
        if ((g + c) & 1) start_chunk<1>(from, weights, to);
        else start_chunk<0>(from, weights, to);
      }
    };
    f32x16 result[height];
#pragma GCC unroll unrolled
    for (int m = 0; m < height; m++)
      result[m] = first != 0 && m >= low && m < high ? load(out + (m - low) * stride) : splat(0.0f);
    start(first);
    for (int g = first; g < last; g++) {
      if (g + 1 < last) start(g + 1);
      const std::byte* record = values + (g - first) * record_bytes + chunks * chunk_values;
      const f32x16 scales = load_scalars(record, type), biases = load_scalars(record + biases_at, type);
      const std::byte* from = x_group + (g - first) * group_bytes;
      const auto* factors = reinterpret_cast<const float*>(from + block_rows * planes * chunk_cols);
      const auto* totals = reinterpret_cast<const float*>(from + chunks * chunk_bytes);
      const int32_t* of_group = sums[g & 1];
#pragma GCC unroll unrolled
      for (int m = 0; m < height; m++) {
        f32x16 product = mul(whole(of_group + m * tile_outputs), splat(factors[m]));
#pragma GCC unroll unrolled
        for (int c = 1; c < chunks; c++)
          product = fma(whole(of_group + c * sums_of_chunk + m * tile_outputs),
                        splat(factors[c * chunk_bytes / sizeof(float) + m]), product);
        result[m] = fma(scales, product, result[m]);
        result[m] = fma(biases, splat(totals[m]), result[m]);
      }
    }
#pragma GCC unroll unrolled
    for (int m = 0; m < height; m++)
      if (m >= low && m < high) store(out + (m - low) * stride, result[m]);
  }

  template <int chunks>
  static void rows(const std::byte* values, Scalar type, const Activations& x, int first_group, int last_group,
                   int first, int last, float* out, size_t stride) {
    for (int row = first; row < last;) {
      const int number = row / block_rows, low = row % block_rows;
      const int high = std::min(block_rows, low + last - row);
      float* to = out + (row - first) * stride;
      if (high <= 8) block<chunks, 8>(values, type, x, number, first_group, last_group, low, high, to, stride);
      else block<chunks, 16>(values, type, x, number, first_group, last_group, low, high, to, stride);
      row += high - low;
    }
  }

  static void multiply(const PackedWeights& weights, int tile, int tiles, const Activations& x, int first, int last,
                       float* out, size_t stride) {
    const bool one_block = first / block_rows == (last - 1) / block_rows;
    TileUnit unit;
    unit.shape(shapes(one_block ? (last - 1) % block_rows + 1 : tile_rows));
    alignas(64) std::byte memory[panel_bytes];
    const int most = storage == Storage::Nibbles ? panel_cols / weights.group() : weights.groups();
    const int parts = (weights.groups() + most - 1) / most;
    for (int part = 0; part < parts; part++) {
      const int begin = weights.groups() * part / parts, end = weights.groups() * (part + 1) / parts;
      for (int t = 0; t < tiles; t++) {
        const std::byte* values = weights.tile(tile + t);
        Scalar type = weights.scale_type();
        if constexpr (storage == Storage::Nibbles) {
          unpack(weights, tile + t, begin, end, memory);
          values = memory;
          type = Scalar::Float32;
        }
        float* to = out + t * tile_outputs;
        switch (weights.group()) {
          case 32: rows<1>(values, type, x, begin, end, first, last, to, stride); break;
          case 64: rows<2>(values, type, x, begin, end, first, last, to, stride); break;
          default: rows<4>(values, type, x, begin, end, first, last, to, stride);
        }
      }
    }
  }
};

}  // namespace mlxcel::MLXCEL_ISA

#endif
