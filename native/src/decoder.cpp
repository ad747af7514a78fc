#include "decoder.h"

#include <new>
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
      cache_(kv_shapes(shape), kv_budget) {}

int Decoder::open() {
  const auto closed = std::find_if(sequences_.begin(), sequences_.end(), [](const Sequence& s) { return !s.open; });
  const int index = static_cast<int>(closed - sequences_.begin());
  if (closed == sequences_.end()) sequences_.emplace_back();
  sequences_[index].open = true;
  return index;
}

void Decoder::close(int sequence) {
  Sequence& closing = sequences_.at(sequence);
  for (const int32_t block : closing.blocks) cache_.release(block);
  closing = Sequence();
}

void Decoder::measure(bool on) {
  profile_.reset();
  if (on) profile_.emplace();
}

void Decoder::step(std::span<const int32_t> tokens, std::span<const Piece> pieces, float* logits) {
  StepClock clock(profile_ ? &*profile_ : nullptr);
  check(tokens, pieces);
  reserve_cache(pieces);
  space_.reserve(model_, static_cast<int>(tokens.size()));
  segments_.clear();
  std::vector<int32_t> last_rows;
  int row = 0, reach = 0;
  for (const Piece& piece : pieces) {
    const Sequence& sequence = sequences_[piece.sequence];
    segments_.push_back({sequence.blocks.data(), sequence.length, piece.count, row});
    row += piece.count;
    reach = std::max(reach, sequence.length + piece.count);
    last_rows.push_back(row - 1);
  }
  for (RopeTable& rope : model_.ropes) rope.reserve(reach);
  plan_attention();

  const StepTask task{model_, kernels_, cache_, layer_plans_, space_, pool_.threads(), tokens, last_rows, logits};
  const auto caller = std::this_thread::get_id();
  pool_.run([&](Worker& worker) {
    run_step(worker, task, std::this_thread::get_id() == caller ? clock : StepClock(nullptr));
  });

  for (const Piece& piece : pieces) sequences_[piece.sequence].length += piece.count;
  if (profile_) profile_->steps++;
}

void Decoder::check(std::span<const int32_t> tokens, std::span<const Piece> pieces) const {
  if (model_.layers.size() != static_cast<size_t>(model_.shape.layers) || model_.embedding.tiles() == 0) {
    throw std::logic_error("the decoder has no embedding, or not all of its layers");
  }
  for (const int32_t token : tokens) {
    if (token < 0 || token >= model_.shape.vocabulary) throw std::out_of_range("a token is outside the vocabulary");
  }
  for (const Piece& piece : pieces) {
    if (!sequences_.at(piece.sequence).open) throw std::out_of_range("a sequence is not open");
  }
}

// Blocks for the tokens to come, for all sequences or for none. Layers with a window keep all blocks too: a block is
// one piece of memory for all layers.
void Decoder::reserve_cache(std::span<const Piece> pieces) {
  size_t total = 0;
  const auto missing = [&](const Piece& piece) {
    const Sequence& sequence = sequences_[piece.sequence];
    const size_t wanted = (sequence.length + piece.count + kv_block - 1) / kv_block;
    return wanted - std::min(wanted, sequence.blocks.size());
  };
  for (const Piece& piece : pieces) total += missing(piece);
  std::vector<int32_t> blocks(total);
  if (!cache_.allocate(blocks)) throw std::bad_alloc();
  auto next = blocks.begin();
  for (const Piece& piece : pieces) {
    const size_t count = missing(piece);
    sequences_[piece.sequence].blocks.insert(sequences_[piece.sequence].blocks.end(), next, next + count);
    next += count;
  }
}

// A plan for each window, which layers of the same window share.
void Decoder::plan_attention() {
  if (layer_plans_.size() != model_.layers.size()) {
    plans_.clear();
    plans_.reserve(model_.layers.size());  // layers point to them
    layer_plans_.clear();
    for (const DecoderLayer& layer : model_.layers) {
      const auto same = [&](const auto& plan) { return plan.first == layer.attention.window; };
      auto found = std::find_if(plans_.begin(), plans_.end(), same);
      if (found == plans_.end()) found = plans_.emplace(plans_.end(), layer.attention.window, AttentionPlan());
      layer_plans_.push_back(&found->second);
    }
  }
  for (auto& [window, plan] : plans_) {
    AttentionConfig attention = model_.layers.front().attention;
    attention.window = window;
    plan.make(attention, segments_, pool_.threads());
  }
}

}  // namespace mlxcel
