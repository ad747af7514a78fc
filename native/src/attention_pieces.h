// How attention is cut into units: tiles of queries, and long ones further, by their blocks of keys.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "pool.h"

namespace mlxcel {

// Tile: what a kernel takes, with members first_block and end_block. One run at a time uses a plan: it holds memory for
// the partial results of tiles that are cut.
template <class Tile>
class AttentionPieces {
 public:
  void clear() {
    tiles_.clear();
    units_.clear();
  }

  // rows: in the tile. state_floats: of the partial results after one block.
  void add(const Tile& tile, int rows, size_t state_floats) { tiles_.push_back({tile, rows, 1, state_floats, 0}); }

  // One unit a tile, the longest first; several if the tile is more than a fair share for a thread.
  void cut(int threads) {
    constexpr int kUnitsPerThread = 4;
    const auto cost = [](const Planned& t) {
      return static_cast<double>(t.tile.end_block - t.tile.first_block) * t.rows;
    };
    std::stable_sort(tiles_.begin(), tiles_.end(),
                     [&](const Planned& a, const Planned& b) { return cost(a) > cost(b); });
    double total = 0.0;
    for (const Planned& tile : tiles_) total += cost(tile);
    const double share = total / (threads * kUnitsPerThread);
    size_t partials = 0;
    for (int t = 0; t < static_cast<int>(tiles_.size()); t++) {
      Planned& planned = tiles_[t];
      const int start = planned.tile.first_block, blocks = planned.tile.end_block - start;
      const bool whole = threads == 1 || blocks < 2;
      const int wanted = whole ? 1 : std::clamp(static_cast<int>(cost(planned) / share + 0.5), 1, blocks);
      const int length = std::max((blocks + wanted - 1) / wanted, 1);
      planned.pieces = std::max((blocks + length - 1) / length, 1);
      for (int i = 0; i < planned.pieces; i++) {
        units_.push_back({t, start + i * length, std::min(start + (i + 1) * length, planned.tile.end_block)});
      }
      planned.partials = partials;
      if (planned.pieces > 1) partials += static_cast<size_t>(blocks) * planned.state_floats;
    }
    if (partials_size_ < partials) {
      partials_ = std::make_unique_for_overwrite<float[]>(partials);
      partials_size_ = partials;
    }
    if (unfinished_size_ < tiles_.size()) {
      unfinished_ = std::make_unique<std::atomic<int>[]>(tiles_.size());
      unfinished_size_ = tiles_.size();
    }
    for (size_t t = 0; t < tiles_.size(); t++) unfinished_[t].store(tiles_[t].pieces, std::memory_order_relaxed);
  }

  // One phase. `kernels` has attend, attend_blocks and fold; `begin(tile, end_block)` runs before each unit.
  template <class Kernels, class Task, class Begin>
  void run(Worker& worker, const Kernels& kernels, const Task& task, size_t scratch_bytes, Begin&& begin) {
    worker.each(static_cast<int>(units_.size()), [&](int i) {
      const Unit& unit = units_[i];
      const Planned& planned = tiles_[unit.tile];
      const Tile& tile = planned.tile;
      void* scratch = worker.scratch(scratch_bytes);
      begin(tile, unit.end_block);
      if (planned.pieces == 1) return kernels.attend(task, tile, scratch);
      float* partials = partials_.get() + planned.partials;
      kernels.attend_blocks(task, tile, unit.first_block, unit.end_block,
                            partials + (unit.first_block - tile.first_block) * planned.state_floats, scratch);
      // Whoever finishes a tile folds it, always in the order of its blocks.
      std::atomic<int>& unfinished = unfinished_[unit.tile];
      if (unfinished.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
      kernels.fold(task, tile, partials, scratch);
      unfinished.store(planned.pieces, std::memory_order_relaxed);
    });
  }

 private:
  struct Planned {
    Tile tile;
    int rows;
    int pieces;  // 1: one unit attends to all blocks
    size_t state_floats;
    size_t partials;  // offset of the tile's partial states
  };
  struct Unit {
    int tile, first_block, end_block;
  };

  std::vector<Planned> tiles_;
  std::vector<Unit> units_;
  std::unique_ptr<float[]> partials_;
  size_t partials_size_ = 0;
  std::unique_ptr<std::atomic<int>[]> unfinished_;  // pieces, for each tile
  size_t unfinished_size_ = 0;
};

}  // namespace mlxcel
