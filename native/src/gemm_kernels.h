// Matrix products with packed weights, for one instruction set: which kernel takes which rows and tiles. See gemm.h for
// the layouts.
//
// Every row goes through the same float operations in the same order whichever kernel takes it: sums of integers are
// exact, so only they may be split into chains or taken in another order.
#pragma once

#include <utility>

#include "gemm_float.h"
#include "gemm_integer.h"
#include "gemm_tiles.h"

namespace mlxcel::MLXCEL_ISA {

// Rows that one kernel may take: up to as many as the registers hold sums for.
#if defined(__AMX_INT8__)
using Heights = std::integer_sequence<int, 1, 2, 3, 4, 8>;  // halves of a block, which twelve would leave four of
#elif defined(__AVX512F__)
using Heights = std::integer_sequence<int, 1, 2, 3, 4, 8, 12>;
#elif defined(__AVX2__) || defined(__ARM_NEON)
using Heights = std::integer_sequence<int, 1, 2, 3, 4>;
#else
using Heights = std::integer_sequence<int, 1, 2, 3, 4, 8>;
#endif

// Rows [first, last) in the tallest pieces that fit: up to the end of a block, or whole blocks.
// run(row, count) takes count as a std::integral_constant.
template <class Run, int... heights>
MLXCEL_INLINE void each_piece(std::integer_sequence<int, heights...>, const Activations& x, int first, int last,
                              Run&& run) {
  const int interleaved = x.interleaved();
  for (int row = first, count = 0; row < last; row += count) {
    int most = std::min(interleaved - row % interleaved, last - row);
    // Whole blocks go together as far as the registers reach.
    if (most == few_rows && block_rows == few_rows) most = last - row;
    ((count = heights <= most ? heights : count), ...);
    ((count == heights ? run(row, std::integral_constant<int, heights>()) : void()), ...);
  }
}

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

// `width` tiles from a panel times all rows. Meanwhile the weights at `next` come nearer, for the next panel.
template <class Product, int width>
static void multiply_panel(const Panel& panel, const Activations& x, int first, int last, float* out, size_t stride,
                           const std::byte* next, size_t tile_bytes) {
  each_piece(Heights{}, x, first, last, [&](int row, auto count) {
    for (int t = 0; t < width; t++) __builtin_prefetch(next + t * tile_bytes, 0, 2);
    next += 64;
    Product::template run_panel<count(), width>(panel, x, row, out + (row - first) * stride, stride);
  });
}

// Many rows: parts of tiles that stay, unpacked, in the nearest cache while all rows pass.
template <class Product>
static void multiply_by_panels(const PackedWeights& weights, int tile, int tiles, const Activations& x, int first,
                               int last, float* out, size_t stride) {
  constexpr int width = Product::panel_width;
  alignas(64) std::byte memory[Product::panel_bytes];
  const int most = Product::panel_cols / weights.group(), parts = (weights.groups() + most - 1) / most;
  for (int part = 0; part < parts; part++) {
    const int begin = weights.groups() * part / parts, end = weights.groups() * (part + 1) / parts;
    for (int t = 0; t < tiles; t += width) {
      float* to = out + t * tile_outputs;
      const Panel panel = Product::panel(weights, tile + t, std::min(width, tiles - t), begin, end, memory);
      const size_t tile_bytes = weights.tile_bytes();
      const std::byte* next = weights.tile(tile + t) + width * tile_bytes + begin * weights.record_bytes();
      if (tiles - t >= width) multiply_panel<Product, width>(panel, x, first, last, to, stride, next, tile_bytes);
      else multiply_panel<Product, 1>(panel, x, first, last, to, stride, next, tile_bytes);
    }
  }
}

template <class Product>
static void multiply_range(const PackedWeights& weights, int tile, int tiles, const Activations& x, int first, int last,
                           float* out, size_t stride) {
  if constexpr (Product::panels)
    if (last - first > Product::most_direct_rows)
      return multiply_by_panels<Product>(weights, tile, tiles, x, first, last, out, stride);
  // A tile stays in the nearest cache while many rows pass; few rows do while all tiles pass.
  const int at_once = last - first <= few_rows ? tiles : 1;
  for (int t = 0; t < tiles; t += at_once)
    each_piece(Heights{}, x, first, last, [&](int row, auto count) {
      multiply_rows<Product, count()>(weights, tile + t, at_once, x, row,
                                      out + (row - first) * stride + t * tile_outputs, stride);
    });
}

template <Storage storage, int planes>
static void multiply_integers(const PackedWeights& weights, int tile, int tiles, const Activations& x, int first,
                              int last, float* out, size_t stride) {
#if defined(__AMX_INT8__)
  if (last - first >= least_tile_rows && x.interleaved() == block_rows)
    return TileProduct<storage, planes>::multiply(weights, tile, tiles, x, first, last, out, stride);
#endif
  multiply_range<IntegerProduct<storage, planes>>(weights, tile, tiles, x, first, last, out, stride);
}

template <Storage storage>
static void multiply_quantised(const PackedWeights& weights, int tile, int tiles, const Activations& x, int first,
                               int last, float* out, size_t stride) {
  switch (x.precision) {
    case Precision::Fast:
      return multiply_integers<storage, 1>(weights, tile, tiles, x, first, last, out, stride);
    case Precision::Default:
      return multiply_integers<storage, 2>(weights, tile, tiles, x, first, last, out, stride);
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

inline constexpr GemmKernels gemm_kernels{block_rows, quantise, multiply};

}  // namespace mlxcel::MLXCEL_ISA
