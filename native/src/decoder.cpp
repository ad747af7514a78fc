#include "decoder.h"

#include <algorithm>
#include <new>
#include <stdexcept>

namespace mlxcel {

namespace {

// Up to this many rows every thread prepares the activations for itself.
constexpr int kPrivateRows = 2;

std::vector<KvShape> kv_shapes(const DecoderConfig& config) {
  return std::vector<KvShape>(config.layers, KvShape{config.attention.kv_heads, config.attention.head_dim});
}

// Memory of the calling thread alone, 64-byte aligned, for activations and one row of floats.
std::byte* private_memory(size_t bytes) {
  thread_local std::unique_ptr<std::byte[]> memory;
  thread_local size_t size = 0;
  if (size < bytes) {
    memory = std::make_unique<std::byte[]>(bytes + 64);
    size = bytes;
  }
  return memory.get() + (64 - reinterpret_cast<uintptr_t>(memory.get()) % 64) % 64;
}

void grow(std::unique_ptr<std::byte[]>& memory, size_t& size, size_t bytes) {
  if (size >= bytes) return;
  memory = std::make_unique<std::byte[]>(bytes + 64);
  size = bytes;
}

std::byte* aligned(const std::unique_ptr<std::byte[]>& memory) {
  return memory.get() + (64 - reinterpret_cast<uintptr_t>(memory.get()) % 64) % 64;
}

size_t row_bytes(int cols) { return (static_cast<size_t>(cols) * sizeof(float) + 63) / 64 * 64; }

}  // namespace

Decoder::Decoder(const DecoderConfig& config, RopeTable rope, int threads, size_t kv_budget)
    : config_(config), rope_(std::move(rope)), kernels_(kernels()), pool_(threads), cache_(kv_shapes(config), kv_budget) {
  config_.attention.rope = &rope_;
  config_.attention.norm_eps = config.norm_eps;
}

size_t Decoder::weight_bytes() const {
  size_t bytes = embedding_.bytes() + (head_ ? head_->bytes() : 0);
  for (const DecoderLayer& layer : layers_) {
    bytes += layer.qkv.bytes() + layer.output.bytes() + layer.gate_up.bytes() + layer.down.bytes();
  }
  return bytes;
}

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

void Decoder::step(std::span<const int32_t> tokens, std::span<const Piece> pieces, float* logits) {
  for (const int32_t token : tokens) {
    if (token < 0 || token >= config_.vocabulary) throw std::out_of_range("a token is outside the vocabulary");
  }
  reserve_cache(pieces);
  const int rows = static_cast<int>(tokens.size());
  reserve_workspace(rows);
  segments_.clear();
  std::vector<int> last_rows;
  int row = 0, reach = 0;
  for (const Piece& piece : pieces) {
    const Sequence& sequence = sequences_[piece.sequence];
    segments_.push_back({sequence.blocks.data(), sequence.length, piece.count, row});
    row += piece.count;
    reach = std::max(reach, sequence.length + piece.count);
    last_rows.push_back(row - 1);
  }
  rope_.reserve(reach);
  plan_.make(config_.attention, segments_, pool_.threads());

  pool_.run([&](Worker& worker) {
    worker.each(rows, [&](int r) { embedding_.dequantise_row(tokens[r], space_.hidden.data() + static_cast<size_t>(r) * config_.hidden); });
    worker.barrier();
    for (int l = 0; l < config_.layers; l++) run_layer(worker, layers_[l], l, rows);
    if (logits != nullptr) run_head(worker, last_rows, logits);
  });

  for (const Piece& piece : pieces) sequences_[piece.sequence].length += piece.count;
}

// Blocks for the tokens to come, for all sequences or for none.
void Decoder::reserve_cache(std::span<const Piece> pieces) {
  size_t total = 0;
  const auto missing = [&](const Piece& piece) {
    const Sequence& sequence = sequences_.at(piece.sequence);
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

void Decoder::reserve_workspace(int rows) {
  const auto grow_floats = [](std::vector<float>& floats, size_t count) {
    if (floats.size() < count) floats.resize(count);
  };
  const AttentionConfig& attention = config_.attention;
  grow_floats(space_.hidden, static_cast<size_t>(rows) * config_.hidden);
  grow_floats(space_.qkv, static_cast<size_t>(rows) * attention.row_elements());
  grow_floats(space_.attended, static_cast<size_t>(rows) * attention.heads * attention.head_dim);
  size_t activations = 0, gated = 0;
  const auto bytes = [&](const PackedWeights& weights) {
    return Activations::bytes(rows, weights.cols(), weights.group(), weights.precision(config_.precision));
  };
  for (const DecoderLayer& layer : layers_) {
    activations = std::max({activations, bytes(layer.qkv), bytes(layer.output), bytes(layer.gate_up)});
    gated = std::max(gated, bytes(layer.down));
  }
  activations = std::max(activations, bytes(head()));
  grow(space_.activations, space_.activations_bytes, activations);
  grow(space_.gated, space_.gated_bytes, gated);
}

Activations Decoder::activations_in(std::byte* memory, const PackedWeights& weights, int rows) const {
  return Activations(memory, rows, weights, config_.precision);
}

template <class RowOf>
Activations Decoder::prepare(Worker& worker, const PackedWeights& weights, int rows, RowOf&& row_of, const float* norm) {
  const int cols = weights.cols();
  const auto prepare_row = [&](const Activations& to, int row, float* normalised) {
    const float* x = row_of(row);
    if (norm != nullptr) {
      kernels_.rows.rms_norm(x, norm, cols, config_.norm_eps, 0.0f, normalised);
      x = normalised;
    }
    kernels_.gemm.quantise(x, to, row, 0, cols);
  };
  if (rows <= kPrivateRows) {
    const size_t size = Activations::bytes(rows, cols, weights.group(), weights.precision(config_.precision));
    std::byte* memory = private_memory(size + 64 + row_bytes(cols));
    const Activations own = activations_in(memory, weights, rows);
    float* normalised = reinterpret_cast<float*>(memory + (size + 63) / 64 * 64);
    if (!worker.behind()) {
      for (int row = 0; row < rows; row++) prepare_row(own, row, normalised);
    }
    return own;
  }
  const Activations shared = activations_in(aligned(space_.activations), weights, rows);
  worker.each(rows, [&](int row) { prepare_row(shared, row, static_cast<float*>(worker.scratch(row_bytes(cols)))); });
  worker.barrier();
  return shared;
}

void Decoder::run_layer(Worker& worker, const DecoderLayer& layer, int index, int rows) {
  const int threads = pool_.threads();
  const size_t hidden = config_.hidden;
  float* const h = space_.hidden.data();
  AttentionConfig attention = config_.attention;
  attention.q_norm = layer.q_norm.empty() ? nullptr : layer.q_norm.data();
  attention.k_norm = layer.k_norm.empty() ? nullptr : layer.k_norm.data();
  const size_t qkv_width = attention.row_elements();
  const size_t attended_width = static_cast<size_t>(attention.heads) * attention.head_dim;
  const auto hidden_row = [&](int row) { return h + row * hidden; };

  // h += piece
  const auto add_to_hidden = [&](const GemmPiece& piece) {
    const int first = piece.first_tile * tile_outputs;
    const int count = std::min(piece.tiles * tile_outputs, static_cast<int>(hidden) - first);
    for (int row = piece.first_row; row < piece.last_row; row++) {
      float* to = h + row * hidden + first;
      kernels_.rows.add(to, piece.out + (row - piece.first_row) * piece.stride, count, to);
    }
  };

  {
    const Activations x = prepare(worker, layer.qkv, rows, hidden_row, layer.input_norm.data());
    gemm(worker, kernels_.gemm, layer.qkv, x, split_gemm(layer.qkv, x, threads), [&](const GemmPiece& piece) {
      const int first = piece.first_tile * tile_outputs;
      const int count = std::min(piece.tiles * tile_outputs, static_cast<int>(qkv_width) - first);
      for (int row = piece.first_row; row < piece.last_row; row++) {
        const float* from = piece.out + (row - piece.first_row) * piece.stride;
        float* to = space_.qkv.data() + row * qkv_width + first;
        if (layer.qkv_bias.empty()) {
          std::copy_n(from, count, to);
        } else {
          kernels_.rows.add(from, layer.qkv_bias.data() + first, count, to);
        }
      }
    });
    worker.barrier();
  }

  append_and_attend(worker, kernels_.attention, cache_, index, attention, plan_, space_.qkv.data(), space_.attended.data());
  worker.barrier();

  {
    const auto attended_row = [&](int row) { return space_.attended.data() + row * attended_width; };
    const Activations x = prepare(worker, layer.output, rows, attended_row, nullptr);
    gemm(worker, kernels_.gemm, layer.output, x, split_gemm(layer.output, x, threads), add_to_hidden);
    worker.barrier();
  }

  const Activations gated = activations_in(aligned(space_.gated), layer.down, rows);
  {
    const Activations x = prepare(worker, layer.gate_up, rows, hidden_row, layer.output_norm.data());
    // A piece holds whole groups of gated columns, which it turns into activations of the next product itself.
    const int multiple = 2 * gated.group / tile_outputs;
    gemm(worker, kernels_.gemm, layer.gate_up, x, split_gemm(layer.gate_up, x, threads, multiple), [&](const GemmPiece& piece) {
      const int first = piece.first_tile / 2 * tile_outputs;
      const int count = std::min(piece.tiles / 2 * tile_outputs, config_.feed_forward - first);
      for (int row = piece.first_row; row < piece.last_row; row++) {
        float* out = piece.out + (row - piece.first_row) * piece.stride;
        // Tile pairs shrink to the left: what is overwritten has been read.
        for (int pair = 0; pair < piece.tiles / 2; pair++) {
          const float* gate = out + 2 * pair * tile_outputs;
          kernels_.rows.silu_mul(gate, gate + tile_outputs, tile_outputs, out + pair * tile_outputs);
        }
        kernels_.gemm.quantise(out, gated, row, first, count);
      }
    });
    worker.barrier();
  }

  gemm(worker, kernels_.gemm, layer.down, gated, split_gemm(layer.down, gated, threads), add_to_hidden);
  worker.barrier();
}

void Decoder::run_head(Worker& worker, std::span<const int> last_rows, float* logits) {
  const size_t hidden = config_.hidden;
  const auto row_of = [&](int i) { return space_.hidden.data() + last_rows[i] * hidden; };
  const int rows = static_cast<int>(last_rows.size());
  const Activations x = prepare(worker, head(), rows, row_of, final_norm_.data());
  gemm(worker, kernels_.gemm, head(), x, split_gemm(head(), x, pool_.threads()), [&](const GemmPiece& piece) {
    const int first = piece.first_tile * tile_outputs;
    const int count = std::min(piece.tiles * tile_outputs, config_.vocabulary - first);
    for (int row = piece.first_row; row < piece.last_row; row++) {
      const float* from = piece.out + (row - piece.first_row) * piece.stride;
      std::copy_n(from, count, logits + static_cast<size_t>(row) * config_.vocabulary + first);
    }
  });
}

}  // namespace mlxcel
