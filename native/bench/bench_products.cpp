// Speed of one matrix product with every form of weights, a JSON object a line:
// bench_products threads outputs cols rows...
//
// There are as many copies of the weights as it takes to fill no cache, so that few rows read them from memory.
// MLXCEL_KERNELS chooses the instruction set. benchmarks/kernels.py builds this and reads what it prints.
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

constexpr size_t kUncached = size_t{160} << 20;  // bytes
constexpr int kRounds = 12;

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Form {
  const char* name;
  int bits, group;  // 0 bits: dense
  Scalar type;      // of dense weights, or of scales and biases
};

const Form kForms[] = {
    {"4 bits in groups of 64", 4, 64, Scalar::Float16}, {"4 bits in groups of 32", 4, 32, Scalar::Float16},
    {"8 bits in groups of 64", 8, 64, Scalar::Float16}, {"bfloat16", 0, 0, Scalar::BFloat16},
    {"float32", 0, 0, Scalar::Float32},
};

const char* name_of(Precision precision) {
  return precision == Precision::Fast ? "fast" : precision == Precision::Default ? "default" : "exact";
}

// Bits that are sane numbers in each form: words of any bits, floats of either width around 1/64.
PackedWeights pack(const Form& form, int outputs, int cols, const std::vector<uint32_t>& words, Arena& arena) {
  const size_t elements = static_cast<size_t>(outputs) * cols;
  if (form.bits) {
    const std::vector<uint16_t> scales(elements / form.group, 0x2400), biases(scales.size(), 0xac00);
    const AffineMatrix matrix{words.data(), scales.data(), biases.data(), form.type,
                              outputs,      cols,          form.bits,     form.group};
    return PackedWeights::pack(std::span(&matrix, 1), Arrangement::Stacked, arena);
  }
  std::vector<float> floats(elements);
  std::vector<uint16_t> halves(elements);
  for (size_t i = 0; i < elements; i++) {
    floats[i] = static_cast<float>(static_cast<int>(words[i] % 255) - 127) / 8192.0f;
    halves[i] = static_cast<uint16_t>(0x3c00 + (words[i] & 0x80ff));
  }
  const void* values = form.type == Scalar::Float32 ? static_cast<const void*>(floats.data()) : halves.data();
  const DenseMatrix matrix{values, form.type, outputs, cols};
  return PackedWeights::pack(std::span(&matrix, 1), Arrangement::Stacked, arena);
}

// Seconds for one product: the best of some rounds over the copies. The rows of x are in the kernels' form already,
// as the layer before leaves them.
double time_product(Pool& pool, std::span<const PackedWeights> copies, const std::vector<float>& x, int rows,
                    Precision precision) {
  const PackedWeights& first = copies[0];
  const int block_rows = kernels().gemm.block_rows;
  std::vector<std::byte> memory(Activations(nullptr, rows, first, precision, block_rows).bytes() + 64);
  std::byte* aligned = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
  const Activations activations(aligned, rows, first, precision, block_rows);
  for (int m = 0; m < rows; m++)
    kernels().gemm.quantise(&x[static_cast<size_t>(m) * first.cols()], activations, m, 0, first.cols());
  const Split split = split_gemm(first, activations, pool.threads());
  double best = 1e9;
  for (int round = 0; round < kRounds; round++) {
    const double start = seconds();
    pool.run([&](Worker& worker) {
      for (const PackedWeights& weights : copies) {
        gemm(worker, kernels().gemm, weights, activations, split, [](const GemmPiece&) {});
        worker.barrier();
      }
    });
    best = std::min(best, (seconds() - start) / static_cast<double>(copies.size()));
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr, "usage: bench_products threads outputs cols rows...\n");
    return 2;
  }
  Pool pool(std::atoi(argv[1]));
  const int outputs = std::atoi(argv[2]), cols = std::atoi(argv[3]);
  std::mt19937 random(1);
  std::vector<uint32_t> words(static_cast<size_t>(outputs) * cols);
  for (uint32_t& word : words) word = static_cast<uint32_t>(random());
  for (const Form& form : kForms) {
    Arena arena;
    std::vector<PackedWeights> copies{pack(form, outputs, cols, words, arena)};
    while (copies.size() * copies[0].bytes() < kUncached) copies.push_back(pack(form, outputs, cols, words, arena));
    for (const Precision precision : {Precision::Fast, Precision::Default, Precision::Exact}) {
      if (copies[0].precision(precision) != precision) continue;
      for (int i = 4; i < argc; i++) {
        const int rows = std::atoi(argv[i]);
        std::vector<float> x(static_cast<size_t>(rows) * cols);
        for (float& value : x) value = static_cast<float>(static_cast<int>(random() % 255) - 127) / 64.0f;
        // With many rows it is arithmetic that takes the time.
        const size_t used = rows > 16 ? 1 : copies.size();
        const double time = time_product(pool, std::span(copies).first(used), x, rows, precision);
        const double macs = static_cast<double>(rows) * outputs * cols;
        std::printf(
            "{\"kernels\": \"%s\", \"weights\": \"%s\", \"precision\": \"%s\", \"rows\": %d, \"microseconds\": %.1f, "
            "\"gmac_per_s\": %.1f, \"gb_per_s\": %.1f}\n",
            kernels().name, form.name, name_of(precision), rows, time * 1e6, macs / time * 1e-9,
            static_cast<double>(copies[0].bytes()) / time * 1e-9);
        std::fflush(stdout);
      }
    }
  }
}
