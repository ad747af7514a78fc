#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <thread>
#include <vector>

#include "../src/pool.h"
#include "check.h"

using mlxcel::Pool;
using mlxcel::Worker;

namespace {

int64_t triangle(int n) { return static_cast<int64_t>(n) * (n - 1) / 2; }

// Sum of 0 .. n - 1 through the pool, one slot a unit.
int64_t pooled_sum(Pool& pool, int n) {
  std::vector<int64_t> out(static_cast<size_t>(n), -1);
  pool.run([&](Worker& w) { w.each(n, [&](int i) { out[static_cast<size_t>(i)] = i; }); });
  return std::accumulate(out.begin(), out.end(), int64_t{0});
}

// In a child process: true if `body` returned true there within ten seconds.
template <class Body>
bool in_child(Body body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);
    _exit(body() ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

TEST(pool_every_unit_runs_once) {
  for (int threads : {1, 2, 3, 7}) {
    Pool pool(threads);
    CHECK(pool.threads() == threads);
    for (int count : {0, 1, 2, 3, 5, 64, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(count));
      pool.run([&](Worker& w) { w.each(count, [&](int i) { runs[static_cast<size_t>(i)]++; }); });
      for (const auto& n : runs) CHECK(n == 1);
    }
  }
}

// Every phase reads what the phase before wrote, at other indices: a barrier that lets go too early shows.
TEST(pool_barriers_order_phases) {
  for (int threads : {1, 2, 3, 5}) {
    Pool pool(threads);
    for (int region = 0; region < 200; region++) {
      const int n = 1 + region % 41, phases = 40;
      std::vector<int64_t> a(static_cast<size_t>(n), 1), b(a);
      pool.run([&](Worker& w) {
        int64_t *from = a.data(), *to = b.data();
        for (int p = 0; p < phases; p++) {
          w.each(n, [&](int i) { to[i] = from[i] + from[(i + 1) % n] % 7; });
          w.barrier();
          std::swap(from, to);
        }
      });
      std::vector<int64_t> x(static_cast<size_t>(n), 1), y(x);
      for (int p = 0; p < phases; p++, x.swap(y))
        for (int i = 0; i < n; i++)
          y[static_cast<size_t>(i)] = x[static_cast<size_t>(i)] + x[static_cast<size_t>((i + 1) % n)] % 7;
      CHECK(a == x);
    }
  }
}

// Far more phases without a barrier than can be open at once, some of them empty.
TEST(pool_phases_without_barriers) {
  Pool pool(3);
  const int phases = 500;
  std::vector<std::atomic<int>> runs(phases);
  for (int region = 0; region < 50; region++)
    pool.run([&](Worker& w) {
      for (int p = 0; p < phases; p++) w.each(p % 5, [&](int) { runs[static_cast<size_t>(p)]++; });
    });
  for (int p = 0; p < phases; p++) CHECK(runs[static_cast<size_t>(p)] == 50 * (p % 5));
}

TEST(pool_more_units_than_a_counter_counts) {
  Pool pool(2);
  std::atomic<int64_t> sum{0};
  const int n = (1 << 24) + 1000;
  pool.run([&](Worker& w) {
    int64_t mine = 0;
    w.each(n, [&](int i) { mine += i; });
    sum += mine;
  });
  CHECK(sum == triangle(n));
}

TEST(pool_units_of_a_blocked_thread_are_taken) {
  Pool pool(2);
  std::atomic<bool> go{false};
  std::atomic<int> done{0};
  // The thread that takes unit 0 is stuck until all others have run: only other threads can run them.
  pool.run([&](Worker& w) {
    w.each(100, [&](int i) {
      if (i == 0)
        while (!go) std::this_thread::yield();
      else if (++done == 99)
        go = true;
    });
  });
  CHECK(done == 99);
}

TEST(pool_a_late_thread_skips_what_is_done) {
  Pool pool(2);
  std::atomic<int> inside{0}, runs{0}, taken_late{0};
  pool.run([&](Worker& w) {
    const bool late = inside++ == 1;
    if (late)
      while (runs < 100) std::this_thread::yield();
    for (int p = 0; p < 100; p++) {
      w.each(1, [&](int) {
        runs++;
        taken_late += late;
      });
      w.barrier();
    }
    if (!late)
      for (int spins = 0; inside < 2 && spins < 1000; spins++) std::this_thread::yield();
  });
  CHECK(runs == 100);
  CHECK(taken_late == 0);
}

TEST(pool_regions_from_several_threads) {
  Pool pool(2);
  std::vector<std::thread> callers;
  for (int c = 0; c < 3; c++)
    callers.emplace_back([&pool, c] {
      for (int i = 0; i < 300; i++) CHECK(pooled_sum(pool, 10 + c) == triangle(10 + c));
    });
  for (std::thread& caller : callers) caller.join();
}

TEST(pool_resize) {
  Pool pool(1);
  for (int threads : {3, 2, 2, 5, 1, 4}) {
    pool.resize(threads);
    CHECK(pool.threads() == threads);
    for (int i = 0; i < 20; i++) CHECK(pooled_sum(pool, 100) == triangle(100));
  }
}

TEST(pool_wakes_after_sleep) {
  Pool pool(3);
  for (int i = 0; i < 20; i++) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(pooled_sum(pool, 100) == triangle(100));
  }
}

TEST(pool_scratch_is_kept_and_private) {
  Pool pool(3);
  for (size_t bytes : {1u, 100u, 5000u, 70000u, 10u}) {
    pool.run([&](Worker& w) {
      auto* mine = static_cast<uint8_t*>(w.scratch(bytes));
      CHECK(reinterpret_cast<uintptr_t>(mine) % 64 == 0);
      w.each(64, [&](int i) {
        for (size_t k = 0; k < bytes; k++) mine[k] = static_cast<uint8_t>(i);
        for (size_t k = 0; k < bytes; k++) CHECK(mine[k] == static_cast<uint8_t>(i));
      });
      CHECK(w.scratch(bytes) == mine);
    });
  }
}

TEST(pool_after_fork) {
  Pool pool(3);
  const auto works = [&pool] {
    for (int i = 0; i < 50; i++)
      if (pooled_sum(pool, 1000) != triangle(1000)) return false;
    return true;
  };
  CHECK(in_child(works));  // before the first region
  CHECK(works());
  CHECK(in_child(works));
  CHECK(in_child([&] { return works() && in_child(works); }));
  CHECK(works());
  CHECK(in_child([] {
    Pool own(2);
    return pooled_sum(own, 10) == triangle(10);
  }));
}

TEST(pool_fork_while_a_region_runs) {
  Pool pool(2);
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) pooled_sum(pool, 100);
  });
  for (int i = 0; i < 20; i++) CHECK(in_child([&] { return pooled_sum(pool, 100) == triangle(100); }));
  stop = true;
  busy.join();
}

TEST(pool_comes_and_goes) {
  for (int i = 0; i < 50; i++) {
    Pool unused(3);
    Pool pool(1 + i % 4);
    CHECK(pooled_sum(pool, 17) == triangle(17));
  }
}
