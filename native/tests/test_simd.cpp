#include <algorithm>
#include <cstdio>
#include <stdexcept>
#include <string>

#include "../src/dispatch.h"
#include "check.h"

using namespace mlxcel;

// simd_operations.cpp, once per instruction set.
#define MLXCEL_DECLARE(isa)              \
  namespace mlxcel::isa {                \
  [[gnu::weak]] void test_operations(); \
  }
MLXCEL_DECLARE(portable)
#if defined(__x86_64__)
MLXCEL_DECLARE(avx2)
MLXCEL_DECLARE(avxvnni)
MLXCEL_DECLARE(avx512)
MLXCEL_DECLARE(avx512bf16)
#else
MLXCEL_DECLARE(neon)
MLXCEL_DECLARE(neoni8mm)
#endif

namespace {

bool can_run(const std::string& name) {
  const bool can = std::ranges::any_of(available(), [&](const Kernels* kernels) { return name == kernels->name; });
  if (!can) std::printf("not on this processor: ");
  return can;
}

bool refuses(const char* name) {
  try {
    kernels_named(name);
  } catch (const std::invalid_argument& error) {
    return std::string(error.what()).find(name) != std::string::npos;
  }
  return false;
}

}  // namespace

TEST(simd_portable) { portable::test_operations(); }
#if defined(__x86_64__)
TEST(simd_avx2) {
  if (can_run("avx2")) avx2::test_operations();
}
TEST(simd_avxvnni) {
  if (can_run("avxvnni")) avxvnni::test_operations();
}
TEST(simd_avx512) {
  if (can_run("avx512")) avx512::test_operations();
}
TEST(simd_avx512bf16) {
  if (can_run("avx512bf16")) avx512bf16::test_operations();
}
#else
TEST(simd_neon) {
  if (can_run("neon")) neon::test_operations();
}
TEST(simd_neoni8mm) {
  if (can_run("neoni8mm")) neoni8mm::test_operations();
}
#endif

TEST(dispatch_by_name) {
  CHECK(!available().empty());
  CHECK(std::string(available().front()->name) == "portable");
  for (const Kernels* kernels : available()) CHECK(&kernels_named(kernels->name) == kernels);
  CHECK(&kernels_named("") == available().back());
  CHECK(refuses("sse9"));
#if defined(__x86_64__)
  CHECK(refuses("neon"));
#else
  CHECK(refuses("avx2"));
#endif
}
