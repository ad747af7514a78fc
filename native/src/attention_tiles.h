// One block of attention on a processor's matrix unit (Intel AMX): up to sixteen queries at a time. Keys and values lie
// in the cache as the unit reads them (see kv.h). A row of a product does not depend on the rows beside it, so a single
// query goes this way too, and has the same bits.
#pragma once

#include "attention_block.h"

#if defined(__AMX_BF16__)

#include "tiles.h"

namespace mlxcel::MLXCEL_ISA {

// For products of `rows` queries: tiles 0 and 1 are sums; 2 and 3 sixteen pairs of the queries or weights, 4 and 5 of the
// keys or values; 6 and 7 eight pairs of either.
constexpr TileShapes attention_shapes(int rows) {
  return {{{rows, 64}, {rows, 64}, {rows, 64}, {rows, 64}, {16, 64}, {16, 64}, {rows, 32}, {8, 64}}};
}

// sums[r][0 .. 16) = sum over p < pairs of a[r][p] . b[p], as bfloat16 pairs; strides in bytes.
template <int slot>
MLXCEL_INLINE void multiply_pairs(const uint16_t* a, size_t a_stride, const uint16_t* b, size_t b_stride, int pairs,
                                  float* sums, size_t sums_stride) {
  clear_tile<slot>();
  for (; pairs >= 16; pairs -= 16, a += 32, b += b_stride / 2 * 16) {
    load_tile<2 + slot>(a, a_stride);
    load_tile<4 + slot>(b, b_stride);
    add_bf16_product<slot, 2 + slot, 4 + slot>();
  }
  if (pairs != 0) {
    load_tile<6>(a, a_stride);
    load_tile<7>(b, b_stride);
    add_bf16_product<slot, 6, 7>();
  }
  store_tile<slot>(sums, sums_stride);
}

// What queries [0, queries) of a piece see of a block.
struct Sight {
  Range each[16];
  Range any{kv_block, 0};  // some query sees
  Range all{0, kv_block};  // every query sees that sees any key

  Sight(const AttentionTask& task, const AttentionTile& tile, int block, int first_query, int queries) {
    for (int q = 0; q < queries; q++) {
      const int position = tile.segment.position + tile.first_row + (first_query + q) / task.config->group();
      const Range range = each[q] = visible(position, task.config->window, block);
      if (range.empty()) continue;
      any = {std::min(any.first, range.first), std::max(any.end, range.end)};
      all = {std::max(all.first, range.first), std::min(all.end, range.end)};
    }
  }
};

// Thirty-two keys of a block, from `first` on, and their values.
constexpr int tile_keys = 32;

// Their values with 0 for keys outside `seen`: what lies there in memory may be NaN, which 0 times leaves.
MLXCEL_INLINE void copy_seen(const uint16_t* values, int head_dim, int first, Range seen, uint16_t* to) {
  for (int p = 0; p < tile_keys / 2; p++, values += 2 * head_dim, to += 2 * head_dim) {
    const int key = first + 2 * p;
    const bool low = key >= seen.first && key < seen.end, high = key + 1 >= seen.first && key + 1 < seen.end;
    const __m512i mask = _mm512_set1_epi32(static_cast<int>((low ? 0xffffu : 0u) | (high ? 0xffff0000u : 0u)));
    for (int d = 0; d < 2 * head_dim; d += 32)
      _mm512_store_si512(to + d, _mm512_and_si512(_mm512_loadu_si512(values + d), mask));
  }
}

MLXCEL_INLINE bool all_finite(const uint16_t* values, int count) {
  const __m512i exponent = _mm512_set1_epi16(0x7f80);
  uint32_t found = 0;
  for (int i = 0; i < count; i += 32)
    found |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(_mm512_load_si512(values + i), exponent), exponent);
  return found == 0;
}

// states = weights . values, for queries of which some see some keys of a tile.
MLXCEL_INLINE void add_tile_values(const uint16_t* weights, const uint16_t* values, int head_dim, bool first,
                                   float* states, size_t stride) {
  load_tile<2>(weights, kv_block * sizeof(uint16_t));
  for (int d = 0; d < head_dim; d += 16) {
    if (first) clear_tile<0>();
    else load_tile<0>(states + d, stride);
    load_tile<4>(values + 2 * d, 2 * head_dim * sizeof(uint16_t));
    add_bf16_product<0, 2, 4>();
    store_tile<0>(states + d, stride);
  }
}

// The states of up to sixteen queries of a tile after one block alone.
static void attend_block(TileUnit& unit, const AttentionTask& task, const AttentionTile& tile, int block,
                         int first_query, int queries, const uint16_t* prepared, int end_block, float* states) {
  const AttentionConfig& config = *task.config;
  const int n = config.head_dim, stride = softmax_state(n);
  const Sight sight(task, tile, block, first_query, queries);
  for (int q = 0; q < queries; q++) states[q * stride + n + 1] = 0.0f;
  if (sight.any.empty()) return;

  const uint16_t* keys = kv_tile(task.cache, tile.segment.blocks[block], tile.kv_head);
  const uint16_t* values = keys + kv_block * n;
  if (first_query == 0 && block + 1 < end_block) {
    // The processor does not guess that the next block comes next.
    const uint16_t* next = kv_tile(task.cache, tile.segment.blocks[block + 1], tile.kv_head);
    for (int i = 0; i < 2 * kv_block * n; i += 32) __builtin_prefetch(next + i, 0, 2);
  }
  alignas(64) float scores[16 * kv_block];
  alignas(64) uint16_t weights[16 * kv_block];
  unit.shape(attention_shapes(queries));
  const uint16_t* a = prepared + first_query * n;
  for (int v = sight.any.first / 16; v < (sight.any.end + 15) / 16; v++) {
    const auto product = v % 2 ? multiply_pairs<1> : multiply_pairs<0>;
    product(a, n * sizeof(uint16_t), keys + 32 * v, 2 * kv_block * sizeof(uint16_t), n / 2, scores + 16 * v,
            kv_block * sizeof(float));
  }
  for (int q = 0; q < queries; q++) {
    if (sight.each[q].empty()) std::memset(weights + q * kv_block, 0, sizeof(uint16_t) * kv_block);
    else softmax_block(config, sight.each[q], scores + q * kv_block, weights + q * kv_block, states + q * stride + n);
  }

  const size_t state_bytes = stride * sizeof(float);
  bool first = true;
  for (int key = 0; key < kv_block; key += tile_keys) {
    if (key >= sight.any.end || key + tile_keys <= sight.any.first) continue;
    const uint16_t* of_tile = values + key * n;
    alignas(64) uint16_t seen[tile_keys * max_head_dim];
    if (key < sight.all.first || key + tile_keys > sight.all.end) {
      copy_seen(of_tile, n, key, sight.any, seen);
      if (!all_finite(seen, tile_keys * n)) {
        // Each query by itself, with what it sees.
        unit.shape(attention_shapes(1));
        for (int q = 0; q < queries; q++) {
          copy_seen(of_tile, n, key, sight.each[q], seen);
          add_tile_values(weights + q * kv_block + key, seen, n, first, states + q * stride, state_bytes);
        }
        unit.shape(attention_shapes(queries));
        first = false;
        continue;
      }
      of_tile = seen;
    }
    add_tile_values(weights + key, of_tile, n, first, states, state_bytes);
    first = false;
  }
}

}  // namespace mlxcel::MLXCEL_ISA

#endif
