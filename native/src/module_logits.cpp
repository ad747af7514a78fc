// `mlxcel._kernels.logits`. Calls are short, so they keep the interpreter's lock: another thread might hold it for
// much longer than they take.
#include "module_logits.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "dispatch.h"
#include "scratch.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace mlxcel {
namespace {

template <class Element>
using Array = nb::ndarray<Element, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Row = Array<const float>;
using MutableRow = Array<float>;
using Ids = Array<const int64_t>;
using Words = Array<const uint32_t>;

int size_of(const Row& row) { return static_cast<int>(row.size()); }

// A numpy array that owns its elements.
template <class Element>
nb::ndarray<nb::numpy, Element> owned(std::unique_ptr<Element[]> elements, size_t count) {
  Element* data = elements.release();
  const nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<Element*>(p); });
  return nb::ndarray<nb::numpy, Element>(data, {count}, owner);
}

// What `select` writes into room for all positions.
template <class Select>
nb::ndarray<nb::numpy, int64_t> positions(const Row& row, Select select) {
  int64_t* const room = scratch<struct Room, int64_t>(row.size());
  const int count = select(room);
  auto exact = std::make_unique_for_overwrite<int64_t[]>(count);
  std::copy_n(room, count, exact.get());
  return owned(std::move(exact), count);
}

void expect_some(const Row& row) {
  if (row.size() == 0) throw nb::value_error("the row is empty");
}

void expect_inside(const Ids& tokens, const MutableRow& row) {
  const auto inside = [&](int64_t token) { return token >= 0 && static_cast<size_t>(token) < row.size(); };
  if (!std::all_of(tokens.data(), tokens.data() + tokens.size(), inside)) {
    throw nb::index_error("a token is not in the row");
  }
}

std::pair<int, float> best(const Row& row) {
  expect_some(row);
  const int at = kernels().rows.argmax(row.data(), size_of(row));
  return {at, row.data()[at]};
}

nb::ndarray<nb::numpy, float> weights(const Row& row, double temperature) {
  const LogitKernels& logits = kernels().logits;
  const int n = size_of(row);
  auto out = std::make_unique_for_overwrite<float[]>(n);
  logits.weights(row.data(), n, logits.max(row.data(), n), weight_scale(temperature), out.get());
  return owned(std::move(out), n);
}

std::pair<float, double> mass(const Row& row, double temperature) {
  const LogitKernels& logits = kernels().logits;
  const float peak = logits.max(row.data(), size_of(row));
  return {peak, logits.mass(row.data(), size_of(row), peak, weight_scale(temperature))};
}

void mask(const Row& row, const Words& words, const MutableRow& out) {
  if (out.size() != row.size() || words.size() * 32 < row.size()) {
    throw nb::value_error("row, mask and output do not belong together");
  }
  kernels().logits.mask(row.data(), words.data(), size_of(row), out.data());
}

void add_at(const MutableRow& row, const Ids& tokens, const Row& values) {
  if (values.size() != tokens.size()) throw nb::value_error("each token needs a value");
  expect_inside(tokens, row);
  for (size_t i = 0; i < tokens.size(); i++) row.data()[tokens.data()[i]] += values.data()[i];
}

}  // namespace

void register_logits(nb::module_& m) {
  nb::module_ logits = m.def_submodule("logits", "Selection, probabilities and draws from one row of logits.");
  logits.def("best", &best, "row"_a, "Position and value of the largest; those of the first NaN, if there is one.");
  logits.def(
      "top_k",
      [](const Row& row, int64_t k) {
        const int most = static_cast<int>(std::clamp<int64_t>(k, 0, size_of(row)));
        return positions(row, [&](int64_t* out) { return top_k(kernels().logits, row.data(), size_of(row), most, out); });
      },
      "row"_a, "k"_a, "Positions of the k largest, rising.");
  logits.def(
      "at_least",
      [](const Row& row, float threshold) {
        return positions(
            row, [&](int64_t* out) { return kernels().logits.at_least(row.data(), size_of(row), threshold, out); });
      },
      "row"_a, "threshold"_a, "Positions of what is not below the threshold, rising.");
  logits.def(
      "nucleus",
      [](const Row& row, double p) {
        return positions(row, [&](int64_t* out) { return nucleus(kernels().logits, row.data(), size_of(row), p, out); });
      },
      "row"_a, "p"_a, "Positions of the fewest that have the share p of the probability, rising.");
  logits.def("weights", &weights, "row"_a, "temperature"_a, "Probabilities relative to the largest.");
  logits.def("mass", &mass, "row"_a, "temperature"_a, "The largest logit and the sum of the weights.");
  logits.def(
      "draw",
      [](const Row& row, double temperature, double uniform) {
        expect_some(row);
        return draw(kernels().logits, row.data(), size_of(row), temperature, uniform);
      },
      "row"_a, "temperature"_a, "uniform"_a, "The position at the share `uniform` of the weights.");
  // Conversion would change a copy.
  logits.def("mask", &mask, "row"_a, "words"_a, "out"_a.noconvert(), "Copy what has its bit set; the rest is -inf.");
  logits.def("add_at", &add_at, "row"_a.noconvert(), "tokens"_a, "values"_a, "Add values at tokens, in place.");
  logits.def(
      "penalise",
      [](const MutableRow& row, const Ids& tokens, const Row& counts, float repetition, float frequency, float presence) {
        if (counts.size() != tokens.size()) throw nb::value_error("each token needs a count");
        expect_inside(tokens, row);
        penalise(row.data(), tokens.data(), counts.data(), tokens.size(), repetition, frequency, presence);
      },
      "row"_a.noconvert(), "tokens"_a, "counts"_a, "repetition"_a, "frequency"_a, "presence"_a,
      "Lower the logits of tokens that were seen, in place; each is listed once.");
}

}  // namespace mlxcel
