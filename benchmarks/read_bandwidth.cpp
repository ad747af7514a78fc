// How fast all threads together read memory: they add up a buffer that no cache holds, each in one or several streams,
// as wide as the compiler can load. Built and called by bandwidth.py.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <barrier>
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

// Bytes per second of the fastest of `rounds` rounds; 0 when there is no memory. A round reads the buffer window by
// window, and each window counts: they are short enough that now and then nothing else runs meanwhile, and long enough
// that none is in a cache when its turn comes again. Threads take pieces of a window as they come.
extern "C" double read_bandwidth(size_t bytes, int threads, int rounds) {
  constexpr size_t kPiece = (size_t{1} << 20) / sizeof(Wide), kWindow = 192 * kPiece;
  const size_t windows = bytes / sizeof(Wide) / kWindow;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 0;
#ifdef MADV_HUGEPAGE
  madvise(memory, bytes, MADV_HUGEPAGE);
#endif
  Wide* const wide = static_cast<Wide*>(memory);
  for (size_t i = 0; i < windows * kWindow; i++) wide[i] = Wide{} + i;

  std::atomic<uint64_t> sums = 0;
  std::atomic<size_t> next = 0;
  double best = 0;
  auto start = std::chrono::steady_clock::now();
  // Runs when all threads have come: the end of one window and the start of another.
  std::barrier together(threads, [&]() noexcept {
    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - start).count();
    if (next != 0) best = std::max(best, kWindow * sizeof(Wide) / seconds);
    next = 0;
    start = now;
  });
  const auto read = [&] {
    for (int round = 0; round < rounds; round++) {
      for (const auto way : {sum<1>, sum<2>, sum<4>}) {
        for (size_t window = 0; window < windows; window++) {
          together.arrive_and_wait();
          for (size_t at; (at = next.fetch_add(kPiece)) < kWindow;) sums += way(wide + window * kWindow + at, kPiece);
        }
      }
    }
    together.arrive_and_wait();
  };
  std::vector<std::thread> workers;
  for (int i = 0; i < threads; i++) workers.emplace_back(read);
  for (std::thread& worker : workers) worker.join();
  munmap(memory, bytes);
  return sums == 1 ? 0 : best;  // a use of the sums, so that they are computed
}
