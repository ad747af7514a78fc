#include "decoder_step.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace mlxcel {

namespace {

// Up to this many rows every thread prepares a product's input for itself: cheaper than waiting for one that does.
constexpr int kPrivateRows = 2;

size_t row_bytes(size_t cols) { return (cols * sizeof(float) + 63) / 64 * 64; }

float* floats(const Buffer& buffer) { return reinterpret_cast<float*>(buffer.data()); }

// Memory of the calling thread alone.
std::byte* private_memory(size_t bytes) {
  thread_local Buffer memory;
  memory.reserve(bytes);
  return memory.data();
}

void normalise(const RowKernels& rows, const Norm& norm, const float* x, int n, float* out) {
  const float* weight = norm.weight.empty() ? nullptr : norm.weight.data();
  if (norm.kind == NormKind::Rms) return rows.rms_norm(x, weight, n, norm.eps, 0.0f, out);
  rows.layer_norm(x, weight, norm.bias.empty() ? nullptr : norm.bias.data(), n, norm.eps, out);
}

auto activation_kernel(const RowKernels& rows, Activation activation) {
  switch (activation) {
    case Activation::Gelu: return rows.gelu_mul;
    case Activation::GeluTanh: return rows.gelu_tanh_mul;
    case Activation::Relu2: return rows.relu2_mul;
    default: return rows.silu_mul;
  }
}

// An epilogue: a product's outputs and its bias into rows of `to`, or added to what is there.
struct Store {
  const RowKernels& rows;
  const float* bias;
  float* to;
  size_t width;
  bool add;

  void operator()(const GemmPiece& piece) const {
    const int first = piece.first_tile * tile_outputs;
    const int count = std::min<int>(piece.tiles * tile_outputs, width - first);
    for (int row = piece.first_row; row < piece.last_row; row++) {
      float* from = piece.out + (row - piece.first_row) * piece.stride;
      float* out = to + row * width + first;
      if (bias != nullptr) rows.add(from, bias + first, count, from);
      if (add) rows.add(from, out, count, out);
      else std::copy_n(from, count, out);
    }
  }
};

// Has each thread call `prepare` before its first unit of a phase. While that unit is open so is the phase: nobody is
// further, and overwrites what is prepared from. A thread that comes too late for a unit prepares nothing.
template <class Prepare>
struct PreparingWorker {
  Worker& worker;
  Prepare prepare;

  template <class Unit>
  void each(int count, Unit&& unit) {
    bool prepared = false;
    worker.each(count, [&](int i) {
      prepare(!std::exchange(prepared, true), i == 0);
      unit(i);
    });
  }
  void* scratch(size_t bytes) { return worker.scratch(bytes); }
};

class Step {
 public:
  Step(Worker& worker, const StepTask& task, StepClock clock)
      : worker_(worker), task_(task), model_(task.model), space_(task.space), rows_(task.kernels.rows), clock_(clock),
        hidden_width_(task.model.shape.hidden), count_(static_cast<int>(task.tokens.size())) {}

  void run() {
    clock_.lap(Phase::Plan);
    embed();
    for (size_t l = 0; l < model_.layers.size(); l++) run_layer(model_.layers[l], static_cast<int>(l));
    if (task_.logits != nullptr) run_head();
  }

 private:
  // What a branch goes through before it is added to the hidden state.
  struct Branch {
    const Norm* norm;
    float scale;
  };
  // The rows that a product starts from.
  struct Input {
    const float* data;
    size_t width;
    const int32_t* index = nullptr;  // row i is data row index[i]; nullptr: i
    const Norm* norm = nullptr;
    const Branch* branch = nullptr;  // added first
  };

  int block_rows() const { return task_.kernels.gemm.block_rows; }
  float* hidden() const { return floats(space_.hidden[current_]); }

  void end_phase(Phase phase) {
    clock_.lap(phase);
    worker_.barrier();
    clock_.lap(Phase::Waiting);
  }

  void embed() {
    worker_.each(count_, [&](int row) {
      float* to = hidden() + row * hidden_width_;
      model_.embedding.dequantise_row(task_.tokens[row], to);
      if (model_.embedding_scale != 1.0f) rows_.scale(to, model_.embedding_scale, hidden_width_, to);
    });
    end_phase(Phase::Embed);
  }

  // Behind the last layer's keys and values only the rows whose logits are wanted go on.
  void run_layer(const DecoderLayer& layer, int index) {
    float* const qkv = floats(space_.qkv);
    float* const attended = floats(space_.attended);
    float* const branch = floats(space_.branch);
    const size_t qkv_width = model_.shape.qkv_width(), attended_width = model_.shape.attended_width();

    hidden_product(layer.qkv, layer.before_attention, store(layer.qkv, qkv, qkv_width), Phase::Qkv);
    normalise_pieces(layer, qkv, qkv_width);
    const bool fewer = &layer == &model_.layers.back() && task_.last_rows.size() < task_.tokens.size();
    if (fewer) keep_last_rows();
    if (layer.parallel) run_up(layer);
    append_and_attend(worker_, task_.kernels.attention, task_.cache, index, layer.attention, *task_.plans[index], qkv,
                      attended);
    end_phase(Phase::Attention);
    const int32_t* const rows = fewer ? task_.last_rows.data() : nullptr;
    product(layer.output.weights, count_, {attended, attended_width, rows}, store(layer.output, branch, hidden_width_));
    end_phase(Phase::Output);
    if (!layer.parallel) {
      pending_ = Branch{&layer.after_attention, layer.residual_scale};
      run_up(layer);
    }
    const Activations gated(space_.gated.data(), count_, layer.down.weights, model_.precision, block_rows());
    multiply(worker_, layer.down.weights, gated, store(layer.down, branch, hidden_width_, layer.parallel));
    end_phase(Phase::Down);
    pending_ = Branch{&layer.after_mlp, layer.residual_scale};
  }

  void keep_last_rows() {
    const float* const from = hidden();
    current_ ^= 1;
    count_ = static_cast<int>(task_.last_rows.size());
    worker_.each(count_, [&](int row) {
      std::copy_n(from + task_.last_rows[row] * hidden_width_, hidden_width_, hidden() + row * hidden_width_);
    });
    end_phase(Phase::Prepare);
  }

  // The feed-forward part up to its last product. Each piece turns its outputs into activations of that product.
  void run_up(const DecoderLayer& layer) {
    const Activations gated(space_.gated.data(), count_, layer.down.weights, model_.precision, block_rows());
    const int per_output = layer.gated ? 2 : 1, multiple = per_output * gated.group / tile_outputs;
    const auto activate = activation_kernel(rows_, layer.activation);
    const float* bias = layer.up.bias.empty() ? nullptr : layer.up.bias.data();
    const auto finish = [&](const GemmPiece& piece) {
      const int first = piece.first_tile / per_output * tile_outputs;
      const int count = std::min<int>(piece.tiles / per_output * tile_outputs, layer.feed_forward() - first);
      for (int row = piece.first_row; row < piece.last_row; row++) {
        float* out = piece.out + (row - piece.first_row) * piece.stride;
        if (bias != nullptr) rows_.add(out, bias + first * per_output, count * per_output, out);
        if (!layer.gated) activate(out, space_.ones.data(), count, out);
        // Tile pairs shrink to the left: what is overwritten has been read.
        for (int pair = 0; layer.gated && pair < piece.tiles / 2; pair++) {
          const float* gate = out + 2 * pair * tile_outputs;
          activate(gate, gate + tile_outputs, tile_outputs, out + pair * tile_outputs);
        }
        task_.kernels.gemm.quantise(out, gated, row, first, count);
      }
    };
    hidden_product(layer.up, layer.before_mlp, finish, Phase::Up, multiple);
  }

  void normalise_pieces(const DecoderLayer& layer, float* qkv, size_t width) {
    if (layer.q_pieces.norm.kind == NormKind::None && layer.k_pieces.norm.kind == NormKind::None) return;
    const int queries = model_.shape.heads * model_.shape.head_dim;
    const int keys = model_.shape.kv_heads * model_.shape.head_dim;
    const auto each_piece = [&](const PieceNorm& pieces, float* x, int n) {
      const float* weight = pieces.norm.weight.empty() ? nullptr : pieces.norm.weight.data();
      for (int i = 0; i < n && pieces.norm.kind != NormKind::None; i += pieces.width) {
        const float* own = weight == nullptr ? nullptr : weight + i;
        if (pieces.norm.kind == NormKind::Rms) rows_.rms_norm(x + i, own, pieces.width, pieces.norm.eps, 0.0f, x + i);
        else rows_.layer_norm(x + i, own, nullptr, pieces.width, pieces.norm.eps, x + i);
      }
    };
    worker_.each(count_, [&](int row) {
      each_piece(layer.q_pieces, qkv + row * width, queries);
      each_piece(layer.k_pieces, qkv + row * width + queries, keys);
    });
    end_phase(Phase::Norms);
  }

  void run_head() {
    const PackedWeights& weights = model_.head_weights();
    const size_t vocabulary = model_.shape.vocabulary;
    const auto to_row = store(model_.head, task_.logits, vocabulary);
    const Input input{hidden(), hidden_width_, nullptr, &model_.final_norm, &*pending_};
    product(weights, count_, input, [&](const GemmPiece& piece) {
      to_row(piece);
      const int first = piece.first_tile * tile_outputs;
      const int count = std::min<int>(piece.tiles * tile_outputs, vocabulary - first);
      for (int row = piece.first_row; row < piece.last_row; row++) {
        float* out = task_.logits + row * vocabulary + first;
        if (model_.logit_scale != 1.0f) rows_.scale(out, model_.logit_scale, count, out);
        if (model_.logit_softcap != 0.0f) rows_.softcap(out, model_.logit_softcap, count, out);
      }
    });
    end_phase(Phase::Head);
  }

  Store store(const Linear& linear, float* to, size_t width, bool add = false) const {
    return {rows_, linear.bias.empty() ? nullptr : linear.bias.data(), to, width, add};
  }

  // A product that starts from the hidden state with the branch before it.
  template <class Epilogue>
  void hidden_product(const Linear& linear, const Norm& norm, Epilogue&& epilogue, Phase phase, int multiple = 1) {
    const Branch* branch = pending_ ? &*pending_ : nullptr;
    product(linear.weights, count_, {hidden(), hidden_width_, nullptr, &norm, branch}, epilogue, multiple);
    end_phase(phase);
    if (pending_) current_ ^= 1;
    pending_.reset();
  }

  // Row `row` of a product's input. With a branch, `sum` receives the new hidden state; scratch: a row.
  const float* input_row(const Input& input, int row, float* sum, float* scratch) const {
    const int n = static_cast<int>(input.width);
    const size_t from = (input.index != nullptr ? input.index[row] : row) * input.width;
    const float* x = input.data + from;
    if (input.branch != nullptr) {
      const float* branch = floats(space_.branch) + from;
      if (input.branch->norm->kind != NormKind::None) {
        normalise(rows_, *input.branch->norm, branch, n, scratch);
        branch = scratch;
      }
      if (input.branch->scale != 1.0f) {
        rows_.scale(branch, input.branch->scale, n, scratch);
        branch = scratch;
      }
      rows_.add(x, branch, n, sum);
      x = sum;
    }
    if (input.norm == nullptr || input.norm->kind == NormKind::None) return x;
    normalise(rows_, *input.norm, x, n, scratch);
    return scratch;
  }

  // The input, ready for `weights`, times them. A new hidden state goes into the buffer that is not current.
  template <class Epilogue>
  void product(const PackedWeights& weights, int rows, const Input& input, Epilogue&& epilogue, int multiple = 1) {
    const auto& quantise = task_.kernels.gemm.quantise;
    const int cols = static_cast<int>(input.width);
    float* const next = floats(space_.hidden[current_ ^ 1]);
    if (rows > kPrivateRows) {
      const Activations shared(space_.activations.data(), rows, weights, model_.precision, block_rows());
      worker_.each(rows, [&](int row) {
        float* scratch = static_cast<float*>(worker_.scratch(row_bytes(cols)));
        quantise(input_row(input, row, next + row * cols, scratch), shared, row, 0, cols);
      });
      end_phase(Phase::Prepare);
      return multiply(worker_, weights, shared, epilogue, multiple);
    }
    const size_t row_size = row_bytes(cols);
    const size_t size = Activations(nullptr, rows, weights, model_.precision, block_rows()).bytes();
    std::byte* memory = private_memory((rows + 1) * row_size + size);
    const Activations own(memory + (rows + 1) * row_size, rows, weights, model_.precision, block_rows());
    const auto prepare = [&](bool first, bool publish) {
      for (int row = 0; row < rows && (first || publish); row++) {
        float* sum = reinterpret_cast<float*>(memory + row * row_size);
        float* scratch = reinterpret_cast<float*>(memory + rows * row_size);
        if (first) quantise(input_row(input, row, sum, scratch), own, row, 0, cols);
        if (publish && input.branch != nullptr) std::copy_n(sum, cols, next + row * cols);
      }
    };
    PreparingWorker<decltype(prepare)> preparing{worker_, prepare};
    multiply(preparing, weights, own, epilogue, multiple);
  }

  template <class AnyWorker, class Epilogue>
  void multiply(AnyWorker& worker, const PackedWeights& weights, const Activations& x, Epilogue&& epilogue,
                int multiple = 1) {
    gemm(worker, task_.kernels.gemm, weights, x, split_gemm(weights, x, task_.threads, multiple), epilogue);
  }

  Worker& worker_;
  const StepTask& task_;
  const DecoderModel& model_;
  Workspace& space_;
  const RowKernels& rows_;
  StepClock clock_;
  const size_t hidden_width_;
  int count_;        // rows
  int current_ = 0;  // which buffer holds the hidden state
  std::optional<Branch> pending_;
};

}  // namespace

void Workspace::reserve(const DecoderModel& model, int rows, int block_rows) {
  const auto floats = [&](Buffer& buffer, size_t width) { buffer.reserve(rows * width * sizeof(float)); };
  for (Buffer& buffer : hidden) floats(buffer, model.shape.hidden);
  floats(branch, model.shape.hidden);
  floats(qkv, model.shape.qkv_width());
  floats(attended, model.shape.attended_width());
  const auto bytes = [&](const PackedWeights& weights) {
    return Activations(nullptr, rows, weights, model.precision, block_rows).bytes();
  };
  activations.reserve(bytes(model.head_weights()));
  for (const DecoderLayer& layer : model.layers) {
    for (const Linear* linear : {&layer.qkv, &layer.output, &layer.up}) activations.reserve(bytes(linear->weights));
    gated.reserve(bytes(layer.down.weights));
    if (!layer.gated && ones.size() < layer.feed_forward()) ones.resize(layer.feed_forward(), 1.0f);
  }
}

void run_step(Worker& worker, const StepTask& task, StepClock clock) { Step(worker, task, clock).run(); }

}  // namespace mlxcel
