// Every operation of simd.h against its definition on single values. Compiled once per instruction set; test_simd.cpp
// runs those that the processor can.
#include "../src/simd.h"

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "check.h"

namespace mlxcel::MLXCEL_ISA {
namespace {

constexpr int kRounds = 2000;
constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

// Zeros, infinities, NaN, subnormals, ties of roundings to whole, bfloat16 and float16, the ends of ranges.
const float kEdges[] = {
    0.0f,        -0.0f,    kInf,     -kInf,    kNan,    -kNan,      1e-45f,   -1e-45f,     1e-38f,   1.17549435e-38f,
    0.5f,        -0.5f,    1.5f,     2.5f,     -2.5f,   8388607.5f, 1e10f,    -1e10f,      3.4e38f,  3.40282347e38f,
    65504.0f,    65519.0f, 65520.0f, -65520.f, 6.1e-5f, 5.96e-8f,   2.98e-8f, 2.981e-8f,   8.94e-8f, 1.00390625f,
    1.01171875f, 2049.0f,  2051.0f,  127.5f,   128.5f,  -128.5f,    -127.5f,  2147483520.f};

struct Random {
  std::mt19937 bits{1};

  uint32_t any() { return static_cast<uint32_t>(bits()); }
  int below(int n) { return static_cast<int>(any() % static_cast<uint32_t>(n)); }
  float edge() { return kEdges[below(static_cast<int>(std::size(kEdges)))]; }
  float ordinary(float size = 10.0f) { return (static_cast<float>(below(1 << 24)) / (1 << 23) - 1.0f) * size; }
  // Any bits, an edge, a small multiple of a half or an ordinary number.
  float wild() {
    switch (below(4)) {
      case 0:
        return std::bit_cast<float>(any());
      case 1:
        return edge();
      case 2:
        return static_cast<float>(below(600) - 300) * 0.5f;
      default:
        return ordinary();
    }
  }
};

bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

struct Floats {
  alignas(64) float at[16];

  Floats() = default;
  explicit Floats(f32x16 a) { store(at, a); }
  template <class Value>
  static Floats of(Value&& value) {
    Floats r;
    for (float& x : r.at) x = value();
    return r;
  }
  f32x16 lanes() const { return load(at); }
};

void test_loads_and_stores(Random& random) {
  for (int round = 0; round < kRounds; round++) {
    const Floats a = Floats::of([&] { return random.wild(); }), b = Floats::of([&] { return random.wild(); });
    const int n = random.below(17);
    // Unaligned, and with nothing readable meant beyond the first n.
    float memory[18], part[18];
    for (float& x : part) x = 7.0f;
    std::memcpy(memory + 1, a.at, sizeof a.at);
    store(memory + 1, load(memory + 1));
    store_first(part + 1, a.lanes(), n);
    const Floats loaded(load_first(memory + 1, n)), chosen(first(n, a.lanes(), b.lanes())), all(splat(a.at[0]));
    for (int i = 0; i < 16; i++) {
      CHECK(same(memory[i + 1], a.at[i]));
      CHECK(same(loaded.at[i], i < n ? a.at[i] : 0.0f));
      CHECK(same(part[i + 1], i < n ? a.at[i] : 7.0f));
      CHECK(same(chosen.at[i], i < n ? a.at[i] : b.at[i]));
      CHECK(same(all.at[i], a.at[0]));
    }
    CHECK(part[0] == 7.0f && part[17] == 7.0f);
  }
}

float value_of_f16(uint16_t x) {
  const int exponent = x >> 10 & 31, fraction = x & 1023;
  const float sign = x & 0x8000 ? -1.0f : 1.0f;
  if (exponent == 31) return fraction ? kNan : sign * kInf;
  return sign * (exponent ? std::ldexp(static_cast<float>(1024 + fraction), exponent - 25)
                          : std::ldexp(static_cast<float>(fraction), -24));
}

// The nearest float16, of two the even one, found by search: all that are not negative, in order.
uint16_t nearest_f16(float x) {
  if (std::isnan(x)) return 0x7e00;
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const double size = std::fabs(static_cast<double>(x));
  if (size >= 65520.0) return sign | 0x7c00;
  uint16_t low = 0, high = 0x7bff;
  while (low < high) {  // the largest that is not above
    const uint16_t middle = static_cast<uint16_t>((low + high + 1) / 2);
    if (value_of_f16(middle) <= size)
      low = middle;
    else
      high = static_cast<uint16_t>(middle - 1);
  }
  const double below = size - value_of_f16(low),
               above = (low == 0x7bff ? 65536.0 : value_of_f16(static_cast<uint16_t>(low + 1))) - size;
  return sign | static_cast<uint16_t>(low + (above < below || (above == below && low % 2)));
}

void test_half_floats(Random& random) {
  for (int first_bits = 0; first_bits < 65536; first_bits += 16) {
    uint16_t half[16], back[16];
    for (int i = 0; i < 16; i++) half[i] = static_cast<uint16_t>(first_bits + i);
    const Floats f16(load_f16(half)), bf16(load_bf16(half));
    for (int i = 0; i < 16; i++) {
      CHECK(same(f16.at[i], value_of_f16(half[i])));
      CHECK(same(bf16.at[i], std::bit_cast<float>(static_cast<uint32_t>(half[i]) << 16)));
    }
    store_f16(back, f16.lanes());
    for (int i = 0; i < 16; i++) CHECK(std::isnan(f16.at[i]) ? std::isnan(value_of_f16(back[i])) : back[i] == half[i]);
    store_bf16(back, bf16.lanes());
    for (int i = 0; i < 16; i++) CHECK(std::isnan(bf16.at[i]) ? (back[i] & 0x7fff) > 0x7f80 : back[i] == half[i]);
  }
  for (int round = 0; round < kRounds; round++) {
    // Near and on the middle between two halves, too.
    const Floats a = Floats::of([&] {
      const float middle = std::bit_cast<float>(random.any() & 0xfffff000u);
      return random.below(2)   ? random.wild()
             : random.below(2) ? middle
                               : std::nextafter(middle, random.below(2) ? kInf : -kInf);
    });
    uint16_t f16[16], bf16[16];
    store_f16(f16, a.lanes());
    store_bf16(bf16, a.lanes());
    for (int i = 0; i < 16; i++) {
      const uint32_t bits = std::bit_cast<uint32_t>(a.at[i]), cut = bits & 0xffff;
      const uint32_t nearest = (bits >> 16) + (cut > 0x8000 || (cut == 0x8000 && (bits >> 16) % 2));
      CHECK(std::isnan(a.at[i]) ? std::isnan(value_of_f16(f16[i])) : f16[i] == nearest_f16(a.at[i]));
      CHECK(std::isnan(a.at[i]) ? (bf16[i] & 0x7fff) > 0x7f80 : bf16[i] == nearest);
    }
  }
}

void test_arithmetic(Random& random) {
  for (int round = 0; round < kRounds; round++) {
    const Floats a = Floats::of([&] { return random.wild(); }), b = Floats::of([&] { return random.wild(); });
    const Floats c = Floats::of([&] { return random.wild(); });
    const f32x16 x = a.lanes(), y = b.lanes(), z = c.lanes();
    const Floats sums(add(x, y)), differences(sub(x, y)), products(mul(x, y)), quotients(div(x, y)),
        fused(fma(x, y, z));
    const Floats larger(max(x, y)), smaller(min(x, y)), sizes(abs(x)), whole(round_even(x));
    bool nan = false;
    for (int i = 0; i < 16; i++) {
      CHECK(same(sums.at[i], a.at[i] + b.at[i]));
      CHECK(same(differences.at[i], a.at[i] - b.at[i]));
      CHECK(same(products.at[i], a.at[i] * b.at[i]));
      CHECK(same(quotients.at[i], a.at[i] / b.at[i]));
      CHECK(same(fused.at[i], std::fma(a.at[i], b.at[i], c.at[i])) || same(fused.at[i], a.at[i] * b.at[i] + c.at[i]));
      CHECK(same(sizes.at[i], std::fabs(a.at[i])));
      CHECK(same(whole.at[i], std::nearbyint(a.at[i])));
      if (std::isnan(a.at[i]) || std::isnan(b.at[i])) {
        nan |= std::isnan(a.at[i]);
        continue;
      }
      CHECK(larger.at[i] == std::max(a.at[i], b.at[i]));
      CHECK(smaller.at[i] == std::min(a.at[i], b.at[i]));
    }
    CHECK(any_nan(x) == nan);
    const uint32_t not_below = lanes_at_least(x, y);
    for (int i = 0; i < 16; i++) CHECK((not_below >> i & 1) == (a.at[i] >= b.at[i]));
    CHECK(not_below >> 16 == 0);
    const Floats below(zero_unless_below(x, y));
    for (int i = 0; i < 16; i++) CHECK(same(below.at[i], a.at[i] < b.at[i] ? a.at[i] : 0.0f));
    Floats clean = Floats::of([&] { return random.ordinary(); });
    CHECK(!any_nan(clean.lanes()));
    clean.at[random.below(16)] = kNan;
    CHECK(any_nan(clean.lanes()));
  }
}

void test_reductions(Random& random) {
  for (int round = 0; round < kRounds; round++) {
    Floats a = Floats::of([&] { return random.ordinary(); });
    double total = 0;
    float largest = -kInf;
    for (float x : a.at) total += static_cast<double>(x), largest = std::max(largest, x);
    CHECK_CLOSE(sum(a.lanes()), total, 2e-5);
    CHECK(max_of(a.lanes()) == largest);
    CHECK(same(sum(a.lanes()), sum(a.lanes())));
    const Floats b = Floats::of([&] { return random.ordinary(); });
    float peak = 0;
    for (float x : a.at) peak = std::max(peak, std::abs(x));
    for (float x : b.at) peak = std::max(peak, std::abs(x));
    CHECK(peak_of(a.lanes(), b.lanes()) == peak);
    const int i = random.below(16);
    for (float x : {kInf, -kInf, kNan, -kNan}) {
      Floats c = b;
      c.at[i] = x;
      CHECK(!std::isfinite(peak_of(a.lanes(), c.lanes())) && !std::isfinite(peak_of(c.lanes(), a.lanes())));
    }
    a.at[i] = kInf;
    CHECK(sum(a.lanes()) == kInf && max_of(a.lanes()) == kInf);
    a.at[i] = -kInf;
    CHECK(sum(a.lanes()) == -kInf && max_of(a.lanes()) > -kInf);
    a.at[i] = kNan;
    CHECK(std::isnan(sum(a.lanes())));
  }
  CHECK(max_of(splat(-kInf)) == -kInf);
  for (int n = -126; n <= 127; n++)
    CHECK(Floats(exp2_whole(splat(static_cast<float>(n)))).at[n & 15] == std::ldexp(1.0f, n));
}

void test_doubles(Random& random) {
  for (int round = 0; round < kRounds; round++) {
    const Floats a = Floats::of([&] { return random.wild(); }), b = Floats::of([&] { return random.ordinary(); });
    double wide[16], sums[16], products[16], zeros[16];
    store(wide, to_f64(a.lanes()));
    store(sums, add(to_f64(a.lanes()), to_f64(b.lanes())));
    store(products, mul(to_f64(a.lanes()), to_f64(b.lanes())));
    store(zeros, zero_f64());
    for (int i = 0; i < 16; i++) {
      const double x = a.at[i], y = b.at[i];
      CHECK(zeros[i] == 0.0);
      if (std::isnan(x)) continue;
      CHECK(wide[i] == x && sums[i] == x + y && (products[i] == x * y || std::isnan(x * y)));
    }
  }
}

void test_integers(Random& random) {
  for (int round = 0; round < kRounds; round++) {
    // Whole numbers that floats hold exactly, halves, and floats of any size that an int32 can hold.
    const Floats a = Floats::of([&] {
      const float x =
          random.below(2) ? static_cast<float>(random.below(2001) - 1000) * 0.5f : random.ordinary(8388608.0f);
      return random.below(8) ? x : random.ordinary(2147483520.0f);
    });
    const i32x16 n = to_i32(a.lanes()), doubled = add(n, n);
    int8_t bytes[16];
    store_i8(bytes, n);
    const Floats back(to_f32(n)), right(to_f32(shift_right<4>(n))), left(to_f32(shift_left<8>(n)));
    const Floats twice(to_f32(doubled)), less(to_f32(sub(n, splat_i32(1 << 30))));
    uint32_t total = 0;
    for (int i = 0; i < 16; i++) {
      const int32_t whole = static_cast<int32_t>(std::nearbyint(a.at[i]));
      const int32_t wrapped = static_cast<int32_t>(2 * static_cast<uint32_t>(whole));
      total += static_cast<uint32_t>(whole);
      CHECK(back.at[i] == static_cast<float>(whole));
      CHECK(right.at[i] == static_cast<float>(whole >> 4));
      CHECK(left.at[i] == static_cast<float>(static_cast<int32_t>(static_cast<uint32_t>(whole) << 8)));
      CHECK(less.at[i] == static_cast<float>(static_cast<int32_t>(static_cast<uint32_t>(whole) - (1u << 30))));
      CHECK(twice.at[i] == static_cast<float>(wrapped));
      CHECK(bytes[i] == std::min(127, std::max(-128, whole)));
    }
    CHECK(sum(n) == static_cast<int32_t>(total));
    CHECK(sum(zero_i32()) == 0);
  }
}

template <class Bytes>
void check_dot(Bytes w, const uint8_t* values, Random& random) {
  const bool extreme = random.below(4) == 0;
  int8_t x[4];
  for (int8_t& v : x) v = static_cast<int8_t>(extreme ? (random.below(2) ? -128 : 127) : random.below(256) - 128);
  int32_t packed;
  std::memcpy(&packed, x, sizeof packed);
  const Floats start = Floats::of([&] { return static_cast<float>(random.below(2000000) - 1000000); });
  const Floats sums(to_f32(dot(to_i32(start.lanes()), w, packed)));
  for (int i = 0; i < 16; i++) {
    int32_t expected = static_cast<int32_t>(start.at[i]);
    for (int k = 0; k < 4; k++) expected += values[4 * i + k] * x[k];
    CHECK(sums.at[i] == static_cast<float>(expected));
  }
}

void test_bytes(Random& random) {
  for (int round = 0; round < kRounds; round++) {
    uint8_t memory[65], *bytes = memory + 1, low[64], high[64];
    const bool extreme = round % 4 == 0;
    for (int i = 0; i < 64; i++) {
      bytes[i] = static_cast<uint8_t>(extreme ? (random.below(8) ? 255 : 0) : random.below(256));
      low[i] = bytes[i] & 15;
      high[i] = bytes[i] >> 4;
    }
    const bytes64 w = load64(bytes);
    check_dot(w, bytes, random);
    check_dot(low_nibbles(w), low, random);
    check_dot(high_nibbles(w), high, random);
    check_dot(bytes64(low_nibbles(w)), low, random);
  }
}

void test_bf16_pairs(Random& random) {
  const auto bf16 = [](float x) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16); };
  const auto value = [](uint16_t x) {
    return static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(x) << 16));
  };
  for (int round = 0; round < kRounds; round++) {
    uint16_t pairs[32], lo = bf16(random.ordinary()), hi = bf16(random.ordinary());
    for (uint16_t& x : pairs) x = bf16(random.ordinary());
    const int special = random.below(64);  // mostly none
    if (special < 32) pairs[special] = bf16(random.below(2) ? kNan : kInf);
    const Floats start = Floats::of([&] { return random.ordinary(); });
    const Floats sums(dot_bf16(start.lanes(), pairs, static_cast<uint32_t>(hi) << 16 | lo));
    for (int i = 0; i < 16; i++) {
      const double first_product = value(pairs[2 * i]) * value(lo),
                   second_product = value(pairs[2 * i + 1]) * value(hi);
      const double exact = start.at[i] + first_product + second_product;
      CHECK_CLOSE(sums.at[i], exact, std::isfinite(exact) ? 4e-5 : 0.0);
    }
  }
}

}  // namespace

void test_operations() {
  Random random;
  test_loads_and_stores(random);
  test_half_floats(random);
  test_arithmetic(random);
  test_reductions(random);
  test_doubles(random);
  test_integers(random);
  test_bytes(random);
  test_bf16_pairs(random);
}

}  // namespace mlxcel::MLXCEL_ISA
