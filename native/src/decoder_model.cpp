#include "decoder_model.h"

#include <stdexcept>
#include <string>
#include <utility>

namespace mlxcel {

namespace {

void expect(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(std::string(what) + " does not fit the model");
}

void expect_linear(const Linear& linear, int rows, int cols, const char* what) {
  expect(linear.weights.rows() == rows && linear.weights.cols() == cols, what);
  expect(linear.bias.empty() || linear.bias.size() == static_cast<size_t>(rows), what);
}

void expect_norm(const Norm& norm, size_t size, const char* what) {
  expect(norm.weight.empty() || norm.weight.size() == size, what);
  expect(norm.bias.empty() || (norm.bias.size() == size && norm.kind == NormKind::Layer), what);
}

void expect_pieces(const PieceNorm& pieces, int size, const char* what) {
  if (pieces.norm.kind == NormKind::None) return;
  expect(pieces.width > 0 && size % pieces.width == 0, what);
  expect_norm(pieces.norm, size, what);
}

// Gates and ups one after the other, in the order of weights that are interleaved by tiles.
std::vector<float> interleaved(const std::vector<float>& bias) {
  std::vector<float> mixed;
  mixed.reserve(bias.size());
  const auto up = bias.begin() + bias.size() / 2;
  for (auto gate = bias.begin(); mixed.size() < bias.size(); gate += tile_outputs) {
    mixed.insert(mixed.end(), gate, gate + tile_outputs);
    const auto own = up + (gate - bias.begin());
    mixed.insert(mixed.end(), own, own + tile_outputs);
  }
  return mixed;
}

}  // namespace

DecoderModel::DecoderModel(const DecoderShape& shape, Precision precision, std::vector<RopeTable> ropes)
    : shape(shape), precision(precision), ropes(std::move(ropes)) {
  for (const int size : {shape.hidden, shape.vocabulary, shape.layers, shape.heads, shape.kv_heads, shape.head_dim}) {
    expect(size > 0, "a size that is not positive");
  }
  expect(shape.heads % shape.kv_heads == 0, "the number of KV heads");
  expect(shape.head_dim % 16 == 0 && shape.head_dim >= 32 && shape.head_dim <= max_head_dim, "head_dim");
  for (const RopeTable& rope : this->ropes) expect(rope.dims() > 0 && rope.dims() <= shape.head_dim, "a rope");
}

void DecoderModel::set_embedding(PackedWeights weights) {
  expect(weights.rows() == shape.vocabulary && weights.cols() == shape.hidden, "embedding");
  embedding = std::move(weights);
}

void DecoderModel::set_head(Linear linear) {
  expect_linear(linear, shape.vocabulary, shape.hidden, "head");
  head = std::move(linear);
}

void DecoderModel::set_final_norm(Norm norm) {
  expect_norm(norm, shape.hidden, "final_norm");
  final_norm = std::move(norm);
}

void DecoderModel::add_layer(DecoderLayer layer) {
  const int hidden = shape.hidden, feed_forward = layer.down.weights.cols();
  expect_linear(layer.qkv, shape.qkv_width(), hidden, "qkv");
  expect_linear(layer.output, hidden, shape.attended_width(), "output");
  expect_linear(layer.up, layer.gated ? 2 * feed_forward : feed_forward, hidden, "up");
  expect_linear(layer.down, hidden, feed_forward, "down");
  expect(feed_forward % tile_outputs == 0, "feed_forward");
  for (const Norm* norm : {&layer.before_attention, &layer.after_attention, &layer.before_mlp, &layer.after_mlp}) {
    expect_norm(*norm, hidden, "a norm");
  }
  const bool after = layer.after_attention.kind != NormKind::None || layer.after_mlp.kind != NormKind::None;
  expect(!layer.parallel || !after, "a norm after parallel branches");
  for (const auto* norm : {&layer.q_norm, &layer.k_norm}) {
    expect(norm->empty() || norm->size() == static_cast<size_t>(shape.head_dim), "the norm of a head");
  }
  expect_pieces(layer.q_pieces, shape.heads * shape.head_dim, "the norm of queries");
  expect_pieces(layer.k_pieces, shape.kv_heads * shape.head_dim, "the norm of keys");
  expect(layer.rope < static_cast<int>(ropes.size()), "rope");
  expect(layers.size() < static_cast<size_t>(shape.layers), "one more layer");
  if (layer.gated) layer.up.bias = interleaved(layer.up.bias);
  // The vectors' memory stays where it is when the layer is moved.
  layer.attention.heads = shape.heads;
  layer.attention.kv_heads = shape.kv_heads;
  layer.attention.head_dim = shape.head_dim;
  layer.attention.q_norm = layer.q_norm.empty() ? nullptr : layer.q_norm.data();
  layer.attention.k_norm = layer.k_norm.empty() ? nullptr : layer.k_norm.data();
  layer.attention.rope = layer.rope < 0 ? nullptr : &ropes[layer.rope];
  layer.attention.bfloat16 = precision != Precision::Exact;
  layers.push_back(std::move(layer));
}

size_t DecoderModel::weight_bytes() const {
  size_t bytes = embedding.bytes() + head.weights.bytes();
  for (const DecoderLayer& layer : layers) {
    for (const Linear* linear : {&layer.qkv, &layer.output, &layer.up, &layer.down}) bytes += linear->weights.bytes();
  }
  return bytes;
}

}  // namespace mlxcel
