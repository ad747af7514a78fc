// A decoder of the common kind (decoder_model.h), run one step at a time without a graph, with its KV cache.
//
// A step takes some new tokens of several sequences: one token each when decoding, a piece of a prompt when
// prefilling, or any mix. All layers run in one region of the pool; each layer is four products and an attention, and
// norms, biases, activations and residuals ride along with them.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "decoder_model.h"
#include "decoder_step.h"
#include "dispatch.h"
#include "kv.h"
#include "pool.h"
#include "profile.h"
#include "sequences.h"

namespace mlxcel {

class Decoder {
 public:
  // kv_budget: bytes the KV cache may take; memory is taken as sequences grow.
  Decoder(const DecoderShape& shape, Precision precision, std::vector<RopeTable> ropes, int threads, size_t kv_budget);

  // The weights, to be completed before the first step.
  DecoderModel& model() { return model_; }
  const DecoderModel& model() const { return model_; }

  // Pack weights on all threads.
  template <class Matrix>
  PackedWeights pack(std::span<const Matrix> matrices, Arrangement arrangement) {
    return pack_on(pool_, matrices, arrangement, arena_);
  }

  int threads() const { return pool_.threads(); }
  // For other work between two steps: its threads are still awake then.
  Pool& pool() { return pool_; }
  KvPool& cache() { return cache_; }

  Sequences& sequences() { return sequences_; }

  // For callers that let several threads in: whether one is in a step.
  std::atomic<bool> stepping = false;

  using Piece = Sequences::Piece;
  // One step. tokens: those of all pieces, in order. logits: [pieces][vocabulary] for the last token of each piece;
  // nullptr: only the caches are wanted. Throws std::bad_alloc when the cache's budget does not hold the tokens (then
  // no sequence has changed), std::out_of_range for a token outside the vocabulary or a sequence that is not open, std::logic_error when layers are
  // missing.
  void step(std::span<const int32_t> tokens, std::span<const Piece> pieces, float* logits);

  // Measure where steps spend their time, from nothing on; or stop.
  void measure(bool on);
  // What was measured since; nothing if it was switched off.
  const std::optional<Profile>& profile() const { return profile_; }

 private:
  struct LayerPlan {
    int window;
    bool only_last;
    AttentionPlan attention;
  };

  void check(std::span<const int32_t> tokens) const;
  void plan_attention(std::span<const Segment> segments);

  DecoderModel model_;
  const Kernels& kernels_;
  Pool pool_;
  KvPool cache_;
  Arena arena_;
  Sequences sequences_;
  std::vector<LayerPlan> plans_;
  std::vector<AttentionPlan*> layer_plans_;
  Workspace space_;
  std::optional<Profile> profile_;
};

}  // namespace mlxcel
