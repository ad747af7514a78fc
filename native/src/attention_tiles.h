// One block of attention on a processor's matrix unit (Intel AMX): up to sixteen queries at a time. Keys and values lie
// in the cache as the unit reads them (see kv.h). A row of a product does not depend on the rows beside it, so a single
// query goes this way too, and has the same bits.
#pragma once

#include "attention_block.h"

#if defined(__AMX_BF16__)

#include <utility>

#include "tiles.h"

namespace mlxcel::MLXCEL_ISA {

// For products of `rows` queries: tiles 0 to 3 are sums; 4 and 5 sixteen pairs of queries or weights, and of keys or
// values; 6 and 7 eight.
constexpr TileShapes attention_shapes(int rows) {
  const TileShape sums{rows, 64};
  return {{sums, sums, sums, sums, {rows, 64}, {16, 64}, {rows, 32}, {8, 64}}};
}

template <int... tiles, class Each>
MLXCEL_INLINE void each_tile(std::integer_sequence<int, tiles...>, Each each) {
  (each(std::integral_constant<int, tiles>()), ...);
}

// sums[r][0 .. 16 vectors) = (or +=) sum over p < pairs of a[r][p] . b[p], as bfloat16 pairs; strides in bytes.
template <int vectors>
static void multiply_pairs(const uint16_t* a, size_t a_stride, const uint16_t* b, size_t b_stride, int pairs, bool add,
                           float* sums, size_t sums_stride) {
  constexpr auto all = std::make_integer_sequence<int, vectors>();
  each_tile(all, [&](auto v) {
    if (add) load_tile<v()>(sums + 16 * v(), sums_stride);
    else clear_tile<v()>();
  });
  for (; pairs >= 16; pairs -= 16, a += 32, b += b_stride / 2 * 16) {
    load_tile<4>(a, a_stride);
    each_tile(all, [&](auto v) {
      load_tile<5>(b + 32 * v(), b_stride);
      add_bf16_product<v(), 4, 5>();
    });
  }
  if (pairs != 0) {
    load_tile<6>(a, a_stride);
    each_tile(all, [&](auto v) {
      load_tile<7>(b + 32 * v(), b_stride);
      add_bf16_product<v(), 6, 7>();
    });
  }
  each_tile(all, [&](auto v) { store_tile<v()>(sums + 16 * v(), sums_stride); });
}

// The same for any number of vectors.
MLXCEL_INLINE void multiply_pairs(int vectors, const uint16_t* a, size_t a_stride, const uint16_t* b, size_t b_stride,
                                  int pairs, bool add, float* sums, size_t sums_stride) {
  for (; vectors > 0; vectors -= 4, b += 4 * 32, sums += 4 * 16) {
    const auto product = vectors >= 4   ? multiply_pairs<4>
                         : vectors == 3 ? multiply_pairs<3>
                         : vectors == 2 ? multiply_pairs<2>
                                        : multiply_pairs<1>;
    product(a, a_stride, b, b_stride, pairs, add, sums, sums_stride);
  }
}

// What queries [0, queries) of a piece see of a block.
struct Sight {
  Range each[16];
  Range any{kv_block, 0};  // some query sees
  Range all{0, kv_block};  // every query sees that sees any key

  Sight(const AttentionTask& task, const AttentionTile& tile, int block, int first_query, int queries) {
    const int group = task.config->group();
    int position = tile.segment.position + tile.first_row + first_query / group, in_group = first_query % group;
    for (int q = 0; q < queries; q++) {
      const Range range = each[q] = visible(position, task.config->window, block);
      if (++in_group == group) {
        in_group = 0;
        position++;
      }
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
  if (tile.rows == 1 && block + 1 < end_block) {
    // The processor does not guess that the next block comes next.
    const uint16_t* next = kv_tile(task.cache, tile.segment.blocks[block + 1], tile.kv_head);
    for (int i = 0; i < 2 * kv_block * n; i += 32) __builtin_prefetch(next + i, 0, 2);
  }
  alignas(64) float scores[16 * kv_block];
  alignas(64) uint16_t weights[16 * kv_block];
  unit.shape(attention_shapes(queries));
  const int first_vector = sight.any.first / 16, vectors = (sight.any.end + 15) / 16 - first_vector;
  multiply_pairs(vectors, prepared + first_query * n, n * sizeof(uint16_t), keys + 32 * first_vector,
                 2 * kv_block * sizeof(uint16_t), n / 2, false, scores + 16 * first_vector, kv_block * sizeof(float));
  for (int q = 0; q < queries; q++) {
    if (sight.each[q].empty()) std::memset(weights + q * kv_block, 0, sizeof(uint16_t) * kv_block);
    else softmax_block(config, sight.each[q], scores + q * kv_block, weights + q * kv_block, states + q * stride + n);
  }

  bool add = false;
  const auto add_values = [&](int first_query, int key, int keys, const uint16_t* values) {
    multiply_pairs(n / 16, weights + first_query * kv_block + key, kv_block * sizeof(uint16_t), values,
                   2 * n * sizeof(uint16_t), keys / 2, add, states + first_query * stride, stride * sizeof(float));
  };
  if (sight.all.first == 0 && sight.all.end == kv_block) return add_values(0, 0, kv_block, values);
  for (int key = 0; key < kv_block; key += tile_keys) {
    if (key >= sight.any.end || key + tile_keys <= sight.any.first) continue;
    const uint16_t* of_tile = values + key * n;
    alignas(64) uint16_t seen[tile_keys * max_head_dim];
    if (sight.all.first <= key && key + tile_keys <= sight.all.end) {
      add_values(0, key, tile_keys, of_tile);
    } else {
      copy_seen(of_tile, n, key, sight.any, seen);
      if (all_finite(seen, tile_keys * n)) {
        add_values(0, key, tile_keys, seen);
      } else {
        // Each query by itself, with what it sees.
        unit.shape(attention_shapes(1));
        for (int q = 0; q < queries; q++) {
          copy_seen(of_tile, n, key, sight.each[q], seen);
          add_values(q, key, tile_keys, seen);
        }
        unit.shape(attention_shapes(queries));
      }
    }
    add = true;
  }
}

}  // namespace mlxcel::MLXCEL_ISA

#endif
