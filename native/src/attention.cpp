#include "attention.h"

#include <algorithm>

#include "pool.h"

namespace mlxcel {

namespace {

// Queries of a tile, about: they share the loads of a block, and stay in the nearest cache beside it.
constexpr int kTileQueries = 48;

int tile_rows(const AttentionConfig& config) { return std::max(kTileQueries / config.group(), 1); }

}  // namespace

size_t attention_scratch_bytes(const AttentionConfig& config) {
  constexpr size_t kRowBlock = 16;  // most queries that a kernel takes at once
  const size_t queries = tile_rows(config) * config.group();
  const size_t state = softmax_state(config.head_dim);
  return (queries * (config.head_dim + state) + kRowBlock * state) * sizeof(float);
}

void AttentionPlan::make(const AttentionConfig& config, std::span<const Segment> segments, int threads,
                         bool only_last) {
  segments_.assign(segments.begin(), segments.end());
  appends_.clear();
  pieces_.clear();
  for (int s = 0; s < static_cast<int>(segments_.size()); s++) {
    const Segment& segment = segments_[s];
    add_tiles(config, segment, only_last ? segment.count - 1 : 0);
    if (segment.count == 1) continue;  // the unit that attends to the last block appends first
    for (int first = 0; first < segment.count;) {
      // Up to a multiple of append_rows: a pair of positions is one unit's.
      const int to_boundary = append_rows - (segment.position + first) % append_rows;
      const int end = std::min(first + to_boundary, segment.count);
      appends_.push_back({s, first, end});
      first = end;
    }
  }
  pieces_.cut(threads);
}

void AttentionPlan::add_tiles(const AttentionConfig& config, const Segment& segment, int first) {
  const int step = tile_rows(config);
  for (; first < segment.count; first += step) {
    const int rows = std::min(step, segment.count - first);
    const int position = segment.position + first;
    const int first_key = config.window ? std::max(0, position - config.window + 1) : 0;
    const int end_block = (position + rows - 1) / kv_block + 1;
    for (int head = 0; head < config.kv_heads; head++) {
      const AttentionTile tile{segment, first, rows, head, first_key / kv_block, end_block};
      pieces_.add(tile, rows, static_cast<size_t>(rows) * config.group() * softmax_state(config.head_dim));
    }
  }
}

void append_and_attend(Worker& worker, const AttentionKernels& kernels, const KvPool& cache, int layer,
                       const AttentionConfig& config, AttentionPlan& plan, const float* qkv, float* out) {
  const RopeTable* rope = config.rope;
  const float* table = rope ? rope->data() : nullptr;
  const AttentionTask task{&config, cache.layer(layer), table, rope ? rope->dims() : 0, qkv, out};
  const int heads = config.kv_heads;
  if (!plan.appends_.empty()) {
    worker.each(static_cast<int>(plan.appends_.size()) * heads, [&](int i) {
      const AttentionPlan::Append& rows = plan.appends_[i / heads];
      kernels.append(task, plan.segments_[rows.segment], rows.first, rows.end, i % heads);
    });
    worker.barrier();
  }
  plan.pieces_.run(worker, kernels, task, attention_scratch_bytes(config), [&](const AttentionTile& tile, int end_block) {
    if (tile.segment.count == 1 && end_block == tile.end_block) {
      kernels.append(task, tile.segment, 0, 1, tile.kv_head);
    }
  });
}

}  // namespace mlxcel
