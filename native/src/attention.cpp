#include "attention.h"

#include <algorithm>

#include "pool.h"

namespace mlxcel {

namespace {

// Queries of a tile, about: they share the loads of a block, and stay in the nearest cache beside it.
constexpr int kTileQueries = 36;
constexpr int kUnitsPerThread = 4;  // how finely work that comes in few tiles is cut

int tile_rows(const AttentionConfig& config) { return std::max(kTileQueries / config.group(), 1); }

}  // namespace

size_t attention_scratch_bytes(const AttentionConfig& config) {
  constexpr size_t kRowBlock = 8;  // most queries that a kernel takes at once
  const size_t queries = tile_rows(config) * config.group();
  const size_t state = softmax_state(config.head_dim);
  return (queries * (config.head_dim + state) + kRowBlock * state) * sizeof(float);
}

void AttentionPlan::make(const AttentionConfig& config, std::span<const Segment> segments, int threads) {
  segments_.assign(segments.begin(), segments.end());
  appends_.clear();
  tiles_.clear();
  units_.clear();
  for (int s = 0; s < static_cast<int>(segments_.size()); s++) {
    const Segment& segment = segments_[s];
    add_tiles(config, segment);
    if (segment.count == 1) continue;  // the unit that attends to the last block appends first
    for (int first = 0; first < segment.count;) {
      // Up to a multiple of append_rows: a pair of positions is one unit's.
      const int to_boundary = append_rows - (segment.position + first) % append_rows;
      const int end = std::min(first + to_boundary, segment.count);
      appends_.push_back({s, first, end});
      first = end;
    }
  }
  cut_tiles(config, threads);
}

void AttentionPlan::add_tiles(const AttentionConfig& config, const Segment& segment) {
  const int step = tile_rows(config);
  for (int first = 0; first < segment.count; first += step) {
    const int rows = std::min(step, segment.count - first);
    const int position = segment.position + first;
    const int first_key = config.window ? std::max(0, position - config.window + 1) : 0;
    const int end_block = (position + rows - 1) / kv_block + 1;
    for (int head = 0; head < config.kv_heads; head++) {
      tiles_.push_back({{segment, first, rows, head, first_key / kv_block, end_block}, 1, 0});
    }
  }
}

// One unit a tile, the longest first; several if the tile is more than a fair share for a thread.
void AttentionPlan::cut_tiles(const AttentionConfig& config, int threads) {
  const auto cost = [](const Tile& t) {
    return static_cast<double>(t.tile.end_block - t.tile.first_block) * t.tile.rows;
  };
  std::stable_sort(tiles_.begin(), tiles_.end(), [&](const Tile& a, const Tile& b) { return cost(a) > cost(b); });
  double total = 0.0;
  for (const Tile& tile : tiles_) total += cost(tile);
  const double share = total / (threads * kUnitsPerThread);
  size_t partials = 0;
  for (int t = 0; t < static_cast<int>(tiles_.size()); t++) {
    Tile& tile = tiles_[t];
    const int blocks = tile.tile.end_block - tile.tile.first_block;
    const int wanted = threads == 1 ? 1 : std::max(1, static_cast<int>(cost(tile) / share + 0.5));
    const int length = (blocks + wanted - 1) / wanted;
    tile.pieces = (blocks + length - 1) / length;
    for (int first = tile.tile.first_block; first < tile.tile.end_block; first += length) {
      units_.push_back({t, first, std::min(first + length, tile.tile.end_block)});
    }
    tile.partials = partials;
    if (tile.pieces > 1) {
      partials += static_cast<size_t>(blocks) * tile.tile.rows * config.group() * softmax_state(config.head_dim);
    }
  }
  if (partials_.size() < partials) partials_.resize(partials);
  if (unfinished_size_ < tiles_.size()) {
    unfinished_size_ = tiles_.size();
    unfinished_ = std::make_unique<std::atomic<int>[]>(unfinished_size_);
  }
  for (size_t t = 0; t < tiles_.size(); t++) unfinished_[t].store(tiles_[t].pieces, std::memory_order_relaxed);
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
  worker.each(static_cast<int>(plan.units_.size()), [&](int i) {
    const AttentionPlan::Unit& unit = plan.units_[i];
    const AttentionPlan::Tile& planned = plan.tiles_[unit.tile];
    const AttentionTile& tile = planned.tile;
    void* scratch = worker.scratch(attention_scratch_bytes(config));
    if (tile.segment.count == 1 && unit.end_block == tile.end_block) {
      kernels.append(task, tile.segment, 0, 1, tile.kv_head);
    }
    if (planned.pieces == 1) return kernels.attend(task, tile, scratch);
    float* partials = plan.partials_.data() + planned.partials;
    const size_t block_floats = static_cast<size_t>(tile.rows) * config.group() * softmax_state(config.head_dim);
    kernels.attend_blocks(task, tile, unit.first_block, unit.end_block,
                          partials + (unit.first_block - tile.first_block) * block_floats, scratch);
    // Whoever finishes a tile folds it, always in the order of its blocks.
    std::atomic<int>& unfinished = plan.unfinished_[unit.tile];
    if (unfinished.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    kernels.fold(task, tile, partials, scratch);
    unfinished.store(planned.pieces, std::memory_order_relaxed);
  });
}

}  // namespace mlxcel
