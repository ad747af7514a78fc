// What both Python modules say about the sequences of a class and the blocks of their KV cache.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <vector>

#include "sequences.h"

namespace mlxcel {

// To a class with `sequences()` and `cache()`.
template <class Owner, class... Extra>
void bind_sequences(nanobind::class_<Owner, Extra...>& bound) {
  namespace nb = nanobind;
  using namespace nb::literals;
  bound
      .def("open", [](Owner& owner) { return owner.sequences().open(); }, "A new, empty sequence.")
      .def("close", [](Owner& owner, int sequence) { owner.sequences().close(sequence); }, "sequence"_a)
      .def("length", [](Owner& owner, int sequence) { return owner.sequences().length(sequence); }, "sequence"_a)
      .def("position", [](Owner& owner, int sequence) { return owner.sequences().position(sequence); }, "sequence"_a,
           "The place of the next token in the text.")
      .def("forget",
           [](Owner& owner, int sequence, int first, int count) { owner.sequences().forget(sequence, first, count); },
           "sequence"_a, "first"_a, "count"_a, "Let `count` tokens after the first `first` go, both whole blocks.")
      .def("fork", [](Owner& owner, int sequence, int length) { return owner.sequences().fork(sequence, length); },
           "sequence"_a, "length"_a, "A new sequence that begins with `length` tokens of another one, without a copy.")
      .def("blocks",
           [](Owner& owner, int sequence) {
             const auto blocks = owner.sequences().blocks(sequence);
             return std::vector<int32_t>(blocks.begin(), blocks.end());
           },
           "sequence"_a, "The blocks that hold the tokens of a sequence.")
      .def("exclusive_blocks", [](Owner& owner, int sequence) { return owner.sequences().exclusive_blocks(sequence); },
           "sequence"_a, "How many blocks closing it frees.")
      .def("missing_blocks",
           [](Owner& owner, int sequence, int count) { return owner.sequences().missing_blocks({sequence, count}); },
           "sequence"_a, "count"_a, "How many blocks the next `count` tokens of a sequence take.")
      .def_prop_ro("used_blocks", [](Owner& owner) { return owner.cache().used(); })
      .def_prop_ro("capacity_blocks", [](Owner& owner) { return owner.cache().capacity(); })
      .def_prop_ro("block_bytes", [](Owner& owner) { return owner.cache().block_bytes(); })
      .def_prop_ro("reserved_bytes", [](Owner& owner) { return owner.cache().reserved_bytes(); },
                   "Bytes of the cache taken from the system.");
}

}  // namespace mlxcel
