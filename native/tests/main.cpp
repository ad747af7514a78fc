#include <chrono>
#include <cstring>

#include "check.h"

// Arguments are words: run the tests with one of them in the name (all if there are none), but for those with the word
// of a "-word".
static bool wanted(const char* name, int argc, char** argv) {
  bool named = false, any = true;
  for (int i = 1; i < argc; i++) {
    if (argv[i][0] == '-') {
      if (std::strstr(name, argv[i] + 1)) return false;
    } else {
      any = false;
      named |= std::strstr(name, argv[i]) != nullptr;
    }
  }
  return named || any;
}

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  int failed = 0, run = 0;
  for (const check::Test& test : check::tests()) {
    if (!wanted(test.name, argc, argv)) continue;
    check::failures = 0;
    const auto start = std::chrono::steady_clock::now();
    test.run();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    if (check::failures) std::printf("FAILED ");
    std::printf("%s: %.2f s", test.name, seconds.count());
    if (check::failures) std::printf(", %d checks failed", check::failures.load());
    std::printf("\n");
    failed += check::failures != 0;
    run++;
  }
  std::printf("%d tests, %d failed\n", run, failed);
  return failed || !run;
}
