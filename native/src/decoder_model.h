// What a decoder is made of: its weights and the choices that differ between models. Data; decoder_step.cpp runs it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "attention.h"
#include "gemm.h"
#include "rows.h"

namespace mlxcel {

enum class NormKind : uint8_t { None, Rms, Layer };

struct Norm {
  NormKind kind = NormKind::None;
  float eps = 0.0f;
  std::vector<float> weight, bias;  // empty: ones, zeros
};

// The same norm of each `width` elements of the queries, or of the keys, of a token; the weights are those of the whole
// row. For norms of one head with weights that all heads share, see DecoderLayer::q_norm.
struct PieceNorm {
  Norm norm;
  int width = 0;
};

struct Linear {
  PackedWeights weights;
  std::vector<float> bias;  // as long as the weights have outputs, or empty
};

// What the feed-forward part does between its products: f(gate) * up, or f(up) where there is no gate.
enum class Activation : uint8_t { Silu, Gelu, GeluTanh, Relu2 };

// A layer adds two branches to the hidden state h, each through the norms it has:
//   h += residual_scale * after_attention(output(attention(qkv(before_attention(h)))))
//   h += residual_scale * after_mlp(down(activation(up(before_mlp(h)))))
// or, `parallel`, both from the same h.
struct DecoderLayer {
  Linear qkv;     // queries, keys, values, one below the other
  Linear output;
  Linear up;      // gate and up interleaved by tiles (the bias too, once it is in a model), or up alone
  Linear down;
  bool gated = true, parallel = false;
  Activation activation = Activation::Silu;
  float residual_scale = 1.0f;
  Norm before_attention, after_attention, before_mlp, after_mlp;
  std::vector<float> q_norm, k_norm;  // RMS norms of each head, with attention.norm_eps; empty: none
  PieceNorm q_pieces, k_pieces;
  int rope = -1;                      // index of the table; -1: positions do not matter
  AttentionConfig attention;          // what is not in the model's shape; pointers are set by DecoderModel

  size_t feed_forward() const { return down.weights.cols(); }
};

struct DecoderShape {
  int hidden, vocabulary, layers, heads, kv_heads, head_dim;

  int qkv_width() const { return (heads + 2 * kv_heads) * head_dim; }
  int attended_width() const { return heads * head_dim; }
};

struct DecoderModel {
  DecoderShape shape;
  Precision precision = Precision::Default;
  float embedding_scale = 1.0f;
  float logit_scale = 1.0f, logit_softcap = 0.0f;  // the cap comes last; 0: none
  std::vector<RopeTable> ropes;
  PackedWeights embedding;
  Linear head;  // without weights: the embedding's are the output head's too
  Norm final_norm;
  std::vector<DecoderLayer> layers;

  DecoderModel(const DecoderShape& shape, Precision precision, std::vector<RopeTable> ropes);
  DecoderModel(const DecoderModel&) = delete;  // layers point to the tables

  // These throw std::invalid_argument for weights of another shape, or options that do not go together.
  void set_embedding(PackedWeights weights);
  void set_head(Linear linear);
  void set_final_norm(Norm norm);
  void add_layer(DecoderLayer layer);

  const PackedWeights& head_weights() const { return head.weights.tiles() ? head.weights : embedding; }
  size_t weight_bytes() const;
};

}  // namespace mlxcel
