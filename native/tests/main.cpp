#include <chrono>
#include <cstring>

#include "check.h"

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  int failed = 0, run = 0;
  for (const check::Test& test : check::tests()) {
    bool wanted = argc == 1;
    for (int i = 1; i < argc; i++) wanted |= std::strstr(test.name, argv[i]) != nullptr;
    if (!wanted) continue;
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
