// From a row of logits to a token: the stages that truncate the distribution, temperature and the draw, in their order.
// What each stage means is said in mlxcel/engine/sampling, a file for each, where numpy does the same to the last bit.
#pragma once

#include <cstdint>

#include "dispatch.h"

namespace mlxcel {

// What stays the same from step to step. The defaults are off.
struct Chain {
  bool greedy = false;
  double temperature = 1.0;
  double top_n_sigma = 0.0;
  bool p_less = false;
  double typical_p = 1.0;
  int top_k = 0;
  double top_p = 1.0;
  double min_p = 0.0;
  int min_keep = 0;  // tokens that typical_p, top_p, min_p and XTC leave at least
  double xtc_threshold = 0.1;
  double dynatemp_range = 0.0;
  double dynatemp_exponent = 1.0;
  int mirostat = 0;       // 1 or 2: instead of the truncating stages
  bool adaptive = false;  // adaptive-p instead of a plain draw
};

// What is decided anew for each step.
struct Step {
  double uniform;    // random, in [0, 1)
  bool exclude_top;  // XTC acts
  double feedback;   // mirostat: the largest surprise; adaptive-p: the probability to aim at
};

struct Choice {
  int token;     // -1: what may come of the row holds NaN, +inf or nothing but -inf
  double share;  // the token's probability among those it was drawn from
};

// mask: bits of the tokens that may come, 32 to a word from the lowest bit on; null: all may. The row stays as it is.
Choice choose(const Kernels& kernels, const float* row, int n, const Chain& chain, const Step& step,
              const uint32_t* mask = nullptr);

}  // namespace mlxcel
