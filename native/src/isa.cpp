// Everything that is compiled once per instruction set (see isas.txt).
//
// Nothing here may run before dispatch.cpp has seen what the processor can do: no globals that need initialising.
#include "dispatch.h"

#include "attention_kernels.h"
#include "gemm_kernels.h"
#include "logits_kernels.h"
#include "rows_kernels.h"
#include "sdpa_kernels.h"

namespace mlxcel::MLXCEL_ISA {

Kernels make_kernels(const char* name) {
  return {name, gemm_kernels, row_kernels(), attention_kernels(), logit_kernels(), sdpa_kernels()};
}

}  // namespace mlxcel::MLXCEL_ISA
