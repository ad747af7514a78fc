// Attention over arrays as a node, for models and layers that have no paged cache.
#pragma once

#include <optional>
#include <string>

#include "context.h"
#include "op.h"

namespace mlxcel::graph {

// queries [batch, heads, length, head_dim], keys [batch, kv_heads, keys, head_dim], values [batch, kv_heads, keys,
// value_dim] of any floating-point type and layout -> [batch, heads, length, value_dim], float32.
// causal: a query sees the keys up to its own place, the last query standing at the last key. mask: boolean (true is
// seen) or added to the scores, broadcast to [batch, heads, length, keys]. sinks [heads].
mx::array attention(const ContextPtr& context, const mx::array& queries, const mx::array& keys, const mx::array& values,
                    float scale, bool causal, const std::optional<mx::array>& mask,
                    const std::optional<mx::array>& sinks);

}  // namespace mlxcel::graph
