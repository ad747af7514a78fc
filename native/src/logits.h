// One row of logits on its way to a token: selection, probabilities, the draw.
//
// A logit's weight is e^((logit - largest) / temperature) as a multiple of 2^-35: what is less likely than the best
// token by more than 36 powers of two weighs nothing. Sums of such numbers are exact in double precision up to 2^18, so
// they do not depend on the order of the sum; and the weights themselves are made of single multiplications and
// additions, in an order that is the same for every instruction set and easy to write down elsewhere. Hence whoever
// follows these definitions gets the same tokens from the same row.
//
// NaN and +inf have no place in a row from which a token is drawn: look for them first, with argmax of RowKernels. With
// them in it the functions here stay inside their buffers, but what they return means nothing. -inf is a token that is
// never drawn. Equal logits rank by position, the first before the others.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace mlxcel {

// Sums over a row. Squares and exponents are rounded to multiples of 2^-35 before they are added, as weights are.
struct Moments {
  double mass;       // of the weights w
  double squares;    // of w^2
  double exponents;  // of w times the powers of two by which the logit is below the largest
};

// How far finite logits are below the largest: how many there are, and the sums of the distances and of their squares.
// Each of sixteen sums takes every sixteenth element; then these are added, the first to the last.
struct Spread {
  double count, distances, squares;
};

struct LogitKernels {
  float (*max)(const float* x, int n);  // -inf for an empty row
  // Maxima of parts of the row that have up to `vectors` elements, some of them perhaps none (-inf). Every element is
  // in one part. There are block_count(n, vectors) parts.
  void (*block_maxima)(const float* x, int n, int vectors, float* out);
  // Positions of the elements that are not below the threshold, rising; returns how many. Room for n is needed.
  int (*at_least)(const float* x, int n, float threshold, int64_t* positions);
  void (*weights)(const float* x, int n, float peak, float scale, float* out);  // as above, for a weight_scale
  double (*mass)(const float* x, int n, float peak, float scale);               // their sum
  Moments (*moments)(const float* x, int n, float peak, float scale);
  Spread (*spread)(const float* x, int n, float peak);
  // Other logits: the closer the probability, weight times `unit`, to `aim`, the larger. What weighs nothing gets one
  // that weighs nothing either.
  void (*near)(const float* x, int n, float peak, float scale, float unit, float aim, float* out);
  // Copies the elements whose bit is set, 32 to a word from the lowest bit on; the others become -inf.
  void (*mask)(const float* x, const uint32_t* words, int n, float* out);
};

// What logits are multiplied by to get powers of two: log2(e) / temperature. Finite and not zero for any temperature,
// so that neither 0 nor -inf can become NaN.
inline float weight_scale(double temperature) {
  return static_cast<float>(std::clamp(1.4426950408889634 / temperature, 1.2e-38, 3.4e38));
}

constexpr int block_count(int n, int vectors) { return 16 * ((n + 16 * vectors - 1) / (16 * vectors)); }

// These write rising positions, for which they need room for n, and return how many. `peak` is the largest element.

// The k largest, or all when there are fewer.
int top_k(const LogitKernels& kernels, const float* x, int n, int k, int64_t* positions);
// The shortest part of the ranking whose weight, at temperature 1, reaches the share `p` of the whole: at least the
// largest element.
int nucleus(const LogitKernels& kernels, const float* x, int n, float peak, double p, int64_t* positions);
// The same for another ranking: elements whose probability is closest to what the entropy of the row says come first.
// If there are so many, at least `min_keep`.
int typical(const LogitKernels& kernels, const float* x, int n, float peak, double p, int min_keep,
            int64_t* positions);

struct Drawn {
  int position;
  double share;  // its part of all weights
};

// The first position up to which, in the order of the row, the weights add up to more than the share `uniform` in
// [0, 1) of the whole. The row is not empty.
Drawn draw(const LogitKernels& kernels, const float* x, int n, float peak, double temperature, double uniform);

// Penalties for tokens that were seen, each listed once: positive logits are divided by `repetition` and others
// multiplied; then `counts` times `frequency` and once `presence` are subtracted.
void penalise(float* x, const int64_t* tokens, const float* counts, size_t listed, float repetition, float frequency,
              float presence);

}  // namespace mlxcel
