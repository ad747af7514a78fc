// Which of the instruction sets that the kernels are compiled for to use.
#pragma once

#include <string_view>
#include <vector>

#include "attention.h"
#include "gemm.h"
#include "logits.h"
#include "rows.h"
#include "sdpa.h"

namespace mlxcel {

struct Kernels {
  const char* name;  // as in isas.txt
  GemmKernels gemm;
  RowKernels rows;
  AttentionKernels attention;
  LogitKernels logits;
  SdpaKernels sdpa;
};

// Those that this processor can run, from least to most.
const std::vector<const Kernels*>& available();

// The one of that name, or the best one for an empty name. Throws std::invalid_argument, with a message for the user,
// if the name is unknown or the processor cannot run it.
const Kernels& kernels_named(std::string_view name);

// The one that the environment variable MLXCEL_KERNELS names, or the best one. Chosen at the first call.
const Kernels& kernels();

}  // namespace mlxcel
