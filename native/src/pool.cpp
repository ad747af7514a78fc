#include "pool.h"

#include <pthread.h>

#include <chrono>
#include <cstdlib>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace mlxcel {
namespace {

// Two cache lines of x86 (they are fetched in pairs), one of Apple's processors.
constexpr size_t kLine = 128;

// Within that time a thread that is waited for arrives, unless it has lost its core.
constexpr std::chrono::microseconds kSpin(50);
// How long an idle thread stays awake, for the next step of a model: waking it costs a virtual machine a tenth of a
// step of a small one. It gives way to whoever wants its core.
constexpr std::chrono::microseconds kStayAwake(2000);

// How often this process and those it descends from have forked: threads of another count do not exist here.
std::atomic<unsigned> forks{0};

void count_forks() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1); });
  (void)registered;
}

// Spinning for a while: the cheapest way to wait for a thread that is on a core.
class Spin {
 public:
  explicit Spin(std::chrono::microseconds most) : most_(most) {}

  // A short pause; false once the time for spinning is over.
  bool pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb");  // `yield` does nothing on most cores
#endif
    if (++pauses_ % 64) return !over_;
    if (pauses_ == 64) start_ = Clock::now();
    over_ = Clock::now() - start_ > most_;
    return !over_;
  }

 private:
  using Clock = std::chrono::steady_clock;
  const std::chrono::microseconds most_;
  unsigned pauses_ = 0;
  bool over_ = false;
  Clock::time_point start_;
};

// After that the thread that is waited for may need this core.
template <class Condition>
void wait_until(Condition&& condition) {
  for (Spin spin(kSpin); !condition();)
    if (!spin.pause()) std::this_thread::yield();
}

// A count that belongs to one phase: the phase's number in the high bits, the count in the low ones. One counter
// serves many phases in turn, and a thread that is late cannot disturb a later one. Differences of counters are
// compared, so the numbers may wrap around.
struct alignas(kLine) Counter {
  static constexpr int kCountBits = 24;
  std::atomic<uint64_t> value{0};

  static uint64_t tag(uint64_t phase) { return phase << kCountBits; }

  // The phase's count in `now`: 0 if the counter is still an earlier phase's, above every limit if it is a later one's.
  static int64_t count(uint64_t now, uint64_t phase) {
    return std::max<int64_t>(0, static_cast<int64_t>(now - tag(phase)));
  }

  // The count if it is below `limit`, and raises it by one; otherwise -1.
  // Relaxed, because who takes a unit learns nothing from it: results are passed on by `add` and `reached`.
  int take(uint64_t phase, int limit) {
    uint64_t now = value.load(std::memory_order_relaxed);
    while (true) {
      const int64_t taken = count(now, phase);
      if (taken >= limit) return -1;
      const uint64_t next = tag(phase) + static_cast<uint64_t>(taken) + 1;
      if (value.compare_exchange_weak(now, next, std::memory_order_relaxed)) return static_cast<int>(taken);
    }
  }

  // Only for a phase that is not complete, so that no later one has the counter.
  void add(uint64_t phase, int units) {
    uint64_t now = value.load(std::memory_order_relaxed), next;
    do next = tag(phase) + static_cast<uint64_t>(count(now, phase) + units);
    while (!value.compare_exchange_weak(now, next, std::memory_order_release, std::memory_order_relaxed));
  }

  bool reached(uint64_t phase, int units) const { return count(value.load(std::memory_order_acquire), phase) >= units; }
};

}  // namespace

struct Pool::State {
  static constexpr uint32_t kOpen = 1u << 31;

  const unsigned fork_count = forks.load();
  std::atomic<int> threads{1};
  std::mutex turn;  // held for a whole region

  // The region: what to run, and the number of its first phase. Written only while no thread is inside.
  void (*call)(void*, Worker&) = nullptr;
  void* body = nullptr;
  uint64_t first_phase = 0;

  std::vector<Counter> taken;  // [phase % kOpenPhases][thread]: units taken of the thread's share
  std::vector<Counter> done;   // [phase % kOpenPhases]: units complete
  std::vector<Worker> workers;
  std::vector<std::thread> helpers;  // all threads but the calling one
  bool started = false;
  std::atomic<bool> stop{false};

  alignas(kLine) std::atomic<uint32_t> gate{0};   // kOpen while threads may come in, and the number inside
  alignas(kLine) std::atomic<uint32_t> epoch{0};  // changes with every region; what idle threads watch

  explicit State(int count) { set_threads(count); }

  void set_threads(int count) {
    stop_helpers();
    threads = std::max(1, count);
    const size_t n = static_cast<size_t>(threads);
    workers = std::vector<Worker>(n);
    taken = std::vector<Counter>(n * Worker::kOpenPhases);
    done = std::vector<Counter>(Worker::kOpenPhases);
    first_phase = 0;
    for (int i = 0; i < threads; i++) {
      workers[i].pool_ = this;
      workers[i].index_ = i;
      workers[i].threads_ = threads;
    }
  }

  void start_helpers() {
    started = true;
    try {
      for (int i = 1; i < threads; i++)
        helpers.emplace_back([this, i, seen = epoch.load()] { help(workers[i], seen); });
    } catch (const std::system_error&) {
      // The system gives no more threads. Those that are there do all the work.
    }
  }

  void stop_helpers() {
    stop = true;
    announce();
    for (std::thread& helper : helpers) helper.join();
    helpers.clear();
    started = stop = false;
  }

  void announce() {
    epoch.fetch_add(1);
    epoch.notify_all();
  }

  void help(Worker& worker, uint32_t seen) {
    while (true) {
      for (Spin spin(kSpin); epoch.load() == seen && spin.pause();) continue;
      for (Spin spin(kStayAwake); epoch.load() == seen && spin.pause();) std::this_thread::yield();
      epoch.wait(seen);
      seen = epoch.load();
      if (stop) return;
      if (gate.fetch_add(1) & kOpen) {
        seen = epoch.load();  // of the region that this thread is in: it may be a later one
        enter(worker);
      }
      gate.fetch_sub(1);
    }
  }

  void enter(Worker& worker) {
    worker.phase_ = worker.complete_ = first_phase;
    call(body, worker);
  }

  void run(void (*new_call)(void*, Worker&), void* new_body) {
    std::lock_guard lock(turn);
    call = new_call;
    body = new_body;
    Worker& caller = workers[0];
    if (threads == 1) return enter(caller);
    if (!started) start_helpers();
    gate.fetch_or(kOpen);
    announce();
    enter(caller);
    caller.barrier();
    gate.fetch_and(~kOpen);
    wait_until([&] { return gate.load() == 0; });
    first_phase = caller.phase_;
  }
};

Pool::Pool(int threads) {
  count_forks();
  state_ = new State(threads);
}

Pool::~Pool() {
  State* mine = state_;
  if (mine->fork_count != forks) return;  // its threads live in another process: nothing to join, nothing to touch
  mine->stop_helpers();
  delete mine;
}

Pool::State& Pool::state() const {
  State* mine = state_;
  if (mine->fork_count == forks) return *mine;
  // A child process. The parent's state is left as it is: another thread may have held its lock when it forked.
  State* fresh = new State(mine->threads);
  if (state_.compare_exchange_strong(mine, fresh)) return *fresh;
  delete fresh;  // another thread of the child was faster
  return *mine;
}

int Pool::threads() const { return state().threads; }

void Pool::resize(int threads) {
  State& mine = state();
  std::lock_guard lock(mine.turn);
  if (threads != mine.threads) mine.set_threads(threads);
}

void Pool::run_erased(void (*call)(void*, Worker&), void* body) { state().run(call, body); }

Worker::~Worker() { std::free(scratch_); }

void Worker::begin(int count) {
  if (phase_ - complete_ == kOpenPhases) barrier();
  counts_[phase_ % kOpenPhases] = count;
  helped_ = 0;
  taken_ = 0;
  choose_share();
}

// Static shares keep a thread on the same part of the weights from step to step, so they stay in its cache.
void Worker::choose_share() {
  owner_ = (index_ + helped_) % threads_;
  const int64_t count = counts_[phase_ % kOpenPhases];
  share_start_ = static_cast<int>(count * owner_ / threads_);
  share_size_ = static_cast<int>(count * (owner_ + 1) / threads_) - share_start_;
}

int Worker::take() {
  const size_t slot = phase_ % kOpenPhases;
  while (helped_ < threads_) {
    const int i = pool_->taken[slot * threads_ + owner_].take(phase_, share_size_);
    if (i >= 0) {
      taken_++;
      return share_start_ + i;
    }
    if (++helped_ < threads_) choose_share();
  }
  if (taken_) pool_->done[slot].add(phase_, taken_);
  phase_++;
  return -1;
}

void Worker::barrier() {
  for (; complete_ != phase_; complete_++) {
    const size_t slot = complete_ % kOpenPhases;
    wait_until([&] { return pool_->done[slot].reached(complete_, counts_[slot]); });
  }
}

void* Worker::scratch(size_t bytes) {
  if (bytes > scratch_bytes_) {
    std::free(scratch_);
    scratch_bytes_ = (bytes + 4095) / 4096 * 4096;
    scratch_ = std::aligned_alloc(64, scratch_bytes_);
    if (!scratch_) throw std::bad_alloc();
  }
  return scratch_;
}

}  // namespace mlxcel
