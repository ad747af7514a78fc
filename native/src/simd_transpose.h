// Transposing squares of floats.
#pragma once

#include "simd.h"

namespace mlxcel::MLXCEL_ISA {

#if defined(__AVX2__)
// Rows 0 to 7 of four columns become four rows of eight.
MLXCEL_INLINE void transpose_8x4(const float* from, float* to) {
  const auto rows = [&](int i) {
    const __m128 upper = _mm_loadu_ps(from + 16 * i), lower = _mm_loadu_ps(from + 16 * i + 64);
    return _mm256_insertf128_ps(_mm256_castps128_ps256(upper), lower, 1);
  };
  const __m256 a = rows(0), b = rows(1), c = rows(2), d = rows(3);
  const __m256 ab = _mm256_unpacklo_ps(a, b), cd = _mm256_unpacklo_ps(c, d);
  const __m256 ab2 = _mm256_unpackhi_ps(a, b), cd2 = _mm256_unpackhi_ps(c, d);
  _mm256_storeu_ps(to, _mm256_shuffle_ps(ab, cd, 0x44));
  _mm256_storeu_ps(to + 16, _mm256_shuffle_ps(ab, cd, 0xee));
  _mm256_storeu_ps(to + 32, _mm256_shuffle_ps(ab2, cd2, 0x44));
  _mm256_storeu_ps(to + 48, _mm256_shuffle_ps(ab2, cd2, 0xee));
}
constexpr int kTransposed = 8;
#else
MLXCEL_INLINE void transpose_4x4(const float* from, float* to) {
  typedef float quad __attribute__((vector_size(16)));
  quad a, b, c, d;
  std::memcpy(&a, from, 16);
  std::memcpy(&b, from + 16, 16);
  std::memcpy(&c, from + 32, 16);
  std::memcpy(&d, from + 48, 16);
  const quad ab = __builtin_shufflevector(a, b, 0, 4, 1, 5), cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
  const quad ab2 = __builtin_shufflevector(a, b, 2, 6, 3, 7), cd2 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  const quad columns[4] = {
      __builtin_shufflevector(ab, cd, 0, 1, 4, 5), __builtin_shufflevector(ab, cd, 2, 3, 6, 7),
      __builtin_shufflevector(ab2, cd2, 0, 1, 4, 5), __builtin_shufflevector(ab2, cd2, 2, 3, 6, 7)};
  for (int i = 0; i < 4; i++) std::memcpy(to + 16 * i, &columns[i], 16);
}
constexpr int kTransposed = 4;
#endif

// A square of 16 rows of 16, both contiguous.
MLXCEL_INLINE void transpose_16(const float* from, float* to) {
  for (int row = 0; row < 16; row += kTransposed) {
    for (int column = 0; column < 16; column += 4) {
#if defined(__AVX2__)
      transpose_8x4(from + 16 * row + column, to + 16 * column + row);
#else
      transpose_4x4(from + 16 * row + column, to + 16 * column + row);
#endif
    }
  }
}

}  // namespace mlxcel::MLXCEL_ISA
