// Norms, gates and rotary embeddings as nodes. Arguments and results are those of mlx.fast and mlx.nn, in float32.
#pragma once

#include <optional>

#include "context.h"
#include "op.h"

namespace mlxcel::graph {

mx::array rms_norm(const ContextPtr& context, const mx::array& x, const std::optional<mx::array>& weight, float eps);
mx::array layer_norm(const ContextPtr& context, const mx::array& x, const std::optional<mx::array>& weight,
                     const std::optional<mx::array>& bias, float eps);

// silu(gate) * up; same shapes.
mx::array swiglu(const ContextPtr& context, const mx::array& gate, const mx::array& up);
// RowKernels::swiglu_limited.
mx::array swiglu_limited(const ContextPtr& context, const mx::array& gate, const mx::array& up, float alpha,
                         float limit);
// One of the activations without a product: &RowKernels::silu, gelu, gelu_tanh or relu2.
mx::array activation(const ContextPtr& context, const mx::array& x, void (*RowKernels::*kernel)(const float*, int, float*));

// x [batch, ..., length, head_dim]; offset: a scalar or one integer a batch row.
mx::array rope(const ContextPtr& context, const mx::array& x, int dims, bool traditional, std::optional<float> base,
               float scale, const mx::array& offset, const std::optional<mx::array>& freqs);

}  // namespace mlxcel::graph
