// AttentionKernels: tiles of queries over their blocks. See attention.h.
#pragma once

#include "attention_block.h"
#include "attention_tiles.h"

namespace mlxcel::MLXCEL_ISA {

// --- tiles

// body(first query, number) for the queries of a tile in pieces of nearly the same size.
template <class Body>
MLXCEL_INLINE void each_row_block(int queries, int most, Body body) {
  const int pieces = (queries + most - 1) / most;
  for (int i = 0; i < pieces; i++) {
    const int first = queries * i / pieces;
    body(first, queries * (i + 1) / pieces - first);
  }
}

// How blocks are attended to: on the matrix unit, if there is one and it takes such operands.
template <class Operand>
struct Blocks {
  template <class... Arguments>
  void attend(const Arguments&... arguments) {
    attend_block(arguments...);
  }
  static constexpr int most_queries = kRowBlock;
};
#if defined(__AMX_BF16__)
template <>
struct Blocks<uint16_t> {
  TileUnit unit;

  template <class... Arguments>
  void attend(const Arguments&... arguments) {
    attend_block(unit, arguments...);
  }
  static constexpr int most_queries = tile_rows;
};
#endif

template <class Operand>
static void attend_as(const AttentionTask& task, const AttentionTile& tile, void* scratch) {
  const int n = task.config->head_dim, stride = softmax_state(n), queries = tile.rows * task.config->group();
  float* states = static_cast<float*>(scratch);
  float* block_states = states + queries * stride;
  Operand* prepared = reinterpret_cast<Operand*>(block_states + Blocks<Operand>::most_queries * stride);
  Blocks<Operand> blocks;
  prepare_queries(task, tile, prepared);
  start_states(task, tile, states);
  for (int block = tile.first_block; block < tile.end_block; block++) {
    each_row_block(queries, blocks.most_queries, [&](int first, int count) {
      blocks.attend(task, tile, block, first, count, prepared, tile.end_block, block_states);
      each_row_block(count, 8, [&](int q, int n_queries) {
        fold_states(states + (first + q) * stride, block_states + q * stride, n_queries, n);
      });
    });
  }
  finish_states(task, tile, states);
}

template <class Operand>
static void attend_blocks_as(const AttentionTask& task, const AttentionTile& tile, int first_block, int end_block,
                             float* partials, void* scratch) {
  const int stride = softmax_state(task.config->head_dim), queries = tile.rows * task.config->group();
  Operand* prepared = static_cast<Operand*>(scratch);
  Blocks<Operand> blocks;
  prepare_queries(task, tile, prepared);
  for (int block = first_block; block < end_block; block++, partials += queries * stride) {
    each_row_block(queries, blocks.most_queries, [&](int first, int count) {
      blocks.attend(task, tile, block, first, count, prepared, end_block, partials + first * stride);
    });
  }
}

#if defined(__AVX512BF16__)
constexpr bool kFastBfloat16 = true;
#else
constexpr bool kFastBfloat16 = false;
#endif

static void attend(const AttentionTask& task, const AttentionTile& tile, void* scratch) {
  if (kFastBfloat16 && task.config->bfloat16) return attend_as<uint16_t>(task, tile, scratch);
  attend_as<float>(task, tile, scratch);
}

static void attend_blocks(const AttentionTask& task, const AttentionTile& tile, int first, int end, float* partials,
                          void* scratch) {
  if (kFastBfloat16 && task.config->bfloat16) {
    attend_blocks_as<uint16_t>(task, tile, first, end, partials, scratch);
  } else {
    attend_blocks_as<float>(task, tile, first, end, partials, scratch);
  }
}

static void fold(const AttentionTask& task, const AttentionTile& tile, const float* partials, void* scratch) {
  const int n = task.config->head_dim, stride = softmax_state(n), queries = tile.rows * task.config->group();
  float* states = static_cast<float*>(scratch);
  start_states(task, tile, states);
  for (int block = tile.first_block; block < tile.end_block; block++, partials += queries * stride) {
    each_row_block(queries, 8, [&](int first, int count) {
      fold_states(states + first * stride, partials + first * stride, count, n);
    });
  }
  finish_states(task, tile, states);
}

MLXCEL_INLINE AttentionKernels attention_kernels() { return {append, attend, attend_blocks, fold}; }

}  // namespace mlxcel::MLXCEL_ISA
