#include "rows.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <stdexcept>

#include "mlx/ops.h"

namespace mlxcel::graph {
namespace {

// `row(i)` for all rows, in units that are worth a thread's while.
template <class Row>
void each_row(Context& context, size_t rows, size_t length, Row&& row) {
  constexpr size_t kElementsAtOnce = 4096, kOperations = 8;  // an element of a norm takes about eight products' time
  const size_t at_once = std::max<size_t>(1, kElementsAtOnce / std::max<size_t>(1, length));
  Pool& pool = context.pool_for(rows * length * kOperations);
  pool.run([&](Worker& worker) {
    worker.each(static_cast<int>((rows + at_once - 1) / at_once), [&](int unit) {
      const size_t end = std::min(rows, (unit + 1) * at_once);
      for (size_t i = unit * at_once; i < end; i++) row(i);
    });
  });
}

// A node over the rows of x: `kernel(row of x, row of out, length)`.
template <class Kernel>
mx::array row_node(const ContextPtr& context, const char* name, const mx::array& x, std::vector<mx::array> more,
                   Kernel kernel) {
  std::vector<mx::array> inputs{to_float32(x)};
  for (const mx::array& other : more) inputs.push_back(to_float32(other));
  return node(name, x.shape(), mx::float32, std::move(inputs), [context, kernel](std::span<const Input> in, void* out) {
    const Rows rows(in[0]);
    std::vector<Packed> weights;
    for (const Input& input : in.subspan(1)) weights.emplace_back(input);
    each_row(*context, rows.count(), rows.length(), [&](size_t i) {
      kernel(rows[i], weights, rows.length(), static_cast<float*>(out) + i * rows.length());
    });
  });
}

// `kernel(row of gate, row of up, length, row of out)`.
template <class Kernel>
mx::array gate_node(const ContextPtr& context, const char* name, const mx::array& gate, const mx::array& up,
                    Kernel kernel) {
  if (gate.shape() != up.shape() || gate.ndim() == 0) throw std::invalid_argument("a gate has the shape of its values");
  return node(name, gate.shape(), mx::float32, {to_float32(gate), to_float32(up)},
              [context, kernel](std::span<const Input> in, void* out) {
                const Rows gates(in[0]), values(in[1]);
                each_row(*context, gates.count(), gates.length(), [&](size_t i) {
                  kernel(gates[i], values[i], gates.length(), static_cast<float*>(out) + i * gates.length());
                });
              });
}

// The weight or bias of a norm over the rows of x.
void check_weight(const mx::array& x, const std::optional<mx::array>& weight) {
  if (x.ndim() == 0) throw std::invalid_argument("a norm is over the last dimension");
  if (weight && (weight->ndim() != 1 || weight->shape(0) != x.shape(-1)))
    throw std::invalid_argument("the weight of a norm has one value for each of a row");
}

}  // namespace

mx::array rms_norm(const ContextPtr& context, const mx::array& x, const std::optional<mx::array>& weight, float eps) {
  check_weight(x, weight);
  std::vector<mx::array> more;
  if (weight) more.push_back(*weight);
  const auto kernel = context->kernels.rows.rms_norm;
  return row_node(context, "mlxcel.rms_norm", x, std::move(more),
                  [kernel, eps](const float* x, const std::vector<Packed>& weights, int n, float* out) {
                    kernel(x, weights.empty() ? nullptr : weights[0].as<float>(), n, eps, 0.0f, out);
                  });
}

mx::array layer_norm(const ContextPtr& context, const mx::array& x, const std::optional<mx::array>& weight,
                     const std::optional<mx::array>& bias, float eps) {
  check_weight(x, weight);
  check_weight(x, bias);
  std::vector<mx::array> more;
  if (weight) more.push_back(*weight);
  if (bias) more.push_back(*bias);
  const bool weighted = weight.has_value(), biased = bias.has_value();
  const auto kernel = context->kernels.rows.layer_norm;
  return row_node(context, "mlxcel.layer_norm", x, std::move(more),
                  [=](const float* x, const std::vector<Packed>& more, int n, float* out) {
                    kernel(x, weighted ? more.front().as<float>() : nullptr, biased ? more.back().as<float>() : nullptr,
                           n, eps, out);
                  });
}

mx::array swiglu(const ContextPtr& context, const mx::array& gate, const mx::array& up) {
  return gate_node(context, "mlxcel.swiglu", gate, up, context->kernels.rows.silu_mul);
}

mx::array swiglu_limited(const ContextPtr& context, const mx::array& gate, const mx::array& up, float alpha,
                         float limit) {
  const auto kernel = context->kernels.rows.swiglu_limited;
  return gate_node(context, "mlxcel.swiglu_limited", gate, up,
                   [=](const float* gate, const float* up, int n, float* out) {
                     kernel(gate, up, n, alpha, limit, out);
                   });
}

mx::array activation(const ContextPtr& context, const mx::array& x, void (*RowKernels::*kernel)(const float*, int, float*)) {
  const auto run = context->kernels.rows.*kernel;
  return row_node(context, "mlxcel.activation", x, {},
                  [run](const float* x, const std::vector<Packed>&, int n, float* out) { run(x, n, out); });
}

const RopeTable& RopeTables::get(int dims, double base, double scale, std::vector<float> periods, int last) {
  auto entry = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) {
    return e.dims == dims && e.base == base && e.scale == scale && e.periods == periods;
  });
  if (entry == entries_.end()) {
    auto table = std::make_unique<RopeTable>(periods.empty() ? RopeTable(dims, base, scale)
                                                             : RopeTable::of_periods(periods, scale));
    entries_.push_back({dims, base, scale, std::move(periods), std::move(table)});
    entry = entries_.end() - 1;
  }
  entry->table->reserve(last + 1);
  return *entry->table;
}

mx::array rope(const ContextPtr& context, const mx::array& x, int dims, bool traditional, std::optional<float> base,
               float scale, const mx::array& offset, const std::optional<mx::array>& freqs) {
  if (x.ndim() < 3) throw std::invalid_argument("rope needs [batch, ..., length, head_dim]");
  if (dims % 2 != 0 || dims <= 0 || dims > x.shape(-1)) throw std::invalid_argument("rope cannot turn these dimensions");
  if (base.has_value() == freqs.has_value()) throw std::invalid_argument("rope takes a base or frequencies");
  if (freqs && freqs->size() != static_cast<size_t>(dims / 2))
    throw std::invalid_argument("rope takes one frequency for two dimensions");
  if (offset.size() != 1 && offset.size() != static_cast<size_t>(x.shape(0)))
    throw std::invalid_argument("rope takes one offset, or one for each batch row");
  std::vector<mx::array> inputs{to_float32(x), mx::astype(offset, mx::int32)};
  if (freqs) inputs.push_back(to_float32(*freqs));
  const RopeStyle style = traditional ? RopeStyle::Interleaved : RopeStyle::Halves;
  return node("mlxcel.rope", x.shape(), mx::float32, std::move(inputs), [=](std::span<const Input> in, void* out) {
    const Rows rows(in[0]);
    const Packed offsets(in[1]);
    std::vector<float> periods;
    if (in.size() > 2) {
      const Packed packed(in[2]);
      periods.assign(packed.as<float>(), packed.as<float>() + in[2].size());
    }
    const size_t length = in[0].dim(-2), batch = in[0].dim(0), rows_of_batch = rows.count() / batch;
    const size_t offset_step = in[1].size() == 1 ? 0 : 1;
    int farthest = 0;
    for (size_t b = 0; b < in[1].size(); b++) {
      const int first = offsets.as<int32_t>()[b], last = first + static_cast<int>(length) - 1;
      farthest = std::max({farthest, std::abs(first), std::abs(last)});
    }
    const RopeTable& table = context->ropes.get(dims, base.value_or(0.0f), scale, std::move(periods), farthest);
    each_row(*context, rows.count(), rows.length(), [&](size_t i) {
      const int position = offsets.as<int32_t>()[i / rows_of_batch * offset_step] + static_cast<int>(i % length);
      const float* turn = table.row(std::abs(position));
      std::vector<float> mirrored;
      if (position < 0) {  // left padding
        mirrored.assign(turn, turn + dims);
        for (int k = dims / 2; k < dims; k++) mirrored[k] = -mirrored[k];
        turn = mirrored.data();
      }
      context->kernels.rows.rope(rows[i], turn, rows.length(), dims, style,
                                 static_cast<float*>(out) + i * rows.length());
    });
  });
}

}  // namespace mlxcel::graph
