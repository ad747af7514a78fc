// A processor's matrix unit (Intel AMX), for the instruction sets that have one: eight tiles of up to sixteen rows of 64
// bytes. The compiler's own intrinsics for it do not say what memory they read and write, so these are written out.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mlxcel::MLXCEL_ISA {

constexpr int tile_rows = 16;

struct TileShape {
  int rows, row_bytes;
};

// Of tiles 0 to 7.
struct TileShapes {
  TileShape tiles[8];
};

// The unit is set up while this lives, on this thread.
class TileUnit {
 public:
  TileUnit() = default;
  ~TileUnit() { asm volatile("tilerelease"); }
  TileUnit(const TileUnit&) = delete;
  TileUnit& operator=(const TileUnit&) = delete;

  // From now on. What tiles hold is lost. All shapes that one unit gets differ in the rows of tile 0.
  void shape(const TileShapes& shapes) {
    if (rows_ == shapes.tiles[0].rows) return;
    rows_ = shapes.tiles[0].rows;
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } config;
    for (int i = 0; i < 8; i++) {
      config.row_bytes[i] = static_cast<uint16_t>(shapes.tiles[i].row_bytes);
      config.rows[i] = static_cast<uint8_t>(shapes.tiles[i].rows);
    }
    asm volatile("ldtilecfg %0" ::"m"(config));
  }

 private:
  int rows_ = 0;
};

template <int tile>
[[gnu::always_inline]] inline void clear_tile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(tile));
}
// Rows lie `stride` bytes apart.
template <int tile>
[[gnu::always_inline]] inline void load_tile(const void* from, size_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(tile) : "memory");
}
template <int tile>
[[gnu::always_inline]] inline void store_tile(void* to, size_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(tile) : "memory");
}
// sums[m][n] += sum over k of left[m][k] (signed bytes) times right[k / 4][n][k % 4] (unsigned bytes). Exact.
template <int sums, int left, int right>
[[gnu::always_inline]] inline void add_byte_product() {
  asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sums), "i"(left), "i"(right));
}
// The same for pairs of bfloat16, with float sums.
template <int sums, int left, int right>
[[gnu::always_inline]] inline void add_bf16_product() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sums), "i"(left), "i"(right));
}

}  // namespace mlxcel::MLXCEL_ISA
