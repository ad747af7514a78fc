// A tiny test harness: TEST(name) { CHECK(condition); CHECK_CLOSE(a, b, tolerance); }
// Tests register themselves; main.cpp runs them.
#pragma once

#include <atomic>
#include <cmath>
#include <cstdio>
#include <vector>

namespace check {

struct Test {
  const char* name;
  void (*run)();
};

inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

inline std::atomic<int> failures{0};  // of the running test; checks may be made on any thread

struct Register {
  Register(const char* name, void (*run)()) { tests().push_back({name, run}); }
};

inline bool may_print() { return failures.fetch_add(1) < 10; }

inline void that(bool ok, const char* text, const char* file, int line) {
  if (!ok && may_print()) std::printf("%s:%d: %s\n", file, line, text);
}

// Equal values (infinities too) and two NaNs are close whatever the tolerance, which is absolute.
inline void close(double a, double b, double tolerance, const char* text, const char* file, int line) {
  const bool ok = a == b || (std::isnan(a) && std::isnan(b)) || std::fabs(a - b) <= tolerance;
  if (!ok && may_print()) std::printf("%s:%d: %s: %.9g and %.9g differ by %.3g\n", file, line, text, a, b, a - b);
}

}  // namespace check

#define TEST(name)                                           \
  static void name();                                        \
  static const check::Register register_##name{#name, name}; \
  static void name()
#define CHECK(condition) check::that((condition), #condition, __FILE__, __LINE__)
#define CHECK_CLOSE(a, b, tolerance) check::close((a), (b), (tolerance), #a ", " #b, __FILE__, __LINE__)
