// The Python face: `mlxcel._kernels`. Arrays come in as contiguous buffers and are only read during the call.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "decoder.h"
#include "dispatch.h"
#include "module_logits.h"
#include "module_sequences.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace mlxcel {
namespace {

using Array = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using Words = nb::ndarray<const uint32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Tokens = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Logits = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// A two-dimensional weight matrix: quantised when it has scales.
struct Matrix {
  Array values;  // uint32 words, or floats
  std::optional<Array> scales, biases;
  int bits = 0, group = 0;

  bool quantised() const { return scales.has_value(); }
};

// numpy has no bfloat16: its bits come as uint16.
Scalar scalar_type(const Array& buffer) {
  if (buffer.dtype() == nb::dtype<float>()) return Scalar::Float32;
  if (buffer.dtype() == nb::dtype<uint16_t>()) return Scalar::BFloat16;
  if (buffer.dtype().code == static_cast<uint8_t>(nb::dlpack::dtype_code::Float) && buffer.dtype().bits == 16) return Scalar::Float16;
  throw nb::type_error("floats must be float32, float16, or bfloat16 seen as uint16");
}

AffineMatrix affine(const Matrix& matrix) {
  const Array &words = matrix.values, &scales = *matrix.scales;
  if (words.ndim() != 2 || scales.ndim() != 2 || words.dtype() != nb::dtype<uint32_t>() || !matrix.biases) {
    throw nb::type_error("a quantised matrix is uint32 words, scales and biases, each of two dimensions");
  }
  const int rows = static_cast<int>(words.shape(0));
  const int cols = static_cast<int>(scales.shape(1)) * matrix.group;
  const bool fits = static_cast<int>(scales.shape(0)) == rows && matrix.biases->size() == scales.size() &&
                    matrix.biases->dtype() == scales.dtype() &&
                    words.shape(1) * 32 == static_cast<size_t>(cols) * matrix.bits;
  if (!fits) throw nb::value_error("words, scales and biases do not belong together");
  return {static_cast<const uint32_t*>(words.data()), scales.data(), matrix.biases->data(), scalar_type(scales), rows, cols,
          matrix.bits, matrix.group};
}

DenseMatrix dense(const Matrix& matrix) {
  if (matrix.values.ndim() != 2) throw nb::type_error("a matrix has two dimensions");
  return {matrix.values.data(), scalar_type(matrix.values), static_cast<int>(matrix.values.shape(0)),
          static_cast<int>(matrix.values.shape(1))};
}

PackedWeights pack(Decoder& decoder, const std::vector<Matrix>& matrices, Arrangement arrangement = Arrangement::Stacked) {
  if (matrices.empty()) throw nb::value_error("no matrix");
  if (matrices.front().quantised()) {
    std::vector<AffineMatrix> views;
    for (const Matrix& matrix : matrices) {
      if (!matrix.quantised()) throw nb::value_error("quantised and dense matrices cannot be one");
      views.push_back(affine(matrix));
    }
    return decoder.pack(std::span<const AffineMatrix>(views), arrangement);
  }
  std::vector<DenseMatrix> views;
  for (const Matrix& matrix : matrices) {
    if (matrix.quantised()) throw nb::value_error("quantised and dense matrices cannot be one");
    views.push_back(dense(matrix));
  }
  return decoder.pack(std::span<const DenseMatrix>(views), arrangement);
}

// A linear layer: matrices that are packed as one, and their bias.
struct LinearSource {
  std::vector<Matrix> matrices;
  std::optional<Floats> bias;
};

std::vector<float> floats(const std::optional<Floats>& array) {
  return array ? std::vector<float>(array->data(), array->data() + array->size()) : std::vector<float>();
}

Linear linear(Decoder& decoder, const LinearSource& source, Arrangement arrangement = Arrangement::Stacked) {
  return {pack(decoder, source.matrices, arrangement), floats(source.bias)};
}

template <class Value>
Value named(const std::string& name, std::initializer_list<std::pair<const char*, Value>> values) {
  std::string names;
  for (const auto& [known, value] : values) {
    if (name == known) return value;
    names += std::string(" ") + known;
  }
  throw nb::value_error(("'" + name + "' is none of:" + names).c_str());
}

Norm make_norm(const std::string& kind, float eps, const std::optional<Floats>& weight,
               const std::optional<Floats>& bias) {
  return {named<NormKind>(kind, {{"rms", NormKind::Rms}, {"layer", NormKind::Layer}}), eps, floats(weight),
          floats(bias)};
}

Decoder* make_decoder(int hidden, int vocabulary, int layers, int heads, int kv_heads, int head_dim,
                      std::vector<RopeTable> ropes, float embedding_scale, float logit_scale, float logit_softcap,
                      const std::string& precision, int threads, size_t kv_budget) {
  if (threads <= 0) throw nb::value_error("threads must be positive");
  const Precision chosen = named<Precision>(
      precision, {{"fast", Precision::Fast}, {"default", Precision::Default}, {"exact", Precision::Exact}});
  auto decoder = std::make_unique<Decoder>(DecoderShape{hidden, vocabulary, layers, heads, kv_heads, head_dim}, chosen,
                                           std::move(ropes), threads, kv_budget);
  decoder->model().embedding_scale = embedding_scale;
  decoder->model().logit_scale = logit_scale;
  decoder->model().logit_softcap = logit_softcap;
  return decoder.release();
}

void add_layer(Decoder& decoder, const LinearSource& qkv, const LinearSource& output, const LinearSource& up,
               const LinearSource& down, bool gated, bool parallel, const std::string& activation,
               float residual_scale, const std::optional<Norm>& before_attention,
               const std::optional<Norm>& after_attention, const std::optional<Norm>& before_mlp,
               const std::optional<Norm>& after_mlp, const std::optional<Norm>& q_norm,
               const std::optional<Norm>& k_norm, int norm_width, int rope, bool rope_interleaved, float scale,
               int window, float softcap) {
  DecoderLayer layer;
  layer.qkv = linear(decoder, qkv);
  layer.output = linear(decoder, output);
  layer.up = linear(decoder, up, gated ? Arrangement::Interleaved : Arrangement::Stacked);
  layer.down = linear(decoder, down);
  layer.gated = gated;
  layer.parallel = parallel;
  layer.activation = named<Activation>(activation, {{"silu", Activation::Silu},
                                                    {"gelu", Activation::Gelu},
                                                    {"gelu_tanh", Activation::GeluTanh},
                                                    {"relu2", Activation::Relu2}});
  layer.residual_scale = residual_scale;
  layer.before_attention = before_attention.value_or(Norm());
  layer.after_attention = after_attention.value_or(Norm());
  layer.before_mlp = before_mlp.value_or(Norm());
  layer.after_mlp = after_mlp.value_or(Norm());
  const DecoderShape& shape = decoder.model().shape;
  if (q_norm.has_value() != k_norm.has_value()) throw nb::value_error("queries and keys are both normed, or neither");
  if (q_norm && norm_width == 0) {
    if (q_norm->kind != NormKind::Rms || q_norm->eps != k_norm->eps) throw nb::value_error("heads have one RMS norm");
    layer.q_norm = q_norm->weight;
    layer.k_norm = k_norm->weight;
    layer.attention.norm_eps = q_norm->eps;
  } else if (q_norm) {
    layer.q_pieces = {*q_norm, norm_width < 0 ? shape.heads * shape.head_dim : norm_width};
    layer.k_pieces = {*k_norm, norm_width < 0 ? shape.kv_heads * shape.head_dim : norm_width};
  }
  layer.rope = rope;
  layer.attention.rope_style = rope_interleaved ? RopeStyle::Interleaved : RopeStyle::Halves;
  layer.attention.scale = scale;
  layer.attention.window = window;
  layer.attention.softcap = softcap;
  decoder.model().add_layer(std::move(layer));
}

nb::dict profile(const Decoder& decoder) {
  nb::dict found;
  if (!decoder.profile()) return found;
  for (size_t i = 0; i < phase_names.size(); i++) found[phase_names[i]] = decoder.profile()->seconds[i];
  found["steps"] = decoder.profile()->steps;
  return found;
}

void step(Decoder& decoder, const Tokens& tokens, const std::vector<std::pair<int, int>>& pieces, std::optional<Logits> logits) {
  std::vector<Decoder::Piece> views;
  size_t total = 0;
  for (const auto& [sequence, count] : pieces) {
    if (count <= 0) throw nb::value_error("a piece needs at least one token");
    views.push_back({sequence, count});
    total += count;
  }
  if (views.empty() || total != tokens.size()) throw nb::value_error("pieces and tokens do not match");
  if (logits && (logits->shape(0) != views.size() || logits->shape(1) != static_cast<size_t>(decoder.model().shape.vocabulary))) {
    throw nb::value_error("logits must be [pieces, vocabulary]");
  }
  float* out = logits ? logits->data() : nullptr;
  if (decoder.stepping.exchange(true)) throw std::runtime_error("another thread is in a step of this decoder");
  const nb::gil_scoped_release release;
  const struct Guard {
    std::atomic<bool>& stepping;
    ~Guard() { stepping = false; }
  } guard{decoder.stepping};
  decoder.step(std::span(tokens.data(), tokens.size()), views, out);
}

}  // namespace
}  // namespace mlxcel

NB_MODULE(_kernels, m) {
  using namespace mlxcel;
  m.doc() = "Native CPU kernels.";
  m.def("name", [] { return kernels().name; }, "The instruction set in use.");
  m.attr("mlx_version") = MLXCEL_MLX_VERSION;  // that `_mlx_kernels` was built for
  register_logits(m);

  nb::class_<Matrix>(m, "Matrix", "A weight matrix [outputs, inputs], dense or in MLX's affine quantisation.")
      .def("__init__",
           [](Matrix* self, Array values, std::optional<Array> scales, std::optional<Array> biases, int bits, int group) {
             new (self) Matrix{std::move(values), std::move(scales), std::move(biases), bits, group};
           },
           "values"_a, "scales"_a = nb::none(), "biases"_a = nb::none(), "bits"_a = 0, "group"_a = 0);

  nb::class_<LinearSource>(m, "Linear", "A linear layer: matrices one below the other (or gate and up), and its bias.")
      .def("__init__",
           [](LinearSource* self, std::vector<Matrix> matrices, std::optional<Floats> bias) {
             new (self) LinearSource{std::move(matrices), std::move(bias)};
           },
           "matrices"_a, "bias"_a = nb::none());

  nb::class_<Norm>(m, "Norm", "A norm of a row: `rms` or `layer`; without weights they are ones.")
      .def("__init__",
           [](Norm* self, const std::string& kind, float eps, const std::optional<Floats>& weight,
              const std::optional<Floats>& bias) { new (self) Norm(make_norm(kind, eps, weight, bias)); },
           "kind"_a, "eps"_a, "weight"_a = nb::none(), "bias"_a = nb::none());

  nb::class_<RopeTable>(m, "Rope", "Rotary embedding: angles a position, and what cosines and sines are multiplied by.")
      .def(nb::init<std::vector<double>, double>(), "frequencies"_a, "magnitude"_a);

  nb::class_<Decoder> decoder(m, "Decoder", "A decoder of the common kind, with its KV cache.");
  bind_sequences(decoder);
  decoder.def(nb::new_(&make_decoder), "hidden"_a, "vocabulary"_a, "layers"_a, "heads"_a, "kv_heads"_a, "head_dim"_a,
           "ropes"_a, "embedding_scale"_a, "logit_scale"_a, "logit_softcap"_a, "precision"_a, "threads"_a,
           "kv_budget"_a)
      .def("set_embedding",
           [](Decoder& decoder, const Matrix& matrix) { decoder.model().set_embedding(pack(decoder, {matrix})); })
      .def("set_head",
           [](Decoder& decoder, const LinearSource& source) { decoder.model().set_head(linear(decoder, source)); })
      .def("set_final_norm", [](Decoder& decoder, const Norm& norm) { decoder.model().set_final_norm(norm); })
      .def("add_layer", &add_layer, "qkv"_a, "output"_a, "up"_a, "down"_a, "gated"_a, "parallel"_a, "activation"_a,
           "residual_scale"_a, "before_attention"_a.none(), "after_attention"_a.none(), "before_mlp"_a.none(),
           "after_mlp"_a.none(), "q_norm"_a.none(), "k_norm"_a.none(), "norm_width"_a, "rope"_a, "rope_interleaved"_a,
           "scale"_a, "window"_a, "softcap"_a,
           "norm_width: of the queries' and keys' norms; 0: a head, all with the same weights; -1: all heads at once.")
      .def("step", &step, "tokens"_a, "pieces"_a, "logits"_a.none())
      .def("measure", &Decoder::measure, "on"_a, "Measure from now on where steps spend their time, or stop.")
      .def("profile", &profile, "Seconds of each phase and `steps`, since `measure(True)`; empty without it.")
      .def_prop_ro("threads", &Decoder::threads)
      .def_prop_ro("weight_bytes", [](const Decoder& decoder) { return decoder.model().weight_bytes(); });
}
