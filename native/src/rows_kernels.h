// RowKernels in the operations of simd.h.
#pragma once

#include <cmath>
#include <cstring>

#include "rows.h"
#include "simd.h"

namespace mlxcel::MLXCEL_ISA {

// --- elementary functions
// `max` and `min` are called with the value that may be NaN second: that one comes out on every machine.

// x = n log(2) + r with whole n and small r: returns e^r - 1.
MLXCEL_INLINE f32x16 expm1_reduced(f32x16 x, f32x16& n) {
  n = round_even(mul(x, splat(1.44269504f)));
  f32x16 r = fma(n, splat(-0.693359375f), x);  // the first part of log(2) has few bits: exact
  r = fma(n, splat(2.12194440e-4f), r);
  f32x16 p = fma(splat(1.381446724e-3f), r, splat(8.368780836e-3f));
  p = fma(p, r, splat(4.166839272e-2f));
  p = fma(p, r, splat(1.666651964e-1f));
  p = fma(p, r, splat(4.999999404e-1f));
  return fma(mul(r, r), p, r);
}

// Within 2 units in the last place, subnormal results included.
MLXCEL_INLINE f32x16 exp(f32x16 x) {
  f32x16 n;
  const f32x16 q = expm1_reduced(min(splat(89.0f), max(splat(-104.0f), x)), n);
  const f32x16 half = round_even(mul(n, splat(0.5f)));  // 2^n may be out of range where the result is not
  const f32x16 power = exp2_whole(half);
  return mul(fma(power, q, power), exp2_whole(sub(n, half)));
}

// The same for x up to 0, with 0 for what is below 2^-126.
MLXCEL_INLINE f32x16 exp_nonpositive(f32x16 x) {
  f32x16 n;
  const f32x16 q = expm1_reduced(max(splat(-88.0f), x), n);
  const f32x16 power = exp2_whole(n);  // of -127: 0
  return fma(power, q, power);
}

MLXCEL_INLINE f32x16 tanh(f32x16 x) {
  f32x16 n;
  const f32x16 twice = mul(splat(2.0f), min(splat(10.0f), max(splat(-10.0f), x)));
  const f32x16 q = expm1_reduced(twice, n);
  const f32x16 power = exp2_whole(n);
  const f32x16 expm1 = fma(power, q, sub(power, splat(1.0f)));  // exact to the last bits near 0, where n is 0
  return div(expm1, add(expm1, splat(2.0f)));
}

MLXCEL_INLINE f32x16 silu(f32x16 x) { return div(x, add(splat(1.0f), exp(sub(splat(0.0f), x)))); }

// x / 2 * (1 + tanh(u)) is x / (1 + e^(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3).
MLXCEL_INLINE f32x16 gelu_tanh(f32x16 x) {
  const f32x16 cubic = fma(mul(x, x), splat(-2.0f * 0.7978845608f * 0.044715f), splat(-2.0f * 0.7978845608f));
  return div(x, add(splat(1.0f), exp(mul(x, cubic))));
}

// 1 + erf(x / sqrt(2)) for negative x is erfc(z), z = -x / sqrt(2): a polynomial in 1 / (1 + z / 2) times e^(-z^2), after
// Cody's and Press's rational fit; the relative error of the fit is below 1.2e-7
// however small the result, that of e^(-z^2) grows with z^2.
MLXCEL_INLINE f32x16 erfc_nonnegative(f32x16 z) {
  const f32x16 t = div(splat(1.0f), fma(z, splat(0.5f), splat(1.0f)));
  f32x16 p = splat(0.17087277f);
  for (float c : {-0.82215223f, 1.48851587f, -1.13520398f, 0.27886807f, -0.18628806f, 0.09678418f, 0.37409196f,
                  1.00002368f}) {
    p = fma(p, t, splat(c));
  }
  p = fma(p, t, splat(-1.26551223f));
  return mul(t, exp(fma(z, sub(splat(0.0f), z), p)));
}

// x / 2 * (1 + erf(x / sqrt(2))): x minus x / 2 erfc for positive x.
MLXCEL_INLINE f32x16 gelu(f32x16 x) {
  const f32x16 size = min(splat(20.0f), abs(x));  // from there on the tail is 0
  const f32x16 tail = erfc_nonnegative(mul(size, splat(0.70710678f)));
  const f32x16 positive = max(splat(0.0f), x);
  return sub(positive, mul(mul(splat(0.5f), size), tail));
}

// --- rows, sixteen elements at a time
// The loops read whole vectors as long as they can and the rest with zeros behind it.

template <class Body>  // body(i, n): elements i to i + n - 1, n at most 16
MLXCEL_INLINE void each_vector(int n, Body body) {
  int i = 0;
  for (; i + 16 <= n; i += 16) body(i, 16);
  if (i < n) body(i, n - i);
}

MLXCEL_INLINE f32x16 load_up_to(const float* p, int n) { return n == 16 ? load(p) : load_first(p, n); }
MLXCEL_INLINE void store_up_to(float* p, f32x16 a, int n) { n == 16 ? store(p, a) : store_first(p, a, n); }

// The first n (0 to 16) elements of any type, the others 0.
MLXCEL_INLINE f32x16 load_as(const void* p, Scalar type, int n) {
  if (type == Scalar::Float32) return load_up_to(static_cast<const float*>(p), n);
  const uint16_t* from = static_cast<const uint16_t*>(p);
  uint16_t rest[16] = {};
  if (n < 16) {
    std::memcpy(rest, from, static_cast<size_t>(n) * sizeof *from);
    from = rest;
  }
  return type == Scalar::Float16 ? load_f16(from) : load_bf16(from);
}
MLXCEL_INLINE void store_as(void* p, Scalar type, f32x16 a, int n) {
  if (type == Scalar::Float32) return store_up_to(static_cast<float*>(p), a, n);
  uint16_t halves[16];
  uint16_t* to = n < 16 ? halves : static_cast<uint16_t*>(p);
  type == Scalar::Float16 ? store_f16(to, a) : store_bf16(to, a);
  if (n < 16) std::memcpy(p, halves, static_cast<size_t>(n) * sizeof *halves);
}
MLXCEL_INLINE const char* element(const void* p, Scalar type, ptrdiff_t i) {
  return static_cast<const char*>(p) + i * (type == Scalar::Float32 ? 4 : 2);
}
MLXCEL_INLINE float load_one(const void* p, Scalar type, ptrdiff_t i) {
  float lanes[16];
  store(lanes, load_as(element(p, type, i), type, 1));
  return lanes[0];
}

static void load_row(const void* x, Scalar type, int n, float* out) {
  each_vector(n, [&](int i, int k) { store_up_to(out + i, load_as(element(x, type, i), type, k), k); });
}

static void store_row(const float* x, int n, Scalar type, void* out) {
  each_vector(n, [&](int i, int k) {
    store_as(const_cast<char*>(element(out, type, i)), type, load_up_to(x + i, k), k);
  });
}

template <class Function>
MLXCEL_INLINE void map(const float* x, int n, float* out, Function f) {
  each_vector(n, [&](int i, int k) { store_up_to(out + i, f(load_up_to(x + i, k)), k); });
}

template <class Function>
MLXCEL_INLINE void map(const float* x, const float* y, int n, float* out, Function f) {
  each_vector(n, [&](int i, int k) { store_up_to(out + i, f(load_up_to(x + i, k), load_up_to(y + i, k)), k); });
}

// Sum of f over the row. f(vector, elements in it, sum so far) returns the new sum; four sums run side by side.
template <class Step>
MLXCEL_INLINE float reduce(const float* x, int n, Step step) {
  f32x16 a = splat(0.0f), b = a, c = a, d = a;
  int i = 0;
  for (; i + 64 <= n; i += 64) {
    a = step(load(x + i), 16, a);
    b = step(load(x + i + 16), 16, b);
    c = step(load(x + i + 32), 16, c);
    d = step(load(x + i + 48), 16, d);
  }
  for (; i + 16 <= n; i += 16) a = step(load(x + i), 16, a);
  if (i < n) b = step(load_first(x + i, n - i), n - i, b);
  return sum(add(add(a, b), add(c, d)));
}

MLXCEL_INLINE float sum_of_squares(const float* x, int n) {
  return reduce(x, n, [](f32x16 v, int, f32x16 s) { return fma(v, v, s); });
}

MLXCEL_INLINE void rms_norm_row(const float* x, const float* weight, int n, float eps, float offset, float* out) {
  const f32x16 inverse = splat(1.0f / std::sqrt(sum_of_squares(x, n) / static_cast<float>(n) + eps));
  if (weight == nullptr) return map(x, n, out, [&](f32x16 v) { return mul(v, inverse); });
  const f32x16 plus = splat(offset);
  map(x, weight, n, out, [&](f32x16 v, f32x16 w) { return mul(mul(v, inverse), add(w, plus)); });
}

static void layer_norm_row(const float* x, const float* weight, const float* bias, int n, float eps, float* out) {
  const f32x16 mean =
      splat(reduce(x, n, [](f32x16 v, int, f32x16 s) { return add(v, s); }) / static_cast<float>(n));
  const f32x16 zero = splat(0.0f);
  const float squares = reduce(x, n, [&](f32x16 v, int k, f32x16 s) {
    const f32x16 d = first(k, sub(v, mean), zero);
    return fma(d, d, s);
  });
  const f32x16 inverse = splat(1.0f / std::sqrt(squares / static_cast<float>(n) + eps));
  each_vector(n, [&](int i, int k) {
    f32x16 v = mul(sub(load_up_to(x + i, k), mean), inverse);
    if (weight != nullptr) v = mul(v, load_up_to(weight + i, k));
    if (bias != nullptr) v = add(v, load_up_to(bias + i, k));
    store_up_to(out + i, v, k);
  });
}

static void silu_mul_row(const float* gate, const float* up, int n, float* out) {
  map(gate, up, n, out, [](f32x16 g, f32x16 u) { return mul(silu(g), u); });
}

static void gelu_tanh_mul_row(const float* gate, const float* up, int n, float* out) {
  map(gate, up, n, out, [](f32x16 g, f32x16 u) { return mul(gelu_tanh(g), u); });
}

static void gelu_mul_row(const float* gate, const float* up, int n, float* out) {
  map(gate, up, n, out, [](f32x16 g, f32x16 u) { return mul(gelu(g), u); });
}

static void relu2_mul_row(const float* gate, const float* up, int n, float* out) {
  map(gate, up, n, out, [](f32x16 g, f32x16 u) {
    const f32x16 positive = max(splat(0.0f), g);
    return mul(mul(positive, positive), u);
  });
}

static void silu_row(const float* x, int n, float* out) { map(x, n, out, [](f32x16 v) { return silu(v); }); }

static void gelu_tanh_row(const float* x, int n, float* out) { map(x, n, out, [](f32x16 v) { return gelu_tanh(v); }); }

static void gelu_row(const float* x, int n, float* out) { map(x, n, out, [](f32x16 v) { return gelu(v); }); }

static void relu2_row(const float* x, int n, float* out) {
  map(x, n, out, [](f32x16 v) {
    const f32x16 positive = max(splat(0.0f), v);
    return mul(positive, positive);
  });
}

static void swiglu_limited_row(const float* gate, const float* up, int n, float alpha, float limit, float* out) {
  const f32x16 top = splat(limit), bottom = splat(-limit), one = splat(1.0f), minus_alpha = splat(-alpha);
  map(gate, up, n, out, [&](f32x16 g, f32x16 u) {
    g = min(top, g);
    u = max(bottom, min(top, u));
    return mul(div(g, add(one, exp(mul(g, minus_alpha)))), add(u, one));
  });
}

static void add_row(const float* a, const float* b, int n, float* out) {
  map(a, b, n, out, [](f32x16 x, f32x16 y) { return add(x, y); });
}

static void scale_row(const float* x, float factor, int n, float* out) {
  const f32x16 f = splat(factor);
  map(x, n, out, [&](f32x16 v) { return mul(v, f); });
}

MLXCEL_INLINE f32x16 softcap(f32x16 x, f32x16 cap, f32x16 inverse_cap) { return mul(cap, tanh(mul(x, inverse_cap))); }

static void softcap_row(const float* x, float cap, int n, float* out) {
  const f32x16 c = splat(cap), inverse = splat(1.0f / cap);
  map(x, n, out, [&](f32x16 v) { return softcap(v, c, inverse); });
}

// The products are rounded before they are added, one each: written out, so that no compiler chooses.
MLXCEL_INLINE void rotate(f32x16& a, f32x16& b, f32x16 cosine, f32x16 sine) {
  const f32x16 turned = fma(a, cosine, sub(splat(0.0f), mul(b, sine)));
  b = fma(b, cosine, mul(a, sine));
  a = turned;
}

MLXCEL_INLINE void rope_head(const float* x, const float* table, int n, int dims, RopeStyle style, float* out) {
  const int half = dims / 2;
  const float *cosines = table, *sines = table + half;
  if (style == RopeStyle::Halves) {
    each_vector(half, [&](int i, int k) {
      f32x16 a = load_up_to(x + i, k), b = load_up_to(x + half + i, k);
      rotate(a, b, load_up_to(cosines + i, k), load_up_to(sines + i, k));
      store_up_to(out + i, a, k);
      store_up_to(out + half + i, b, k);
    });
  } else {
    for (int i = 0; i < half; i++) {
      const float a = x[2 * i], b = x[2 * i + 1];
      out[2 * i] = std::fma(a, cosines[i], -(b * sines[i]));
      out[2 * i + 1] = std::fma(b, cosines[i], a * sines[i]);
    }
  }
  if (out != x) {
    for (int i = dims; i < n; i++) out[i] = x[i];
  }
}

// The largest element, NaN aside; -inf for an empty row.
MLXCEL_INLINE float max_of_row(const float* x, int n) {
  const f32x16 least = splat(-INFINITY);
  f32x16 a = least, b = least, c = least, d = least;
  int i = 0;
  // The running maximum is the second operand: a NaN in the row leaves it alone, or any_nan finds it in the result.
  for (; i + 64 <= n; i += 64) {
    a = max(load(x + i), a);
    b = max(load(x + i + 16), b);
    c = max(load(x + i + 32), c);
    d = max(load(x + i + 48), d);
  }
  each_vector(n - i, [&](int j, int k) { a = max(first(k, load_up_to(x + i + j, k), least), a); });
  return max_of(max(max(a, b), max(c, d)));
}

MLXCEL_INLINE bool any_nan_in_row(const float* x, int n) {
  bool found = false;
  each_vector(n, [&](int i, int k) { found |= any_nan(load_up_to(x + i, k)); });
  return found;
}

static void softmax_row(const float* x, int n, float* out) {
  const f32x16 top = splat(max_of_row(x, n));
  map(x, n, out, [&](f32x16 v) { return exp_nonpositive(sub(v, top)); });
  const f32x16 total = splat(reduce(out, n, [](f32x16 v, int, f32x16 s) { return add(v, s); }));
  map(out, n, out, [&](f32x16 v) { return div(v, total); });
}

static float logsumexp_row(const float* x, int n) {
  const float top = max_of_row(x, n);
  if (!std::isfinite(top)) return any_nan_in_row(x, n) ? NAN : top;
  const f32x16 t = splat(top), zero = splat(0.0f);
  const float total = reduce(x, n, [&](f32x16 v, int k, f32x16 s) {
    return add(first(k, exp_nonpositive(sub(v, t)), zero), s);
  });
  return top + std::log(total);
}

static int argmax_row(const float* x, int n) {
  constexpr int kPiece = 512;  // the piece with the maximum is searched for it element by element
  float best = -INFINITY;
  int start = 0;
  for (int i = 0; i < n; i += kPiece) {
    const int k = n - i < kPiece ? n - i : kPiece;
    if (any_nan_in_row(x + i, k)) {
      while (!std::isnan(x[i])) i++;
      return i;
    }
    const float top = max_of_row(x + i, k);
    if (top > best) {
      best = top;
      start = i;
    }
  }
  while (start < n && x[start] != best) start++;
  return start;
}

MLXCEL_INLINE RowKernels row_kernels() {
  RowKernels kernels;
  kernels.load_row = load_row;
  kernels.store_row = store_row;
  kernels.rms_norm = [](const float* x, const float* weight, int n, float eps, float offset, float* out) {
    rms_norm_row(x, weight, n, eps, offset, out);
  };
  kernels.layer_norm = layer_norm_row;
  kernels.silu_mul = silu_mul_row;
  kernels.gelu_tanh_mul = gelu_tanh_mul_row;
  kernels.gelu_mul = gelu_mul_row;
  kernels.silu = silu_row;
  kernels.gelu_tanh = gelu_tanh_row;
  kernels.gelu = gelu_row;
  kernels.relu2 = relu2_row;
  kernels.swiglu_limited = swiglu_limited_row;
  kernels.relu2_mul = relu2_mul_row;
  kernels.add = add_row;
  kernels.scale = scale_row;
  kernels.softcap = softcap_row;
  kernels.rope = [](const float* x, const float* table, int n, int dims, RopeStyle style, float* out) {
    rope_head(x, table, n, dims, style, out);
  };
  kernels.softmax = softmax_row;
  kernels.logsumexp = logsumexp_row;
  kernels.argmax = argmax_row;
  return kernels;
}

}  // namespace mlxcel::MLXCEL_ISA
