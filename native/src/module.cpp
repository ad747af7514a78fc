// The Python face: `mlxcel._kernels`. Arrays come in as contiguous buffers and are only read during the call.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "decoder.h"
#include "dispatch.h"
#include "module_logits.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace mlxcel {
namespace {

using Buffer = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using Words = nb::ndarray<const uint32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Tokens = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Logits = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// A two-dimensional weight matrix: quantised when it has scales.
struct Matrix {
  Buffer values;  // uint32 words, or floats
  std::optional<Buffer> scales, biases;
  int bits = 0, group = 0;

  bool quantised() const { return scales.has_value(); }
};

// numpy has no bfloat16: its bits come as uint16.
Scalar scalar_type(const Buffer& buffer) {
  if (buffer.dtype() == nb::dtype<float>()) return Scalar::Float32;
  if (buffer.dtype() == nb::dtype<uint16_t>()) return Scalar::BFloat16;
  if (buffer.dtype().code == static_cast<uint8_t>(nb::dlpack::dtype_code::Float) && buffer.dtype().bits == 16) return Scalar::Float16;
  throw nb::type_error("floats must be float32, float16, or bfloat16 seen as uint16");
}

AffineMatrix affine(const Matrix& matrix) {
  const Buffer &words = matrix.values, &scales = *matrix.scales;
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

void expect(const PackedWeights& weights, int rows, int cols, const char* what) {
  if (weights.rows() != rows || weights.cols() != cols) {
    throw nb::value_error((std::string(what) + " has another shape than the model").c_str());
  }
}

std::vector<float> floats(const std::optional<Floats>& array, size_t size, const char* what) {
  if (!array) return {};
  if (array->size() != size) throw nb::value_error((std::string(what) + " has another length than the model").c_str());
  return std::vector<float>(array->data(), array->data() + size);
}

Precision precision_of(const std::string& name) {
  if (name == "fast") return Precision::Fast;
  if (name == "default") return Precision::Default;
  if (name == "exact") return Precision::Exact;
  throw nb::value_error("precision must be fast, default or exact");
}

RopeTable rope_table(int dims, double base, double scale, const std::optional<std::vector<double>>& frequencies) {
  if (dims % 2 != 0 || dims <= 0) throw nb::value_error("rope_dims must be even and positive");
  if (!frequencies) return RopeTable(dims, base, scale);
  if (frequencies->size() * 2 != static_cast<size_t>(dims)) throw nb::value_error("rope_frequencies must be rope_dims / 2");
  return RopeTable(*frequencies);
}

Decoder* make_decoder(int hidden, int feed_forward, int vocabulary, int layers, int heads, int kv_heads, int head_dim,
                      float norm_eps, int rope_dims, double rope_base, double rope_scale,
                      const std::optional<std::vector<double>>& rope_frequencies, bool rope_interleaved,
                      const std::string& precision, int threads, size_t kv_budget) {
  for (const int size : {hidden, feed_forward, vocabulary, layers, heads, kv_heads, head_dim, threads}) {
    if (size <= 0) throw nb::value_error("sizes must be positive");
  }
  if (heads % kv_heads != 0 || rope_dims > head_dim) throw nb::value_error("the heads do not fit together");
  DecoderConfig config{};
  config.hidden = hidden;
  config.feed_forward = feed_forward;
  config.vocabulary = vocabulary;
  config.layers = layers;
  config.norm_eps = norm_eps;
  config.precision = precision_of(precision);
  config.attention = {.heads = heads, .kv_heads = kv_heads, .head_dim = head_dim, .scale = 0.0f};
  config.attention.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  config.attention.rope_style = rope_interleaved ? RopeStyle::Interleaved : RopeStyle::Halves;
  config.attention.bfloat16 = config.precision != Precision::Exact;
  return new Decoder(config, rope_table(rope_dims, rope_base, rope_scale, rope_frequencies), threads, kv_budget);
}

void add_layer(Decoder& decoder, const std::vector<Matrix>& qkv, const Matrix& output, const std::vector<Matrix>& gate_up,
               const Matrix& down, const Floats& input_norm, const Floats& output_norm,
               const std::optional<Floats>& qkv_bias, const std::optional<Floats>& q_norm,
               const std::optional<Floats>& k_norm) {
  const DecoderConfig& config = decoder.config();
  const AttentionConfig& attention = config.attention;
  DecoderLayer layer;
  layer.qkv = pack(decoder, qkv);
  layer.output = pack(decoder, {output});
  layer.gate_up = pack(decoder, gate_up, Arrangement::Interleaved);
  layer.down = pack(decoder, {down});
  expect(layer.qkv, attention.row_elements(), config.hidden, "qkv");
  expect(layer.output, config.hidden, attention.heads * attention.head_dim, "output");
  expect(layer.gate_up, 2 * config.feed_forward, config.hidden, "gate_up");
  expect(layer.down, config.hidden, config.feed_forward, "down");
  layer.input_norm = floats(input_norm, config.hidden, "input_norm");
  layer.output_norm = floats(output_norm, config.hidden, "output_norm");
  layer.qkv_bias = floats(qkv_bias, attention.row_elements(), "qkv_bias");
  layer.q_norm = floats(q_norm, attention.head_dim, "q_norm");
  layer.k_norm = floats(k_norm, attention.head_dim, "k_norm");
  decoder.add_layer(std::move(layer));
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
  if (logits && (logits->shape(0) != views.size() || logits->shape(1) != static_cast<size_t>(decoder.config().vocabulary))) {
    throw nb::value_error("logits must be [pieces, vocabulary]");
  }
  float* out = logits ? logits->data() : nullptr;
  const nb::gil_scoped_release release;
  decoder.step(std::span(tokens.data(), tokens.size()), views, out);
}

}  // namespace
}  // namespace mlxcel

NB_MODULE(_kernels, m) {
  using namespace mlxcel;
  m.doc() = "Native CPU kernels.";
  m.def("name", [] { return kernels().name; }, "The instruction set in use.");
  register_logits(m);

  nb::class_<Matrix>(m, "Matrix", "A weight matrix [outputs, inputs], dense or in MLX's affine quantisation.")
      .def("__init__",
           [](Matrix* self, Buffer values, std::optional<Buffer> scales, std::optional<Buffer> biases, int bits, int group) {
             new (self) Matrix{std::move(values), std::move(scales), std::move(biases), bits, group};
           },
           "values"_a, "scales"_a = nb::none(), "biases"_a = nb::none(), "bits"_a = 0, "group"_a = 0);

  nb::class_<Decoder>(m, "Decoder", "A decoder of the common shape, with its KV cache.")
      .def(nb::new_(&make_decoder), "hidden"_a, "feed_forward"_a, "vocabulary"_a, "layers"_a, "heads"_a, "kv_heads"_a,
           "head_dim"_a, "norm_eps"_a, "rope_dims"_a, "rope_base"_a, "rope_scale"_a, "rope_frequencies"_a.none(),
           "rope_interleaved"_a, "precision"_a, "threads"_a, "kv_budget"_a)
      .def("set_embedding",
           [](Decoder& decoder, const Matrix& matrix) {
             PackedWeights packed = pack(decoder, {matrix});
             expect(packed, decoder.config().vocabulary, decoder.config().hidden, "embedding");
             decoder.set_embedding(std::move(packed));
           })
      .def("set_head",
           [](Decoder& decoder, const Matrix& matrix) {
             PackedWeights packed = pack(decoder, {matrix});
             expect(packed, decoder.config().vocabulary, decoder.config().hidden, "head");
             decoder.set_head(std::move(packed));
           })
      .def("set_final_norm",
           [](Decoder& decoder, const Floats& weights) {
             decoder.set_final_norm(floats(weights, decoder.config().hidden, "final_norm"));
           })
      .def("add_layer", &add_layer, "qkv"_a, "output"_a, "gate_up"_a, "down"_a, "input_norm"_a, "output_norm"_a,
           "qkv_bias"_a.none(), "q_norm"_a.none(), "k_norm"_a.none())
      .def("open", &Decoder::open)
      .def("close", &Decoder::close)
      .def("length", &Decoder::length)
      .def("step", &step, "tokens"_a, "pieces"_a, "logits"_a.none())
      .def_prop_ro("threads", &Decoder::threads)
      .def_prop_ro("weight_bytes", &Decoder::weight_bytes)
      .def_prop_ro("cache_bytes", [](Decoder& decoder) { return decoder.cache().reserved_bytes(); })
      .def_prop_ro("cache_blocks_used", [](Decoder& decoder) { return decoder.cache().used(); });
}
