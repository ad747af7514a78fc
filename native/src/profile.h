// Where the time of a decoder's steps goes.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace mlxcel {

// Plan is what one thread does before the others start, and waking them. A product's phase includes the preparation of its input when every thread does that for itself (few rows); shared
// preparation is Prepare. Waiting is time in barriers, for other threads' last units.
enum class Phase : uint8_t { Plan, Embed, Prepare, Qkv, Norms, Attention, Output, Up, Down, Head, Waiting };
constexpr std::array<const char*, 11> phase_names = {"plan",   "embed", "prepare", "qkv",  "norms",  "attention",
                                                     "output", "up",    "down",    "head", "waiting"};

struct Profile {
  std::array<double, phase_names.size()> seconds{};
  uint64_t steps = 0;
};

// Adds the time between laps to the phase that each lap ends. Without a profile it does nothing. A copy goes on from
// the last lap.
class StepClock {
 public:
  explicit StepClock(Profile* profile) : profile_(profile) {
    if (profile_ != nullptr) last_ = Clock::now();
  }

  void lap(Phase phase) {
    if (profile_ == nullptr) return;
    const Clock::time_point now = Clock::now();
    profile_->seconds[static_cast<size_t>(phase)] += std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }

 private:
  using Clock = std::chrono::steady_clock;
  Profile* profile_;
  Clock::time_point last_;
};

}  // namespace mlxcel
