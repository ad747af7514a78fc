// The vector operations the kernels are written in: sixteen float lanes, whatever the machine has.
//
// A kernel source is compiled once per instruction set, with MLXCEL_ISA naming the namespace it lands in; run-time
// dispatch picks one (dispatch.h). Within one instruction set every operation is deterministic, so a kernel that
// treats a row the same way in every batch gives the same bits in every batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#ifndef MLXCEL_ISA
#error "compile kernels with -DMLXCEL_ISA=<namespace>"
#endif

#define MLXCEL_INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__) && defined(__AVX512VNNI__)
#include "simd_avx512.h"
#elif defined(__AVX2__)
#include "simd_avx2.h"
#elif defined(__ARM_NEON) && defined(__ARM_FEATURE_DOTPROD)
#include "simd_neon.h"
#else
#include "simd_portable.h"
#endif
