#include "sdpa.h"

#include <algorithm>

#include "attention.h"
#include "pool.h"

namespace mlxcel {

namespace {

// They share what it costs to bring a block of keys and values into the form of the products.
constexpr int kTileQueries = 64;
constexpr int kUnitsPerThread = 4;  // how finely work that comes in few tiles is cut

size_t state_floats(const SdpaTask& task) { return softmax_state(task.padded_value_dim()); }

}  // namespace

int sdpa_tile_queries(const SdpaTask& task) {
  return std::clamp(kTileQueries / task.group(), 1, std::max(task.queries, 1));
}

size_t sdpa_scratch_bytes(const SdpaTask& task) {
  constexpr size_t kRowBlock = 8;  // most rows that a kernel takes at once
  const size_t rows = static_cast<size_t>(sdpa_tile_queries(task)) * task.group();
  const size_t dim = (task.head_dim + 15) / 16 * 16;
  const size_t floats = rows * (dim + state_floats(task) + sdpa_block) +             // queries, states, masks
                        sdpa_block * (dim + task.padded_value_dim()) +               // keys, values
                        kRowBlock * (state_floats(task) + 2 * sdpa_block) + 256;     // one block's results
  return floats * sizeof(float) + (rows + 63) / 64 * 64;
}

SdpaPlan::SdpaPlan(const SdpaTask& task, int threads) {
  if (task.batch <= 0 || task.heads <= 0 || task.queries <= 0) return;
  add_tiles(task);
  cut_tiles(task, threads);
}

void SdpaPlan::add_tiles(const SdpaTask& task) {
  const int step = sdpa_tile_queries(task);
  for (int first = 0; first < task.queries; first += step) {
    const int count = std::min(step, task.queries - first);
    const int position = first + task.keys - task.queries, last = position + count - 1;
    int first_key = 0, end_key = task.keys;
    if (task.causal) end_key = std::clamp(last + 1, 0, end_key);
    if (task.window) {
      first_key = std::max(0, position - task.window + 1);
      end_key = static_cast<int>(std::min<int64_t>(end_key, std::max<int64_t>(0, int64_t{last} + task.window)));
    }
    const int end_block = (end_key + sdpa_block - 1) / sdpa_block;
    const int first_block = std::min(first_key / sdpa_block, end_block);
    for (int b = 0; b < task.batch; b++) {
      for (int head = 0; head < task.kv_heads; head++) {
        tiles_.push_back({{b, head, first, count, first_block, end_block}, 1, 0});
      }
    }
  }
}

// One unit a tile, the longest first; several if the tile is more than a fair share for a thread.
void SdpaPlan::cut_tiles(const SdpaTask& task, int threads) {
  const auto cost = [](const Tile& t) {
    return static_cast<double>(t.tile.end_block - t.tile.first_block) * t.tile.count;
  };
  std::stable_sort(tiles_.begin(), tiles_.end(), [&](const Tile& a, const Tile& b) { return cost(a) > cost(b); });
  double total = 0.0;
  for (const Tile& tile : tiles_) total += cost(tile);
  const double share = total / (threads * kUnitsPerThread);
  size_t partials = 0;
  for (int t = 0; t < static_cast<int>(tiles_.size()); t++) {
    Tile& tile = tiles_[t];
    const int first_block = tile.tile.first_block, end_block = tile.tile.end_block, blocks = end_block - first_block;
    const bool whole = threads == 1 || blocks < 2;
    const int wanted = whole ? 1 : std::clamp(static_cast<int>(cost(tile) / share + 0.5), 1, blocks);
    const int length = std::max((blocks + wanted - 1) / wanted, 1);
    tile.pieces = std::max((blocks + length - 1) / length, 1);
    for (int i = 0; i < tile.pieces; i++) {
      const int first = first_block + i * length;
      units_.push_back({t, first, std::min(first + length, end_block)});
    }
    tile.partials = partials;
    if (tile.pieces > 1) partials += static_cast<size_t>(blocks) * tile.tile.count * task.group() * state_floats(task);
  }
  partials_ = std::make_unique_for_overwrite<float[]>(partials);
  unfinished_ = std::make_unique<std::atomic<int>[]>(tiles_.size());
  for (size_t t = 0; t < tiles_.size(); t++) unfinished_[t].store(tiles_[t].pieces, std::memory_order_relaxed);
}

void sdpa(Worker& worker, const SdpaKernels& kernels, const SdpaTask& task, SdpaPlan& plan) {
  worker.each(static_cast<int>(plan.units_.size()), [&](int i) {
    const SdpaPlan::Unit& unit = plan.units_[i];
    const SdpaPlan::Tile& planned = plan.tiles_[unit.tile];
    const SdpaTile& tile = planned.tile;
    void* scratch = worker.scratch(sdpa_scratch_bytes(task));
    if (planned.pieces == 1) return kernels.attend(task, tile, scratch);
    float* partials = plan.partials_.get() + planned.partials;
    const size_t block_floats = static_cast<size_t>(tile.count) * task.group() * state_floats(task);
    kernels.attend_blocks(task, tile, unit.first_block, unit.end_block,
                          partials + (unit.first_block - tile.first_block) * block_floats, scratch);
    // Whoever finishes a tile folds it, always in the order of its blocks.
    std::atomic<int>& unfinished = plan.unfinished_[unit.tile];
    if (unfinished.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    kernels.fold(task, tile, partials, scratch);
    unfinished.store(planned.pieces, std::memory_order_relaxed);
  });
}

void sdpa(Pool& pool, const SdpaKernels& kernels, const SdpaTask& task) {
  SdpaPlan plan(task, pool.threads());
  pool.run([&](Worker& worker) { sdpa(worker, kernels, task, plan); });
}

}  // namespace mlxcel
