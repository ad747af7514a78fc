// Products with packed weights as nodes: layers' linear maps, embeddings, output heads, experts.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "context.h"
#include "op.h"

namespace mlxcel::graph {

// Matrices of one shape, [rows, cols], one or (experts) several, as MLX holds them: [rows, cols] or
// [experts, rows, cols]. Dense, or affine-quantised with scales and biases.
struct Matrices {
  mx::array values;
  std::optional<mx::array> scales, biases;
  int bits = 0, group = 0;
};

// Packed weights with the bias of each output. Immutable, shared by the nodes that use it.
class Linear {
 public:
  // Packs on all threads. Throws std::invalid_argument for what cannot be packed.
  Linear(ContextPtr context, const Matrices& matrices, const std::optional<mx::array>& bias);

  int inputs() const { return weights_.cols(); }
  int outputs() const { return outputs_; }  // of one expert
  int experts() const { return experts_; }
  size_t bytes() const { return weights_.bytes(); }

  // x [..., inputs] -> [..., outputs], float32. One expert.
  static mx::array apply(const std::shared_ptr<const Linear>& linear, const mx::array& x);
  // Rows `ids` [...] of the matrix -> [..., inputs], float32.
  static mx::array rows(const std::shared_ptr<const Linear>& linear, const mx::array& ids);
  // x [..., m, inputs], experts [...]: for each place of `experts`, the m rows of x there (leading dimensions are
  // broadcast against those of `experts`) times the expert's weights -> [..., m, outputs], float32.
  static mx::array gather(const std::shared_ptr<const Linear>& linear, const mx::array& x, const mx::array& experts);
  // The matrix again, [rows, cols] or [experts, rows, cols], float32.
  mx::array unpacked() const;

 private:
  using Rows = std::vector<const float*>;
  void multiply(const Rows& x, float* out) const;
  void multiply_experts(const Rows& x, std::span<const int32_t> experts, float* out) const;
  void add_bias(const GemmPiece& piece, int expert, int first_output) const;

  ContextPtr context_;
  PackedWeights weights_;
  std::vector<float> bias_;  // [experts][outputs], or empty
  int experts_ = 1, outputs_ = 0;
};

}  // namespace mlxcel::graph
