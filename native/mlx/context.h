// What all nodes of a model share: threads, the instruction set's kernels, the precision of quantised products.
#pragma once

#include <memory>
#include <vector>

#include "../src/dispatch.h"
#include "../src/gemm.h"
#include "../src/pool.h"
#include "../src/rows.h"

namespace mlxcel::graph {

// The tables of rotary embeddings that have been asked for: a model uses one or two.
class RopeTables {
 public:
  // Arguments as of mlx.fast.rope; `periods` (its freqs) instead of a base. The table reaches position `last` at least.
  const RopeTable& get(int dims, double base, double scale, std::vector<float> periods, int last);

 private:
  struct Entry {
    int dims;
    double base, scale;
    std::vector<float> periods;
    std::unique_ptr<RopeTable> table;
  };
  std::vector<Entry> entries_;
};

// Nodes of one context run one after the other, on MLX's thread of the CPU's stream.
struct Context {
  Context(int threads, Precision precision) : pool(threads), alone(1), precision(precision) {}

  Pool pool;
  Pool alone;  // for work that is done before another thread has woken up
  Arena arena;
  RopeTables ropes;
  const Kernels& kernels = mlxcel::kernels();
  const Precision precision;

  // `operations`: multiplications, or anything that takes about as long.
  Pool& pool_for(size_t operations) { return operations < kWorthSharing ? alone : pool; }

 private:
  static constexpr size_t kWorthSharing = 1 << 16;
};

using ContextPtr = std::shared_ptr<Context>;

}  // namespace mlxcel::graph
