// Time of attention in one layer: bench_attention [threads] [heads kv_heads head_dim]. The default is SmolLM2-135M.
// MLXCEL_KERNELS chooses the instruction set.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "../src/dispatch.h"
#include "../src/pool.h"

using namespace mlxcel;

namespace {

// Median of the time of `layers` layers, in microseconds a layer. As in a model, each layer has keys of its own.
double time_layers(const Kernels& kernels, Pool& pool, const AttentionConfig& config, int sequences, int position, int count) {
  const int layers = 30, blocks = (position + count - 1) / kv_block + 1;
  const std::vector<KvShape> shapes(layers, KvShape{config.kv_heads, config.head_dim});
  KvPool cache(shapes, size_t{8} << 30);
  std::vector<int32_t> table(static_cast<size_t>(blocks) * sequences);
  if (!cache.allocate(table)) return 0.0;
  for (int32_t block : table) std::fill_n(kv_tile(cache.layer(0), block, 0), cache.block_bytes() / 2, uint16_t{0x3e00});
  std::vector<Segment> segments;
  for (int s = 0; s < sequences; s++) segments.push_back({table.data() + s * blocks, position, count, s * count});
  std::vector<float> qkv(static_cast<size_t>(sequences) * count * config.row_elements(), 0.125f);
  std::vector<float> out(static_cast<size_t>(sequences) * count * config.heads * config.head_dim);
  AttentionPlan plan;
  std::vector<double> times;
  const auto begin = std::chrono::steady_clock::now();
  while (times.size() < 5 || (times.size() < 200 && std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(400))) {
    const auto start = std::chrono::steady_clock::now();
    plan.make(config, segments, pool.threads());
    pool.run([&](Worker& w) {
      for (int layer = 0; layer < layers; layer++) {
        append_and_attend(w, kernels.attention, cache, layer, config, plan, qkv.data(), out.data());
        w.barrier();
      }
    });
    times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() / layers);
  }
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int i, int otherwise) { return argc > i ? std::atoi(argv[i]) : otherwise; };
  Pool pool(argument(1, 2));
  AttentionConfig config{};
  config.heads = argument(2, 9);
  config.kv_heads = argument(3, 3);
  config.head_dim = argument(4, 64);
  config.scale = 0.125f;
  RopeTable rope(config.head_dim, 10000.0);
  rope.reserve(8192);
  config.rope = &rope;
  for (bool bfloat16 : {false, true}) {
    config.bfloat16 = bfloat16;
    std::printf("%s, %s: us a layer\n", kernels().name, bfloat16 ? "bfloat16" : "float32");
    for (int position : {0, 341, 1024, 4096, 8191}) {
      std::printf("  decode at %4d: %8.1f", position, time_layers(kernels(), pool, config, 1, position, 1));
      if (position <= 1024) std::printf("   8 rows: %8.1f", time_layers(kernels(), pool, config, 8, position, 1));
      std::printf("\n");
    }
    for (int count : {128, 512, 2048}) {
      std::printf("  prefill %4d: %9.1f\n", count, time_layers(kernels(), pool, config, 1, 0, count));
    }
    std::printf("  512 after 7680: %6.1f\n", time_layers(kernels(), pool, config, 1, 7680, 512));
  }
}
