// The Python face: `mlxcel._mlx_kernels`, our kernels as operations on mlx.core.array.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "../src/module_sequences.h"
#include "attention.h"
#include "linear.h"
#include "paged.h"
#include "rows.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace mlxcel::graph {
namespace {

Precision precision_of(const std::string& name) {
  if (name == "fast") return Precision::Fast;
  if (name == "default") return Precision::Default;
  if (name == "exact") return Precision::Exact;
  throw nb::value_error("precision must be fast, default or exact");
}

// What Python holds: the operations of one context.
struct Operations {
  ContextPtr context;

  Operations(int threads, const std::string& precision) {
    if (threads <= 0) throw nb::value_error("threads must be positive");
    context = std::make_shared<Context>(threads, precision_of(precision));
  }
};

using Offset = std::variant<int, mx::array>;

mx::array offset_array(const Offset& offset) {
  if (const int* number = std::get_if<int>(&offset)) return mx::array(*number);
  return std::get<mx::array>(offset);
}

}  // namespace
}  // namespace mlxcel::graph

NB_MODULE(_mlx_kernels, m) {
  using namespace mlxcel::graph;
  nb::module_::import_("mlx.core");
  m.doc() = "Native CPU kernels as operations on MLX arrays.";
  m.def("name", [] { return mlxcel::kernels().name; }, "The instruction set in use.");

  nb::class_<Linear>(m, "Linear", "Packed weights, with or without a bias.")
      .def("__call__", [](const std::shared_ptr<Linear>& self, const mx::array& x) { return Linear::apply(self, x); })
      .def("rows", [](const std::shared_ptr<Linear>& self, const mx::array& ids) { return Linear::rows(self, ids); })
      .def("gather", [](const std::shared_ptr<Linear>& self, const mx::array& x,
                        const mx::array& experts) { return Linear::gather(self, x, experts); })
      .def("unpacked", &Linear::unpacked)
      .def_prop_ro("inputs", &Linear::inputs)
      .def_prop_ro("outputs", &Linear::outputs)
      .def_prop_ro("experts", &Linear::experts)
      .def_prop_ro("nbytes", &Linear::bytes);

  nb::class_<PagedCache> paged(m, "PagedCache", "Keys and values of all sequences of a model, in blocks.");
  mlxcel::bind_sequences(paged);
  paged.def("begin", &PagedCache::begin, "rows"_a, "count"_a)
      .def("commit", &PagedCache::commit)
      .def("attend", &PagedCache::attend, "layer"_a, "queries"_a, "keys"_a, "values"_a, "scale"_a, "window"_a,
           "sinks"_a.none());

  nb::class_<Operations>(m, "Operations", "Operations that share threads and a precision.")
      .def(nb::init<int, const std::string&>(), "threads"_a, "precision"_a)
      .def(
          "pack",
          [](const Operations& self, const mx::array& values, const std::optional<mx::array>& scales,
             const std::optional<mx::array>& biases, int bits, int group, const std::optional<mx::array>& bias) {
            return std::make_shared<Linear>(self.context, Matrices{values, scales, biases, bits, group}, bias);
          },
          "values"_a, "scales"_a.none() = nb::none(), "biases"_a.none() = nb::none(), "bits"_a = 0, "group"_a = 0,
          "bias"_a.none() = nb::none())
      .def(
          "paged_cache",
          [](const Operations& self, const std::vector<std::pair<int, int>>& layers, size_t budget) {
            return std::make_shared<PagedCache>(self.context, layers, budget);
          },
          "layers"_a, "budget"_a)
      .def(
          "rms_norm",
          [](const Operations& self, const mx::array& x, const std::optional<mx::array>& weight, float eps) {
            return rms_norm(self.context, x, weight, eps);
          },
          "x"_a, "weight"_a.none(), "eps"_a)
      .def(
          "layer_norm",
          [](const Operations& self, const mx::array& x, const std::optional<mx::array>& weight,
             const std::optional<mx::array>& bias,
             float eps) { return layer_norm(self.context, x, weight, bias, eps); },
          "x"_a, "weight"_a.none(), "bias"_a.none(), "eps"_a)
      .def("swiglu", [](const Operations& self, const mx::array& gate,
                        const mx::array& up) { return swiglu(self.context, gate, up); })
      .def(
          "swiglu_limited",
          [](const Operations& self, const mx::array& gate, const mx::array& up, float alpha, float limit) {
            return swiglu_limited(self.context, gate, up, alpha, limit);
          },
          "gate"_a, "x"_a, "alpha"_a = 1.702f, "limit"_a = 7.0f)
      .def("silu", [](const Operations& self, const mx::array& x) {
        return activation(self.context, x, &mlxcel::RowKernels::silu);
      })
      .def("gelu", [](const Operations& self, const mx::array& x) {
        return activation(self.context, x, &mlxcel::RowKernels::gelu);
      })
      .def("gelu_tanh", [](const Operations& self, const mx::array& x) {
        return activation(self.context, x, &mlxcel::RowKernels::gelu_tanh);
      })
      .def("relu2", [](const Operations& self, const mx::array& x) {
        return activation(self.context, x, &mlxcel::RowKernels::relu2);
      })
      .def(
          "attention",
          [](const Operations& self, const mx::array& queries, const mx::array& keys, const mx::array& values,
             float scale, bool causal, const std::optional<mx::array>& mask, const std::optional<mx::array>& sinks) {
            return attention(self.context, queries, keys, values, scale, causal, mask, sinks);
          },
          "queries"_a, "keys"_a, "values"_a, nb::kw_only(), "scale"_a, "causal"_a, "mask"_a.none(), "sinks"_a.none())
      .def(
          "rope",
          [](const Operations& self, const mx::array& x, int dims, bool traditional, std::optional<float> base,
             float scale, const Offset& offset, const std::optional<mx::array>& freqs) {
            return rope(self.context, x, dims, traditional, base, scale, offset_array(offset), freqs);
          },
          "x"_a, "dims"_a, nb::kw_only(), "traditional"_a, "base"_a.none(), "scale"_a, "offset"_a,
          "freqs"_a.none() = nb::none());
}
