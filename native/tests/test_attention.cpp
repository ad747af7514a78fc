#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "../src/dispatch.h"
#include "../src/pool.h"
#include "check.h"

using namespace mlxcel;

namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Sequence {
  std::vector<int32_t> blocks;
  std::vector<float> qkv;  // a row for each position
  std::vector<float> out;
};

// A piece of a batch: `count` new tokens of a sequence at `position`.
struct Piece {
  int sequence, position, count;
};

// A cache with scattered blocks, full of NaN at first, and sequences of random rows.
class Fixture {
 public:
  Fixture(AttentionConfig config, std::vector<int> lengths) : config_(config) {
    const std::vector<KvShape> shapes(2, KvShape{config.kv_heads, config.head_dim});
    size_t blocks = 0;
    for (int length : lengths) blocks += length / kv_block + 1;
    cache_ = std::make_unique<KvPool>(shapes, blocks * 2 * shapes[0].elements() * sizeof(uint16_t));
    std::vector<int32_t> ids(blocks);
    CHECK(cache_->allocate(ids));
    for (int32_t id : ids) std::fill_n(kv_tile(cache_->layer(0), id, 0), cache_->block_bytes() / 2, uint16_t{0x7fc0});
    std::shuffle(ids.begin(), ids.end(), std::mt19937(1));
    for (int length : lengths) {
      std::mt19937 random(static_cast<unsigned>(sequences_.size()));
      std::normal_distribution<float> normal(0.0f, 1.0f);
      Sequence& s = sequences_.emplace_back();
      for (int i = 0; i < length; i += kv_block) {
        s.blocks.push_back(ids.back());
        ids.pop_back();
      }
      s.qkv.resize(static_cast<size_t>(length) * config.row_elements());
      for (float& x : s.qkv) x = normal(random);
      s.out.resize(static_cast<size_t>(length) * config.heads * config.head_dim);
    }
  }

  // One batch. The rows of the pieces are in reverse order, with a row of NaN between them.
  void run(const Kernels& kernels, Pool& pool, const std::vector<Piece>& pieces) {
    int rows = 0;
    std::vector<Segment> segments(pieces.size());
    for (size_t i = pieces.size(); i-- > 0; rows += pieces[i].count + 1) {
      segments[i] = {sequences_[pieces[i].sequence].blocks.data(), pieces[i].position, pieces[i].count, rows};
    }
    const size_t in = config_.row_elements(), width = config_.heads * config_.head_dim;
    std::vector<float> qkv(rows * in, kNaN), out(rows * width, -7.0f);
    for (size_t i = 0; i < pieces.size(); i++) {
      const float* from = sequences_[pieces[i].sequence].qkv.data() + pieces[i].position * in;
      std::copy_n(from, pieces[i].count * in, qkv.data() + segments[i].row * in);
    }
    AttentionPlan plan;
    plan.make(config_, segments, pool.threads());
    for (int layer : {1, 0}) {  // the plan can be used again
      pool.run([&](Worker& w) { append_and_attend(w, kernels.attention, *cache_, layer, config_, plan, qkv.data(), out.data()); });
    }
    for (size_t i = 0; i < pieces.size(); i++) {
      float* to = sequences_[pieces[i].sequence].out.data() + pieces[i].position * width;
      std::copy_n(out.data() + segments[i].row * width, pieces[i].count * width, to);
      CHECK(out[(segments[i].row + pieces[i].count) * width] == -7.0f);
    }
  }

  std::vector<float> head(const std::vector<double>& x, const float* norm, int position, double scale) const {
    const int n = config_.head_dim;
    std::vector<double> y = x;
    if (norm) {
      double squares = 0.0;
      for (double v : x) squares += v * v / n;
      for (int i = 0; i < n; i++) y[i] = x[i] / std::sqrt(squares + config_.norm_eps) * (norm[i] + config_.norm_offset);
    }
    if (config_.rope) {
      const int half = config_.rope->dims() / 2;
      const float* table = config_.rope->row(position);
      const std::vector<double> z = y;
      for (int i = 0; i < half; i++) {
        const bool halves = config_.rope_style == RopeStyle::Halves;
        const int a = halves ? i : 2 * i, b = halves ? i + half : 2 * i + 1;
        y[a] = z[a] * table[i] - z[b] * table[half + i];
        y[b] = z[b] * table[i] + z[a] * table[half + i];
      }
    }
    std::vector<float> out(n);
    for (int i = 0; i < n; i++) out[i] = static_cast<float>(y[i] * scale);
    return out;
  }

  // A cached key (half 0) or value (half 1) element, checked against what should be there.
  double cached(const Sequence& s, int kv_head, int half, int position, int d, float expected) const {
    const int n = config_.head_dim, p = position % kv_block;
    const uint16_t* tile = kv_tile(cache_->layer(0), s.blocks[position / kv_block], kv_head);
    const uint32_t bits = half ? tile[kv_block * n + p / 2 * 2 * n + 2 * d + p % 2] : tile[d / 2 * 2 * kv_block + 2 * p + d % 2];
    const float value = std::bit_cast<float>(bits << 16);
    CHECK_CLOSE(value, expected, 1e-6 + std::fabs(expected) / 255);
    return value;
  }

  // Largest error of the first `length` rows of a sequence, against float64 on the cached keys and values.
  double error(int sequence, int length) const {
    const Sequence& s = sequences_[sequence];
    const int n = config_.head_dim, group = config_.group();
    const auto part = [&](int position, int index) {
      const float* x = s.qkv.data() + static_cast<size_t>(position) * config_.row_elements() + index * n;
      return std::vector<double>(x, x + n);
    };
    double most = 0.0;
    for (int h = 0; h < config_.heads; h++) {
      const int kv = h / group;
      std::vector<std::vector<double>> keys(length, std::vector<double>(n)), values = keys;
      for (int j = 0; j < length; j++) {
        const std::vector<float> key = head(part(j, config_.heads + kv), config_.k_norm, j, 1.0);
        const std::vector<double> value = part(j, config_.heads + config_.kv_heads + kv);
        for (int d = 0; d < n; d++) {
          keys[j][d] = cached(s, kv, 0, j, d, key[d]);
          values[j][d] = cached(s, kv, 1, j, d, static_cast<float>(value[d]));
        }
      }
      for (int i = 0; i < length; i++) {
        const std::vector<float> q = head(part(i, h), config_.q_norm, i, config_.scale);
        const int first = config_.window ? std::max(0, i - config_.window + 1) : 0;
        std::vector<double> weights, mean(n);
        for (int j = first; j <= i; j++) {
          double score = 0.0;
          for (int d = 0; d < n; d++) score += q[d] * keys[j][d];
          weights.push_back(config_.softcap ? config_.softcap * std::tanh(score / config_.softcap) : score);
        }
        double top = *std::max_element(weights.begin(), weights.end());
        if (config_.sinks) top = std::max<double>(top, config_.sinks[h]);
        double total = config_.sinks ? std::exp(config_.sinks[h] - top) : 0.0;
        for (int j = first; j <= i; j++) {
          const double weight = std::exp(weights[j - first] - top);
          total += weight;
          for (int d = 0; d < n; d++) mean[d] += weight * values[j][d];
        }
        for (int d = 0; d < n; d++) {
          const double difference = std::fabs(s.out[(static_cast<size_t>(i) * config_.heads + h) * n + d] - mean[d] / total);
          most = difference <= most ? most : difference;  // NaN counts
        }
      }
    }
    return most;
  }

  Sequence& operator[](int i) { return sequences_[i]; }
  KvPool& cache() { return *cache_; }

 private:
  AttentionConfig config_;
  std::unique_ptr<KvPool> cache_;
  std::vector<Sequence> sequences_;
};

AttentionConfig plain(int heads, int kv_heads, int head_dim) {
  AttentionConfig config{};
  config.heads = heads;
  config.kv_heads = kv_heads;
  config.head_dim = head_dim;
  config.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  return config;
}

const RopeTable& rope(int dims) {
  static std::vector<std::unique_ptr<RopeTable>> tables(257);
  if (!tables[dims]) {
    tables[dims] = std::make_unique<RopeTable>(dims, 10000.0);
    tables[dims]->reserve(2000);
  }
  return *tables[dims];
}

const std::vector<float>& numbers() {
  static const std::vector<float> values = [] {
    std::vector<float> v(256);
    for (int i = 0; i < 256; i++) v[i] = 0.5f + static_cast<float>(i % 7) / 7.0f;
    return v;
  }();
  return values;
}

// The shapes and options that attention knows.
std::vector<AttentionConfig> configs() {
  std::vector<AttentionConfig> all{plain(3, 1, 32), plain(9, 3, 64), plain(4, 4, 80), plain(8, 1, 96), plain(14, 2, 128), plain(4, 2, 256)};
  for (size_t i = 0; i < all.size(); i++) {
    all[i].rope = &rope(all[i].head_dim / (i % 2 ? 1 : 2));
    all[i].rope_style = i % 3 ? RopeStyle::Halves : RopeStyle::Interleaved;
  }
  AttentionConfig c = all[1];
  c.window = 70;
  all.push_back(c);
  c.window = 1;
  all.push_back(c);
  c.window = 33;
  c.sinks = numbers().data();
  all.push_back(c);
  c = plain(4, 2, 64);
  c.softcap = 2.0f;
  c.q_norm = numbers().data();
  c.k_norm = numbers().data() + 64;
  c.norm_offset = 1.0f;
  all.push_back(c);
  c.sinks = numbers().data() + 3;
  c.rope = &rope(64);
  all.push_back(c);
  c.bfloat16 = true;
  all.push_back(c);
  return all;
}

template <class Body>
void each_kernels(Body body) {
  for (const Kernels* kernels : available()) body(*kernels);
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b, size_t n) {
  return std::memcmp(a.data(), b.data(), n * sizeof(float)) == 0;
}

}  // namespace

TEST(attention_is_right) {
  Pool pool(2);
  each_kernels([&](const Kernels& kernels) {
    for (const AttentionConfig& config : configs()) {
      Fixture fixture(config, {150, 1, 64, 67});
      fixture.run(kernels, pool, {{0, 0, 150}, {1, 0, 1}, {2, 0, 64}, {3, 0, 67}});
      for (int s = 0; s < 4; s++) {
        const int length = static_cast<int>(fixture[s].qkv.size()) / config.row_elements();
        CHECK_CLOSE(fixture.error(s, length), 0.0, config.bfloat16 ? 3e-2 : 4e-6);
      }
    }
  });
}

// In one piece, in chunks, token by token, in company, on other numbers of threads: the same bits.
TEST(attention_bits_depend_on_the_row_alone) {
  constexpr int kLength = 140;
  Pool one(1), two(2), five(5);
  std::mt19937 random(3);
  each_kernels([&](const Kernels& kernels) {
    for (const AttentionConfig& config : configs()) {
      Fixture whole(config, {kLength}), again(config, {kLength}), tokens(config, {kLength});
      const size_t n = whole[0].out.size();
      whole.run(kernels, one, {{0, 0, kLength}});
      again.run(kernels, five, {{0, 0, kLength}});
      CHECK(same_bits(whole[0].out, again[0].out, n));

      for (int p = 0; p < kLength; p++) tokens.run(kernels, p % 2 ? two : five, {{0, p, 1}});
      CHECK(same_bits(whole[0].out, tokens[0].out, n));

      for (Pool* pool : {&one, &two}) {
        Fixture chunks(config, {kLength, 400, 50, 90});
        chunks[1].qkv[0] = kNaN;
        for (int p = 0, other = 0; p < kLength; other++) {
          const int count = std::min<int>(1 + random() % 40, kLength - p);
          CHECK(7 * other + 7 <= 400);
          chunks.run(kernels, *pool, {{1, 7 * other, 7}, {0, p, count}, {2, other % 50, 1}, {3, other % 90, 1}});
          p += count;
        }
        CHECK(same_bits(whole[0].out, chunks[0].out, n));
      }
    }
  });
}

TEST(attention_nan_stays_in_its_row_and_after) {
  Pool pool(2);
  each_kernels([&](const Kernels& kernels) {
    for (const AttentionConfig& config : configs()) {
      constexpr int kLength = 140;
      Fixture clean(config, {kLength, kLength}), dirty(config, {kLength, kLength});
      clean.run(kernels, pool, {{0, 0, kLength}, {1, 0, kLength}});
      const int bad = 77;  // within a pair, a vector, a block and a tile
      const size_t in = config.row_elements(), width = config.heads * config.head_dim;
      std::fill_n(dirty[0].qkv.begin() + bad * in, in, kNaN);
      dirty.run(kernels, pool, {{0, 0, kLength}, {1, 0, kLength}});
      CHECK(same_bits(clean[1].out, dirty[1].out, kLength * width));
      CHECK(same_bits(clean[0].out, dirty[0].out, bad * width));
      const int last = config.window ? std::min(kLength, bad + config.window) : kLength;
      for (size_t i = bad * width; i < last * width; i++) CHECK(std::isnan(dirty[0].out[i]));
    }
  });
}

TEST(attention_in_a_used_block) {
  Pool pool(1);
  each_kernels([&](const Kernels& kernels) {
    const AttentionConfig config = plain(9, 3, 64);
    Fixture fixture(config, {100, 100});
    std::fill(fixture[1].qkv.begin(), fixture[1].qkv.end(), kNaN);
    fixture.run(kernels, pool, {{1, 0, 100}});
    fixture[0].blocks = fixture[1].blocks;
    fixture.run(kernels, pool, {{0, 0, 100}});
    CHECK_CLOSE(fixture.error(0, 100), 0.0, 4e-6);
  });
}

// Two sequences go on from the same beginning: full blocks are shared, the last one is copied.
TEST(attention_with_shared_blocks) {
  Pool pool(2);
  each_kernels([&](const Kernels& kernels) {
    const AttentionConfig config = plain(4, 2, 64);
    Fixture shared(config, {200, 200}), alone(config, {200, 200});
    const size_t begin = 100 * config.row_elements();
    for (Fixture* f : {&shared, &alone}) std::copy_n((*f)[0].qkv.begin(), begin, (*f)[1].qkv.begin());
    alone.run(kernels, pool, {{0, 0, 200}, {1, 0, 200}});
    shared.run(kernels, pool, {{0, 0, 100}});
    KvPool& cache = shared.cache();
    for (int b = 0; b < 2; b++) {
      cache.release(shared[1].blocks[b]);
      cache.share(shared[1].blocks[b] = shared[0].blocks[b]);
    }
    shared[1].blocks[1] = cache.make_writable(shared[1].blocks[1]);
    CHECK(shared[1].blocks[1] != shared[0].blocks[1]);
    shared.run(kernels, pool, {{0, 100, 100}, {1, 100, 100}});
    const size_t after = 100 * config.heads * config.head_dim;
    for (int s = 0; s < 2; s++) CHECK(std::memcmp(&shared[s].out[after], &alone[s].out[after], after * sizeof(float)) == 0);
  });
}

TEST(attention_ignores_blocks_before_the_window) {
  Pool pool(2);
  each_kernels([&](const Kernels& kernels) {
    AttentionConfig config = plain(4, 2, 64);
    config.window = 60;
    Fixture kept(config, {300}), dropped(config, {300});
    for (Fixture* f : {&kept, &dropped}) f->run(kernels, pool, {{0, 0, 250}});
    for (int b = 0; b < 2; b++) dropped[0].blocks[b] = no_kv_block;
    for (Fixture* f : {&kept, &dropped}) f->run(kernels, pool, {{0, 250, 1}});
    for (Fixture* f : {&kept, &dropped}) f->run(kernels, pool, {{0, 251, 49}});
    CHECK(same_bits(kept[0].out, dropped[0].out, kept[0].out.size()));
  });
}

TEST(attention_far_into_a_sequence) {
  Pool pool(2);
  const Kernels& best = kernels();
  AttentionConfig config = plain(3, 1, 64);
  config.rope = &rope(64);
  Fixture fixture(config, {800});
  fixture.run(best, pool, {{0, 0, 790}});
  for (int p = 790; p < 800; p++) fixture.run(best, pool, {{0, p, 1}});
  CHECK_CLOSE(fixture.error(0, 800), 0.0, 4e-6);
}
