// A decoder of the common shape (Llama, Mistral, Qwen 2 and 3, SmolLM), run one step at a time without a graph.
//
// A step takes some new tokens of several sequences: one token each when decoding, a piece of a prompt when
// prefilling, or any mix. All layers run in one region of the pool; each layer is five products and an attention, and
// norms, biases, gates and residuals ride along with them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "attention.h"
#include "dispatch.h"
#include "gemm.h"
#include "kv.h"
#include "pool.h"
#include "rows.h"

namespace mlxcel {

struct DecoderConfig {
  int hidden, feed_forward, vocabulary, layers;
  float norm_eps;
  AttentionConfig attention;  // without pointers: those come with the layers
  Precision precision = Precision::Default;
};

struct DecoderLayer {
  PackedWeights qkv;      // queries, keys, values, one below the other
  PackedWeights output;
  PackedWeights gate_up;  // interleaved by tiles
  PackedWeights down;
  std::vector<float> input_norm, output_norm;  // before attention, before the feed-forward part
  std::vector<float> qkv_bias;                 // empty: none
  std::vector<float> q_norm, k_norm;           // of each head; empty: none
};

class Decoder {
 public:
  // kv_budget: bytes the KV cache may take; memory is taken as sequences grow.
  Decoder(const DecoderConfig& config, RopeTable rope, int threads, size_t kv_budget);

  // Pack weights on all threads.
  template <class Matrix>
  PackedWeights pack(std::span<const Matrix> matrices, Arrangement arrangement) {
    constexpr int kTilesAtOnce = 16;
    PackedWeights packed(matrices, arrangement, arena_);
    pool_.run([&](Worker& worker) {
      worker.each((packed.tiles() + kTilesAtOnce - 1) / kTilesAtOnce, [&](int i) {
        packed.fill(matrices, i * kTilesAtOnce, std::min((i + 1) * kTilesAtOnce, packed.tiles()));
      });
    });
    return packed;
  }

  const DecoderConfig& config() const { return config_; }
  int threads() const { return pool_.threads(); }
  KvPool& cache() { return cache_; }

  // Weights, before the first step. No head: the embedding's weights are the output head's too.
  void set_embedding(PackedWeights embedding) { embedding_ = std::move(embedding); }
  void set_head(PackedWeights head) { head_ = std::move(head); }
  void set_final_norm(std::vector<float> weights) { final_norm_ = std::move(weights); }
  void add_layer(DecoderLayer layer) { layers_.push_back(std::move(layer)); }
  size_t weight_bytes() const;

  // Sequences. `open` gives a number that `close` takes back.
  int open();
  void close(int sequence);
  int length(int sequence) const { return sequences_[sequence].length; }

  struct Piece {
    int sequence, count;  // the next `count` tokens belong to it
  };
  // One step. tokens: those of all pieces, in order. logits: [pieces][vocabulary] for the last token of each piece;
  // nullptr: only the caches are wanted. Throws std::bad_alloc when the cache's budget does not hold the tokens (then
  // no sequence has changed), std::out_of_range for a token outside the vocabulary.
  void step(std::span<const int32_t> tokens, std::span<const Piece> pieces, float* logits);

 private:
  struct Sequence {
    std::vector<int32_t> blocks;
    int length = 0;
    bool open = false;
  };
  // Memory of a step, for as many rows as the largest one had.
  struct Workspace {
    std::vector<float> hidden, qkv, attended;
    std::unique_ptr<std::byte[]> activations, gated;
    size_t activations_bytes = 0, gated_bytes = 0;
  };

  void reserve_cache(std::span<const Piece> pieces);
  void reserve_workspace(int rows);
  void run_layer(Worker& worker, const DecoderLayer& layer, int index, int rows);
  void run_head(Worker& worker, std::span<const int> last_rows, float* logits);
  const PackedWeights& head() const { return head_ ? *head_ : embedding_; }

  // The rows of x, normalised if `norm` is given, in the form `weights` reads them. Few rows are prepared by every
  // thread for itself, which is cheaper than waiting for one; many are shared out.
  template <class RowOf>
  Activations prepare(Worker& worker, const PackedWeights& weights, int rows, RowOf&& row_of, const float* norm);
  Activations activations_in(std::byte* memory, const PackedWeights& weights, int rows) const;

  DecoderConfig config_;
  RopeTable rope_;
  const Kernels& kernels_;
  Pool pool_;
  KvPool cache_;
  Arena arena_;
  PackedWeights embedding_;
  std::optional<PackedWeights> head_;
  std::vector<float> final_norm_;
  std::vector<DecoderLayer> layers_;
  std::vector<Sequence> sequences_;
  std::vector<Segment> segments_;
  AttentionPlan plan_;
  Workspace space_;
};

}  // namespace mlxcel
