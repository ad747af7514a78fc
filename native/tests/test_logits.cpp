#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "../src/dispatch.h"
#include "check.h"

using namespace mlxcel;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
const std::vector<int> kLengths{0, 1, 2, 15, 16, 17, 31, 63, 65, 257, 1000, 4097, 150001};

using Positions = std::vector<int64_t>;

// Rows of several kinds: ordinary, steps of a quarter (many ties), half of it masked, all equal, rising, one peak.
std::vector<std::vector<float>> rows_of(int n) {
  std::mt19937 random(n);
  std::normal_distribution<float> normal(0.0f, 4.0f);
  std::vector<std::vector<float>> rows(6, std::vector<float>(n));
  for (int i = 0; i < n; i++) {
    rows[0][i] = normal(random);
    rows[1][i] = std::round(normal(random)) / 4;
    rows[2][i] = i % 2 && i > 1 ? -kInf : normal(random);
    rows[3][i] = -3.0f;
    rows[4][i] = 1e-3f * static_cast<float>(i);
    rows[5][i] = i == n / 2 ? 1e30f : -1e30f;
  }
  return rows;
}

template <class Body>
void each_row(Body body) {
  for (const int n : kLengths) {
    for (const std::vector<float>& row : rows_of(n)) {
      for (const Kernels* kernels : available()) body(kernels->logits, row, n);
    }
  }
}

template <class Select>
Positions select(int n, Select function) {
  Positions positions(n + 1, -7);
  const int count = function(positions.data());
  CHECK(count >= 0 && count <= n && positions[n] == -7);
  positions.resize(std::clamp(count, 0, n));
  return positions;
}

// All positions, the largest logit first, equal ones in their order.
Positions ranking(const std::vector<float>& row) {
  Positions order(row.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int64_t a, int64_t b) { return row[a] > row[b]; });
  return order;
}

Positions rising(Positions ranked, size_t count) {
  ranked.resize(std::min(count, ranked.size()));
  std::ranges::sort(ranked);
  return ranked;
}

std::vector<float> weights_of(const LogitKernels& kernels, const std::vector<float>& row, double temperature) {
  const int n = static_cast<int>(row.size());
  std::vector<float> weights(n);
  kernels.weights(row.data(), n, kernels.max(row.data(), n), weight_scale(temperature), weights.data());
  return weights;
}

}  // namespace

TEST(logits_top_k) {
  each_row([](const LogitKernels& kernels, const std::vector<float>& row, int n) {
    const Positions ranked = ranking(row);
    for (const int k : {0, 1, 2, 40, 999, 5000, n - 1, n, n + 5}) {
      const Positions found = select(n, [&](int64_t* out) { return top_k(kernels, row.data(), n, k, out); });
      CHECK(found == rising(ranked, std::max(k, 0)));
    }
  });
}

TEST(logits_top_k_of_masked_rows) {
  for (const int n : {1, 40, 1000, 40000}) {
    for (const int stride : {1, 2, 7, 5000}) {
      std::vector<float> row(n, -kInf);
      for (int i = n % 3; i < n; i += stride) row[i] = static_cast<float>(i * 7 % 11);
      const Positions ranked = ranking(row);
      for (const Kernels* kernels : available()) {
        for (const int k : {1, 2, 40, 900}) {
          const Positions found = select(n, [&](int64_t* out) { return top_k(kernels->logits, row.data(), n, k, out); });
          CHECK(found == rising(ranked, k));
        }
      }
    }
  }
}

TEST(logits_at_least) {
  each_row([](const LogitKernels& kernels, const std::vector<float>& row, int n) {
    for (const float threshold : {-kInf, -3.0f, 0.0f, 5.25f, kInf, kNaN}) {
      Positions expected;
      for (int i = 0; i < n; i++) {
        if (row[i] >= threshold) expected.push_back(i);
      }
      CHECK(select(n, [&](int64_t* out) { return kernels.at_least(row.data(), n, threshold, out); }) == expected);
    }
  });
}

TEST(logits_nucleus) {
  each_row([](const LogitKernels& kernels, const std::vector<float>& row, int n) {
    if (n == 0) return;
    const Positions ranked = ranking(row);
    const std::vector<float> weights = weights_of(kernels, row, 1.0);
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    const float peak = *std::ranges::max_element(row);
    for (const double p : {-1.0, 0.0, 0.1, 0.5, 0.95, 0.999999, 1.0 - 1e-16, 1.0}) {
      double sum = 0.0;
      size_t needed = 0;
      while (needed == 0 || sum < p * total) sum += weights[ranked[needed++]];
      CHECK(select(n, [&](int64_t* out) { return nucleus(kernels, row.data(), n, peak, p, out); }) == rising(ranked, needed));
    }
  });
}

TEST(logits_typical) {
  each_row([](const LogitKernels& kernels, const std::vector<float>& row, int n) {
    if (n == 0) return;
    const std::vector<float> weights = weights_of(kernels, row, 1.0);
    const float peak = *std::ranges::max_element(row);
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    const Moments moments = kernels.moments(row.data(), n, peak, weight_scale(1.0));
    const float centre = static_cast<float>(peak - moments.exponents / moments.mass * std::log(2.0));
    std::vector<float> closeness(n);
    for (int i = 0; i < n; i++) closeness[i] = -std::abs(row[i] - centre);
    const Positions ranked = ranking(closeness);
    for (const double p : {0.0, 0.1, 0.5, 0.9, 0.95, 0.999999, 1.0}) {
      double sum = 0.0;
      size_t needed = 0;
      while (needed == 0 || sum < p * total) sum += weights[ranked[needed++]];
      CHECK(select(n, [&](int64_t* out) { return typical(kernels, row.data(), n, peak, p, 0, out); }) ==
            rising(ranked, needed));
    }
  });
}

TEST(logits_draw) {
  each_row([](const LogitKernels& kernels, const std::vector<float>& row, int n) {
    if (n == 0) return;
    for (const double temperature : {5e-324, 0.3, 1.0, 7.0, 1e300}) {
      const std::vector<float> weights = weights_of(kernels, row, temperature);
      const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
      for (const double uniform : {0.0, 0.25, 0.5, 0.77, 1.0 - 0x1p-53}) {
        double sum = 0.0;
        int expected = -1;
        while (sum <= uniform * total && expected + 1 < n) sum += weights[++expected];
        const Drawn drawn = draw(kernels, row.data(), n, kernels.max(row.data(), n), temperature, uniform);
        CHECK(drawn.position == expected);
        CHECK(row[drawn.position] > -kInf);
        CHECK(drawn.share == weights[expected] / total);
      }
    }
  });
}

TEST(logits_weights) {
  each_row([](const LogitKernels& kernels, const std::vector<float>& row, int n) {
    const float peak = kernels.max(row.data(), n);
    CHECK(peak == (n ? *std::ranges::max_element(row) : -kInf));
    for (const double temperature : {0.5, 1.0, 2.0}) {
      const std::vector<float> weights = weights_of(kernels, row, temperature);
      double total = 0.0;
      for (int i = 0; i < n; i++) {
        CHECK_CLOSE(weights[i], std::exp((double(row[i]) - peak) / temperature), 2e-7);
        CHECK(std::ldexp(weights[i], 35) == std::floor(std::ldexp(weights[i], 35)));
        CHECK(row[i] != peak || weights[i] == 1.0f);
        total += weights[i];
      }
      CHECK(kernels.mass(row.data(), n, peak, weight_scale(temperature)) == total);
    }
  });
}

TEST(logits_moments) {
  each_row([](const LogitKernels& kernels, const std::vector<float>& row, int n) {
    const float peak = kernels.max(row.data(), n);
    for (const double temperature : {0.5, 1.0, 2.0}) {
      double mass = 0.0, squares = 0.0, exponents = 0.0;
      for (const float x : row) {
        const double bits = (double(peak) - x) / temperature / std::log(2.0), w = bits < 37.0 ? std::exp2(-bits) : 0.0;
        mass += w;
        squares += w * w;
        exponents += w > 0.0 ? w * bits : 0.0;
      }
      const Moments moments = kernels.moments(row.data(), n, peak, weight_scale(temperature));
      CHECK(moments.mass == kernels.mass(row.data(), n, peak, weight_scale(temperature)));
      CHECK_CLOSE(moments.squares, squares, 1e-6 + 1e-6 * squares);
      CHECK_CLOSE(moments.exponents, exponents, 1e-5 + 1e-5 * exponents);
    }
  });
}

TEST(logits_spread) {
  each_row([](const LogitKernels& kernels, const std::vector<float>& row, int n) {
    const float peak = kernels.max(row.data(), n);
    double count = 0.0, distances[16] = {}, squares[16] = {}, distance = 0.0, square = 0.0;
    for (int i = 0; i < n; i++) {
      const float d = peak - row[i];
      if (!(d < kInf)) continue;
      count++;
      distances[i % 16] += d;
      squares[i % 16] += double(d) * d;
    }
    for (int lane = 0; lane < 16; lane++) {
      distance += distances[lane];
      square += squares[lane];
    }
    const Spread spread = kernels.spread(row.data(), n, peak);
    CHECK(spread.count == count && spread.distances == distance && spread.squares == square);
  });
}

TEST(logits_near) {
  each_row([](const LogitKernels& kernels, const std::vector<float>& row, int n) {
    const float peak = kernels.max(row.data(), n), scale = weight_scale(1.0);
    const double mass = kernels.mass(row.data(), n, peak, scale);
    std::vector<float> weights(n), out(n + 1, 7.0f);
    kernels.weights(row.data(), n, peak, scale, weights.data());
    for (const float aim : {0.0f, 0.3f, 1.0f}) {
      kernels.near(row.data(), n, peak, scale, static_cast<float>(1.0 / mass), aim, out.data());
      for (int i = 0; i < n; i++) {
        const double d = std::abs(weights[i] / mass - aim) / 0.3;
        if (weights[i] > 0.0f) CHECK_CLOSE(out[i], 5.0 - 10.0 * d * d / (1.0 + d), 1e-4);
        else CHECK(out[i] < -1e20f);
      }
      CHECK(out[n] == 7.0f);
    }
  });
}

// One definition for all instruction sets: the same bits.
TEST(logits_weights_are_the_same_everywhere) {
  for (const std::vector<float>& row : rows_of(4097)) {
    const LogitKernels& first = available().front()->logits;
    const int n = static_cast<int>(row.size());
    const float peak = first.max(row.data(), n), scale = weight_scale(0.8);
    const std::vector<float> expected = weights_of(first, row, 0.8);
    const Moments sums = first.moments(row.data(), n, peak, scale);
    std::vector<float> near_first(n), near(n);
    first.near(row.data(), n, peak, scale, 0.01f, 0.3f, near_first.data());
    for (const Kernels* kernels : available()) {
      const std::vector<float> weights = weights_of(kernels->logits, row, 0.8);
      CHECK(std::memcmp(weights.data(), expected.data(), expected.size() * sizeof(float)) == 0);
      const Moments moments = kernels->logits.moments(row.data(), n, peak, scale);
      CHECK(moments.squares == sums.squares && moments.exponents == sums.exponents);
      kernels->logits.near(row.data(), n, peak, scale, 0.01f, 0.3f, near.data());
      CHECK(near == near_first);
    }
  }
}

TEST(logits_mask) {
  each_row([](const LogitKernels& kernels, const std::vector<float>& row, int n) {
    std::mt19937 random(n);
    std::vector<uint32_t> words((n + 31) / 32);
    for (uint32_t& word : words) word = static_cast<uint32_t>(random());
    std::vector<float> out(n + 1, 7.0f);
    kernels.mask(row.data(), words.data(), n, out.data());
    for (int i = 0; i < n; i++) CHECK(out[i] == (words[i / 32] >> i % 32 & 1 ? row[i] : -kInf));
    CHECK(out[n] == 7.0f);
  });
}

TEST(logits_penalties) {
  std::vector<float> row{4.0f, -4.0f, 0.0f, -kInf, 8.0f, 1.0f};
  const std::vector<int64_t> tokens{4, 0, 1, 3};
  const std::vector<float> counts{3.0f, 1.0f, 2.0f, 1.0f};
  penalise(row.data(), tokens.data(), counts.data(), tokens.size(), 2.0f, 0.5f, 0.25f);
  CHECK((row == std::vector<float>{1.25f, -9.25f, 0.0f, -kInf, 2.25f, 1.0f}));
}

// Rows nobody may draw from: no more is promised than that nothing is read or written outside.
TEST(logits_without_numbers) {
  for (const Kernels* kernels : available()) {
    for (const int n : {1, 15, 16, 17, 1000}) {
      for (const float value : {-kInf, kInf, kNaN}) {
        for (const bool all : {true, false}) {
          std::vector<float> row(n, 1.0f);
          for (int i = n / 2; i < (all ? n : n / 2 + 1); i++) row[i] = value;
          if (all) std::ranges::fill(row, value);
          const LogitKernels& logits = kernels->logits;
          select(n, [&](int64_t* out) { return top_k(logits, row.data(), n, n / 2 + 1, out); });
          const float peak = logits.max(row.data(), n);
          select(n, [&](int64_t* out) { return nucleus(logits, row.data(), n, peak, 0.5, out); });
          select(n, [&](int64_t* out) { return typical(logits, row.data(), n, peak, 0.5, 0, out); });
          const int drawn = draw(logits, row.data(), n, peak, 1.0, 0.5).position;
          CHECK(drawn >= 0 && drawn < n);
          const Positions found = select(n, [&](int64_t* out) { return logits.at_least(row.data(), n, 0.0f, out); });
          CHECK(std::ranges::none_of(found, [&](int64_t i) { return std::isnan(row[i]); }));
        }
      }
    }
  }
}
