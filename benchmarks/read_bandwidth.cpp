// How fast all threads together read memory: each adds up its share of a buffer that no cache holds, as one or
// several streams, as wide as the compiler can load. Built and called by bandwidth.py.
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

namespace {

typedef uint64_t Wide __attribute__((vector_size(64)));

// Four lines of each stream a round. The hardware prefetchers follow several streams, and one alone may be slower.
template <int Streams>
uint64_t sum(const Wide* from, size_t count) {
  Wide total[Streams][2] = {};
  const size_t share = count / Streams / 4 * 4;
  for (size_t i = 0; i < share; i += 4) {
#pragma GCC unroll 8
    for (int s = 0; s < Streams; s++) {
      const Wide* at = from + s * share + i;
      total[s][0] += at[0] + at[1];
      total[s][1] += at[2] + at[3];
    }
  }
  uint64_t all = 0;
  for (const auto& pair : total)
    for (int lane = 0; lane < 8; lane++) all += pair[0][lane] + pair[1][lane];
  return all;
}

}  // namespace

// Bytes per second of the fastest of `rounds` rounds; 0 when there is no memory.
extern "C" double read_bandwidth(size_t bytes, int threads, int rounds) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 0;
#ifdef MADV_HUGEPAGE
  madvise(memory, bytes, MADV_HUGEPAGE);
#endif
  Wide* const wide = static_cast<Wide*>(memory);
  const size_t share = bytes / sizeof(Wide) / threads;
  std::atomic<uint64_t> sums = 0;
  const auto on_all = [&](auto&& work) {
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::thread> workers;
    for (int t = 0; t < threads; t++) workers.emplace_back([&work, t] { work(t); });
    for (std::thread& worker : workers) worker.join();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  on_all([&](int t) {
    for (size_t i = t * share; i < (t + 1) * share; i++) wide[i] = Wide{} + i;
  });
  double best = 0;
  for (int round = 0; round < rounds; round++) {
    for (const auto way : {sum<1>, sum<2>, sum<4>}) {
      const double seconds = on_all([&](int t) { sums += way(wide + t * share, share); });
      const double rate = static_cast<double>(share * threads * sizeof(Wide)) / seconds;
      best = rate > best ? rate : best;
    }
  }
  munmap(memory, bytes);
  return sums == 1 ? 0 : best;  // a use of the sums, so that they are computed
}
