// Norms, gates and rotary embeddings as nodes. Arguments and results are those of mlx.fast and mlx.nn, in float32.
#pragma once

#include <optional>

#include "context.h"
#include "op.h"

namespace mlxcel::graph {

mx::array rms_norm(const ContextPtr& context, const mx::array& x, const std::optional<mx::array>& weight, float eps);
mx::array layer_norm(const ContextPtr& context, const mx::array& x, const std::optional<mx::array>& weight,
                     const std::optional<mx::array>& bias, float eps);

// silu(gate) * up, and gelu(gate) * up with the tanh approximation; same shapes.
mx::array swiglu(const ContextPtr& context, const mx::array& gate, const mx::array& up);
mx::array geglu(const ContextPtr& context, const mx::array& gate, const mx::array& up);

// x [batch, ..., length, head_dim]; offset: a scalar or one integer a batch row.
mx::array rope(const ContextPtr& context, const mx::array& x, int dims, bool traditional, std::optional<float> base,
               float scale, const mx::array& offset, const std::optional<mx::array>& freqs);

}  // namespace mlxcel::graph
