#pragma once

#include <nanobind/nanobind.h>

namespace mlxcel {

// Adds the classes `Rows` and `Chain`: what sampling needs of logits.h and chain.h.
void register_logits(nanobind::module_& m);

}  // namespace mlxcel
