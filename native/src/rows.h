// Operations on one row of floats, and the tables of rotary embeddings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gemm.h"

namespace mlxcel {

enum class RopeStyle : uint8_t {
  Halves,      // element i turns with element i + dims / 2 (most models)
  Interleaved  // element 2 i turns with element 2 i + 1 ("traditional")
};

// Cosines and sines of rotary embeddings, one row a position: dims / 2 cosines, then dims / 2 sines.
class RopeTable {
 public:
  // Angle of pair i at position p: p * scale * base^(-2 i / dims).
  RopeTable(int dims, double base, double scale = 1.0);
  // As mx.fast.rope takes `freqs`: the angle of pair i at position p is p * scale / periods[i].
  static RopeTable of_periods(const std::vector<float>& periods, double scale = 1.0);
  // Angle of pair i at position p: p * frequencies[i]. Cosines and sines are multiplied by `magnitude`.
  explicit RopeTable(std::vector<double> frequencies, double magnitude = 1.0);

  // Rows for at least so many positions. Moves the table: not while kernels run.
  void reserve(int positions);

  int dims() const { return 2 * static_cast<int>(frequencies_.size()); }
  int positions() const { return positions_; }
  const float* data() const { return table_.data(); }
  const float* row(int position) const { return table_.data() + static_cast<size_t>(position) * dims(); }

 private:
  std::vector<double> frequencies_;
  double magnitude_;
  int positions_ = 0;
  std::vector<float> table_;
};

// All take any length from 0 on. NaN in the input comes out, and `out` may be an input, if not stated otherwise.
// The bits of a result depend on nothing but the row.
struct RowKernels {
  // Elements of another type as float32, and back (rounded to nearest even).
  void (*load_row)(const void* x, Scalar type, int n, float* out);
  void (*store_row)(const float* x, int n, Scalar type, void* out);
  // x / sqrt(mean(x^2) + eps) * (weight + offset); no weight: nullptr. Gemma's weights have offset 1.
  void (*rms_norm)(const float* x, const float* weight, int n, float eps, float offset, float* out);
  // (x - mean) / sqrt(variance + eps) * weight + bias; weight and bias may be nullptr.
  void (*layer_norm)(const float* x, const float* weight, const float* bias, int n, float eps, float* out);
  void (*silu_mul)(const float* gate, const float* up, int n, float* out);
  void (*gelu_tanh_mul)(const float* gate, const float* up, int n, float* out);
  void (*gelu_mul)(const float* gate, const float* up, int n, float* out);  // with the error function itself
  // Any of the gates without the product.
  void (*silu)(const float* x, int n, float* out);
  void (*gelu_tanh)(const float* x, int n, float* out);
  void (*gelu)(const float* x, int n, float* out);
  void (*relu2)(const float* x, int n, float* out);  // max(x, 0)^2
  // g * sigmoid(alpha g) * (u + 1), g at most `limit`, u within +-limit (gpt-oss: alpha 1.702, limit 7).
  void (*swiglu_limited)(const float* gate, const float* up, int n, float alpha, float limit, float* out);
  void (*relu2_mul)(const float* gate, const float* up, int n, float* out);  // max(gate, 0)^2 * up
  void (*add)(const float* a, const float* b, int n, float* out);
  void (*scale)(const float* x, float factor, int n, float* out);
  void (*softcap)(const float* x, float cap, int n, float* out);  // cap * tanh(x / cap)
  // One head of `n` elements, of which the first `dims` turn; `table` is a row of a RopeTable.
  void (*rope)(const float* x, const float* table, int n, int dims, RopeStyle style, float* out);
  void (*softmax)(const float* x, int n, float* out);  // all -inf: NaN
  float (*logsumexp)(const float* x, int n);           // of nothing: -inf
  int (*argmax)(const float* x, int n);                // the first of equals; the first NaN, if any
};

}  // namespace mlxcel
