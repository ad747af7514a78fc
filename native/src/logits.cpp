#include "logits.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "scratch.h"

namespace mlxcel {

namespace {

// Drops, in their order, the positions that are not among those of larger logits than `least` and the first `ties` of
// those that have just this one.
int drop_below(const float* x, float least, int ties, int64_t* positions, int count) {
  int kept = 0;
  for (int i = 0; i < count; i++) {
    const float logit = x[positions[i]];
    const bool equal = logit == least;
    positions[kept] = positions[i];
    kept += (logit > least) | (equal & (ties > 0));  // without branches: nobody can predict them
    ties -= equal;
  }
  return kept;
}

struct Crossing {
  float logit;
  int ties;
};

// Where weights, added up from the largest logit down, reach the target: the logit there, and how many of those that
// are equal to it are needed. All logits lie in [least, most]. Both arrays lose their contents.
Crossing find_crossing(float* logits, float* weights, int count, float least, float most, double target) {
  constexpr int kClasses = 1024;
  uint16_t* const classes = scratch<struct Classes, uint16_t>(count);
  double before = 0.0;
  // Equally wide classes of logits, the largest first: the one in which the target is reached is divided again, until
  // so few are left that they may be sorted, or only equal ones.
  while (count > 32 && most > least) {
    const float scale = kClasses / (most - least);
    if (!std::isfinite(scale)) break;
    for (int i = 0; i < count; i++) {
      classes[i] = static_cast<uint16_t>(std::min(kClasses - 1, static_cast<int>((most - logits[i]) * scale)));
    }
    double masses[kClasses] = {};
    for (int i = 0; i < count; i++) masses[classes[i]] += weights[i];
    int crossed = 0;
    while (crossed < kClasses - 1 && before + masses[crossed] < target) before += masses[crossed++];
    int left = 0;
    for (int i = 0; i < count; i++) {
      logits[left] = logits[i];
      weights[left] = weights[i];
      left += classes[i] == crossed;
    }
    // Nothing is left if the target is never reached, which only rounding of sums beyond 2^18 can do.
    if (left == 0) return {least, std::numeric_limits<int>::max()};
    count = left;
    most = *std::max_element(logits, logits + count);
    least = *std::min_element(logits, logits + count);
  }
  std::vector<std::pair<float, float>> ranking(count);
  for (int i = 0; i < count; i++) ranking[i] = {logits[i], weights[i]};
  if (most > least) std::ranges::sort(ranking, std::greater<>());
  Crossing crossing{most, 0};
  for (const auto& [logit, weight] : ranking) {
    crossing.ties = logit == crossing.logit ? crossing.ties + 1 : 1;
    crossing.logit = logit;
    before += weight;
    if (before >= target) break;
  }
  return crossing;
}

}  // namespace

int top_k(const LogitKernels& kernels, const float* x, int n, int k, int64_t* positions) {
  k = std::min(k, n);
  if (k <= 0) return 0;
  // The k-th largest maximum of k or more parts of the row is not above the k-th largest element, and with a few
  // times as many parts little above it is left out.
  const int vectors = std::max(1, n / 4 / k), blocks = block_count(n, vectors);
  float* const maxima = scratch<struct Maxima, float>(blocks);
  kernels.block_maxima(x, n, vectors, maxima);
  std::nth_element(maxima, maxima + k - 1, maxima + blocks, std::greater<>());
  const int found = kernels.at_least(x, n, maxima[k - 1], positions);
  if (found <= k) return found;

  float* const values = scratch<struct Values, float>(found);
  for (int i = 0; i < found; i++) values[i] = x[positions[i]];
  std::nth_element(values, values + k - 1, values + found, std::greater<>());
  const float least = values[k - 1];
  const auto larger = std::count_if(values, values + k, [&](float v) { return v > least; });
  return drop_below(x, least, k - static_cast<int>(larger), positions, found);
}

int nucleus(const LogitKernels& kernels, const float* x, int n, double p, int64_t* positions) {
  const float peak = kernels.max(x, n), scale = weight_scale(1.0);
  if (!std::isfinite(peak)) return 0;
  p = std::max(p, 0.0);
  const double total = kernels.mass(x, n, peak, scale), target = p * total;
  // Together, elements below this weight are less than what may be missing; rounding to whole multiples may add half of
  // one to each. Below half of one they weigh nothing.
  const double cut = std::max((1.0 - p) * total / n - 0x1p-36, 0x1p-37);
  float threshold = peak, *logits = nullptr;
  int count = 0;
  // That is far from sharp: for most rows a cut eight times as high leaves enough.
  for (const double factor : {8.0, 1.0}) {
    threshold = std::nextafter(static_cast<float>(peak + std::log(std::min(factor * cut, 0.9)) - 0.01),  // for rounding
                               -std::numeric_limits<float>::infinity());
    count = kernels.at_least(x, n, threshold, positions);
    logits = scratch<struct NucleusLogits, float>(count);
    for (int i = 0; i < count; i++) logits[i] = x[positions[i]];
    if (kernels.mass(logits, count, peak, scale) >= target) break;
  }
  float* const weights = scratch<struct NucleusWeights, float>(count);
  kernels.weights(logits, count, peak, scale, weights);
  const Crossing crossing = find_crossing(logits, weights, count, threshold, peak, target);
  return drop_below(x, crossing.logit, crossing.ties, positions, count);
}

int draw(const LogitKernels& kernels, const float* x, int n, double temperature, double uniform) {
  constexpr int kBlock = 1024;
  const float peak = kernels.max(x, n), scale = weight_scale(temperature);
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
  for (int i = start; i < n - 1; i++) {
    before += weights[i - start];
    if (before > point) return i;
  }
  return n - 1;
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
