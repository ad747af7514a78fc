#include "attention.h"

#include <stdexcept>
#include <vector>

#include "../src/sdpa.h"
#include "mlx/ops.h"

namespace mlxcel::graph {
namespace {

bool floating(const mx::array& x) { return mx::issubdtype(x.dtype(), mx::floating) && x.dtype() != mx::float64; }

// An input as the kernels read it: in its own layout if rows have no gaps, else as a copy.
struct View {
  std::optional<Packed> copy;
  SdpaArray array;

  explicit View(const Input& input) {
    array.type = scalar_of(input.type);
    if (input.strides[3] == 1 || input.dim(3) == 1) {
      array.data = input.data;
      array.batch = input.strides[0];
      array.head = input.strides[1];
      array.time = input.strides[2];
    } else {
      copy.emplace(input);
      array.data = copy->as<void>();
      array.time = input.dim(3);
      array.head = array.time * input.dim(2);
      array.batch = array.head * input.dim(1);
    }
  }
};

}  // namespace

mx::array attention(const ContextPtr& context, const mx::array& queries, const mx::array& keys, const mx::array& values,
                    float scale, bool causal, const std::optional<mx::array>& mask,
                    const std::optional<mx::array>& sinks) {
  for (const mx::array* x : {&queries, &keys, &values})
    if (x->ndim() != 4 || !floating(*x)) throw std::invalid_argument("attention takes [batch, heads, length, dim]");
  SdpaTask task{};
  task.batch = queries.shape(0);
  task.heads = queries.shape(1);
  task.queries = queries.shape(2);
  task.head_dim = queries.shape(3);
  task.kv_heads = keys.shape(1);
  task.keys = keys.shape(2);
  task.value_dim = values.shape(3);
  task.scale = scale;
  task.causal = causal;
  const mx::Shape key_shape{task.batch, task.kv_heads, task.keys, task.head_dim};
  const mx::Shape value_shape{task.batch, task.kv_heads, task.keys, task.value_dim};
  if (keys.shape() != key_shape || values.shape() != value_shape || task.kv_heads == 0 ||
      task.heads % task.kv_heads != 0)
    throw std::invalid_argument("queries, keys and values do not fit together");
  std::vector<mx::array> inputs{queries, keys, values};
  if (mask) {
    const bool boolean = mask->dtype() == mx::bool_;
    if (!boolean && !floating(*mask)) throw std::invalid_argument("a mask is boolean or floating-point");
    task.mask.kind = boolean ? SdpaMask::Kind::Boolean : SdpaMask::Kind::Additive;
    inputs.push_back(mx::broadcast_to(boolean ? *mask : to_float32(*mask),
                                      {task.batch, task.heads, task.queries, task.keys}));
  }
  if (sinks) {
    if (sinks->size() != static_cast<size_t>(task.heads)) throw std::invalid_argument("sinks are one value a head");
    inputs.push_back(to_float32(*sinks));
  }
  const bool sunk = sinks.has_value();
  // Token by token, seen as head by head: models put the heads of a token side by side next.
  mx::array out = node("mlxcel.attention", {task.batch, task.queries, task.heads, task.value_dim}, mx::float32,
                       std::move(inputs), [context, task, sunk](std::span<const Input> in, void* out) mutable {
                         const View q(in[0]), k(in[1]), v(in[2]);
                         task.q = q.array;
                         task.k = k.array;
                         task.v = v.array;
                         const ptrdiff_t row = static_cast<ptrdiff_t>(task.heads) * task.value_dim;
                         task.out = {out, Scalar::Float32, row * task.queries, task.value_dim, row};
                         if (task.mask.kind != SdpaMask::Kind::None) {
                           const mx::Strides& strides = in[3].strides;
                           task.mask.data = in[3].data;
                           task.mask.batch = strides[0];
                           task.mask.head = strides[1];
                           task.mask.query = strides[2];
                           task.mask.key = strides[3];
                         }
                         const Packed sinks(in.back());
                         if (sunk) task.sinks = sinks.as<float>();
                         const size_t operations = static_cast<size_t>(task.batch) * task.heads * task.queries *
                                                   task.keys * (task.head_dim + task.value_dim);
                         sdpa(context->pool_for(operations), context->kernels.sdpa, task);
                       });
  return mx::transpose(out, {0, 2, 1, 3});
}

}  // namespace mlxcel::graph
