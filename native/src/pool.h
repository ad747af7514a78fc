// Threads for kernels: one pool, work in phases, barriers that wait for work and not for threads.
//
//   pool.run([&](Worker& w) {
//     w.each(rows, [&](int row) { ... });  // one phase: every row once, on some thread
//     w.barrier();                         // all rows are done and visible
//     w.each(tiles, [&](int tile) { ... });
//   });
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace mlxcel {

class Worker;

// A pool of `threads` threads, the calling one included. One region runs at a time: calls of `run` from several
// threads take turns. A region must not start another one, and neither a body nor a unit may throw.
//
// A thread that the system does not schedule blocks nobody: the others take its units, and a late thread skips what
// is done. Code outside `Worker::each` may therefore run on any subset of the threads, and must not write anything
// that threads share. The end of a region does wait for the threads inside it, because they use the body.
//
// The threads start with the first region, and sleep once none has come for a while. A process that forks may use the
// pool in the child too: it gets threads of its own there.
class Pool {
 public:
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const;
  // Number of threads from now on (not inside a region).
  void resize(int threads);

  // Run `body(worker)` on every thread that comes in time; returns when all phases of the region are complete and no
  // thread is inside any more. The body must go through the same phases on every thread.
  template <class Body>
  void run(Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    run_erased([](void* erased, Worker& worker) { (*static_cast<Plain*>(erased))(worker); },
               const_cast<void*>(static_cast<const void*>(std::addressof(body))));
  }

 private:
  friend class Worker;
  struct State;
  mutable std::atomic<State*> state_;

  State& state() const;
  void run_erased(void (*call)(void*, Worker&), void* body);
};

// A thread's view of a region.
class Worker {
 public:
  Worker() = default;
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker();

  // One phase: `unit(i)` once for each i in [0, count), on some thread. Does not wait at the end. Each thread starts
  // with the same share of the range whenever `count` is the same, then helps the others.
  template <class Unit>
  void each(int count, Unit&& unit) {
    if (threads_ == 1) {
      for (int i = 0; i < count; i++) unit(i);
      return;
    }
    for (int start = 0; start < count; start += kMaxUnits) {
      begin(std::min(count - start, kMaxUnits));
      for (int i; (i = take()) >= 0;) unit(start + i);
    }
  }

  // Wait until all units of all phases so far are complete; their writes are visible afterwards.
  void barrier();

  // At least `bytes` of memory of this thread's own, 64-byte aligned, kept between regions; contents are arbitrary.
  // There is one such block: asking for more than before may move it.
  void* scratch(size_t bytes);

 private:
  friend class Pool;
  // Phases that may be open at once; one more waits for the oldest.
  static constexpr int kOpenPhases = 16;
  // What the low bits of a counter can count (see Counter in pool.cpp); longer ranges take several phases.
  static constexpr int kMaxUnits = (1 << 24) - 1;

  Pool::State* pool_ = nullptr;
  int index_ = 0, threads_ = 1;
  uint64_t phase_ = 0;       // the current one, or the next one if none is open
  uint64_t complete_ = 0;    // all phases before this one are known to be complete
  int counts_[kOpenPhases];  // units of the phases from complete_ to phase_
  // The open phase: shares this thread is through with, whose it takes from now, its place, units taken in all.
  int helped_ = 0, owner_ = 0, share_start_ = 0, share_size_ = 0, taken_ = 0;
  void* scratch_ = nullptr;
  size_t scratch_bytes_ = 0;

  void begin(int count);
  int take();  // the next unit, or -1: none is left, and the phase is closed for this thread
  void choose_share();
};

}  // namespace mlxcel
