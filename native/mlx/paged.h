// A paged KV cache for models that run as MLX graphs: each attention layer is one node that writes its new keys and
// values into the cache and attends to all of them. Rows of a batch may have any lengths; nothing is padded.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "../src/kv.h"
#include "../src/sequences.h"
#include "context.h"
#include "op.h"

namespace mlxcel::graph {

// One step at a time: `begin`, build and evaluate the model's graph, `commit`. A node writes where `begin` said when it
// is evaluated, so a graph that was built must be evaluated, or never be: without `commit` the step can be begun again.
class PagedCache : public std::enable_shared_from_this<PagedCache> {
 public:
  // layers: KV heads and head size of each. Throws std::invalid_argument for sizes the kernels cannot handle.
  PagedCache(ContextPtr context, const std::vector<std::pair<int, int>>& layers, size_t budget);

  Sequences& sequences() { return sequences_; }
  const KvPool& cache() const { return pool_; }

  // The next step appends `count` tokens to each of `rows`. Throws std::bad_alloc when the budget does not hold them.
  void begin(const std::vector<int>& rows, int count);
  void commit();

  // queries [rows, heads, count, head_dim], keys and values [rows, kv_heads, count, head_dim] -> as queries, float32.
  // window: keys that a token sees, its own included; 0: all. sinks [heads].
  mx::array attend(int layer, const mx::array& queries, const mx::array& keys, const mx::array& values, float scale,
                   int window, const std::optional<mx::array>& sinks);

 private:
  // What the nodes of one step share.
  struct Step {
    std::vector<Sequences::Piece> pieces;
    std::vector<std::vector<int32_t>> blocks;  // the segments' own copies: they outlive the step
    std::vector<Segment> segments;
    struct Plan {
      int heads, head_dim, window;
      AttentionPlan plan;
    };
    std::vector<std::unique_ptr<Plan>> plans;

    AttentionPlan& plan(const AttentionConfig& config, int threads);
  };

  ContextPtr context_;
  KvPool pool_;
  Sequences sequences_;
  std::shared_ptr<Step> step_;
};

}  // namespace mlxcel::graph
