#include "logits.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "scratch.h"

namespace mlxcel {

namespace {

// Drops, in their order, the positions that are not among those of larger keys than `least` and the first `ties` of
// those that have just this one.
template <class Key>
int drop_below(Key key, float least, int ties, int64_t* positions, int count) {
  int kept = 0;
  for (int i = 0; i < count; i++) {
    const float mine = key(positions[i]);
    const bool equal = mine == least;
    positions[kept] = positions[i];
    kept += (mine > least) | (equal & (ties > 0));  // without branches: nobody can predict them
    ties -= equal;
  }
  return kept;
}

struct Crossing {
  float key;
  int ties;
};

// Where weights, added up from the largest key down, reach the target: the key there, and how many of those that are
// equal to it are needed, in their order. All keys lie in [least, most]. Both arrays lose their contents.
Crossing find_crossing(float* keys, float* weights, int count, float least, float most, double target) {
  constexpr int kClasses = 1024;
  uint16_t* const classes = scratch<struct Classes, uint16_t>(count);
  double before = 0.0;
  // Equally wide classes of keys, the largest first: the one in which the target is reached is divided again, until
  // so few are left that they may be sorted, or only equal ones.
  while (count > 32 && most > least) {
    const float scale = kClasses / (most - least);
    if (!std::isfinite(scale) || scale == 0.0f) break;
    for (int i = 0; i < count; i++) {
      classes[i] = static_cast<uint16_t>(std::min(kClasses - 1, static_cast<int>((most - keys[i]) * scale)));
    }
    double masses[kClasses] = {};
    for (int i = 0; i < count; i++) masses[classes[i]] += weights[i];
    int crossed = 0;
    while (crossed < kClasses - 1 && before + masses[crossed] < target) before += masses[crossed++];
    int left = 0;
    for (int i = 0; i < count; i++) {
      keys[left] = keys[i];
      weights[left] = weights[i];
      left += classes[i] == crossed;
    }
    // Nothing is left if the target is never reached, which only rounding of sums beyond 2^18 can do.
    if (left == 0) return {least, std::numeric_limits<int>::max()};
    count = left;
    most = *std::max_element(keys, keys + count);
    least = *std::min_element(keys, keys + count);
  }
  std::vector<std::pair<float, float>> ranking(count);
  for (int i = 0; i < count; i++) ranking[i] = {keys[i], weights[i]};
  if (most > least) std::ranges::stable_sort(ranking, std::greater<>(), &std::pair<float, float>::first);
  Crossing crossing{most, 0};
  for (const auto& [key, weight] : ranking) {
    crossing.ties = key == crossing.key ? crossing.ties + 1 : 1;
    crossing.key = key;
    before += weight;
    if (before >= target) break;
  }
  return crossing;
}

// Adds to the rising positions the first others, until there are k; returns how many there are.
int fill_up(int count, int k, int n, int64_t* positions) {
  int64_t* const known = scratch<struct Known, int64_t>(count);
  std::copy_n(positions, count, known);
  int next = 0, written = 0;
  for (int i = 0, missing = k - count; i < n && missing > 0; i++) {
    if (next < count && known[next] == i) {
      next++;
    } else {
      missing--;
    }
    positions[written++] = i;
  }
  std::copy(known + next, known + count, positions + written);
  return written + count - next;
}

// The logit that elements reach or exceed, but for a part of them that together weighs less than the share 1 - p of
// all; `slack` times that weight, if one may hope that it does not matter.
float negligible_below(float peak, double total, int n, double p, double slack) {
  // Rounding to whole multiples may add half of one to each. Below half of one they weigh nothing.
  const double cut = std::max((1.0 - p) * total / n - 0x1p-36, 0x1p-37);
  return std::nextafter(static_cast<float>(peak + std::log(std::min(slack * cut, 0.9)) - 0.01),  // for rounding
                        -std::numeric_limits<float>::infinity());
}

}  // namespace

int top_k(const LogitKernels& kernels, const float* x, int n, int k, int64_t* positions) {
  k = std::min(k, n);
  if (k <= 0) return 0;
  // The k-th largest maximum of k or more parts of the row is not above the k-th largest element, and with twice as
  // many parts little above it is left out.
  const int vectors = std::max(1, n / 2 / k), blocks = block_count(n, vectors);
  float* const maxima = scratch<struct Maxima, float>(blocks);
  kernels.block_maxima(x, n, vectors, maxima);
  std::nth_element(maxima, maxima + k - 1, maxima + blocks, std::greater<>());
  // Under a mask most elements may be -inf.
  const int found = kernels.at_least(x, n, std::max(maxima[k - 1], -FLT_MAX), positions);
  if (found < k) return fill_up(found, k, n, positions);
  if (found == k) return found;

  float* const values = scratch<struct Values, float>(found);
  for (int i = 0; i < found; i++) values[i] = x[positions[i]];
  std::nth_element(values, values + k - 1, values + found, std::greater<>());
  const float least = values[k - 1];
  const auto larger = std::count_if(values, values + k, [&](float v) { return v > least; });
  return drop_below([x](int64_t i) { return x[i]; }, least, k - static_cast<int>(larger), positions, found);
}

int nucleus(const LogitKernels& kernels, const float* x, int n, float peak, double p, int64_t* positions) {
  const float scale = weight_scale(1.0);
  if (!std::isfinite(peak)) return 0;
  p = std::max(p, 0.0);
  const double total = kernels.mass(x, n, peak, scale), target = p * total;
  float threshold = peak, *logits = nullptr;
  int count = 0;
  for (const double slack : {8.0, 1.0}) {
    threshold = negligible_below(peak, total, n, p, slack);
    count = kernels.at_least(x, n, threshold, positions);
    logits = scratch<struct NucleusLogits, float>(count);
    for (int i = 0; i < count; i++) logits[i] = x[positions[i]];
    if (kernels.mass(logits, count, peak, scale) >= target) break;
  }
  float* const weights = scratch<struct NucleusWeights, float>(count);
  kernels.weights(logits, count, peak, scale, weights);
  const Crossing crossing = find_crossing(logits, weights, count, threshold, peak, target);
  return drop_below([x](int64_t i) { return x[i]; }, crossing.key, crossing.ties, positions, count);
}

int typical(const LogitKernels& kernels, const float* x, int n, float peak, double p, int min_keep,
            int64_t* positions) {
  const float scale = weight_scale(1.0);
  if (!std::isfinite(peak)) return 0;
  const Moments moments = kernels.moments(x, n, peak, scale);
  const double target = std::max(p, 0.0) * moments.mass;
  // The logit of a token that is as surprising as the row is on average.
  const float centre = static_cast<float>(peak - moments.exponents / moments.mass * 0.6931471805599453);
  const auto closeness = [x, centre](int64_t i) { return -std::abs(x[i] - centre); };
  float *keys = nullptr, *weights = nullptr;
  int count = 0, close = 0;
  // Unlikely tokens are far from the centre, mostly farther than the best one and than is needed to reach the target.
  for (const double slack : {8.0, 1.0, 0.0}) {
    const float unlikely = std::min(negligible_below(peak, moments.mass, n, p, slack), 2.0f * centre - peak - 0.01f);
    const float threshold = slack > 0.0 ? unlikely : -FLT_MAX;
    const float farthest = slack > 0.0 ? -(centre - threshold) : -std::numeric_limits<float>::infinity();
    count = kernels.at_least(x, n, threshold, positions);
    keys = scratch<struct TypicalKeys, float>(count);
    weights = scratch<struct TypicalWeights, float>(count);
    for (int i = 0; i < count; i++) keys[i] = x[positions[i]];
    kernels.weights(keys, count, peak, scale, weights);
    double mass = 0.0;
    close = 0;
    for (int i = 0; i < count; i++) {
      const float key = closeness(positions[i]);
      keys[close] = key;
      weights[close] = weights[i];
      mass += key > farthest ? weights[i] : 0.0f;
      close += key > farthest;
    }
    if (close > 0 && mass >= target) break;
  }
  const auto [least, most] = std::minmax_element(keys, keys + close);
  const Crossing crossing = find_crossing(keys, weights, close, *least, *most, target);
  const int kept = drop_below(closeness, crossing.key, crossing.ties, positions, count);
  if (kept >= std::min(min_keep, n)) return kept;
  std::iota(positions, positions + n, 0);
  const auto closer = [&](int64_t a, int64_t b) {
    const float first = closeness(a), second = closeness(b);
    return first != second ? first > second : a < b;
  };
  min_keep = std::min(min_keep, n);
  std::partial_sort(positions, positions + min_keep, positions + n, closer);
  std::sort(positions, positions + min_keep);
  return min_keep;
}

Drawn draw(const LogitKernels& kernels, const float* x, int n, float peak, double temperature, double uniform) {
  constexpr int kBlock = 1024;
  const float scale = weight_scale(temperature);
  std::vector<double> masses;
  masses.reserve(static_cast<size_t>(n) / kBlock + 1);
  double total = 0.0;
  for (int i = 0; i < n; i += kBlock) {
    masses.push_back(kernels.mass(x + i, std::min(kBlock, n - i), peak, scale));
    total += masses.back();
  }
  const double point = uniform * total;
  double before = 0.0;
  int start = 0;
  for (const double mass : masses) {
    if (before + mass > point || start + kBlock >= n) break;
    before += mass;
    start += kBlock;
  }
  float weights[kBlock];
  kernels.weights(x + start, std::min(kBlock, n - start), peak, scale, weights);
  int position = start;
  for (; position < n - 1; position++) {
    before += weights[position - start];
    if (before > point) break;
  }
  return {position, weights[position - start] / total};
}

void penalise(float* x, const int64_t* tokens, const float* counts, size_t listed, float repetition, float frequency,
              float presence) {
  for (size_t i = 0; i < listed; i++) {
    float& logit = x[tokens[i]];
    logit = logit > 0.0f ? logit / repetition : logit * repetition;
    logit -= counts[i] * frequency + presence;
  }
}

}  // namespace mlxcel
