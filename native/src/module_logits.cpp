// `mlxcel._kernels.Rows` and `Chain`. Calls are short, so they keep the interpreter's lock: another thread might hold
// it for much longer than they take.
#include "module_logits.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "chain.h"
#include "decoder.h"
#include "pool.h"
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
using Batch = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void expect_inside(const Ids& tokens, const MutableRow& row) {
  const auto inside = [&](int64_t token) { return token >= 0 && static_cast<size_t>(token) < row.size(); };
  if (!std::all_of(tokens.data(), tokens.data() + tokens.size(), inside)) {
    throw nb::index_error("a token is not in the row");
  }
}

// Rows of a step, which several threads share.
class Rows {
 public:
  using Choices = std::vector<std::pair<int, double>>;
  using Logprobs = std::vector<std::pair<double, std::vector<std::pair<int64_t, double>>>>;

  explicit Rows(int threads) : own_(std::make_unique<Pool>(threads)), pool_(*own_) {}
  explicit Rows(Decoder& decoder) : pool_(decoder.pool()) {}

  // masks: empty when no row has one.
  Choices choose(const Batch& logits, const std::vector<const Chain*>& chains,
                 const std::vector<std::tuple<double, bool, double>>& steps,
                 const std::vector<std::optional<Words>>& masks) {
    const size_t count = logits.shape(0);
    const int n = static_cast<int>(logits.shape(1));
    if (chains.size() != count || steps.size() != count) throw nb::value_error("each row needs a chain and a step");
    if (n == 0) throw nb::value_error("rows are empty");
    if (!masks.empty() && masks.size() != count) throw nb::value_error("each row needs a mask or None");
    for (const std::optional<Words>& words : masks) {
      if (words && words->size() * 32 < static_cast<size_t>(n)) throw nb::value_error("a mask is shorter than its row");
    }
    Choices chosen(count);
    each(count, [&](int i) {
      const auto& [uniform, exclude_top, feedback] = steps[i];
      const Step step{uniform, exclude_top, feedback};
      const uint32_t* const mask = masks.empty() || !masks[i] ? nullptr : masks[i]->data();
      const Choice choice = mlxcel::choose(kernels(), row(logits, i), n, *chains[i], step, mask);
      chosen[i] = {choice.token, choice.share};
    });
    return chosen;
  }

  // wanted: a row, a token and how many likely ones to list with it.
  Logprobs logprobs(const Batch& logits, const std::vector<std::tuple<int64_t, int64_t, int64_t>>& wanted) {
    const int64_t n = static_cast<int64_t>(logits.shape(1));
    for (const auto& [index, token, count] : wanted) {
      if (index < 0 || static_cast<size_t>(index) >= logits.shape(0)) throw nb::index_error("there is no such row");
      if (token < 0 || token >= n) throw nb::index_error("a token is not in the row");
    }
    Logprobs found(wanted.size());
    each(wanted.size(), [&](int i) {
      const auto& [index, token, count] = wanted[i];
      const LogitKernels& kernels = mlxcel::kernels().logits;
      const float* const x = row(logits, index);
      const float peak = kernels.max(x, n);
      const double total = peak + std::log(kernels.mass(x, n, peak, weight_scale(1.0)));
      int64_t* const best = scratch<struct Best, int64_t>(n);
      const int listed = top_k(kernels, x, n, static_cast<int>(std::clamp<int64_t>(count, 0, n)), best);
      std::stable_sort(best, best + listed, [x](int64_t a, int64_t b) { return x[a] > x[b]; });
      found[i].first = x[token] - total;
      for (int j = 0; j < listed; j++) found[i].second.emplace_back(best[j], x[best[j]] - total);
    });
    return found;
  }

 private:
  std::unique_ptr<Pool> own_;
  Pool& pool_;

  static const float* row(const Batch& logits, int64_t index) {
    return logits.data() + index * static_cast<int64_t>(logits.shape(1));
  }

  template <class Unit>
  void each(size_t count, Unit unit) {
    if (count == 1) return unit(0);  // without waking anybody
    pool_.run([&](Worker& worker) { worker.each(static_cast<int>(count), unit); });
  }
};

void add_at(const MutableRow& row, const Ids& tokens, const Row& values) {
  if (values.size() != tokens.size()) throw nb::value_error("each token needs a value");
  expect_inside(tokens, row);
  for (size_t i = 0; i < tokens.size(); i++) row.data()[tokens.data()[i]] += values.data()[i];
}

}  // namespace

void register_logits(nb::module_& m) {
  nb::class_<Chain>(m, "Chain", "How one sequence is sampled; see mlxcel/engine/sampling.")
      .def("__init__",
           [](Chain* self, bool greedy, double temperature, double top_n_sigma, bool p_less, double typical_p,
              int top_k, double top_p, double min_p, int min_keep, double xtc_threshold, double dynatemp_range,
              double dynatemp_exponent, int mirostat, bool adaptive) {
             new (self) Chain{greedy, temperature, top_n_sigma, p_less, typical_p, top_k, top_p, min_p, min_keep,
                              xtc_threshold, dynatemp_range, dynatemp_exponent, mirostat, adaptive};
           },
           nb::kw_only(), "greedy"_a, "temperature"_a, "top_n_sigma"_a, "p_less"_a, "typical_p"_a, "top_k"_a,
           "top_p"_a, "min_p"_a, "min_keep"_a, "xtc_threshold"_a, "dynatemp_range"_a, "dynatemp_exponent"_a,
           "mirostat"_a, "adaptive"_a);

  nb::class_<Rows>(m, "Rows", "Works on rows of logits.")
      .def(nb::init<int>(), "threads"_a, "With threads of its own.")
      .def(nb::init<Decoder&>(), "decoder"_a, nb::keep_alive<1, 2>(), "With the threads of a decoder.")
      .def("choose", &Rows::choose, "logits"_a, "chains"_a, "steps"_a, "masks"_a = nb::make_tuple(),
           "Token (-1: none, for the row holds no numbers) and its share, for each row; a step is a uniform random "
           "number, whether XTC acts, and what mirostat or adaptive-p go by. A mask has a bit for each token that may "
           "come, lowest bit first.")
      .def("logprobs", &Rows::logprobs, "logits"_a, "wanted"_a,
           "Log probability of a token, and the likeliest tokens with theirs, for each (row, token, how many).")
      // Conversion would change a copy.
      .def_static("add_at", &add_at, "row"_a.noconvert(), "tokens"_a, "values"_a, "Add values at tokens, in place.")
      .def_static(
          "penalise",
          [](const MutableRow& row, const Ids& tokens, const Row& counts, float repetition, float frequency,
             float presence) {
            if (counts.size() != tokens.size()) throw nb::value_error("each token needs a count");
            expect_inside(tokens, row);
            penalise(row.data(), tokens.data(), counts.data(), tokens.size(), repetition, frequency, presence);
          },
          "row"_a.noconvert(), "tokens"_a, "counts"_a, "repetition"_a, "frequency"_a, "presence"_a,
          "Lower the logits of tokens that were seen, in place; each is listed once.");
}

}  // namespace mlxcel
