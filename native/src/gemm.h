// Matrix products with packed weights: y = x W^T, for affine-quantised and for dense W.
//
// Weights are packed once into tiles of sixteen outputs; rows of x are brought into the form the kernels read
// (`Activations`) by `GemmKernels::quantise`; `GemmKernels::multiply` gives the product of some rows with some tiles.
// The result of a row depends on that row and the weights alone: not on the other rows, nor on how tiles and rows are
// split into calls.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace mlxcel {

constexpr int tile_outputs = 16;  // outputs of W in one tile
constexpr int chunk_cols = 32;    // columns that share one activation scale
constexpr int few_rows = 4;       // up to which products wait for the weights from memory

// How exactly the rows of x enter a product with quantised weights. Dense weights always take Exact.
enum class Precision : uint8_t {
  Fast,     // 8-bit integers, one scale per 32 columns
  Default,  // integers of 16 bits (12 for a matrix unit), one scale per 32 columns: x = d q, q in two parts
  Exact,    // float32
};

enum class Scalar : uint8_t { Float32, Float16, BFloat16 };
constexpr size_t size_of(Scalar type) { return type == Scalar::Float32 ? 4 : 2; }

// A matrix as MLX's affine quantisation gives it, rows x cols, contiguous: each row is a little-endian string of
// `bits`-wide values in 32-bit words; scales and biases are [rows, cols / group].
struct AffineMatrix {
  const uint32_t* words;
  const void* scales;
  const void* biases;
  Scalar type;  // of scales and biases
  int rows, cols, bits, group;
};

struct DenseMatrix {
  const void* values;  // [rows, cols], contiguous
  Scalar type;
  int rows, cols;
};

// How the rows of several matrices become the outputs of one.
enum class Arrangement : uint8_t {
  Stacked,      // one after the other
  Interleaved,  // two of the same shape, tile by tile: tile 2t from the first, tile 2t + 1 from the second
};

// Memory for weights, on huge pages where the system has them: many tensors share one mapping.
class Arena {
 public:
  // 64-byte aligned and zero; kept as long as anybody holds it.
  std::shared_ptr<std::byte> allocate(size_t bytes);

 private:
  std::mutex mutex_;
  std::shared_ptr<std::byte> mapping_;
  size_t used_ = 0, size_ = 0;
};

// Weights in the order the kernels read them. For each tile, for each group of columns, one record: the values, then
// (quantised) sixteen scales and sixteen biases. The values of a record stand, for
//   Nibbles: 64 bytes per 8 columns; byte 4 n + c holds column c of output n in its low, column c + 4 in its high half
//   Bytes: 64 bytes per 4 columns; byte 4 n + c holds column c of output n
//   dense: sixteen outputs of a column side by side; a record is 32 columns, the last one filled up with zeros.
class PackedWeights {
 public:
  enum class Storage : uint8_t { Nibbles, Bytes, Float32, Float16, BFloat16 };

  PackedWeights() = default;
  // Takes memory and settles the layout; `fill` brings the values. Throws std::invalid_argument for matrices that
  // cannot be packed together. Bits may be 2, 3, 4, 5, 6 or 8 (and differ), group 32, 64 or 128.
  PackedWeights(std::span<const AffineMatrix> matrices, Arrangement arrangement, Arena& arena);
  PackedWeights(std::span<const DenseMatrix> matrices, Arrangement arrangement, Arena& arena);

  // Tiles [first, last) of the same matrices. Distinct ranges may be filled at the same time.
  void fill(std::span<const AffineMatrix> matrices, int first, int last);
  void fill(std::span<const DenseMatrix> matrices, int first, int last);

  template <class Matrix>
  static PackedWeights pack(std::span<const Matrix> matrices, Arrangement arrangement, Arena& arena) {
    PackedWeights packed(matrices, arrangement, arena);
    packed.fill(matrices, 0, packed.tiles());
    return packed;
  }

  // Output n as float32 (an embedding's row), `cols` values.
  void dequantise_row(int n, float* out) const;

  Storage storage() const { return storage_; }
  bool quantised() const { return storage_ == Storage::Nibbles || storage_ == Storage::Bytes; }
  Scalar scale_type() const { return scale_type_; }
  int rows() const { return rows_; }
  int cols() const { return cols_; }
  int group() const { return group_; }
  int groups() const { return groups_; }
  int tiles() const { return tiles_; }                   // outputs beyond the last row are 0
  size_t values_bytes() const { return values_bytes_; }  // in a record, before the scales
  size_t record_bytes() const { return record_bytes_; }
  size_t tile_bytes() const { return record_bytes_ * groups_; }
  size_t bytes() const { return tile_bytes() * tiles_; }
  const std::byte* tile(int t) const { return data_.get() + t * tile_bytes(); }
  // The form of x these weights take when `wanted` is asked for.
  Precision precision(Precision wanted) const { return quantised() ? wanted : Precision::Exact; }

 private:
  void allocate(Arena& arena);

  std::shared_ptr<std::byte> data_;
  Storage storage_ = Storage::Nibbles;
  Scalar scale_type_ = Scalar::Float16;
  Arrangement arrangement_ = Arrangement::Stacked;
  int rows_ = 0, cols_ = 0, group_ = 0, groups_ = 0, tiles_ = 0;
  size_t values_bytes_ = 0, record_bytes_ = 0;
};

// Rows of x as the kernels read them, in memory given by the caller. `block_rows` rows, as the kernels want it, form a
// block (or all, if there are no more than four); the last one may be larger than the rows that are left. A block is a series of groups, a group a series of chunks. A chunk is, per row, its planes of 32 bytes (high, low; or, where
// the instruction set makes them faster, 32 integers of 16 bits), then one float d per row; a group ends with one float
// per row, the sum of its values of x as they were rounded. Exact has no d and no sums: a chunk is 32 floats per row.
// So only the kernels that wrote a row can read it.
//
// For a mixture of experts, stack the experts' matrices, each a multiple of sixteen outputs, into one PackedWeights,
// and order the pairs (row, expert) by expert: `multiply` of an expert's tiles with its range of these rows gives each
// row the bits that it has by itself.
struct Activations {
  std::byte* data;
  int rows, cols, group;
  Precision precision;
  int block_rows;

  Activations(void* memory, int rows, int cols, int group, Precision precision, int block_rows)
      : data(static_cast<std::byte*>(memory)),
        rows(rows),
        cols(cols),
        group(exact_group(group, precision)),
        precision(precision),
        block_rows(block_rows) {}
  // For the products of `rows` rows with `weights`.
  Activations(void* memory, int rows, const PackedWeights& weights, Precision wanted, int block_rows)
      : Activations(memory, rows, weights.cols(), weights.group(), weights.precision(wanted), block_rows) {}

  size_t bytes() const { return blocks() * block_bytes(); }

  int planes() const { return precision == Precision::Default ? 2 : 1; }
  int interleaved() const { return rows <= few_rows ? rows : block_rows; }
  size_t blocks() const { return rows ? (rows + interleaved() - 1) / interleaved() : 0; }
  int groups() const { return (cols + group - 1) / group; }
  size_t row_chunk_bytes() const { return precision == Precision::Exact ? 4 * chunk_cols : planes() * chunk_cols; }
  size_t chunk_bytes() const {
    return interleaved() * (row_chunk_bytes() + (precision == Precision::Exact ? 0 : sizeof(float)));
  }
  size_t group_bytes() const {
    return group / chunk_cols * chunk_bytes() + (precision == Precision::Exact ? 0 : interleaved() * sizeof(float));
  }
  size_t block_bytes() const { return groups() * group_bytes(); }

 private:
  // Exact needs no groups, and takes any number of columns.
  static int exact_group(int group, Precision precision) { return precision == Precision::Exact ? chunk_cols : group; }
};

// The same as PackedWeights::pack, on all threads of a pool.
template <class Pool, class Matrix>
PackedWeights pack_on(Pool& pool, std::span<const Matrix> matrices, Arrangement arrangement, Arena& arena) {
  constexpr int kTilesAtOnce = 16;
  PackedWeights packed(matrices, arrangement, arena);
  pool.run([&](auto& worker) {
    worker.each((packed.tiles() + kTilesAtOnce - 1) / kTilesAtOnce, [&](int i) {
      packed.fill(matrices, i * kTilesAtOnce, std::min((i + 1) * kTilesAtOnce, packed.tiles()));
    });
  });
  return packed;
}

struct GemmKernels {
  int block_rows;  // of the activations they read
  // Columns [first_col, first_col + cols) of a row; `x` points to the first of them. first_col is a multiple of the
  // group, and so is cols unless it reaches the end. Distinct columns and rows may be written at the same time.
  void (*quantise)(const float* x, const Activations& to, int row, int first_col, int cols);
  // out[(m - first_row) * stride + 16 t + n] = row m times output n of tile (tile + t), for rows [first_row, last_row).
  void (*multiply)(const PackedWeights& weights, int tile, int tiles, const Activations& x, int first_row, int last_row,
                   float* out, size_t stride);
};

// The piece of a product that is computed at one time.
struct Split {
  int tiles, rows;
};
// Pieces for `threads` threads; the tiles of a piece are a multiple of `tile_multiple` (or reach the end).
Split split_gemm(const PackedWeights& weights, const Activations& x, int threads, int tile_multiple = 1);

// A finished piece, handed to the epilogue: out[(m - first_row) * stride + 16 t + n], which it may overwrite.
struct GemmPiece {
  int first_row, last_row, first_tile, tiles;
  float* out;
  size_t stride;
};

// One phase of a region: all rows of x times all tiles. `epilogue(piece)` runs once for each piece on the thread that
// computed it; it must not ask for the worker's scratch. No barrier.
template <class Worker, class Epilogue>
void gemm(Worker& worker, const GemmKernels& kernels, const PackedWeights& weights, const Activations& x, Split split,
          Epilogue&& epilogue) {
  const int across = (weights.tiles() + split.tiles - 1) / split.tiles;
  const int down = (x.rows + split.rows - 1) / split.rows;
  worker.each(across * down, [&](int unit) {
    GemmPiece piece;
    piece.first_row = unit / across * split.rows;
    piece.last_row = std::min(piece.first_row + split.rows, x.rows);
    piece.first_tile = unit % across * split.tiles;
    piece.tiles = std::min(split.tiles, weights.tiles() - piece.first_tile);
    piece.stride = static_cast<size_t>(piece.tiles) * tile_outputs;
    piece.out = static_cast<float*>(worker.scratch((piece.last_row - piece.first_row) * piece.stride * sizeof(float)));
    kernels.multiply(weights, piece.first_tile, piece.tiles, x, piece.first_row, piece.last_row, piece.out,
                     piece.stride);
    epilogue(static_cast<const GemmPiece&>(piece));
  });
}

}  // namespace mlxcel
