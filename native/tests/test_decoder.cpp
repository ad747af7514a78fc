// Small decoders with random weights: the bits of a row do not depend on threads, company or chunks. Under
// ThreadSanitizer this is the test that no thread reads what another one already writes for a later phase.
#include "../src/decoder.h"

#include <atomic>
#include <cmath>
#include <memory>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "check.h"

using namespace mlxcel;

namespace {

constexpr int kHidden = 64, kHeads = 4, kKvHeads = 2, kHeadDim = 32, kFeedForward = 96, kVocabulary = 80, kLayers = 3;

struct Variant {
  bool quantised = true, gated = true, parallel = false, norms_after = false, pieces = false, biases = false;
  int window = 0;
};

// What the values of a decoder are made from: the same for every decoder of a variant.
class Weights {
 public:
  std::vector<float> row(size_t n, float middle = 0.0f) {
    std::vector<float> values(n);
    for (float& value : values) value = middle + 0.3f * normal_(random_);
    return values;
  }

  Linear linear(Decoder& decoder, const Variant& variant, int rows, int cols, int parts = 1) {
    const auto arrangement = parts == 2 ? Arrangement::Interleaved : Arrangement::Stacked;
    Linear made;
    if (variant.biases) made.bias = row(static_cast<size_t>(rows) * parts);
    if (!variant.quantised) {
      std::vector<std::vector<float>> values;
      std::vector<DenseMatrix> matrices;
      for (int p = 0; p < parts; p++) values.push_back(row(static_cast<size_t>(rows) * cols));
      for (const auto& v : values) matrices.push_back({v.data(), Scalar::Float32, rows, cols});
      made.weights = decoder.pack(std::span<const DenseMatrix>(matrices), arrangement);
      return made;
    }
    constexpr int group = 32, bits = 4;
    std::vector<std::vector<uint32_t>> words(parts);
    std::vector<std::vector<float>> scales, biases;
    std::vector<AffineMatrix> matrices;
    for (int p = 0; p < parts; p++) {
      words[p].resize(static_cast<size_t>(rows) * cols * bits / 32);
      for (uint32_t& word : words[p]) word = static_cast<uint32_t>(random_());
      scales.push_back(row(static_cast<size_t>(rows) * cols / group));
      biases.push_back(row(static_cast<size_t>(rows) * cols / group));
      for (float& scale : scales.back()) scale *= 0.1f;
    }
    for (int p = 0; p < parts; p++) {
      matrices.push_back({words[p].data(), scales[p].data(), biases[p].data(), Scalar::Float32, rows, cols, bits, group});
    }
    made.weights = decoder.pack(std::span<const AffineMatrix>(matrices), arrangement);
    return made;
  }

  Norm norm(NormKind kind, int n) {
    Norm made{kind, 1e-5f, row(n, 1.0f), {}};
    if (kind == NormKind::Layer) made.bias = row(n);
    return made;
  }

 private:
  std::mt19937 random_{42};
  std::normal_distribution<float> normal_;
};

std::unique_ptr<Decoder> make_decoder(const Variant& variant, int threads) {
  const DecoderShape shape{kHidden, kVocabulary, kLayers, kHeads, kKvHeads, kHeadDim};
  auto decoder = std::make_unique<Decoder>(shape, Precision::Default, std::vector<RopeTable>{RopeTable(kHeadDim, 1e4)},
                                           threads, size_t{64} << 20);
  Weights weights;
  DecoderModel& model = decoder->model();
  model.set_embedding(weights.linear(*decoder, {.quantised = variant.quantised}, kVocabulary, kHidden).weights);
  model.set_final_norm(weights.norm(NormKind::Rms, kHidden));
  for (int l = 0; l < kLayers; l++) {
    DecoderLayer layer;
    layer.qkv = weights.linear(*decoder, variant, shape.qkv_width(), kHidden);
    layer.output = weights.linear(*decoder, variant, kHidden, shape.attended_width());
    layer.up = weights.linear(*decoder, variant, kFeedForward, kHidden, variant.gated ? 2 : 1);
    layer.down = weights.linear(*decoder, variant, kHidden, kFeedForward);
    layer.gated = variant.gated;
    layer.parallel = variant.parallel;
    layer.activation = variant.gated ? Activation::Silu : Activation::Gelu;
    layer.residual_scale = 0.5f;
    layer.before_attention = layer.before_mlp = weights.norm(NormKind::Layer, kHidden);
    if (variant.norms_after) layer.after_attention = layer.after_mlp = weights.norm(NormKind::Rms, kHidden);
    if (variant.pieces) {
      layer.q_pieces = {weights.norm(NormKind::Rms, kHeads * kHeadDim), kHeads * kHeadDim};
      layer.k_pieces = {weights.norm(NormKind::Rms, kKvHeads * kHeadDim), kHeadDim};
    }
    layer.rope = l == 1 ? -1 : 0;
    layer.attention.scale = 0.2f;
    layer.attention.window = l == 0 ? variant.window : 0;
    model.add_layer(std::move(layer));
  }
  return decoder;
}

std::vector<int32_t> text(int length, int seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(length);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % kVocabulary);
  return tokens;
}

constexpr int kSteps = 3;
constexpr int kLengths[] = {70, 5, 130, 1, 64};
constexpr int kSequences = std::size(kLengths);

// The logits of each sequence after its prompt and after each of kSteps tokens, one sequence at a time.
std::vector<std::vector<float>> alone(Decoder& decoder, int chunk) {
  std::vector<std::vector<float>> said;
  for (int s = 0; s < kSequences; s++) {
    const std::vector<int32_t> tokens = text(kLengths[s] + kSteps, s);
    const int sequence = decoder.sequences().open();
    std::vector<float> logits(kVocabulary * (kSteps + 1));
    for (int at = 0; at < kLengths[s]; at += chunk) {
      const int count = std::min(chunk, kLengths[s] - at);
      const Decoder::Piece piece{sequence, count};
      decoder.step(std::span(tokens).subspan(at, count), {&piece, 1}, logits.data());
    }
    for (int i = 0; i < kSteps; i++) {
      const Decoder::Piece piece{sequence, 1};
      decoder.step({&tokens[kLengths[s] + i], 1}, {&piece, 1}, logits.data() + (i + 1) * kVocabulary);
    }
    decoder.sequences().close(sequence);
    said.push_back(logits);
  }
  return said;
}

// The same, all sequences in the same steps.
std::vector<std::vector<float>> together(Decoder& decoder) {
  std::vector<std::vector<float>> said(kSequences, std::vector<float>(kVocabulary * (kSteps + 1)));
  std::vector<Decoder::Piece> pieces;
  for (const int length : kLengths) pieces.push_back({decoder.sequences().open(), length});
  for (int i = 0; i <= kSteps; i++) {
    std::vector<int32_t> tokens;
    for (int s = 0; s < kSequences; s++) {
      const std::vector<int32_t> all = text(kLengths[s] + kSteps, s);
      const auto from = all.begin() + (i == 0 ? 0 : kLengths[s] + i - 1);
      tokens.insert(tokens.end(), from, from + pieces[s].count);
    }
    std::vector<float> logits(kSequences * kVocabulary);
    decoder.step(tokens, pieces, logits.data());
    for (int s = 0; s < kSequences; s++) {
      std::copy_n(logits.begin() + s * kVocabulary, kVocabulary, said[s].begin() + i * kVocabulary);
      pieces[s].count = 1;
    }
  }
  for (const Decoder::Piece& piece : pieces) decoder.sequences().close(piece.sequence);
  return said;
}

template <class Body>
void each_variant(Body body) {
  body(Variant{});
  body(Variant{.quantised = false, .norms_after = true, .biases = true});
  body(Variant{.gated = false, .parallel = true, .biases = true, .window = 40});
  body(Variant{.norms_after = true, .pieces = true, .window = 7});
}

bool throws_invalid(auto&& action) {
  try {
    action();
  } catch (const std::invalid_argument&) {
    return true;
  }
  return false;
}

}  // namespace

TEST(decoder_bits_do_not_depend_on_threads_company_or_chunks) {
  each_variant([](const Variant& variant) {
    const auto one = make_decoder(variant, 1);
    const std::vector<std::vector<float>> wanted = alone(*one, 1000);
    for (const std::vector<float>& logits : wanted) {
      for (const float logit : logits) CHECK(std::isfinite(logit));
    }
    CHECK(wanted[0] != wanted[2]);
    for (int threads = 1; threads <= 4; threads++) {
      const auto decoder = make_decoder(variant, threads);
      CHECK(together(*decoder) == wanted);
      CHECK(alone(*decoder, threads == 3 ? 2 : 33) == wanted);
      CHECK(decoder->cache().used() == 0);
    }
  });
}

// Threads that are late for many phases, because they share the processor with others that do nothing useful.
TEST(decoder_with_late_threads) {
  const auto one = make_decoder({}, 1), decoder = make_decoder({}, 4);
  const std::vector<std::vector<float>> wanted = alone(*one, 1000);
  std::atomic<bool> stop{false};
  std::vector<std::thread> busy;
  for (int i = 0; i < 3; i++) {
    busy.emplace_back([&] {
      while (!stop) std::this_thread::yield();
    });
  }
  for (int round = 0; round < 3; round++) CHECK(alone(*decoder, 1000) == wanted);
  stop = true;
  for (std::thread& thread : busy) thread.join();
}

TEST(decoder_refuses_what_does_not_fit) {
  const auto decoder = make_decoder({}, 2);
  const int sequence = decoder->sequences().open();
  const Decoder::Piece piece{sequence, 1}, closed{sequence + 1, 1};
  const int32_t good = 3, bad = kVocabulary;
  const auto refused = [&](const int32_t& token, const Decoder::Piece& of) {
    try {
      decoder->step({&token, 1}, {&of, 1}, nullptr);
    } catch (const std::out_of_range&) {
      return true;
    }
    return false;
  };
  CHECK(refused(bad, piece));
  CHECK(refused(good, closed));
  CHECK(decoder->sequences().length(sequence) == 0);
  CHECK(!refused(good, piece));
  CHECK(decoder->sequences().length(sequence) == 1);

  Weights weights;
  CHECK(throws_invalid([&] { decoder->model().add_layer({}); }));
  CHECK(throws_invalid([&] { decoder->model().set_final_norm(weights.norm(NormKind::Rms, kHidden + 1)); }));
  CHECK(throws_invalid([&] {
    decoder->model().set_embedding(weights.linear(*decoder, {}, kVocabulary + 1, kHidden).weights);
  }));
  CHECK(throws_invalid([] { DecoderModel({64, 80, 1, 4, 3, 32}, Precision::Default, {}); }));
  CHECK(throws_invalid([] { DecoderModel({64, 80, 1, 4, 2, 24}, Precision::Default, {}); }));
}

TEST(decoder_profile_counts_steps) {
  const auto decoder = make_decoder({}, 2);
  alone(*decoder, 1000);
  CHECK(!decoder->profile());
  decoder->measure(true);
  alone(*decoder, 1000);
  CHECK(decoder->profile()->steps == kSequences * (kSteps + 1));
  for (const Phase phase : {Phase::Plan, Phase::Embed, Phase::Qkv, Phase::Attention, Phase::Output, Phase::Up,
                            Phase::Down, Phase::Head}) {
    CHECK(decoder->profile()->seconds[static_cast<size_t>(phase)] > 0.0);
  }
  decoder->measure(false);
  CHECK(!decoder->profile());
}
