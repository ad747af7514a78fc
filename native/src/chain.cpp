#include "chain.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "scratch.h"

namespace mlxcel {

namespace {

constexpr double kLog2 = 0.6931471805599453;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
// A mask that leaves less than this part of a row makes a shorter one of it.
constexpr int kFewAllowed = 16;

// Uses of memory that is kept.
struct FirstPositions;
struct LaterPositions;
struct OwnLogits;
struct AllowedLogits;
struct AllowedTokens;

// Tokens that are still in the running, in the order of the row.
class Survivors {
 public:
  Survivors(const LogitKernels& kernels, const float* row, int n, float peak)
      : kernels_(kernels), x_(row), n_(n), peak_(peak) {}

  const LogitKernels& kernels() const { return kernels_; }
  const float* logits() const { return x_; }
  int count() const { return n_; }
  float peak() const { return peak_; }  // the largest logit
  int token(int position) const { return static_cast<int>(tokens_ ? tokens_[position] : position); }

  Moments moments(double temperature) const { return kernels_.moments(x_, n_, peak_, weight_scale(temperature)); }
  double mass(double temperature) const { return kernels_.mass(x_, n_, peak_, weight_scale(temperature)); }

  // Keep those whose rising positions `select(positions)` writes; it returns how many.
  template <class Select>
  void keep(Select select) {
    const bool whole = tokens_ == nullptr;
    int64_t* const found = whole ? scratch<FirstPositions, int64_t>(n_) : scratch<LaterPositions, int64_t>(n_);
    const int count = select(found);
    if (whole) own_ = scratch<OwnLogits, float>(n_);
    for (int i = 0; i < count; i++) own_[i] = x_[found[i]];  // in place: positions rise
    if (whole) {
      tokens_ = found;
    } else {
      for (int i = 0; i < count; i++) tokens_[i] = tokens_[found[i]];
    }
    own(own_, count);
  }

  void keep_at_least(double threshold) {
    const float least = static_cast<float>(threshold);
    keep([&](int64_t* out) { return kernels_.at_least(x_, n_, least, out); });
  }

  void keep_largest(int k) {
    if (k < n_) keep([&](int64_t* out) { return top_k(kernels_, x_, n_, k, out); });
  }

  // Make those at these positions -inf.
  void drop(const int64_t* positions, int count) {
    if (own_ == nullptr) {
      own_ = scratch<OwnLogits, float>(n_);
      std::copy_n(x_, n_, own_);
    }
    for (int i = 0; i < count; i++) own_[positions[i]] = -kInfinity;
    own(own_, n_);
  }

 private:
  void own(const float* logits, int count) {
    x_ = logits;
    n_ = count;
    peak_ = kernels_.max(x_, n_);
  }

  const LogitKernels& kernels_;
  const float* x_;
  int n_;
  float peak_;
  int64_t* tokens_ = nullptr;  // none: those of the whole row
  float* own_ = nullptr;       // what x_ points to once it is not the row
};

bool is_possible(float logit) { return logit > -kInfinity; }

void top_n_sigma(Survivors& survivors, double n) {
  const Spread spread = survivors.kernels().spread(survivors.logits(), survivors.count(), survivors.peak());
  const double mean = spread.distances / spread.count;
  const double deviation = std::sqrt(std::max(spread.squares / spread.count - mean * mean, 0.0));
  survivors.keep_at_least(survivors.peak() - n * deviation);
}

void p_less(Survivors& survivors, double temperature) {
  const Moments moments = survivors.moments(temperature);
  survivors.keep_at_least(survivors.peak() + temperature * std::log(moments.squares / moments.mass));
}

void exclude_top_choices(Survivors& survivors, double threshold, int min_keep) {
  const double least_mass = threshold * survivors.mass(1.0);
  const double limit = least_mass > 0.0 ? survivors.peak() + std::log(least_mass) : -kInfinity;
  const float above = std::nextafter(static_cast<float>(limit), kInfinity);
  int64_t* const top = scratch<struct TopChoices, int64_t>(survivors.count());
  const int count = survivors.kernels().at_least(survivors.logits(), survivors.count(), above, top);
  if (count < 2) return;
  const float* const x = survivors.logits();
  if (min_keep > 1 && std::count_if(x, x + survivors.count(), is_possible) - (count - 1) < min_keep) return;
  int least = 0;
  for (int i = 1; i < count; i++) least = survivors.logits()[top[i]] <= survivors.logits()[top[least]] ? i : least;
  std::copy(top + least + 1, top + count, top + least);
  survivors.drop(top, count - 1);
}

double dynamic_temperature(const Survivors& survivors, const Chain& chain) {
  const float* const x = survivors.logits();
  const auto finite = std::count_if(x, x + survivors.count(), is_possible);
  if (finite < 2) return chain.temperature;
  const Moments moments = survivors.moments(1.0);
  const double entropy = std::log2(moments.mass) + moments.exponents / moments.mass;
  const double share = std::clamp(entropy / std::log2(static_cast<double>(finite)), 0.0, 1.0);
  const double least = std::max(0.0, chain.temperature - chain.dynatemp_range);
  const double most = chain.temperature + chain.dynatemp_range;
  return least + (most - least) * std::pow(share, chain.dynatemp_exponent);
}

int zipf_size(const Survivors& survivors, double temperature, double surprise) {
  constexpr int kRanks = 100;
  std::array<float, kRanks> top;
  int64_t* const positions = scratch<struct Ranks, int64_t>(survivors.count());
  const int found = top_k(survivors.kernels(), survivors.logits(), survivors.count(), kRanks, positions);
  int ranks = 0;
  for (int i = 0; i < found; i++) {
    if (survivors.logits()[positions[i]] > -kInfinity) top[ranks++] = survivors.logits()[positions[i]];
  }
  std::sort(top.begin(), top.begin() + ranks, std::greater<>());
  double products = 0.0, squares = 0.0;
  for (int i = 0; i + 1 < ranks; i++) {
    const double t = std::log((i + 2.0) / (i + 1.0));
    products += t * ((static_cast<double>(top[i]) - static_cast<double>(top[i + 1])) / temperature);
    squares += t * t;
  }
  const int n = survivors.count();
  const double slope = squares > 0.0 ? products / squares : 0.0;
  if (slope <= 0.0) return n;
  const double excess = slope - 1.0, bits = std::log2(static_cast<double>(n));
  const double scale = std::abs(excess) < 1e-9 ? 1.0 / std::log(static_cast<double>(n))
                                               : excess / (1.0 - std::pow(2.0, -excess * bits));
  const double size = (std::log2(scale) + surprise) / slope;
  if (!std::isfinite(size)) return 1;
  return size >= bits ? n : std::max(1, static_cast<int>(std::pow(2.0, size)));
}

void mirostat(Survivors& survivors, int version, double temperature, double surprise) {
  if (version == 1) {
    survivors.keep_largest(zipf_size(survivors, temperature, surprise));
    return;
  }
  const double missing = surprise - std::log2(survivors.mass(temperature));
  survivors.keep_at_least(survivors.peak() - std::max(0.0, temperature * kLog2 * missing));
}

void truncate(Survivors& survivors, const Chain& chain, const Step& step) {
  if (chain.top_n_sigma > 0.0) top_n_sigma(survivors, chain.top_n_sigma);
  if (chain.p_less) p_less(survivors, chain.temperature);
  // Those that the stage keeps, or the likeliest ones when they are too few.
  const auto keep = [&](auto stage, auto... values) {
    survivors.keep([&](int64_t* out) {
      const float* const x = survivors.logits();
      const int n = survivors.count(), count = stage(survivors.kernels(), x, n, values..., out);
      return count < chain.min_keep ? top_k(survivors.kernels(), x, n, chain.min_keep, out) : count;
    });
  };
  if (chain.typical_p < 1.0) keep(typical, survivors.peak(), chain.typical_p, chain.min_keep);
  if (chain.top_k > 0) survivors.keep_largest(chain.top_k);  // min_keep is for shares, not for a count
  if (chain.top_p < 1.0) keep(nucleus, survivors.peak(), chain.top_p);
  const auto at_least = [](const LogitKernels& kernels, const float* x, int n, double threshold, int64_t* out) {
    return kernels.at_least(x, n, static_cast<float>(threshold), out);
  };
  if (chain.min_p > 0.0) keep(at_least, survivors.peak() + std::log(std::min(chain.min_p, 1.0)));
  if (step.exclude_top) exclude_top_choices(survivors, chain.xtc_threshold, chain.min_keep);
}

Choice draw_plain(const Survivors& survivors, double temperature, double uniform) {
  const auto [position, share] =
      draw(survivors.kernels(), survivors.logits(), survivors.count(), survivors.peak(), temperature, uniform);
  return {survivors.token(position), share};
}

Choice draw_near(const Survivors& survivors, double temperature, double aim, double uniform) {
  const LogitKernels& kernels = survivors.kernels();
  const float* const x = survivors.logits();
  const int n = survivors.count();
  const float peak = survivors.peak(), scale = weight_scale(temperature);
  const double mass = survivors.mass(temperature);
  float* const changed = scratch<struct NearLogits, float>(n);
  kernels.near(x, n, peak, scale, static_cast<float>(1.0 / mass), static_cast<float>(aim), changed);
  const int position = draw(kernels, changed, n, kernels.max(changed, n), 1.0, uniform).position;
  float weight;
  kernels.weights(x + position, 1, peak, scale, &weight);
  return {survivors.token(position), weight / mass};
}

Choice choose_freely(const Kernels& kernels, const float* row, int n, const Chain& chain, const Step& step) {
  const int best = kernels.rows.argmax(row, n);
  if (!std::isfinite(row[best])) return {-1, 0.0};
  if (chain.greedy) return {best, 1.0};
  Survivors survivors(kernels.logits, row, n, row[best]);
  if (chain.mirostat != 0) {
    mirostat(survivors, chain.mirostat, chain.temperature, step.feedback);
    return draw_plain(survivors, chain.temperature, step.uniform);
  }
  truncate(survivors, chain, step);
  const double temperature = chain.dynatemp_range > 0.0 ? dynamic_temperature(survivors, chain) : chain.temperature;
  if (chain.adaptive) return draw_near(survivors, temperature, step.feedback, step.uniform);
  return draw_plain(survivors, temperature, step.uniform);
}

// The word of a mask with what lies beyond the row cut off.
uint32_t word_of(const uint32_t* mask, int n, int word) {
  const int rest = n - 32 * word;
  return rest < 32 ? mask[word] & ((1u << rest) - 1) : mask[word];
}

int allowed_count(const uint32_t* mask, int n) {
  int count = 0;
  for (int word = 0; 32 * word < n; word++) count += std::popcount(word_of(mask, n, word));
  return count;
}

void list_allowed(const uint32_t* mask, int n, int* tokens) {
  for (int word = 0; 32 * word < n; word++) {
    for (uint32_t bits = word_of(mask, n, word); bits != 0; bits &= bits - 1)
      *tokens++ = 32 * word + std::countr_zero(bits);
  }
}

}  // namespace

Choice choose(const Kernels& kernels, const float* row, int n, const Chain& chain, const Step& step,
              const uint32_t* mask) {
  if (mask == nullptr) return choose_freely(kernels, row, n, chain, step);
  const int count = allowed_count(mask, n);
  if (count == 0) return {-1, 0.0};
  float* const allowed = scratch<AllowedLogits, float>(n);
  // The first version of mirostat goes by the size of the vocabulary.
  if (count > n / kFewAllowed || chain.mirostat == 1) {
    kernels.logits.mask(row, mask, n, allowed);
    return choose_freely(kernels, allowed, n, chain, step);
  }
  // Sums of weights are exact in any order, so the result is the same.
  int* const tokens = scratch<AllowedTokens, int>(count);
  list_allowed(mask, n, tokens);
  for (int i = 0; i < count; i++) allowed[i] = row[tokens[i]];
  const Choice choice = choose_freely(kernels, allowed, count, chain, step);
  return choice.token < 0 ? choice : Choice{tokens[choice.token], choice.share};
}

}  // namespace mlxcel
