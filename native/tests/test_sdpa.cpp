#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "../src/dispatch.h"
#include "../src/pool.h"
#include "check.h"

using namespace mlxcel;

namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

template <class Body>
void each_kernels(Body body) {
  for (const Kernels* kernels : available()) body(*kernels);
}

// An array [batch, heads, time, dim] whose dimensions may lie in another order, with elements of any type.
class Array {
 public:
  Array(int batch, int heads, int time, int dim, Scalar type, bool time_first, unsigned seed)
      : heads_(heads), time_(time), dim_(dim), gap_(seed % 2 ? 3 : 0), type_(type), time_first_(time_first) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0f, 1.0f);
    const size_t rows = static_cast<size_t>(batch) * heads * time;
    bytes_.assign(rows * (dim + gap_) * size_of(type), std::byte{0xff});  // NaN between rows
    for (int b = 0; b < batch; b++)
      for (int h = 0; h < heads; h++)
        for (int t = 0; t < time; t++)
          for (int d = 0; d < dim; d++) set(b, h, t, d, normal(random));
  }
  SdpaArray view() {
    const ptrdiff_t row = dim_ + gap_;
    return {bytes_.data(), type_, row * heads_ * time_, time_first_ ? row : row * time_,
            time_first_ ? row * heads_ : row};
  }
  float get(int b, int h, int t, int d) const {
    float x;
    if (type_ == Scalar::Float32) {
      std::memcpy(&x, at(b, h, t, d), sizeof x);
    } else {
      portable_rows().load_row(at(b, h, t, d), type_, 1, &x);
    }
    return x;
  }
  void set(int b, int h, int t, int d, float x) {
    portable_rows().store_row(&x, 1, type_, const_cast<std::byte*>(at(b, h, t, d)));
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  static const RowKernels& portable_rows() { return available().front()->rows; }
  const std::byte* at(int b, int h, int t, int d) const {
    const int row = b * heads_ * time_ + (time_first_ ? t * heads_ + h : h * time_ + t);
    return bytes_.data() + (static_cast<size_t>(row) * (dim_ + gap_) + d) * size_of(type_);
  }
  int heads_, time_, dim_, gap_;
  Scalar type_;
  bool time_first_;
  std::vector<std::byte> bytes_;
};

enum class Hide { Nothing, BooleanForAllHeads, Boolean, Additive, AdditiveHalf, LeftPadding };

struct Shape {
  int batch, heads, kv_heads, queries, keys, head_dim, value_dim;
  Scalar type = Scalar::Float32;
  Hide hide = Hide::Nothing;
  bool causal = false;
  int window = 0;
  float softcap = 0.0f;
  bool sinks = false;
  bool time_first = false;
};

// Inputs of one call, its result, and what the result should be.
struct Case {
  explicit Case(const Shape& shape)
      : shape(shape),
        q(shape.batch, shape.heads, shape.queries, shape.head_dim, shape.type, shape.time_first, 1),
        k(shape.batch, shape.kv_heads, shape.keys, shape.head_dim, shape.type, shape.time_first, 2),
        v(shape.batch, shape.kv_heads, shape.keys, shape.value_dim, shape.type, !shape.time_first, 3),
        out(shape.batch, shape.heads, shape.queries, shape.value_dim, shape.type, !shape.time_first, 5) {
    std::mt19937 random(7);
    const size_t size = static_cast<size_t>(shape.batch) * shape.heads * shape.queries * shape.keys;
    mask.resize(size);
    for (size_t i = 0; i < size; i++) mask[i] = random() % 3 ? std::ldexp(random() % 64 - 32.0f, -4) : -kInf;
    // Whole blocks are hidden from some queries.
    for (size_t row = 0; row < size / std::max(shape.keys, 1); row += 3) {
      std::fill_n(mask.begin() + row * shape.keys, std::min(shape.keys, 70), -kInf);
    }
    if (shape.queries > 1) std::fill_n(mask.begin(), shape.keys, -kInf);  // the first query sees nothing
    booleans.resize(size);
    for (size_t i = 0; i < size; i++) booleans[i] = mask[i] != -kInf;
    halves.resize(size);
    available().front()->rows.store_row(mask.data(), static_cast<int>(size), Scalar::BFloat16, halves.data());
    for (int h = 0; h < shape.heads; h++) sinks.push_back(0.5f * static_cast<float>(h) - 1.0f);
    padding.resize(static_cast<size_t>(shape.batch) * shape.keys);
    for (int b = 0; b < shape.batch; b++)
      for (int j = 0; j < shape.keys; j++) padding[b * shape.keys + j] = j >= shape.keys * 2 / 3 - 20 * b;
  }

  SdpaTask task() {
    SdpaTask t{};
    t.batch = shape.batch, t.heads = shape.heads, t.kv_heads = shape.kv_heads;
    t.queries = shape.queries, t.keys = shape.keys, t.head_dim = shape.head_dim, t.value_dim = shape.value_dim;
    t.scale = 0.3f, t.causal = shape.causal, t.window = shape.window, t.softcap = shape.softcap;
    t.sinks = shape.sinks ? sinks.data() : nullptr;
    t.q = q.view(), t.k = k.view(), t.v = v.view(), t.out = out.view();
    const ptrdiff_t row = shape.keys, head = row * shape.queries;
    SdpaMask& m = t.mask;
    m.batch = head * shape.heads, m.head = head, m.query = row, m.key = 1;
    switch (shape.hide) {
      case Hide::Nothing: m = {}; break;
      case Hide::BooleanForAllHeads: m.head = 0; [[fallthrough]];
      case Hide::Boolean: m.kind = SdpaMask::Kind::Boolean, m.data = booleans.data(); break;
      case Hide::Additive: m.kind = SdpaMask::Kind::Additive, m.data = mask.data(); break;
      case Hide::AdditiveHalf:
        m.kind = SdpaMask::Kind::Additive, m.data = halves.data(), m.type = Scalar::BFloat16;
        break;
      case Hide::LeftPadding:
        m = {SdpaMask::Kind::Boolean, padding.data(), Scalar::Float32, shape.keys, 0, 0, 1};
        break;
    }
    return t;
  }

  void run(const Kernels& kernels, Pool& pool) { sdpa(pool, kernels.sdpa, task()); }

  double bias(int b, int h, int i, int j) const {
    const int position = i + shape.keys - shape.queries;
    if (shape.causal && j > position) return -kInf;
    if (shape.window && std::abs(position - j) >= shape.window) return -kInf;
    const int head = shape.hide == Hide::BooleanForAllHeads ? 0 : h;
    const size_t at = ((static_cast<size_t>(b) * shape.heads + head) * shape.queries + i) * shape.keys + j;
    switch (shape.hide) {
      case Hide::Nothing: return 0.0;
      case Hide::BooleanForAllHeads:
      case Hide::Boolean: return booleans[at] ? 0.0 : -kInf;
      case Hide::LeftPadding: return padding[b * shape.keys + j] ? 0.0 : -kInf;
      default: return mask[at];
    }
  }

  // Largest error against float64.
  double error() const {
    double most = 0.0;
    for (int b = 0; b < shape.batch; b++)
      for (int h = 0; h < shape.heads; h++)
        for (int i = 0; i < shape.queries; i++) most = std::max(most, row_error(b, h, i));
    return most;
  }

  double row_error(int b, int h, int i) const {
    const int kv = h / (shape.heads / shape.kv_heads);
    std::vector<double> scores(shape.keys);
    double top = shape.sinks ? sinks[h] : -1e300, total = 0.0, most = 0.0;
    for (int j = 0; j < shape.keys; j++) {
      double score = 0.0;
      if (bias(b, h, i, j) == -kInf) {
        scores[j] = -kInf;
        continue;
      }
      for (int d = 0; d < shape.head_dim; d++) score += 0.3 * q.get(b, h, i, d) * k.get(b, kv, j, d);
      if (shape.softcap) score = shape.softcap * std::tanh(score / shape.softcap);
      scores[j] = score + bias(b, h, i, j);
      top = std::max(top, scores[j]);
    }
    if (shape.sinks) total = std::exp(sinks[h] - top);
    for (double& s : scores) total += s = std::exp(s - top);
    for (int d = 0; d < shape.value_dim; d++) {
      double mean = 0.0;
      for (int j = 0; j < shape.keys; j++) mean += scores[j] > 0.0 ? scores[j] * v.get(b, kv, j, d) : 0.0;
      const double expected = total == 0.0 ? 0.0 : mean / total;
      const double difference = std::fabs(out.get(b, h, i, d) - expected);
      most = difference <= most ? most : difference;  // NaN counts
    }
    return most;
  }

  Shape shape;
  Array q, k, v, out;
  std::vector<float> mask, sinks;
  std::vector<uint16_t> halves;
  std::vector<uint8_t> booleans, padding;
};

constexpr Scalar kF16 = Scalar::Float16, kBf16 = Scalar::BFloat16, kF32 = Scalar::Float32;

std::vector<Shape> shapes() {
  std::vector<Shape> all{{1, 2, 2, 3, 5, 32, 32},    {2, 6, 2, 9, 130, 64, 64, kF32, Hide::Nothing, true},
                         {1, 3, 1, 70, 100, 80, 80}, {1, 2, 1, 2, 70, 192, 128, kBf16, Hide::Nothing, true},
                         {1, 1, 1, 1, 1, 1, 1},      {2, 4, 2, 1, 200, 72, 96, kF16}};
  Shape s{2, 4, 2, 20, 150, 48, 40};
  for (Hide hide : {Hide::BooleanForAllHeads, Hide::Boolean, Hide::Additive, Hide::AdditiveHalf, Hide::LeftPadding}) {
    for (bool causal : {false, true}) {
      s.hide = hide, s.causal = causal, s.time_first = causal, s.sinks = !s.sinks;
      s.type = hide == Hide::AdditiveHalf ? kBf16 : kF32;
      s.softcap = hide == Hide::Additive ? 2.0f : 0.0f;
      all.push_back(s);
    }
  }
  all.push_back({1, 2, 2, 90, 90, 32, 17, kF32, Hide::Nothing, true, 33});
  all.push_back({1, 2, 1, 90, 170, 33, 32, kF32, Hide::Nothing, false, 20, 3.0f, true});
  all.push_back({1, 2, 1, 150, 60, 32, 32, kF32, Hide::Nothing, true});  // the first queries stand before all keys
  all.push_back({1, 71, 1, 3, 66, 16, 16, kF32, Hide::Boolean, true});   // more heads than a tile has rows
  return all;
}

double tolerance(Scalar type) { return type == kF32 ? 4e-6 : type == kF16 ? 2e-3 : 1.6e-2; }

}  // namespace

TEST(sdpa_is_right) {
  Pool pool(2);
  each_kernels([&](const Kernels& kernels) {
    for (const Shape& shape : shapes()) {
      Case c(shape);
      c.run(kernels, pool);
      CHECK_CLOSE(c.error(), 0.0, tolerance(shape.type));
    }
  });
}

TEST(sdpa_bits_do_not_depend_on_threads) {
  Pool one(1), five(5);
  each_kernels([&](const Kernels& kernels) {
    for (const Shape& shape : shapes()) {
      Case a(shape), b(shape);
      a.run(kernels, one);
      b.run(kernels, five);
      CHECK(a.out.bytes() == b.out.bytes());
    }
  });
}

// One query alone, or the last few, give what they give among all.
TEST(sdpa_bits_do_not_depend_on_other_queries) {
  Pool pool(2);
  each_kernels([&](const Kernels& kernels) {
    for (const Shape& shape : shapes()) {
      Case whole(shape), parts(shape);
      whole.run(kernels, pool);
      for (int b = 0; b < shape.batch; b++) {
        for (int end = shape.queries, count; end > 0; end -= count) {
          count = std::min(end, end % 8 + 1);
          SdpaTask task = parts.task();
          // Queries [end - count, end) of batch row b; those after them go, and their keys, if nothing else sees these.
          const int later = shape.queries - end;
          if (later && (!shape.causal || shape.keys <= later)) {
            if (end != count) break;
            continue;
          }
          task.batch = 1, task.queries = count, task.keys -= later;
          const auto move = [&](SdpaArray& array, int time) {
            const ptrdiff_t by = b * array.batch + time * array.time;
            array.data = static_cast<const std::byte*>(array.data) + by * static_cast<ptrdiff_t>(size_of(array.type));
          };
          move(task.q, end - count), move(task.out, end - count), move(task.k, 0), move(task.v, 0);
          const ptrdiff_t by = b * task.mask.batch + (end - count) * task.mask.query;
          const bool bytes = task.mask.kind == SdpaMask::Kind::Boolean;
          const ptrdiff_t item = bytes ? 1 : static_cast<ptrdiff_t>(size_of(task.mask.type));
          if (task.mask.data) task.mask.data = static_cast<const std::byte*>(task.mask.data) + by * item;
          sdpa(pool, kernels.sdpa, task);
          for (int h = 0; h < shape.heads; h++)
            for (int i = end - count; i < end; i++)
              for (int d = 0; d < shape.value_dim; d++) CHECK(parts.out.get(b, h, i, d) == whole.out.get(b, h, i, d));
        }
      }
    }
  });
}

// Keys and values that a query does not see may be anything; NaN that it sees comes out.
TEST(sdpa_hidden_keys_have_no_influence) {
  Pool pool(2);
  each_kernels([&](const Kernels& kernels) {
    for (const Shape& shape : shapes()) {
      if (shape.keys < 3) continue;
      Case clean(shape), dirty(shape);
      const int bad = shape.keys * 2 / 3 - 2;  // visible to some, and hidden by the padding in batch row 0
      for (int kv = 0; kv < shape.kv_heads; kv++) {
        for (int d = 0; d < shape.head_dim; d++) dirty.k.set(0, kv, bad, d, kNaN);
        for (int d = 0; d < shape.value_dim; d++) dirty.v.set(0, kv, bad, d, d % 2 ? kNaN : kInf);
      }
      clean.run(kernels, pool);
      dirty.run(kernels, pool);
      for (int b = 0; b < shape.batch; b++) {
        for (int h = 0; h < shape.heads; h++) {
          for (int i = 0; i < shape.queries; i++) {
            const bool seen = b == 0 && clean.bias(b, h, i, bad) != -kInf;
            for (int d = 0; d < shape.value_dim; d++) {
              const float x = dirty.out.get(b, h, i, d);
              CHECK(seen ? std::isnan(x) : x == clean.out.get(b, h, i, d));
            }
          }
        }
      }
    }
  });
}

// What all queries of a tile leave out is not read.
TEST(sdpa_skips_hidden_blocks) {
  Pool pool(1);
  each_kernels([&](const Kernels& kernels) {
    for (Hide hide : {Hide::LeftPadding, Hide::Additive}) {
      Case c({1, 2, 1, 2, 300, 32, 32, kF32, hide});
      if (hide == Hide::Additive) {
        for (size_t i = 0; i < c.mask.size(); i++) c.mask[i] = i % 300 < 192 ? -kInf : 0.0f;
      }
      SdpaTask task = c.task();
      const SdpaTile tile{0, 0, 0, 2, 0, 5};
      std::vector<float> partials(5 * 4 * softmax_state(32), kNaN);
      std::vector<std::byte> scratch(sdpa_scratch_bytes(task) + 64);
      kernels.sdpa.attend_blocks(task, tile, 0, 5, partials.data(), scratch.data());
      for (int block = 0; block < 5; block++) {
        const float* state = partials.data() + block * 4 * softmax_state(32);
        CHECK(std::isnan(state[0]) == (block < 3));      // untouched
        CHECK((state[33] == 0.0f) == (block < 3));       // and without a key
      }
    }
  });
}

TEST(sdpa_of_nothing) {
  Pool pool(2);
  each_kernels([&](const Kernels& kernels) {
    Case none({1, 2, 1, 0, 5, 32, 32});
    none.run(kernels, pool);
    for (bool sinks : {false, true}) {
      Case c({1, 2, 1, 3, 0, 32, 32, kF32, Hide::Nothing, true, 0, 0.0f, sinks});
      c.run(kernels, pool);
      CHECK_CLOSE(c.error(), 0.0, 0.0);
    }
  });
}
