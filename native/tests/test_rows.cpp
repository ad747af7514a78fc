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
const std::vector<int> kLengths{1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 80, 127, 576, 1000, 4097};

std::vector<float> random_row(int n, float size = 2.0f, unsigned seed = 1) {
  std::mt19937 random(seed + n);
  std::normal_distribution<float> normal(0.0f, size);
  std::vector<float> row(n);
  for (float& x : row) x = normal(random);
  return row;
}

// Values from -120 to 120, dense near 0, and the special ones.
std::vector<float> many_values() {
  std::vector<float> values{0.0f, -0.0f, 1e-30f, -1e-30f, kInf, kNaN, 88.7f, 88.75f, -87.5f, -95.0f, -103.0f, -110.0f, 3e38f, -3e38f};
  for (int i = 0; i < 20000; i++) {
    const float x = 120.0f * static_cast<float>(std::pow((i + 0.5) / 20000, 3));
    values.push_back(x);
    values.push_back(-x);
  }
  return values;
}

// Distance of x from the true value in units of its last place.
double ulps(float x, double exact) {
  if (std::isnan(exact)) return std::isnan(x) ? 0.0 : 1e9;
  const float nearest = static_cast<float>(exact);
  if (std::isinf(nearest)) return x == nearest ? 0.0 : 1e9;
  const float size = std::max(std::fabs(nearest), std::numeric_limits<float>::min());
  return std::fabs(x - exact) / (std::nextafter(size, kInf) - size);
}

// Largest error of an elementwise kernel.
template <class Kernel, class Exact>
double worst(const std::vector<float>& x, Kernel kernel, Exact exact) {
  std::vector<float> out(x.size());
  kernel(x.data(), static_cast<int>(x.size()), out.data());
  double most = 0.0;
  for (size_t i = 0; i < x.size(); i++) most = std::max(most, ulps(out[i], exact(x[i])));
  return most;
}

template <class Body>
void each_kernels(Body body) {
  for (const Kernels* kernels : available()) body(kernels->rows);
}

}  // namespace

TEST(rows_norms) {
  each_kernels([](const RowKernels& rows) {
    for (int n : kLengths) {
      const std::vector<float> x = random_row(n), weight = random_row(n, 1.0f, 2), bias = random_row(n, 1.0f, 3);
      double mean = 0.0, squares = 0.0, variance = 0.0;
      for (float v : x) mean += v / n, squares += double(v) * v / n;
      for (float v : x) variance += (v - mean) * (v - mean) / n;
      std::vector<float> out(n + 1, 7.0f);
      for (int form = 0; form < 4; form++) {
        const float* w = form & 1 ? weight.data() : nullptr;
        const float* b = form & 2 ? bias.data() : nullptr;
        const float offset = form & 2 ? 1.0f : 0.0f;
        rows.rms_norm(x.data(), w, n, 1e-5f, offset, out.data());
        for (int i = 0; i < n; i++) {
          const double exact = x[i] / std::sqrt(squares + 1e-5) * (w ? w[i] + offset : 1.0);
          CHECK_CLOSE(out[i], exact, 2e-6 + 2e-6 * std::fabs(exact));
        }
        rows.layer_norm(x.data(), w, b, n, 1e-5f, out.data());
        for (int i = 0; i < n; i++) {
          const double exact = (x[i] - mean) / std::sqrt(variance + 1e-5) * (w ? w[i] : 1.0) + (b ? b[i] : 0.0);
          CHECK_CLOSE(out[i], exact, 1e-5 + 1e-5 * std::fabs(exact));
        }
      }
      CHECK(out[n] == 7.0f);
    }
  });
}

TEST(rows_elementary_functions) {
  const std::vector<float> values = many_values(), ones(values.size(), 1.0f);
  each_kernels([&](const RowKernels& rows) {
    std::vector<float> out(values.size());
    rows.silu_mul(values.data(), ones.data(), static_cast<int>(values.size()), out.data());
    for (size_t i = 0; i < values.size(); i++) {
      const double x = values[i], exact = std::isinf(x) ? x : x / (1.0 + std::exp(-x));
      CHECK_CLOSE(out[i], exact, 1e-36 + 4e-7 * std::fabs(exact));  // below e^-88: 0
    }
    CHECK(worst(values, [&](const float* x, int n, float* out) { rows.softcap(x, 30.0f, n, out); },
                [](double x) { return 30.0 * std::tanh(x / 30.0); }) < 5.0);
    rows.gelu_tanh_mul(values.data(), ones.data(), static_cast<int>(values.size()), out.data());
    for (size_t i = 0; i < values.size(); i++) {
      const double x = values[i], u = 0.7978845608028654 * (x + 0.044715 * x * x * x);
      const double exact = std::isinf(x) ? x : x / (1.0 + std::exp(-2.0 * u));
      CHECK_CLOSE(out[i], exact, 1e-7 + 1e-6 * std::fabs(exact));
    }
    rows.gelu_mul(values.data(), ones.data(), static_cast<int>(values.size()), out.data());
    for (size_t i = 0; i < values.size(); i++) {
      const double x = values[i], exact = std::isinf(x) ? std::max(x, 0.0) : x * std::erfc(-x * M_SQRT1_2) / 2.0;
      CHECK_CLOSE(out[i], exact, 1e-7 * std::min(40.0, std::fabs(x)) + 1e-6 * std::fabs(exact));
    }
    rows.relu2_mul(values.data(), ones.data(), static_cast<int>(values.size()), out.data());
    for (size_t i = 0; i < values.size(); i++) {
      const float positive = std::max(values[i], 0.0f);
      CHECK_CLOSE(out[i], positive * positive, 0.0);
    }
  });
}

TEST(rows_exp_of_softmax) {
  // With a 0 that dominates, softmax gives e^x / sum: two roundings besides e^x.
  each_kernels([](const RowKernels& rows) {
    float out[2];
    double most = 0.0;
    for (int i = 0; i < 20000; i++) {
      const float pair[2] = {0.0f, -87.0f * static_cast<float>(i) / 20000};
      rows.softmax(pair, 2, out);
      most = std::max(most, ulps(out[1], std::exp(double(pair[1])) / (1.0 + std::exp(double(pair[1])))));
    }
    CHECK(most < 3.0);
  });
}

TEST(rows_simple) {
  each_kernels([](const RowKernels& rows) {
    for (int n : kLengths) {
      const std::vector<float> x = random_row(n), y = random_row(n, 1.0f, 2);
      std::vector<float> out(n), expected(n);
      rows.add(x.data(), y.data(), n, out.data());
      for (int i = 0; i < n; i++) expected[i] = x[i] + y[i];
      CHECK(out == expected);
      rows.scale(x.data(), 0.3f, n, out.data());
      for (int i = 0; i < n; i++) expected[i] = x[i] * 0.3f;
      CHECK(out == expected);
      out = x;  // in place
      rows.silu_mul(out.data(), y.data(), n, out.data());
      rows.silu_mul(x.data(), y.data(), n, expected.data());
      CHECK(out == expected);
    }
  });
}

TEST(rows_rope) {
  each_kernels([](const RowKernels& rows) {
    for (int n : {32, 64, 80, 96, 128, 256}) {
      for (int dims : {n, n / 2, n / 4, 20}) {
        RopeTable table(dims, 10000.0, 0.5);
        table.reserve(3000);
        const std::vector<float> x = random_row(n);
        for (RopeStyle style : {RopeStyle::Halves, RopeStyle::Interleaved}) {
          for (int position : {0, 1, 77, 2999}) {
            std::vector<double> exact(x.begin(), x.end());
            for (int i = 0; i < dims / 2; i++) {
              const int a = style == RopeStyle::Halves ? i : 2 * i, b = style == RopeStyle::Halves ? i + dims / 2 : a + 1;
              const double angle = position * 0.5 * std::pow(10000.0, -2.0 * i / dims);
              exact[a] = x[a] * std::cos(angle) - x[b] * std::sin(angle);
              exact[b] = x[b] * std::cos(angle) + x[a] * std::sin(angle);
            }
            std::vector<float> out(n), same = x;
            rows.rope(x.data(), table.row(position), n, dims, style, out.data());
            rows.rope(same.data(), table.row(position), n, dims, style, same.data());
            CHECK(out == same);
            for (int i = 0; i < n; i++) CHECK_CLOSE(out[i], exact[i], 2e-6);
          }
        }
      }
    }
  });
}

TEST(rows_rope_table) {
  RopeTable powers(8, 100.0), explicit_table({1.0, std::pow(100.0, -0.25), std::pow(100.0, -0.5), std::pow(100.0, -0.75)}, 2.0);
  powers.reserve(1);
  explicit_table.reserve(500);
  CHECK(powers.positions() >= 1 && explicit_table.positions() >= 500);
  powers.reserve(500);  // grows: the first rows stay
  for (int p : {0, 1, 499}) {
    for (int i = 0; i < 8; i++) CHECK_CLOSE(2.0f * powers.row(p)[i], explicit_table.row(p)[i], 1e-6);
  }
}

TEST(rows_softmax_and_logsumexp) {
  each_kernels([](const RowKernels& rows) {
    for (int n : kLengths) {
      std::vector<float> x = random_row(n, 5.0f), out(n);
      if (n > 20) x[3] = -kInf;
      double total = 0.0;
      const double top = *std::max_element(x.begin(), x.end());
      for (float v : x) total += std::exp(v - top);
      CHECK_CLOSE(rows.logsumexp(x.data(), n), top + std::log(total), 2e-6 * (1.0 + std::fabs(top)));
      rows.softmax(x.data(), n, out.data());
      for (int i = 0; i < n; i++) CHECK_CLOSE(out[i], std::exp(x[i] - top) / total, 1e-6 * std::exp(x[i] - top) / total + 1e-12);
    }
    const float none[] = {-kInf, -kInf, -kInf}, most[] = {1.0f, kInf, 2.0f};
    CHECK(rows.logsumexp(none, 3) == -kInf);
    CHECK(rows.logsumexp(none, 0) == -kInf);
    CHECK(rows.logsumexp(most, 3) == kInf);
    float out[3];
    rows.softmax(none, 3, out);
    CHECK(std::isnan(out[0]));
  });
}

TEST(rows_argmax) {
  each_kernels([](const RowKernels& rows) {
    for (int n : kLengths) {
      std::vector<float> x = random_row(n);
      CHECK(rows.argmax(x.data(), n) == std::max_element(x.begin(), x.end()) - x.begin());
      x[n / 2] = x[n - 1] = 50.0f;  // the first of equals
      CHECK(rows.argmax(x.data(), n) == n / 2);
      x[n - 1] = kNaN;
      CHECK(rows.argmax(x.data(), n) == n - 1);
      std::fill(x.begin(), x.end(), -kInf);
      CHECK(rows.argmax(x.data(), n) == 0);
      x[n - 1] = -3e38f;
      CHECK(rows.argmax(x.data(), n) == n - 1);
    }
  });
}

TEST(rows_nan_comes_out) {
  each_kernels([](const RowKernels& rows) {
    for (int n : kLengths) {
      for (int at : {0, n / 2, n - 1}) {
        std::vector<float> x = random_row(n), y = random_row(n), out(n);
        x[at] = kNaN;
        const auto all_nan = [&] { return std::all_of(out.begin(), out.end(), [](float v) { return std::isnan(v); }); };
        const auto one_nan = [&] {
          return std::isnan(out[at]) && std::count_if(out.begin(), out.end(), [](float v) { return std::isnan(v); }) == 1;
        };
        rows.rms_norm(x.data(), y.data(), n, 1e-5f, 0.0f, out.data());
        CHECK(all_nan());
        rows.layer_norm(x.data(), nullptr, nullptr, n, 1e-5f, out.data());
        CHECK(all_nan());
        rows.softmax(x.data(), n, out.data());
        CHECK(all_nan());
        CHECK(std::isnan(rows.logsumexp(x.data(), n)));
        rows.silu_mul(x.data(), y.data(), n, out.data());
        CHECK(one_nan());
        for (auto* gate : {rows.gelu_tanh_mul, rows.gelu_mul, rows.relu2_mul}) {
          gate(x.data(), y.data(), n, out.data());
          CHECK(one_nan());
        }
        rows.softcap(x.data(), 10.0f, n, out.data());
        CHECK(one_nan());
        x[at] = kInf;  // infinity beside NaN
        if (n > 1) {
          x[(at + 1) % n] = kNaN;
          CHECK(std::isnan(rows.logsumexp(x.data(), n)));
        }
      }
    }
  });
}

TEST(rows_gates) {
  const std::vector<float> values = many_values();
  const int n = static_cast<int>(values.size());
  std::vector<float> ups(values.rbegin(), values.rend());
  each_kernels([&](const RowKernels& rows) {
    std::vector<float> out(n), product(n);
    const auto check = [&](double relative, double absolute, auto exact) {
      for (int i = 0; i < n; i++) {
        const double expected = exact(double(values[i]), double(ups[i]));
        if (std::isfinite(expected) && std::fabs(expected) > 3.4e38) continue;
        CHECK_CLOSE(out[i], expected, absolute + relative * std::fabs(expected));
      }
    };
    rows.gelu(values.data(), n, out.data());
    check(2e-5, 1e-36, [](double x, double) { return std::isinf(x) ? std::max(x, 0.0) : 0.5 * x * std::erfc(-x / std::sqrt(2.0)); });
    rows.gelu_mul(values.data(), ups.data(), n, product.data());
    for (int i = 0; i < n; i++) CHECK_CLOSE(product[i], out[i] * ups[i], 0.0);
    rows.gelu_tanh(values.data(), n, out.data());
    rows.gelu_tanh_mul(values.data(), ups.data(), n, product.data());
    for (int i = 0; i < n; i++) CHECK_CLOSE(product[i], out[i] * ups[i], 0.0);
    rows.silu(values.data(), n, out.data());
    rows.silu_mul(values.data(), ups.data(), n, product.data());
    for (int i = 0; i < n; i++) CHECK_CLOSE(product[i], out[i] * ups[i], 0.0);
    rows.relu2(values.data(), n, out.data());
    check(1e-7, 1e-37, [](double x, double) { return std::isnan(x) ? x : std::max(x, 0.0) * std::max(x, 0.0); });
    rows.swiglu_limited(values.data(), ups.data(), n, 1.702f, 7.0f, out.data());
    check(1e-5, 1e-35, [](double x, double u) {  // the exponent's rounding grows with it
      const double g = std::isnan(x) ? x : std::min(x, 7.0), up = std::isnan(u) ? u : std::clamp(u, -7.0, 7.0);
      return g / (1.0 + std::exp(-1.702 * g)) * (up + 1.0);
    });
  });
}

TEST(rows_of_other_types) {
  each_kernels([](const RowKernels& rows) {
    for (int n : {0, 1, 15, 16, 17, 100}) {
      const std::vector<float> x = random_row(n);
      for (Scalar type : {Scalar::Float32, Scalar::Float16, Scalar::BFloat16}) {
        std::vector<uint16_t> stored(2 * n + 2, 0x1234);
        std::vector<float> back(n + 1, 7.0f);
        rows.store_row(x.data(), n, type, stored.data());
        CHECK(stored[n * size_of(type) / 2] == 0x1234);
        rows.load_row(stored.data(), type, n, back.data());
        CHECK(back[n] == 7.0f);
        const double relative = type == Scalar::Float32 ? 0.0 : type == Scalar::Float16 ? 0x1p-11 : 0x1p-8;
        for (int i = 0; i < n; i++) CHECK_CLOSE(back[i], x[i], 0x1p-25 * (relative > 0) + relative * std::fabs(x[i]));
      }
    }
  });
}

TEST(rows_rope_of_periods) {
  RopeTable table = RopeTable::of_periods({1.0f, 2.0f, 5.0f}, 0.25);
  table.reserve(41);
  CHECK(table.dims() == 6);
  for (int i = 0; i < 3; i++) {
    const double angle = 40 * 0.25 / (i == 0 ? 1.0 : i == 1 ? 2.0 : 5.0);
    CHECK_CLOSE(table.row(40)[i], std::cos(angle), 1e-6);
    CHECK_CLOSE(table.row(40)[3 + i], std::sin(angle), 1e-6);
  }
}
