// Speed of matrix products at the shapes of a small model (SmolLM2-135M): bench_gemm [threads] [kernels]
//
// Weights are spread over many copies, as the layers of a model are, so that decode reads them from memory.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <span>
#include <vector>

#include "../src/dispatch.h"
#include "../src/pool.h"

using namespace mlxcel;

namespace {

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Shape {
  const char* name;
  int outputs, cols, bits, group, copies;
};

struct Source {
  std::vector<uint32_t> words;
  std::vector<float> floats;
  std::mt19937 random{1};

  explicit Source(const Shape& shape) : words(static_cast<size_t>(shape.outputs) * shape.cols), floats(words.size()) {
    for (uint32_t& word : words) word = static_cast<uint32_t>(random());
    for (size_t i = 0; i < floats.size(); i++)
      floats[i] = static_cast<float>(static_cast<int>(words[i] % 255) - 127) / 128.0f;
  }
};

std::vector<PackedWeights> pack(const Shape& shape, const Source& source, Arena& arena) {
  std::vector<PackedWeights> copies;
  for (int i = 0; i < shape.copies; i++) {
    if (shape.bits == 32) {
      const DenseMatrix matrix{source.floats.data(), Scalar::Float32, shape.outputs, shape.cols};
      copies.push_back(PackedWeights::pack(std::span(&matrix, 1), Arrangement::Stacked, arena));
    } else {
      const AffineMatrix matrix{source.words.data(), source.floats.data(), source.floats.data(), Scalar::Float32,
                                shape.outputs,       shape.cols,           shape.bits,           shape.group};
      copies.push_back(PackedWeights::pack(std::span(&matrix, 1), Arrangement::Stacked, arena));
    }
  }
  return copies;
}

// Seconds for one product, in the fastest of some rounds over the copies.
double time_product(Pool& pool, const Kernels& kernels, std::span<const PackedWeights> copies,
                    const std::vector<float>& x, int rows, Precision precision) {
  const PackedWeights& first = copies[0];
  std::vector<std::byte> memory(Activations::bytes(rows, first.cols(), first.group(), first.precision(precision)));
  const Activations activations(memory.data(), rows, first, precision);
  for (int m = 0; m < rows; m++)
    kernels.gemm.quantise(&x[static_cast<size_t>(m) * first.cols()], activations, m, 0, first.cols());
  const Split split = split_gemm(first, activations, pool.threads());
  double best = 1e9;
  for (int round = 0; round < 15; round++) {
    const double start = seconds();
    pool.run([&](Worker& worker) {
      for (const PackedWeights& weights : copies) {
        gemm(worker, kernels.gemm, weights, activations, split, [](const GemmPiece&) {});
        worker.barrier();
      }
    });
    best = std::min(best, (seconds() - start) / static_cast<double>(copies.size()));
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  Pool pool(argc > 1 ? std::atoi(argv[1]) : 2);
  const Kernels& chosen = kernels_named(argc > 2 ? argv[2] : "");
  std::printf("kernels %s, %d threads; a cell: Gmac/s, and GB/s of weights for few rows\n", chosen.name,
              pool.threads());
  const Shape shapes[] = {
      {"qkv 4/32", 960, 576, 4, 32, 30},      {"o 4/32", 576, 576, 4, 32, 30},
      {"gate_up 4/32", 3072, 576, 4, 32, 30}, {"down 4/32", 576, 1536, 4, 32, 30},
      {"gate_up 4/64", 3072, 576, 4, 64, 30}, {"head 8/32", 49152, 576, 8, 32, 1},
      {"gate_up f32", 3072, 576, 32, 32, 4},
  };
  for (const Shape& shape : shapes) {
    Arena arena;
    const Source source(shape);
    const double start = seconds();
    const std::vector<PackedWeights> copies = pack(shape, source, arena);
    const double macs = static_cast<double>(shape.outputs) * shape.cols;
    std::printf("%-13s packed %.0f M weights/s\n", shape.name, macs * shape.copies / (seconds() - start) * 1e-6);
    for (Precision precision : {Precision::Fast, Precision::Default, Precision::Exact}) {
      if (copies[0].precision(precision) != precision) continue;
      std::printf("  %-8s", precision == Precision::Fast      ? "fast"
                            : precision == Precision::Default ? "default"
                                                              : "exact");
      for (int rows : {1, 2, 4, 8, 128, 512}) {
        if (rows * macs > 2e10) continue;
        const std::vector<float> x(source.floats.begin(), source.floats.begin() + rows * shape.cols);
        // With many rows it is arithmetic that takes the time; short rounds are disturbed less.
        const double time =
            time_product(pool, chosen, std::span(copies).first(rows > 16 ? 1 : copies.size()), x, rows, precision);
        std::printf("  %d: %.1f", rows, rows * macs / time * 1e-9);
        if (rows <= 2) std::printf(" (%.1f GB/s)", static_cast<double>(copies[0].bytes()) / time * 1e-9);
      }
      std::printf("\n");
    }
  }
}
