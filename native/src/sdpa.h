// Scaled dot product attention over plain arrays, for models that keep their keys and values in any memory.
//
// As in attention.h a row's result is defined block by block, 64 keys each, folded in the order of the blocks. So the
// bits of a row depend on its query, keys, values and mask alone: not on how many queries there are, on other rows,
// or on threads. A block in which a query sees no key does not exist for it, and is not computed if that holds for
// all queries of a tile: padding and windows cost nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention_pieces.h"
#include "gemm.h"

namespace mlxcel {

constexpr int sdpa_block = 64;  // keys

// [batch, heads, time, dim] with these strides, in elements; the last dimension is contiguous.
struct SdpaArray {
  const void* data;
  Scalar type = Scalar::Float32;
  ptrdiff_t batch, head, time;
};

// [batch, heads, queries, keys] with these strides, in elements; 0 broadcasts.
struct SdpaMask {
  enum class Kind : uint8_t { None, Boolean, Additive };
  Kind kind = Kind::None;
  const void* data = nullptr;  // Boolean: bytes, 0 hides a key
  Scalar type = Scalar::Float32;  // of an additive mask, where -inf hides a key
  ptrdiff_t batch = 0, head = 0, query = 0, key = 0;
};

// out = softmax(scale * q k^T + mask) v. Query i stands at key i + keys - queries (the last one at the last key).
// A query that sees no key at all gets zeros. (MLX gives the mean of all values for a boolean mask, NaN for an additive
// one.) What a query does not see has no influence, NaN included.
struct SdpaTask {
  int batch, heads, kv_heads;  // heads a multiple of kv_heads
  int queries, keys;
  int head_dim, value_dim;  // of queries and keys, of values and results: at least 1
  float scale;
  bool causal = false;            // a query sees keys up to where it stands
  int window = 0;                 // and those less than so many positions away; 0: all
  float softcap = 0.0f;           // scores become softcap * tanh(score / softcap) before the mask; 0: they stay
  const float* sinks = nullptr;   // one score a head that takes part in the softmax and has no value
  SdpaArray q, k, v;
  SdpaArray out;  // written
  SdpaMask mask;

  int group() const { return heads / kv_heads; }
  int padded_value_dim() const { return (value_dim + 15) / 16 * 16; }
};

// Some queries of one batch row, for all heads of one KV head.
struct SdpaTile {
  int batch, kv_head;
  int first, count;  // queries
  int first_block, end_block;
};

struct SdpaKernels {
  // The tile against all its blocks, into `out`.
  void (*attend)(const SdpaTask& task, const SdpaTile& tile, void* scratch);
  // The states after each of the blocks [first, end) alone: partials[block - first][query][softmax_state].
  void (*attend_blocks)(const SdpaTask& task, const SdpaTile& tile, int first, int end, float* partials, void* scratch);
  // The rest, given the partial states of all blocks of the tile.
  void (*fold)(const SdpaTask& task, const SdpaTile& tile, const float* partials, void* scratch);
};
size_t sdpa_scratch_bytes(const SdpaTask& task);
int sdpa_tile_queries(const SdpaTask& task);  // most queries of a tile

// How the work of a task is cut into units. For one run at a time.
class SdpaPlan {
 public:
  SdpaPlan(const SdpaTask& task, int threads);

 private:
  friend void sdpa(Worker&, const SdpaKernels&, const SdpaTask&, SdpaPlan&);
  AttentionPieces<SdpaTile> pieces_;
};

// One phase of a region; no barrier at the end.
void sdpa(Worker& worker, const SdpaKernels& kernels, const SdpaTask& task, SdpaPlan& plan);

// A region of its own.
void sdpa(Pool& pool, const SdpaKernels& kernels, const SdpaTask& task);

}  // namespace mlxcel
