#include "dispatch.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace mlxcel {

// Weak: a build may leave out instruction sets it does not need.
#define MLXCEL_DECLARE(isa)                          \
  namespace isa {                                    \
  [[gnu::weak]] Kernels make_kernels(const char* name); \
  }
MLXCEL_DECLARE(portable)
#if defined(__x86_64__)
MLXCEL_DECLARE(avx2)
MLXCEL_DECLARE(avxvnni)
MLXCEL_DECLARE(avx512)
MLXCEL_DECLARE(avx512bf16)
MLXCEL_DECLARE(amx)
#elif defined(__aarch64__)
MLXCEL_DECLARE(neon)
MLXCEL_DECLARE(neoni8mm)
#else
#error "add this machine to isas.txt and to this file"
#endif

namespace {

struct InstructionSet {
  const char* name;
  bool supported;  // by this processor and by the operating system
  Kernels (*make_kernels)(const char* name);
};

#if defined(__x86_64__)
// Whether there is a matrix unit. The operating system must let a process use it, since it has more to save then.
bool amx_allowed() {
#if defined(__linux__)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // of arch_prctl; older headers lack the names
  unsigned eax = 7, ebx = 0, ecx = 0, edx = 0;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
  const unsigned bf16 = 1u << 22, tiles = 1u << 24, int8 = 1u << 25, all = bf16 | tiles | int8;
  return (edx & all) == all && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}
#endif

std::vector<InstructionSet> instruction_sets() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512vnni");
  const bool avx512bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
  return {{"portable", true, portable::make_kernels},
          {"avx2", avx2, avx2::make_kernels},
          {"avxvnni", avx2 && __builtin_cpu_supports("avxvnni"), avxvnni::make_kernels},
          {"avx512", avx512, avx512::make_kernels},
          {"avx512bf16", avx512bf16, avx512bf16::make_kernels},
          {"amx", avx512bf16 && amx_allowed(), amx::make_kernels}};
#else
  // Bits of the Linux kernel's interface; older headers lack the later names.
  const unsigned long dotprod = 1ul << 20, i8mm = 1ul << 13, bf16 = 1ul << 14;
  const bool neon = getauxval(AT_HWCAP) & dotprod, more = (getauxval(AT_HWCAP2) & (i8mm | bf16)) == (i8mm | bf16);
  return {{"portable", true, portable::make_kernels},
          {"neon", neon, neon::make_kernels},
          {"neoni8mm", neon && more, neoni8mm::make_kernels}};
#endif
}

}  // namespace

const std::vector<const Kernels*>& available() {
  static const std::vector<Kernels> made = [] {
    std::vector<Kernels> all;
    for (const InstructionSet& set : instruction_sets())
      if (set.supported && set.make_kernels != nullptr) all.push_back(set.make_kernels(set.name));
    return all;
  }();
  static const std::vector<const Kernels*> pointers = [] {
    std::vector<const Kernels*> all;
    for (const Kernels& kernels : made) all.push_back(&kernels);
    return all;
  }();
  return pointers;
}

const Kernels& kernels_named(std::string_view name) {
  if (name.empty()) return *available().back();
  std::string names;
  for (const Kernels* kernels : available()) {
    if (name == kernels->name) return *kernels;
    names += std::string(names.empty() ? "" : ", ") + kernels->name;
  }
  const char* why = "there are no kernels of that name";
  for (const InstructionSet& set : instruction_sets())
    if (name == set.name) why = set.make_kernels ? "this processor cannot run them" : "they were left out of this build";
  throw std::invalid_argument("kernels '" + std::string(name) + "': " + why + " (possible here: " + names + ")");
}

const Kernels& kernels() {
  static const Kernels& chosen = []() -> const Kernels& {
    const char* name = std::getenv("MLXCEL_KERNELS");
    return kernels_named(name ? name : "");
  }();
  return chosen;
}

}  // namespace mlxcel
