// A processor's matrix unit (Intel AMX), for the instruction sets that have one: tiles of up to sixteen rows of 64
// bytes. The compiler's own intrinsics for it do not say what memory they read and write, so these are written out.
//
// Tiles 0 and 1 hold sums, 2 and 3 rows of the left factor, 4 and 5 those of the right one: two of each, so that one
// multiplication can begin before the last one ends.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mlxcel::MLXCEL_ISA {

constexpr int tile_rows = 16;

// Products of `rows` rows of `left_bytes` bytes each with a right factor of left_bytes / 4 rows of 64 bytes: rows of
// sixteen sums.
struct TileShape {
  int rows, left_bytes;
};

// The unit is set up for products of one shape while this lives, on this thread.
class TileUnit {
 public:
  explicit TileUnit(TileShape shape) {
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } config;
    for (int i : {0, 1, 2, 3, 4, 5}) {
      config.row_bytes[i] = static_cast<uint16_t>(i == 2 || i == 3 ? shape.left_bytes : 64);
      config.rows[i] = static_cast<uint8_t>(i < 4 ? shape.rows : shape.left_bytes / 4);
    }
    asm volatile("ldtilecfg %0" ::"m"(config));
  }
  ~TileUnit() { asm volatile("tilerelease"); }
  TileUnit(const TileUnit&) = delete;
  TileUnit& operator=(const TileUnit&) = delete;
};

// sums[m][n] = sum over k of left[m][k] (signed bytes) times right[k / 4][n][k % 4] (unsigned bytes).
template <int slot>
[[gnu::always_inline]] inline void multiply_tiles(const std::byte* left, size_t left_stride, const std::byte* right,
                                                  int32_t* sums) {
  static_assert(slot == 0 || slot == 1);
  if constexpr (slot == 0) {
    asm volatile(
        "tilezero %%tmm0\n\t"
        "tileloadd (%0,%1,1), %%tmm2\n\t"
        "tileloadd (%2,%3,1), %%tmm4\n\t"
        "tdpbsud %%tmm4, %%tmm2, %%tmm0\n\t"
        "tilestored %%tmm0, (%4,%3,1)"
        ::"r"(left), "r"(left_stride), "r"(right), "r"(size_t{64}), "r"(sums)
        : "memory");
  } else {
    asm volatile(
        "tilezero %%tmm1\n\t"
        "tileloadd (%0,%1,1), %%tmm3\n\t"
        "tileloadd (%2,%3,1), %%tmm5\n\t"
        "tdpbsud %%tmm5, %%tmm3, %%tmm1\n\t"
        "tilestored %%tmm1, (%4,%3,1)"
        ::"r"(left), "r"(left_stride), "r"(right), "r"(size_t{64}), "r"(sums)
        : "memory");
  }
}

}  // namespace mlxcel::MLXCEL_ISA
