#include "rows.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

namespace mlxcel {

namespace {

std::vector<double> powers_of(double base, int dims, double scale) {
  std::vector<double> frequencies(static_cast<size_t>(dims) / 2);
  for (size_t i = 0; i < frequencies.size(); i++) {
    frequencies[i] = scale * std::pow(base, -2.0 * static_cast<double>(i) / dims);
  }
  return frequencies;
}

}  // namespace

RopeTable::RopeTable(int dims, double base, double scale) : RopeTable(powers_of(base, dims, scale)) {}

RopeTable::RopeTable(std::vector<double> frequencies, double magnitude)
    : frequencies_(std::move(frequencies)), magnitude_(magnitude) {}

RopeTable RopeTable::of_periods(const std::vector<float>& periods, double scale) {
  std::vector<double> frequencies;
  for (const float period : periods) frequencies.push_back(scale / period);
  return RopeTable(std::move(frequencies));
}

void RopeTable::reserve(int positions) {
  if (positions <= positions_) return;
  positions = std::max({positions, 2 * positions_, 256});
  const size_t half = frequencies_.size();
  table_.resize(static_cast<size_t>(positions) * 2 * half);
  for (int p = positions_; p < positions; p++) {
    float* row = table_.data() + static_cast<size_t>(p) * 2 * half;
    for (size_t i = 0; i < half; i++) {
      const double angle = p * frequencies_[i];
      row[i] = static_cast<float>(std::cos(angle) * magnitude_);
      row[half + i] = static_cast<float>(std::sin(angle) * magnitude_);
    }
  }
  positions_ = positions;
}

}  // namespace mlxcel
