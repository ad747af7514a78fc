// A primitive of an MLX graph that runs one of our kernels.
//
// MLX evaluates on two threads: `eval_cpu` runs on the one that asks for the result and only prepares; the work itself
// runs on the stream's thread, in order. What a kernel needs is therefore captured as plain pointers; MLX keeps inputs
// and outputs alive until the work is done.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "../src/gemm.h"
#include "mlx/array.h"
#include "mlx/primitives.h"

namespace mlxcel::graph {

namespace mx = mlx::core;

// An evaluated input.
struct Input {
  const void* data;
  mx::Shape shape;
  mx::Strides strides;  // in elements
  mx::Dtype type;
  bool contiguous;      // row by row, without gaps

  template <class T>
  const T* as() const {
    return static_cast<const T*>(data);
  }
  size_t size() const;
  int dim(int axis) const { return shape[axis < 0 ? axis + static_cast<int>(shape.size()) : axis]; }
};

// The elements of an input one after the other: the input's own memory, or a copy where that has another order.
class Packed {
 public:
  explicit Packed(const Input& input);
  template <class T>
  const T* as() const {
    return static_cast<const T*>(data_);
  }

 private:
  std::vector<std::byte> copy_;
  const void* data_;
};

// The rows (last dimension) of an input, one after the other in the order of its leading dimensions.
class Rows {
 public:
  explicit Rows(const Input& input);
  size_t count() const { return count_; }
  int length() const { return length_; }
  const float* operator[](size_t row) const {
    if (contiguous_) return start_ + row * length_;
    int64_t offset = 0;
    for (int d = dims_ - 1; d >= 0; d--) {
      offset += static_cast<int64_t>(row % shape_[d]) * strides_[d];
      row /= shape_[d];
    }
    return start_ + offset;
  }

 private:
  std::optional<Packed> copy_;  // of an input whose rows have gaps between elements
  const float* start_;
  bool contiguous_;
  size_t count_;
  int length_, dims_ = 0;
  mx::Shape shape_;
  mx::Strides strides_;
};

// What runs on the stream's thread. `out` is contiguous memory of the shape that was promised.
using Kernel = std::function<void(std::span<const Input> inputs, void* out)>;

// A node with one output. `name` must outlive it (a literal). Empty outputs run nothing.
mx::array node(const char* name, mx::Shape shape, mx::Dtype type, std::vector<mx::array> inputs, Kernel kernel);

// `x` as float32 (itself if it is), and back: kernels compute in float32.
mx::array to_float32(const mx::array& x);

// Throws std::invalid_argument for what is not float32, float16 or bfloat16.
Scalar scalar_of(mx::Dtype type);

// All but the last dimension, and the last one.
inline int row_length(const mx::array& x) { return x.shape(-1); }
mx::Shape with_last(const mx::array& x, int length);

}  // namespace mlxcel::graph
