#include "decoder.h"

#include <stdexcept>
#include <thread>
#include <utility>

namespace mlxcel {

namespace {

std::vector<KvShape> kv_shapes(const DecoderShape& shape) {
  return std::vector<KvShape>(shape.layers, KvShape{shape.kv_heads, shape.head_dim});
}

}  // namespace

Decoder::Decoder(const DecoderShape& shape, Precision precision, std::vector<RopeTable> ropes, int threads,
                 size_t kv_budget)
    : model_(shape, precision, std::move(ropes)),
      kernels_(kernels()),
      pool_(threads),
      cache_(kv_shapes(shape), kv_budget),
      sequences_(cache_) {}

void Decoder::measure(bool on) {
  profile_.reset();
  if (on) profile_.emplace();
}

void Decoder::step(std::span<const int32_t> tokens, std::span<const Piece> pieces, float* logits) {
  StepClock clock(profile_ ? &*profile_ : nullptr);
  check(tokens);
  // Layers with a window keep all blocks too: a block is one piece of memory for all layers.
  sequences_.reserve(pieces);
  space_.reserve(model_, static_cast<int>(tokens.size()), kernels_.gemm.block_rows);
  const std::vector<Segment> segments = sequences_.segments(pieces);
  std::vector<int32_t> last_rows;
  int reach = 0;
  for (const Segment& segment : segments) {
    reach = std::max(reach, segment.position + segment.forgotten + segment.count);
    last_rows.push_back(segment.row + segment.count - 1);
  }
  for (RopeTable& rope : model_.ropes) rope.reserve(reach);
  plan_attention(segments);

  const StepTask task{model_, kernels_, cache_, layer_plans_, space_, pool_.threads(), tokens, last_rows, logits};
  const auto caller = std::this_thread::get_id();
  pool_.run([&](Worker& worker) {
    run_step(worker, task, std::this_thread::get_id() == caller ? clock : StepClock(nullptr));
  });

  sequences_.advance(pieces);
  if (profile_) profile_->steps++;
}

void Decoder::check(std::span<const int32_t> tokens) const {
  if (model_.layers.size() != static_cast<size_t>(model_.shape.layers) || model_.embedding.tiles() == 0) {
    throw std::logic_error("the decoder has no embedding, or not all of its layers");
  }
  for (const int32_t token : tokens) {
    if (token < 0 || token >= model_.shape.vocabulary) throw std::out_of_range("a token is outside the vocabulary");
  }
}

// A plan for each window, which layers of the same window share, and one for the last layer: of its rows only those
// whose logits are wanted attend.
void Decoder::plan_attention(std::span<const Segment> segments) {
  if (layer_plans_.size() != model_.layers.size()) {
    plans_.clear();
    plans_.reserve(model_.layers.size());  // layers point to them
    layer_plans_.clear();
    const DecoderLayer* const last = &model_.layers.back();
    for (const DecoderLayer& layer : model_.layers) {
      const int window = layer.attention.window;
      const bool only_last = &layer == last;
      const auto same = [&](const LayerPlan& plan) { return plan.window == window && plan.only_last == only_last; };
      auto found = std::find_if(plans_.begin(), plans_.end(), same);
      if (found == plans_.end()) found = plans_.insert(plans_.end(), LayerPlan{window, only_last, {}});
      layer_plans_.push_back(&found->attention);
    }
  }
  for (LayerPlan& plan : plans_) {
    AttentionConfig attention = model_.layers.front().attention;
    attention.window = plan.window;
    plan.attention.make(attention, segments, pool_.threads(), plan.only_last);
  }
}

}  // namespace mlxcel
