#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <stdexcept>
#include <vector>

#include "../src/dispatch.h"
#include "../src/gemm.h"
#include "../src/pool.h"
#include "check.h"

using namespace mlxcel;

namespace {

std::mt19937 random_bits(1);

std::vector<float> normal_floats(size_t n) {
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& x : values) x = normal(random_bits);
  return values;
}

// As 16 or 32 bits; what is cut off is cut off in `values` too.
std::vector<std::byte> stored(std::vector<float>& values, Scalar type) {
  std::vector<std::byte> bytes(values.size() * size_of(type));
  for (size_t i = 0; i < values.size(); i++) {
    uint32_t bits = std::bit_cast<uint32_t>(values[i]);
    uint16_t half = static_cast<uint16_t>(bits >> 16);
    if (type == Scalar::Float16) {
      const uint32_t exponent = bits >> 23 & 255;
      half = exponent < 113
                 ? 0
                 : static_cast<uint16_t>((bits >> 16 & 0x8000) | ((exponent - 112) << 10) | (bits >> 13 & 0x3ff));
      bits = exponent < 113 ? 0 : bits & 0xffffe000;
    } else if (type == Scalar::BFloat16) {
      bits &= 0xffff0000;
    }
    values[i] = std::bit_cast<float>(bits);
    if (type == Scalar::Float32) std::memcpy(&bytes[4 * i], &bits, 4);
    else std::memcpy(&bytes[2 * i], &half, 2);
  }
  return bytes;
}

// A matrix in the form of its source, and its values.
struct Quantised {
  std::vector<uint32_t> words;
  std::vector<std::byte> scales, biases;
  std::vector<float> values;
  AffineMatrix matrix;

  Quantised(int rows, int cols, int bits, int group, Scalar type = Scalar::Float16)
      : values(static_cast<size_t>(rows) * cols) {
    words.resize(values.size() * bits / 32);
    for (uint32_t& word : words) word = static_cast<uint32_t>(random_bits());
    std::vector<float> s = normal_floats(values.size() / group), b(s.size());
    for (size_t i = 0; i < s.size(); i++) {
      s[i] *= 2.0f / static_cast<float>(1 << bits);
      b[i] = s[i] * (0.5f - static_cast<float>(1 << (bits - 1)));
    }
    scales = stored(s, type);
    biases = stored(b, type);
    for (size_t i = 0; i < values.size(); i++) {
      uint32_t q = 0;
      for (int bit = 0; bit < bits; bit++) q |= (words[(i * bits + bit) / 32] >> ((i * bits + bit) % 32) & 1) << bit;
      values[i] = s[i / group] * static_cast<float>(q) + b[i / group];
    }
    matrix = {words.data(), scales.data(), biases.data(), type, rows, cols, bits, group};
  }
};

struct Dense {
  std::vector<float> values;
  std::vector<std::byte> bytes;
  DenseMatrix matrix;

  Dense(int rows, int cols, Scalar type)
      : values(normal_floats(static_cast<size_t>(rows) * cols)), bytes(stored(values, type)) {
    matrix = {bytes.data(), type, rows, cols};
  }
};

template <class Source>
PackedWeights pack_one(const Source& source, Arena& arena) {
  return PackedWeights::pack(std::span(&source.matrix, 1), Arrangement::Stacked, arena);
}

// Rows of x in the form for `weights`.
struct Prepared {
  std::vector<std::byte> memory;
  Activations activations;

  Prepared(const GemmKernels& kernels, const float* x, int rows, const PackedWeights& weights, Precision precision)
      : memory(Activations(nullptr, rows, weights, precision, kernels.block_rows).bytes()),
        activations(memory.data(), rows, weights, precision, kernels.block_rows) {
    for (int m = 0; m < rows; m++)
      kernels.quantise(x + static_cast<size_t>(m) * weights.cols(), activations, m, 0, weights.cols());
  }
};

std::vector<float> product(const GemmKernels& kernels, const PackedWeights& weights, const std::vector<float>& x,
                           int rows, Precision precision) {
  Prepared prepared(kernels, x.data(), rows, weights, precision);
  const size_t stride = static_cast<size_t>(weights.tiles()) * tile_outputs;
  std::vector<float> out(rows * stride, -1.0f);
  kernels.multiply(weights, 0, weights.tiles(), prepared.activations, 0, rows, out.data(), stride);
  return out;
}

// The product in double precision, and for each output |w| rms(x), by which errors are measured.
struct Reference {
  int rows, outputs;
  std::vector<double> sums, sizes;

  Reference(const std::vector<float>& values, const std::vector<float>& x, int rows, int outputs, int cols)
      : rows(rows), outputs(outputs) {
    for (int m = 0; m < rows; m++) {
      for (int n = 0; n < outputs; n++) {
        double sum = 0, ww = 0, xx = 0;
        for (int k = 0; k < cols; k++) {
          const double a = x[static_cast<size_t>(m) * cols + k], w = values[static_cast<size_t>(n) * cols + k];
          sum += a * w;
          ww += w * w;
          xx += a * a;
        }
        sums.push_back(sum);
        sizes.push_back(std::sqrt(ww * xx / cols) + 1e-20);
      }
    }
  }

  // The largest error; what is not 0 in the padding is one too.
  double worst_error(const std::vector<float>& out) const {
    double worst = 0;
    const size_t stride = out.size() / rows;
    for (int m = 0; m < rows; m++) {
      for (int n = 0; n < static_cast<int>(stride); n++) {
        const size_t i = static_cast<size_t>(m) * outputs + n;
        const double error =
            n < outputs ? std::fabs(out[m * stride + n] - sums[i]) / sizes[i] : std::fabs(out[m * stride + n]) * 1e20;
        if (!(error <= worst)) worst = std::isnan(error) ? INFINITY : error;
      }
    }
    return worst;
  }
};

// Kernels with a matrix unit, which have larger blocks, round to 12 bits instead of 16 in Default.
double tolerance(const GemmKernels& kernels, Precision precision) {
  const double of_default = kernels.block_rows > few_rows ? 2e-3 : 2e-4;
  return precision == Precision::Fast ? 5e-2 : precision == Precision::Default ? of_default : 3e-6;
}

constexpr Precision precisions[] = {Precision::Fast, Precision::Default, Precision::Exact};
constexpr Scalar scalars[] = {Scalar::Float32, Scalar::Float16, Scalar::BFloat16};

bool same_bits(const float* a, const float* b, size_t n) { return std::memcmp(a, b, n * sizeof(float)) == 0; }

}  // namespace

TEST(gemm_quantised_against_double) {
  for (int bits : {2, 3, 4, 5, 6, 8}) {
    for (int group : {32, 64, 128}) {
      for (int shape = 0; shape < 4; shape++) {
        const int outputs = (const int[]){1, 16, 37, 80}[shape], cols = group * (const int[]){1, 3, 5, 12}[shape];
        const Scalar type = scalars[(shape + bits) % 3];
        Arena arena;
        const Quantised w(outputs, cols, bits, group, type);
        const PackedWeights weights = pack_one(w, arena);
        CHECK(size_of(weights.scale_type()) == size_of(type));
        for (int rows : {1, 2, 3, 5, 13, 24}) {
          const std::vector<float> x = normal_floats(static_cast<size_t>(rows) * cols);
          const Reference reference(w.values, x, rows, outputs, cols);
          for (const Kernels* kernels : available())
            for (Precision precision : precisions)
              CHECK_CLOSE(reference.worst_error(product(kernels->gemm, weights, x, rows, precision)), 0,
                          tolerance(kernels->gemm, precision));
        }
      }
    }
  }
}

TEST(gemm_dense_against_double) {
  for (Scalar type : scalars) {
    for (int shape = 0; shape < 5; shape++) {
      const int outputs = (const int[]){1, 16, 37, 80, 96}[shape], cols = (const int[]){1, 31, 100, 64, 515}[shape];
      Arena arena;
      const Dense w(outputs, cols, type);
      const PackedWeights weights = pack_one(w, arena);
      for (int rows : {1, 2, 3, 5, 13, 24}) {
        const std::vector<float> x = normal_floats(static_cast<size_t>(rows) * cols);
        const Reference reference(w.values, x, rows, outputs, cols);
        for (const Kernels* kernels : available())
          for (Precision precision : precisions)
            CHECK_CLOSE(reference.worst_error(product(kernels->gemm, weights, x, rows, precision)), 0,
                        tolerance(kernels->gemm, Precision::Exact));
      }
    }
  }
}

// The largest integers that the sums meet.
TEST(gemm_extreme_values) {
  for (int bits : {4, 8}) {
    Arena arena;
    Quantised w(16, 256, bits, 128);
    std::fill(w.words.begin(), w.words.end(), ~0u);
    for (size_t i = 0; i < w.values.size(); i++) {
      uint16_t one = 0x3c00, none = 0;
      std::memcpy(&w.scales[2 * (i / 128)], &one, 2);
      std::memcpy(&w.biases[2 * (i / 128)], &none, 2);
      w.values[i] = static_cast<float>((1 << bits) - 1);
    }
    const PackedWeights weights = pack_one(w, arena);
    for (float size : {1.0f, -1.0f, 3e38f, -1e-20f, 0.0f}) {
      std::vector<float> x(256, size / 70000.0f);
      x[255] = size > 0 ? 1.0f / 70000.0f : 0.0f;
      for (size_t k = 0; k < x.size(); k += 7) x[k] *= 126.5f / 127;
      const Reference reference(w.values, x, 1, 16, 256);
      for (const Kernels* kernels : available())
        for (Precision precision : precisions)
          CHECK_CLOSE(reference.worst_error(product(kernels->gemm, weights, x, 1, precision)), 0,
                      10 * tolerance(kernels->gemm, precision));
    }
  }
}

TEST(gemm_not_finite_stays_in_its_row) {
  const int rows = 17, cols = 192, bad = 6;
  Arena arena;
  const Quantised w(40, cols, 4, 64);
  const Dense dense(40, cols, Scalar::BFloat16);
  for (const PackedWeights& weights : {pack_one(w, arena), pack_one(dense, arena)}) {
    for (float value : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                        -std::numeric_limits<float>::infinity()}) {
      std::vector<float> x = normal_floats(static_cast<size_t>(rows) * cols);
      for (const Kernels* kernels : available()) {
        for (Precision precision : precisions) {
          const std::vector<float> good = product(kernels->gemm, weights, x, rows, precision);
          std::vector<float> y = x;
          y[bad * cols + 77] = value;
          const std::vector<float> out = product(kernels->gemm, weights, y, rows, precision);
          const size_t stride = out.size() / rows;
          for (int m = 0; m < rows; m++) {
            if (m != bad) CHECK(same_bits(&out[m * stride], &good[m * stride], stride));
            for (int n = 0; n < 40 && m == bad; n++) CHECK(!std::isfinite(out[m * stride + n]));
          }
        }
      }
    }
  }
}

TEST(gemm_row_has_the_same_bits_everywhere) {
  const int most = 70;
  Arena arena;
  const int cols = 256;
  const Quantised four(90, cols, 4, 32), eight(90, cols, 8, 128, Scalar::Float32);
  const Dense half(90, cols, Scalar::Float16);
  const std::vector<float> x = normal_floats(static_cast<size_t>(most) * cols);
  for (const PackedWeights& weights : {pack_one(four, arena), pack_one(eight, arena), pack_one(half, arena)}) {
    for (const Kernels* kernels : available()) {
      for (Precision precision : precisions) {
        const size_t stride = static_cast<size_t>(weights.tiles()) * tile_outputs;
        std::vector<float> alone;
        for (int m = 0; m < most; m++) {
          const std::vector<float> row(x.begin() + m * cols, x.begin() + (m + 1) * cols);
          const std::vector<float> out = product(kernels->gemm, weights, row, 1, precision);
          alone.insert(alone.end(), out.begin(), out.end());
        }
        for (int rows = 1; rows <= most; rows++)
          CHECK(same_bits(product(kernels->gemm, weights, x, rows, precision).data(), alone.data(), rows * stride));
        // Pieces of any place and size.
        Prepared prepared(kernels->gemm, x.data(), most, weights, precision);
        for (int trial = 0; trial < 200; trial++) {
          const int first = static_cast<int>(random_bits() % most),
                    last = first + 1 + static_cast<int>(random_bits() % (most - first));
          const int tile = static_cast<int>(random_bits() % weights.tiles()),
                    tiles = 1 + static_cast<int>(random_bits() % (weights.tiles() - tile));
          std::vector<float> out((last - first) * stride);
          kernels->gemm.multiply(weights, tile, tiles, prepared.activations, first, last, out.data(), stride);
          for (int m = first; m < last; m++)
            CHECK(same_bits(&out[(m - first) * stride], &alone[m * stride + tile * tile_outputs],
                            static_cast<size_t>(tiles) * tile_outputs));
        }
      }
    }
  }
}

TEST(gemm_phase_has_the_same_bits_on_any_threads) {
  Arena arena;
  const int cols = 320, most = 200;
  const Quantised w(333, cols, 4, 64);
  const PackedWeights weights = pack_one(w, arena);
  const std::vector<float> x = normal_floats(static_cast<size_t>(most) * cols);
  const size_t stride = static_cast<size_t>(weights.tiles()) * tile_outputs;
  for (const Kernels* kernels : available()) {
    for (int rows : {1, 5, 100, most}) {
      const std::vector<float> whole = product(kernels->gemm, weights, x, rows, Precision::Default);
      Prepared prepared(kernels->gemm, x.data(), rows, weights, Precision::Default);
      for (int threads : {1, 2, 5}) {
        Pool pool(threads);
        for (int multiple : {1, 4}) {
          const Split split = split_gemm(weights, prepared.activations, threads, multiple);
          CHECK(split.tiles % multiple == 0);
          std::vector<float> out(rows * stride);
          pool.run([&](Worker& worker) {
            gemm(worker, kernels->gemm, weights, prepared.activations, split, [&](const GemmPiece& piece) {
              for (int m = piece.first_row; m < piece.last_row; m++)
                std::memcpy(&out[m * stride + piece.first_tile * tile_outputs],
                            piece.out + (m - piece.first_row) * piece.stride,
                            static_cast<size_t>(piece.tiles) * tile_outputs * sizeof(float));
            });
          });
          CHECK(same_bits(out.data(), whole.data(), out.size()));
        }
      }
    }
  }
}

TEST(gemm_columns_may_be_quantised_in_pieces) {
  Arena arena;
  const int cols = 384;
  const Quantised w(16, cols, 4, 128);
  const PackedWeights weights = pack_one(w, arena);
  const std::vector<float> x = normal_floats(3 * cols);
  for (const Kernels* kernels : available()) {
    for (Precision precision : precisions) {
      const Prepared whole(kernels->gemm, x.data(), 3, weights, precision);
      Prepared pieces(kernels->gemm, x.data(), 3, weights, precision);
      std::fill(pieces.memory.begin(), pieces.memory.end(), std::byte{0});
      for (int m = 2; m >= 0; m--)
        for (int k = 0; k < cols; k += 128) kernels->gemm.quantise(&x[m * cols + k], pieces.activations, m, k, 128);
      CHECK(whole.memory == pieces.memory);
    }
  }
}

TEST(gemm_packing_stacks_and_interleaves) {
  Arena arena;
  const int cols = 64;
  std::vector<float> row(cols);
  const auto holds = [&](const PackedWeights& weights, int n, const std::vector<float>& values, int r) {
    weights.dequantise_row(n, row.data());
    return same_bits(row.data(), &values[r * cols], cols);
  };
  const Quantised q(23, cols, 4, 32), k(10, cols, 3, 32, Scalar::BFloat16), v(8, cols, 6, 32, Scalar::Float32);
  const AffineMatrix qkv[] = {q.matrix, k.matrix, v.matrix};
  PackedWeights stacked(std::span<const AffineMatrix>(qkv), Arrangement::Stacked, arena);
  stacked.fill(qkv, 1, 3);
  stacked.fill(qkv, 0, 1);
  CHECK(stacked.storage() == PackedWeights::Storage::Bytes && stacked.scale_type() == Scalar::Float32);
  CHECK(stacked.rows() == 41 && stacked.tiles() == 3);
  for (int n = 0; n < 41; n++)
    CHECK(n < 23   ? holds(stacked, n, q.values, n)
          : n < 33 ? holds(stacked, n, k.values, n - 23)
                   : holds(stacked, n, v.values, n - 33));

  const Quantised gate(40, cols, 4, 64), up(40, cols, 2, 64);
  const AffineMatrix both[] = {gate.matrix, up.matrix};
  const PackedWeights pairs = PackedWeights::pack(std::span<const AffineMatrix>(both), Arrangement::Interleaved, arena);
  CHECK(pairs.storage() == PackedWeights::Storage::Nibbles && pairs.scale_type() == Scalar::Float16 &&
        pairs.tiles() == 6);
  for (int n = 0; n < 40; n++) {
    CHECK(holds(pairs, n / 16 * 32 + n % 16, gate.values, n));
    CHECK(holds(pairs, n / 16 * 32 + 16 + n % 16, up.values, n));
  }

  const Dense a(20, cols, Scalar::Float16), b(5, cols, Scalar::BFloat16);
  const DenseMatrix dense[] = {a.matrix, b.matrix};
  const PackedWeights mixed = PackedWeights::pack(std::span<const DenseMatrix>(dense), Arrangement::Stacked, arena);
  CHECK(mixed.storage() == PackedWeights::Storage::Float32);
  for (int n = 0; n < 25; n++) CHECK(n < 20 ? holds(mixed, n, a.values, n) : holds(mixed, n, b.values, n - 20));
}

TEST(gemm_scales_take_the_smallest_type_that_holds_them) {
  Arena arena;
  const auto type_of = [&](float scale, float bias) {
    Quantised w(16, 32, 4, 32, Scalar::Float32);
    std::vector<float> s(16, 1.0f), b(16, -8.0f);
    s[7] = scale;
    b[9] = bias;
    w.matrix.scales = s.data();
    w.matrix.biases = b.data();
    const PackedWeights weights = pack_one(w, arena);
    float row[32];
    weights.dequantise_row(7, row);
    const int q = static_cast<int>(w.words[7 * 4] & 15);
    CHECK_CLOSE(row[0], scale * static_cast<float>(q) + -8.0f, 0);
    return weights.scale_type();
  };
  CHECK(type_of(0.5f, 65504.0f) == Scalar::Float16);
  CHECK(type_of(0x1p-24f, 1023 * 0x1p-24f) == Scalar::Float16);
  CHECK(type_of(0x1p-25f, 0.0f) == Scalar::BFloat16);
  CHECK(type_of(1.0f, 65536.0f) == Scalar::BFloat16);
  CHECK(type_of(1.0f + 0x1p-10f, 65536.0f) == Scalar::Float32);
  CHECK(type_of(1.0f + 0x1p-11f, 1.0f) == Scalar::Float32);
  CHECK(type_of(1.0f, INFINITY) == Scalar::Float16);
}

TEST(gemm_refuses_what_it_cannot_pack) {
  Arena arena;
  const auto refused = [&](std::vector<AffineMatrix> matrices, Arrangement arrangement) {
    try {
      PackedWeights(std::span<const AffineMatrix>(matrices), arrangement, arena);
    } catch (const std::invalid_argument&) {
      return true;
    }
    return false;
  };
  const AffineMatrix good{nullptr, nullptr, nullptr, Scalar::Float16, 16, 128, 4, 64};
  const auto changed = [&](int AffineMatrix::* member, int value) {
    AffineMatrix m = good;
    m.*member = value;
    return m;
  };
  CHECK(refused({}, Arrangement::Stacked));
  CHECK(!refused({good, good}, Arrangement::Interleaved));
  CHECK(refused({good}, Arrangement::Interleaved));
  CHECK(refused({good, changed(&AffineMatrix::rows, 15)}, Arrangement::Interleaved));
  CHECK(refused({changed(&AffineMatrix::bits, 7)}, Arrangement::Stacked));
  CHECK(refused({changed(&AffineMatrix::group, 16)}, Arrangement::Stacked));
  CHECK(refused({changed(&AffineMatrix::cols, 96)}, Arrangement::Stacked));
  CHECK(refused({good, changed(&AffineMatrix::cols, 192)}, Arrangement::Stacked));
  CHECK(refused({good, changed(&AffineMatrix::group, 32)}, Arrangement::Stacked));
}

TEST(gemm_arena_gives_aligned_zeroed_pieces_that_outlive_it) {
  std::vector<std::shared_ptr<std::byte>> pieces;
  {
    Arena arena;
    for (size_t size : {size_t{1}, size_t{100}, size_t{33} << 20, size_t{64}}) {
      pieces.push_back(arena.allocate(size));
      CHECK(reinterpret_cast<uintptr_t>(pieces.back().get()) % 64 == 0);
      for (size_t i = 0; i < size; i += 63) CHECK(pieces.back().get()[i] == std::byte{0});
      std::memset(pieces.back().get(), 1, size);
    }
  }
  for (const auto& piece : pieces) CHECK(piece.get()[0] == std::byte{1});
}
