// Time of attention over plain arrays: bench_sdpa [threads] [heads kv_heads head_dim]. MLXCEL_KERNELS chooses the
// instruction set.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "../src/dispatch.h"
#include "../src/pool.h"

using namespace mlxcel;

int main(int argc, char** argv) {
  const auto argument = [&](int i, int otherwise) { return argc > i ? std::atoi(argv[i]) : otherwise; };
  Pool pool(argument(1, 2));
  const int heads = argument(2, 9), kv_heads = argument(3, 3), dim = argument(4, 64);
  std::printf("%s, %d threads, %d/%d heads of %d\n", kernels().name, pool.threads(), heads, kv_heads, dim);
  for (Scalar type : {Scalar::Float32, Scalar::BFloat16}) {
    for (const auto& [queries, keys] : {std::pair{1, 1024}, {1, 8192}, {8, 8192}, {512, 512}, {512, 8192}}) {
      std::vector<float> q(static_cast<size_t>(queries) * heads * dim, 0.125f), out(q.size());
      // Copies, so that each call finds its keys in memory and not in a cache.
      const int copies = queries > 8 ? 1 : 16;
      const size_t size = static_cast<size_t>(kv_heads) * keys * dim;
      const std::vector<uint16_t> kv(2 * copies * size * (type == Scalar::Float32 ? 2 : 1), uint16_t{0x3e00});
      double best = 1e30;
      for (int i = 0; i < std::max(4 * copies, 5); i++) {
        const size_t at = 2 * (i % copies) * size * size_of(type);
        const char* data = reinterpret_cast<const char*>(kv.data()) + at;
        SdpaTask task{};
        task.batch = 1, task.heads = heads, task.kv_heads = kv_heads, task.queries = queries, task.keys = keys;
        task.head_dim = task.value_dim = dim, task.scale = 0.125f, task.causal = true;
        const ptrdiff_t n = dim;
        task.q = {q.data(), Scalar::Float32, 0, n, n * heads};
        task.out = {out.data(), Scalar::Float32, 0, n, n * heads};
        task.k = {data, type, 0, n * keys, n};
        task.v = {data + size * size_of(type), type, 0, n * keys, n};
        const auto start = std::chrono::steady_clock::now();
        sdpa(pool, kernels().sdpa, task);
        best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
      }
      const double products = 4.0 * heads * dim * queries * (keys - 0.5 * (queries - 1));
      std::printf("  %s keys: %3d queries, %4d keys: %9.1f us, %5.1f GFLOP/s, %5.1f GB/s\n",
                  type == Scalar::Float32 ? "float32 " : "bfloat16", queries, keys, best * 1e6, products / best / 1e9,
                  2.0 * size * size_of(type) / best / 1e9);
    }
  }
}
