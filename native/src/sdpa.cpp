#include "sdpa.h"

#include <algorithm>

#include "attention.h"
#include "pool.h"

namespace mlxcel {

namespace {

// They share what it costs to bring a block of keys and values into the form of the products.
constexpr int kTileQueries = 64;

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
        const size_t queries = static_cast<size_t>(count) * task.group();
        pieces_.add({b, head, first, count, first_block, end_block}, count, queries * state_floats(task));
      }
    }
  }
  pieces_.cut(threads);
}

void sdpa(Worker& worker, const SdpaKernels& kernels, const SdpaTask& task, SdpaPlan& plan) {
  plan.pieces_.run(worker, kernels, task, sdpa_scratch_bytes(task), [](const SdpaTile&, int) {});
}

void sdpa(Pool& pool, const SdpaKernels& kernels, const SdpaTask& task) {
  SdpaPlan plan(task, pool.threads());
  pool.run([&](Worker& worker) { sdpa(worker, kernels, task, plan); });
}

}  // namespace mlxcel
