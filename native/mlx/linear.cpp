#include "linear.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "../src/scratch.h"
#include "mlx/ops.h"
#include "mlx/transforms.h"

namespace mlxcel::graph {
namespace {

mx::array evaluated(const mx::array& x) {
  mx::array y = mx::contiguous(x);
  mx::eval({y});
  return y;
}

// Memory of the calling thread for activations.
std::byte* workspace(size_t bytes) {
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  return scratch<class LinearActivations, Line>(bytes / sizeof(Line) + 1)->bytes;
}

std::vector<const float*> rows_of(const float* x, size_t rows, size_t cols) {
  std::vector<const float*> pointers(rows);
  for (size_t i = 0; i < rows; i++) pointers[i] = x + i * cols;
  return pointers;
}

}  // namespace

Linear::Linear(ContextPtr context, const Matrices& matrices, const std::optional<mx::array>& bias)
    : context_(std::move(context)) {
  const mx::array values = evaluated(matrices.values);
  if (values.ndim() != 2 && values.ndim() != 3) throw std::invalid_argument("weights have two or three dimensions");
  experts_ = values.ndim() == 3 ? values.shape(0) : 1;
  outputs_ = values.shape(-2);
  if (values.size() == 0) throw std::invalid_argument("there are no weights");
  if (experts_ > 1 && outputs_ % tile_outputs != 0)
    throw std::invalid_argument("the outputs of an expert must be a multiple of 16");
  const int rows = experts_ * outputs_;
  if (matrices.scales) {
    if (!matrices.biases || values.dtype() != mx::uint32)
      throw std::invalid_argument("quantised weights are uint32 words with scales and biases");
    const mx::array scales = evaluated(*matrices.scales), biases = evaluated(*matrices.biases);
    const int cols = scales.shape(-1) * matrices.group;
    if (scales.shape() != biases.shape() || scales.dtype() != biases.dtype() ||
        scales.size() != static_cast<size_t>(rows) * scales.shape(-1) ||
        static_cast<int64_t>(values.shape(-1)) * 32 != static_cast<int64_t>(cols) * matrices.bits)
      throw std::invalid_argument("words, scales and biases do not belong together");
    const AffineMatrix view{values.data<uint32_t>(), scales.data<char>(), biases.data<char>(), scalar_of(scales.dtype()),
                            rows, cols, matrices.bits, matrices.group};
    weights_ = pack_on(context_->pool, std::span(&view, 1), Arrangement::Stacked, context_->arena);
  } else {
    const DenseMatrix view{values.data<char>(), scalar_of(values.dtype()), rows, values.shape(-1)};
    weights_ = pack_on(context_->pool, std::span(&view, 1), Arrangement::Stacked, context_->arena);
  }
  if (bias) {
    const mx::array floats = evaluated(to_float32(*bias));
    if (floats.size() != static_cast<size_t>(rows)) throw std::invalid_argument("a bias has one value an output");
    bias_.assign(floats.data<float>(), floats.data<float>() + rows);
  }
}

mx::array Linear::apply(const std::shared_ptr<const Linear>& linear, const mx::array& x) {
  if (x.ndim() == 0 || x.shape(-1) != linear->inputs()) throw std::invalid_argument("x does not fit the weights");
  return node("mlxcel.linear", with_last(x, linear->outputs_), mx::float32, {to_float32(x)},
              [linear](std::span<const Input> in, void* out) {
                const Packed x(in[0]);
                const size_t cols = linear->inputs();
                linear->multiply(rows_of(x.as<float>(), in[0].size() / cols, cols), static_cast<float*>(out));
              });
}

mx::array Linear::rows(const std::shared_ptr<const Linear>& linear, const mx::array& ids) {
  mx::Shape shape = ids.shape();
  shape.push_back(linear->inputs());
  return node("mlxcel.rows", std::move(shape), mx::float32, {mx::astype(ids, mx::int32)},
              [linear](std::span<const Input> in, void* out) {
                const Packed ids(in[0]);
                const size_t cols = linear->inputs();
                for (size_t i = 0; i < in[0].size(); i++) {
                  // As MLX: a negative index counts from the end. What is still outside reads the nearest row.
                  int id = ids.as<int32_t>()[i];
                  if (id < 0) id += linear->outputs_;
                  id = std::clamp(id, 0, linear->outputs_ - 1);
                  linear->weights_.dequantise_row(id, static_cast<float*>(out) + i * cols);
                }
              });
}

mx::array Linear::gather(const std::shared_ptr<const Linear>& linear, const mx::array& x, const mx::array& experts) {
  if (x.ndim() < 2 || x.shape(-1) != linear->inputs()) throw std::invalid_argument("x does not fit the weights");
  const mx::Shape batch(x.shape().begin(), x.shape().end() - 2);
  const mx::Shape places = mx::broadcast_shapes(batch, experts.shape());
  mx::Shape wide = places;
  wide.insert(wide.end(), {x.shape(-2), x.shape(-1)});
  mx::Shape shape = places;
  shape.insert(shape.end(), {x.shape(-2), linear->outputs_});
  // A broadcast is a view: rows that several experts see are not copied.
  return node("mlxcel.gather", std::move(shape), mx::float32,
              {mx::broadcast_to(to_float32(x), wide), mx::broadcast_to(mx::astype(experts, mx::int32), places)},
              [linear](std::span<const Input> in, void* out) {
                const Input& x = in[0];
                const int m = x.dim(-2), batch_dims = static_cast<int>(x.shape.size()) - 2;
                std::vector<const float*> rows;
                const bool plain = x.strides[batch_dims + 1] == 1 || x.dim(-1) == 1;
                const Packed copy(plain ? Input{nullptr, {0}, {1}, mx::float32, true} : x);
                std::vector<int> index(batch_dims, 0);
                const size_t count = in[1].size();
                for (size_t i = 0; i < count; i++) {
                  int64_t offset = 0;
                  for (int d = 0; d < batch_dims; d++) offset += index[d] * x.strides[d];
                  for (int r = 0; r < m; r++) {
                    rows.push_back(plain ? x.as<float>() + offset + r * x.strides[batch_dims]
                                         : copy.as<float>() + (i * m + r) * x.dim(-1));
                  }
                  for (int d = batch_dims - 1; d >= 0 && ++index[d] == x.shape[d]; d--) index[d] = 0;
                }
                const Packed ids(in[1]);
                std::vector<int32_t> experts;
                for (size_t i = 0; i < count; i++) experts.insert(experts.end(), m, ids.as<int32_t>()[i]);
                linear->multiply_experts(rows, experts, static_cast<float*>(out));
              });
}

mx::array Linear::unpacked() const {
  const size_t cols = inputs();
  mx::Shape shape = experts_ > 1 ? mx::Shape{experts_, outputs_, inputs()} : mx::Shape{outputs_, inputs()};
  std::vector<float> values(static_cast<size_t>(experts_) * outputs_ * cols);
  for (int row = 0; row < experts_ * outputs_; row++) weights_.dequantise_row(row, values.data() + row * cols);
  return mx::array(values.begin(), std::move(shape), mx::float32);
}

void Linear::add_bias(const GemmPiece& piece, int expert, int first_output) const {
  if (bias_.empty()) return;
  const int count = std::min(piece.tiles * tile_outputs, outputs_ - first_output);
  const float* bias = bias_.data() + static_cast<size_t>(expert) * outputs_ + first_output;
  for (int row = piece.first_row; row < piece.last_row; row++) {
    float* out = piece.out + (row - piece.first_row) * piece.stride;
    context_->kernels.rows.add(out, bias, count, out);
  }
}

void Linear::multiply(const Rows& x, float* out) const {
  const int rows = static_cast<int>(x.size());
  const size_t operations = x.size() * weights_.rows() * weights_.cols();
  Pool& pool = context_->pool_for(operations);
  const Activations to(nullptr, rows, weights_, context_->precision, context_->kernels.gemm.block_rows);
  std::byte* memory = workspace(to.bytes());
  const Activations activations(memory, rows, weights_, context_->precision, context_->kernels.gemm.block_rows);
  const Split split = split_gemm(weights_, activations, pool.threads());
  pool.run([&](Worker& worker) {
    worker.each(rows, [&](int row) { context_->kernels.gemm.quantise(x[row], activations, row, 0, inputs()); });
    worker.barrier();
    gemm(worker, context_->kernels.gemm, weights_, activations, split, [&](const GemmPiece& piece) {
      const int first = piece.first_tile * tile_outputs;
      add_bias(piece, 0, first);
      const int count = std::min(piece.tiles * tile_outputs, outputs_ - first);
      for (int row = piece.first_row; row < piece.last_row; row++) {
        std::copy_n(piece.out + (row - piece.first_row) * piece.stride, count,
                    out + static_cast<size_t>(row) * outputs_ + first);
      }
    });
  });
}

void Linear::multiply_experts(const Rows& x, std::span<const int32_t> experts, float* out) const {
  // Rows in the order of their experts; the rows of one expert form a group.
  struct Group {
    int expert, first, rows;
    size_t offset;  // of its activations
  };
  std::vector<int> order(x.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return experts[a] < experts[b]; });
  std::vector<Group> groups;
  std::vector<int> group_of(x.size());
  for (size_t i = 0; i < order.size(); i++) {
    const int expert = std::clamp(experts[order[i]], 0, experts_ - 1);
    if (groups.empty() || groups.back().expert != expert) groups.push_back({expert, static_cast<int>(i), 0, 0});
    groups.back().rows++;
    group_of[i] = static_cast<int>(groups.size()) - 1;
  }
  size_t bytes = 0;
  for (Group& group : groups) {
    const Activations shape(nullptr, group.rows, weights_, context_->precision, context_->kernels.gemm.block_rows);
    group.offset = bytes;
    bytes += (shape.bytes() + 63) / 64 * 64;
  }
  std::byte* memory = workspace(bytes);
  const auto activations = [&](const Group& group) {
    return Activations(memory + group.offset, group.rows, weights_, context_->precision, context_->kernels.gemm.block_rows);
  };

  Pool& pool = context_->pool_for(x.size() * outputs_ * inputs());
  const int expert_tiles = (outputs_ + tile_outputs - 1) / tile_outputs;
  struct Unit {
    int group, first_row, last_row, first_tile, tiles;
  };
  constexpr int kMostRows = 96;
  std::vector<Unit> units;
  const int wanted = expert_tiles * static_cast<int>(groups.size()) / (pool.threads() * 8);
  for (size_t g = 0; g < groups.size(); g++) {
    const int tiles = std::clamp(wanted, 1, groups[g].rows < kMostRows / 8 ? 32 : 8);
    for (int row = 0; row < groups[g].rows; row += kMostRows) {
      for (int tile = 0; tile < expert_tiles; tile += tiles) {
        units.push_back({static_cast<int>(g), row, std::min(row + kMostRows, groups[g].rows), tile,
                         std::min(tiles, expert_tiles - tile)});
      }
    }
  }
  pool.run([&](Worker& worker) {
    worker.each(static_cast<int>(order.size()), [&](int i) {
      const Group& group = groups[group_of[i]];
      context_->kernels.gemm.quantise(x[order[i]], activations(group), i - group.first, 0, inputs());
    });
    worker.barrier();
    worker.each(static_cast<int>(units.size()), [&](int u) {
      const Unit& unit = units[u];
      const Group& group = groups[unit.group];
      GemmPiece piece{unit.first_row, unit.last_row, unit.first_tile, unit.tiles, nullptr,
                      static_cast<size_t>(unit.tiles) * tile_outputs};
      piece.out = static_cast<float*>(worker.scratch((unit.last_row - unit.first_row) * piece.stride * sizeof(float)));
      context_->kernels.gemm.multiply(weights_, group.expert * expert_tiles + unit.first_tile, unit.tiles,
                                      activations(group), unit.first_row, unit.last_row, piece.out, piece.stride);
      const int first = unit.first_tile * tile_outputs, count = std::min(unit.tiles * tile_outputs, outputs_ - first);
      add_bias(piece, group.expert, first);
      for (int row = unit.first_row; row < unit.last_row; row++) {
        std::copy_n(piece.out + (row - unit.first_row) * piece.stride, count,
                    out + static_cast<size_t>(order[group.first + row]) * outputs_ + first);
      }
    });
  });
}

}  // namespace mlxcel::graph
