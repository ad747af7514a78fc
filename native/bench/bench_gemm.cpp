// Speed of matrix products at the shapes of a small model (SmolLM2-135M), of a larger one, and of Whisper's encoder:
// bench_gemm [threads] [kernels] [part of a shape's name]
//
// Weights are spread over many copies, as the layers of a model are, so that decode reads them from memory.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "../src/dispatch.h"
#include "../src/pool.h"

using namespace mlxcel;

namespace {

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Shape {
  const char* name;
  int outputs, cols, bits, group, copies;
  Scalar dense = Scalar::Float32;  // with bits = 0
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
  // Floats of half the size: any bits that are not infinite.
  std::vector<uint16_t> halves(source.words.size());
  for (size_t i = 0; i < halves.size(); i++) halves[i] = static_cast<uint16_t>(source.words[i] & 0xbfff);
  for (int i = 0; i < shape.copies; i++) {
    if (shape.bits == 0) {
      const void* values = halves.data();
      if (shape.dense == Scalar::Float32) values = source.floats.data();
      const DenseMatrix matrix{values, shape.dense, shape.outputs, shape.cols};
      copies.push_back(PackedWeights::pack(std::span(&matrix, 1), Arrangement::Stacked, arena));
    } else {
      const AffineMatrix matrix{source.words.data(), source.floats.data(), source.floats.data(), Scalar::Float32,
                                shape.outputs,       shape.cols,           shape.bits,           shape.group};
      copies.push_back(PackedWeights::pack(std::span(&matrix, 1), Arrangement::Stacked, arena));
    }
  }
  return copies;
}

// Seconds for one product, its rows quantised, in the fastest of some rounds over the copies.
double time_product(Pool& pool, const Kernels& kernels, std::span<const PackedWeights> copies,
                    const std::vector<float>& x, int rows, Precision precision) {
  const PackedWeights& first = copies[0];
  const int block_rows = kernels.gemm.block_rows;
  std::vector<std::byte> memory(Activations(nullptr, rows, first, precision, block_rows).bytes());
  const Activations activations(memory.data(), rows, first, precision, block_rows);
  const Split split = split_gemm(first, activations, pool.threads());
  double best = 1e9;
  for (int round = 0; round < 15; round++) {
    const double start = seconds();
    pool.run([&](Worker& worker) {
      for (const PackedWeights& weights : copies) {
        worker.each(rows, [&](int m) {
          kernels.gemm.quantise(&x[static_cast<size_t>(m) * weights.cols()], activations, m, 0, weights.cols());
        });
        worker.barrier();
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
  const std::string wanted = argc > 3 ? argv[3] : "";
  const Shape shapes[] = {
      {"qkv 4/32", 960, 576, 4, 32, 30},
      {"o 4/32", 576, 576, 4, 32, 30},
      {"gate_up 4/32", 3072, 576, 4, 32, 30},
      {"down 4/32", 576, 1536, 4, 32, 30},
      {"gate_up 4/64", 3072, 576, 4, 64, 30},
      {"large 4/64", 8192, 2048, 4, 64, 8},
      {"head 8/32", 49152, 576, 8, 32, 1},
      {"whisper f32", 2048, 512, 0, 0, 1},
      {"whisper f16", 2048, 512, 0, 0, 1, Scalar::Float16},
      {"whisper bf16", 2048, 512, 0, 0, 1, Scalar::BFloat16},
      {"whisper2 f32", 512, 2048, 0, 0, 1},
  };
  for (const Shape& shape : shapes) {
    if (std::string(shape.name).find(wanted) == std::string::npos) continue;
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
      for (int rows : {1, 2, 4, 8, 128, 512, 1500}) {
        if (rows * macs > 2e10 || (rows == 1500 && shape.bits)) continue;
        std::vector<float> x(static_cast<size_t>(rows) * shape.cols);
        for (size_t i = 0; i < x.size(); i++) x[i] = source.floats[i % source.floats.size()];
        // With many rows it is arithmetic that takes the time; short rounds are disturbed less.
        const double time =
            time_product(pool, chosen, std::span(copies).first(rows > 16 ? 1 : copies.size()), x, rows, precision);
        std::printf("  %d: %.1f", rows, rows * macs / time * 1e-9);
        if (rows <= 2) std::printf(" (%.1f GB/s)", static_cast<double>(copies[0].bytes()) / time * 1e-9);
        std::fflush(stdout);
      }
      std::printf("\n");
    }
  }
}
