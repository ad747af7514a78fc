#pragma once

#include <nanobind/nanobind.h>

namespace mlxcel {

// Adds the submodule `logits`: what sampling needs of logits.h.
void register_logits(nanobind::module_& m);

}  // namespace mlxcel
