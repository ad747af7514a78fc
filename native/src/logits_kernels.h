// LogitKernels in the operations of simd.h.
#pragma once

#include <cfloat>
#include <cmath>

#include "logits.h"
#include "rows_kernels.h"
#include "simd.h"

namespace mlxcel::MLXCEL_ISA {

// To a multiple of 2^-35, for x from 0 to 1.
MLXCEL_INLINE f32x16 round_weight(f32x16 x) {
  const f32x16 unit = splat(0x1p-12f);  // a sum with it has no bits below 2^-35
  return sub(add(x, unit), unit);
}

// The power of two that a logit stands for.
MLXCEL_INLINE f32x16 weight_exponent(f32x16 x, f32x16 peak, f32x16 scale) {
  return max(mul(sub(x, peak), scale), splat(-37.0f));  // 2^-37 weighs nothing
}

// No fma: where there is no such instruction it would round differently, and numpy has none. The largest error is
// 1.3e-7. Coefficients: 2^f for f in [-1/2, 1/2] with the least relative error, and exactly 1 at 0.
MLXCEL_INLINE f32x16 weight(f32x16 y) {
  const f32x16 n = round_even(y), f = sub(y, n);
  f32x16 p = add(mul(splat(0.001326472731307149f), f), splat(0.009671512991189957f));
  p = add(mul(p, f), splat(0.05550733581185341f));
  p = add(mul(p, f), splat(0.24022242426872253f));
  p = add(mul(p, f), splat(0.6931470036506653f));
  p = add(mul(p, f), splat(1.0f));
  return round_weight(mul(p, exp2_whole(n)));
}

MLXCEL_INLINE void block_maxima_of_row(const float* x, int n, int vectors, float* out) {
  const f32x16 least = splat(-INFINITY);
  // The parts are the lanes of so many vectors: no maximum over the lanes of one is needed.
  for (int i = 0; i < n; i += 16 * vectors, out += 16) {
    const int k = n - i < 16 * vectors ? n - i : 16 * vectors;
    f32x16 top = least;
    each_vector(k, [&](int j, int m) {
      const f32x16 v = load_up_to(x + i + j, m);
      top = max(m == 16 ? v : first(m, v, least), top);
    });
    store(out, top);
  }
}

static int at_least_in_row(const float* x, int n, float threshold, int64_t* positions) {
  const f32x16 t = splat(threshold);
  int count = 0, i = 0;
  for (; i + 16 <= n; i += 16) {
    // Eight steps at a time, needed or not, for nobody can predict how many are: there is room, because all that was
    // found lies before i.
    for (uint32_t lanes = lanes_at_least(load(x + i), t); lanes != 0;) {
      for (int step = 0; step < 8; step++) {
        positions[count] = i + __builtin_ctz(lanes | 1u << 15);
        count += lanes != 0;
        lanes &= lanes - 1;
      }
    }
  }
  for (; i < n; i++) {
    if (x[i] >= threshold) positions[count++] = i;
  }
  return count;
}

static void weights_of_row(const float* x, int n, float peak, float scale, float* out) {
  const f32x16 top = splat(peak), factor = splat(scale);
  map(x, n, out, [&](f32x16 v) { return weight(weight_exponent(v, top, factor)); });
}

// The sum over the lanes, from the first to the last.
MLXCEL_INLINE double total_of(f64x16 sums) {
  double lanes[16], total = 0.0;
  store(lanes, sums);
  for (const double lane : lanes) total += lane;
  return total;
}

static double mass_of_row(const float* x, int n, float peak, float scale) {
  const f32x16 top = splat(peak), factor = splat(scale), least = splat(-INFINITY);
  f64x16 mass = zero_f64();
  each_vector(n, [&](int i, int k) {
    const f32x16 v = load_up_to(x + i, k);
    mass = add(mass, to_f64(weight(weight_exponent(k == 16 ? v : first(k, v, least), top, factor))));
  });
  return total_of(mass);
}

static Moments moments_of_row(const float* x, int n, float peak, float scale) {
  const f32x16 top = splat(peak), factor = splat(scale), least = splat(-INFINITY), zero = splat(0.0f);
  f64x16 mass = zero_f64(), squares = mass, exponents = mass;
  each_vector(n, [&](int i, int k) {
    const f32x16 v = load_up_to(x + i, k);
    const f32x16 y = weight_exponent(k == 16 ? v : first(k, v, least), top, factor), w = weight(y);
    mass = add(mass, to_f64(w));
    squares = add(squares, to_f64(round_weight(mul(w, w))));
    exponents = add(exponents, to_f64(round_weight(mul(w, sub(zero, y)))));
  });
  return {total_of(mass), total_of(squares), total_of(exponents)};
}

static Spread spread_of_row(const float* x, int n, float peak) {
  const f32x16 top = splat(peak), least = splat(-INFINITY), infinite = splat(INFINITY);
  f64x16 distances = zero_f64(), squares = distances;
  int out = 0;
  each_vector(n, [&](int i, int k) {
    const f32x16 v = load_up_to(x + i, k), d = sub(top, k == 16 ? v : first(k, v, least));
    out += __builtin_popcount(lanes_at_least(d, infinite));
    const f64x16 wide = to_f64(zero_unless_below(d, infinite));
    distances = add(distances, wide);
    squares = add(squares, mul(wide, wide));  // exact: products of two singles
  });
  return {static_cast<double>((n + 15) / 16 * 16 - out), total_of(distances), total_of(squares)};
}

static void near_row(const float* x, int n, float peak, float scale, float unit, float aim, float* out) {
  const f32x16 top = splat(peak), factor = splat(scale), per_weight = splat(unit), middle = splat(aim);
  const f32x16 narrow = splat(1.0f / 0.3f), zero = splat(0.0f);
  map(x, n, out, [&](f32x16 v) {
    const f32x16 w = weight(weight_exponent(v, top, factor));
    const f32x16 d = mul(abs(sub(mul(w, per_weight), middle)), narrow);
    const f32x16 loss = div(mul(mul(splat(10.0f), d), d), add(splat(1.0f), d));
    const f32x16 weightless = zero_unless_below(sub(w, splat(0x1p-35f)), zero);  // 0, or -2^-35
    return add(sub(splat(5.0f), loss), mul(weightless, splat(FLT_MAX)));
  });
}

static void mask_row(const float* x, const uint32_t* words, int n, float* out) {
  int i = 0;
  for (; i + 32 <= n; i += 32) {
    const uint32_t word = words[i / 32];
    for (int bit = 0; bit < 32; bit++) out[i + bit] = word >> bit & 1 ? x[i + bit] : -INFINITY;
  }
  for (; i < n; i++) out[i] = words[i / 32] >> i % 32 & 1 ? x[i] : -INFINITY;
}

MLXCEL_INLINE LogitKernels logit_kernels() {
  LogitKernels kernels;
  kernels.max = [](const float* x, int n) { return max_of_row(x, n); };
  kernels.block_maxima = [](const float* x, int n, int vectors, float* out) {
    block_maxima_of_row(x, n, vectors, out);
  };
  kernels.at_least = at_least_in_row;
  kernels.weights = weights_of_row;
  kernels.mass = mass_of_row;
  kernels.moments = moments_of_row;
  kernels.spread = spread_of_row;
  kernels.near = near_row;
  kernels.mask = mask_row;
  return kernels;
}

}  // namespace mlxcel::MLXCEL_ISA
