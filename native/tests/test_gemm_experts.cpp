// Products of gathered rows with the experts of a mixture: weights of all experts stacked into one.
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "../src/dispatch.h"
#include "../src/gemm.h"
#include "../src/pool.h"
#include "check.h"

using namespace mlxcel;

namespace {

constexpr int experts = 5, outputs = 48, cols = 256, group = 64, tokens = 30, chosen = 2;
constexpr int expert_tiles = outputs / tile_outputs;

std::vector<float> normal_floats(size_t n, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& x : values) x = normal(random);
  return values;
}

// The weights of one expert, in the form of their source.
struct Expert {
  std::vector<uint32_t> words;
  std::vector<float> scales, biases;

  Expert(int bits, std::mt19937& random)
      : words(static_cast<size_t>(outputs) * cols * bits / 32),
        scales(normal_floats(static_cast<size_t>(outputs) * cols / group, random)),
        biases(normal_floats(scales.size(), random)) {
    for (uint32_t& word : words) word = static_cast<uint32_t>(random());
  }
  AffineMatrix matrix(int bits) const {
    return {words.data(), scales.data(), biases.data(), Scalar::Float32, outputs, cols, bits, group};
  }
};

std::vector<float> single_product(const GemmKernels& kernels, const PackedWeights& weights, const float* x,
                                  Precision precision) {
  std::vector<std::byte> memory(Activations(nullptr, 1, weights, precision, kernels.block_rows).bytes());
  const Activations row(memory.data(), 1, weights, precision, kernels.block_rows);
  kernels.quantise(x, row, 0, 0, cols);
  std::vector<float> out(outputs);
  kernels.multiply(weights, 0, weights.tiles(), row, 0, 1, out.data(), outputs);
  return out;
}

}  // namespace

// Rows of one expert stand together, wherever that puts them in a block, and are multiplied with its tiles alone. The
// bits are those of each row by itself with the expert's own weights.
TEST(gemm_experts_stacked_have_the_bits_of_each_alone) {
  std::mt19937 random(7);
  for (int bits : {4, 8}) {
    std::vector<Expert> sources;
    std::vector<AffineMatrix> matrices;
    for (int e = 0; e < experts; e++) sources.emplace_back(bits, random);
    for (const Expert& source : sources) matrices.push_back(source.matrix(bits));
    Arena arena;
    const PackedWeights all =
        PackedWeights::pack(std::span<const AffineMatrix>(matrices), Arrangement::Stacked, arena);
    std::vector<PackedWeights> alone;
    for (const AffineMatrix& matrix : matrices)
      alone.push_back(PackedWeights::pack(std::span(&matrix, 1), Arrangement::Stacked, arena));
    const std::vector<float> x = normal_floats(static_cast<size_t>(tokens) * cols, random);
    // Uneven on purpose: some experts get many rows, one gets none.
    std::vector<std::vector<int>> rows_of(experts);
    for (int i = 0; i < tokens * chosen; i++) {
      const int e = static_cast<int>(random() % 8);
      rows_of[e < 4 ? e : 0].push_back(i / chosen);
    }
    for (const Kernels* kernels : available()) {
      for (Precision precision : {Precision::Fast, Precision::Default, Precision::Exact}) {
        const int pairs = tokens * chosen;
        const int block_rows = kernels->gemm.block_rows;
        std::vector<std::byte> memory(Activations(nullptr, pairs, all, precision, block_rows).bytes());
        const Activations gathered(memory.data(), pairs, all, precision, block_rows);
        int place = 0;
        for (const std::vector<int>& rows : rows_of)
          for (int row : rows) kernels->gemm.quantise(&x[row * cols], gathered, place++, 0, cols);
        std::vector<float> out(static_cast<size_t>(pairs) * outputs);
        int first = 0;
        for (int e = 0; e < experts; e++) {
          const int last = first + static_cast<int>(rows_of[e].size());
          kernels->gemm.multiply(all, e * expert_tiles, expert_tiles, gathered, first, last, &out[first * outputs],
                                 outputs);
          for (int i = first; i < last; i++) {
            const std::vector<float> wanted =
                single_product(kernels->gemm, alone[e], &x[rows_of[e][i - first] * cols], precision);
            CHECK(std::memcmp(wanted.data(), &out[i * outputs], outputs * sizeof(float)) == 0);
          }
          first = last;
        }
      }
    }
  }
}
