// Attention of new tokens to all tokens before them, over a paged KV cache.
//
// A row's result is defined block by block: for each block of 64 keys the maximum, sum and weighted values of its own
// softmax, folded in the order of the blocks. Whatever shares out the work (rows in a tile, pieces of a long context,
// chunks of a prompt, threads), the arithmetic of a row is this, so its bits are the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "attention_pieces.h"
#include "kv.h"
#include "rows.h"

namespace mlxcel {

struct AttentionConfig {
  int heads, kv_heads, head_dim;  // heads a multiple of kv_heads; head_dim a multiple of 16, 32 to 256
  float scale;                    // of the products of queries and keys
  int window = 0;                 // keys a row sees, its own included; 0: all
  float softcap = 0.0f;           // scores become softcap * tanh(score / softcap); 0: they stay
  const float* sinks = nullptr;   // one score a head that takes part in the softmax and has no value
  const float* q_norm = nullptr;  // RMS norm of each query, each key: head_dim weights
  const float* k_norm = nullptr;
  float norm_eps = 1e-6f, norm_offset = 0.0f;  // the weights plus norm_offset
  const RopeTable* rope = nullptr;             // turns the first rope->dims() elements of queries and keys
  RopeStyle rope_style = RopeStyle::Halves;
  // Queries and probabilities in bfloat16 where the machine multiplies that faster, else in float32. Keys and values
  // are bfloat16 in any case, sums float32.
  bool bfloat16 = false;

  int group() const { return heads / kv_heads; }
  int row_elements() const { return (heads + 2 * kv_heads) * head_dim; }
};

// `count` new tokens of one sequence at positions `position` on. Their rows in the batch start at `row`; `blocks` is
// the sequence's block table, with a block of its own wherever the new tokens go. Blocks that lie wholly before the
// window of the first token are not looked at. A sequence that has forgotten tokens has no blocks for them, and
// positions count what it has; ropes turn by the place in the text, `forgotten` further on.
struct Segment {
  const int32_t* blocks;
  int position, count, row;
  int forgotten = 0;
};

// --- what the kernels of one instruction set do

constexpr int append_rows = 16;  // most rows `append` takes, all in one block

// One layer, one batch: plain data.
struct AttentionTask {
  const AttentionConfig* config;
  KvLayer cache;
  const float* rope;  // the rows of the table
  int rope_dims;      // 0: no rope
  const float* qkv;   // [rows][row_elements()]: queries, keys, values
  float* out;         // [rows][heads * head_dim]
};

// Some rows of a segment, all heads of one KV head: the queries that share loads of keys and values.
struct AttentionTile {
  Segment segment;
  int first_row, rows;  // in the segment
  int kv_head;
  int first_block, end_block;
};

// The state of a query after some keys: head_dim weighted values, then the maximum score and the sum of weights.
constexpr int softmax_state(int head_dim) { return head_dim + 16; }  // floats, a multiple of 16

struct AttentionKernels {
  // Write the keys and values of rows [first, end) of a segment into its block.
  void (*append)(const AttentionTask& task, const Segment& segment, int first, int end, int kv_head);
  // The tile's queries against all its blocks, into `out`.
  void (*attend)(const AttentionTask& task, const AttentionTile& tile, void* scratch);
  // The same for blocks [first, end) of the tile only, without folding: partials[block - first][query] are the
  // states after each block alone. `fold` then does the rest, given those of all blocks of the tile.
  void (*attend_blocks)(const AttentionTask& task, const AttentionTile& tile, int first, int end, float* partials,
                        void* scratch);
  void (*fold)(const AttentionTask& task, const AttentionTile& tile, const float* partials, void* scratch);
};
size_t attention_scratch_bytes(const AttentionConfig& config);

// --- the work of one batch

// How attention to one batch is cut into units. Made before a region, for all layers that have the same heads,
// head_dim and window; holds memory for intermediate results, so one layer at a time uses it.
class AttentionPlan {
 public:
  // only_last: all rows are appended, but only the last one of each segment attends.
  void make(const AttentionConfig& config, std::span<const Segment> segments, int threads, bool only_last = false);

 private:
  friend void append_and_attend(Worker&, const AttentionKernels&, const KvPool&, int, const AttentionConfig&,
                                AttentionPlan&, const float*, float*);
  struct Append {
    int segment, first, end;  // rows
  };
  void add_tiles(const AttentionConfig& config, const Segment& segment, int first);

  std::vector<Segment> segments_;
  std::vector<Append> appends_;
  AttentionPieces<AttentionTile> pieces_;
};

// Normalise and turn queries and keys, write keys and values of layer `layer` into the cache, attend. The rope table
// must reach the last position. Several phases of a region; no barrier at the end.
void append_and_attend(Worker& worker, const AttentionKernels& kernels, const KvPool& cache, int layer,
                       const AttentionConfig& config, AttentionPlan& plan, const float* qkv, float* out);

}  // namespace mlxcel
