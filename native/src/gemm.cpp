// Packing of weights, and how a product is cut into pieces. See gemm.h.
#include "gemm.h"

#include <sys/mman.h>

#include <bit>
#include <cstring>
#include <new>
#include <stdexcept>

namespace mlxcel {
namespace {

constexpr size_t huge_page = size_t{2} << 20;
constexpr size_t least_mapping = size_t{32} << 20;

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

float bfloat16_to_float(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

float half_to_float(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16, exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
  if (exponent == 0) return (sign ? -1.0f : 1.0f) * static_cast<float>(fraction) * 0x1p-24f;
  const uint32_t wide = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign | wide << 23 | fraction << 13);
}

// Towards zero: right for values that float16 holds, which is all it is used for.
uint16_t float_to_half(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);
  if (magnitude >= 0x47800000) return static_cast<uint16_t>(sign | 0x7c00);
  if (magnitude < 0x38800000)
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p24f));
  return static_cast<uint16_t>(sign | ((magnitude >> 13) - (112 << 10)));
}

float read(const void* values, Scalar type, size_t i) {
  if (type == Scalar::Float32) return static_cast<const float*>(values)[i];
  const uint16_t bits = static_cast<const uint16_t*>(values)[i];
  return type == Scalar::Float16 ? half_to_float(bits) : bfloat16_to_float(bits);
}

void write(void* to, Scalar type, size_t i, float x) {
  if (type == Scalar::Float32) static_cast<float*>(to)[i] = x;
  else if (type == Scalar::Float16) static_cast<uint16_t*>(to)[i] = float_to_half(x);
  else static_cast<uint16_t*>(to)[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16);
}

bool holds(Scalar type, float x) {
  if (x != x) return true;
  uint32_t stored = 0;
  write(&stored, type, 0, x);
  return read(&stored, type, 0) == x;
}

bool holds_all(Scalar type, std::span<const AffineMatrix> matrices) {
  for (const AffineMatrix& m : matrices) {
    if (m.type == type) continue;
    const size_t n = static_cast<size_t>(m.rows) * (m.cols / m.group);
    for (size_t i = 0; i < n; i++)
      if (!holds(type, read(m.scales, m.type, i)) || !holds(type, read(m.biases, m.type, i))) return false;
  }
  return true;
}

// Thirty-two values of `bits` each, from exactly `bits` words.
template <int bits>
void unpack(const uint32_t* words, uint8_t* values) {
  for (int i = 0; i < chunk_cols; i++) {
    const int word = i * bits / 32, shift = i * bits % 32;
    uint64_t window = words[word];
    if (shift + bits > 32) window |= uint64_t{words[word + 1]} << 32;
    values[i] = static_cast<uint8_t>(window >> shift & ((1u << bits) - 1));
  }
}

void unpack(int bits, const uint32_t* words, uint8_t* values) {
  switch (bits) {
    case 2: return unpack<2>(words, values);
    case 3: return unpack<3>(words, values);
    case 4: return unpack<4>(words, values);
    case 5: return unpack<5>(words, values);
    case 6: return unpack<6>(words, values);
    case 8: return unpack<8>(words, values);
  }
}

// Thirty-two values of one output, into its lane of a record; `values` is where the chunk starts.
void put_chunk(PackedWeights::Storage storage, const uint8_t* q, std::byte* values, int lane) {
  if (storage == PackedWeights::Storage::Bytes) {
    for (int j = 0; j < chunk_cols / 4; j++) std::memcpy(values + 64 * j + 4 * lane, q + 4 * j, 4);
    return;
  }
  for (int j = 0; j < chunk_cols / 8; j++) {
    uint32_t low, high;
    std::memcpy(&low, q + 8 * j, 4);
    std::memcpy(&high, q + 8 * j + 4, 4);
    low |= high << 4;
    std::memcpy(values + 64 * j + 4 * lane, &low, 4);
  }
}

Scalar scalar_of(PackedWeights::Storage storage) {
  if (storage == PackedWeights::Storage::Float32) return Scalar::Float32;
  return storage == PackedWeights::Storage::Float16 ? Scalar::Float16 : Scalar::BFloat16;
}

template <class Matrix>
struct Place {
  const Matrix* matrix;  // null where the tile is padded
  int row;
};

template <class Matrix>
Place<Matrix> place(std::span<const Matrix> matrices, Arrangement arrangement, int tile, int lane) {
  if (arrangement == Arrangement::Interleaved) {
    const Matrix& m = matrices[tile % 2];
    const int row = tile / 2 * tile_outputs + lane;
    return {row < m.rows ? &m : nullptr, row};
  }
  int row = tile * tile_outputs + lane;
  for (const Matrix& m : matrices) {
    if (row < m.rows) return {&m, row};
    row -= m.rows;
  }
  return {nullptr, 0};
}

template <class Matrix>
int count_tiles(std::span<const Matrix> matrices, Arrangement arrangement) {
  auto tiles_of = [](int rows) { return (rows + tile_outputs - 1) / tile_outputs; };
  for (const Matrix& m : matrices)
    if (m.rows < 0 || m.cols != matrices[0].cols)
      throw std::invalid_argument("matrices with different columns cannot be packed together");
  if (arrangement == Arrangement::Interleaved) {
    if (matrices.size() != 2 || matrices[0].rows != matrices[1].rows)
      throw std::invalid_argument("two matrices of one shape can be interleaved");
    return 2 * tiles_of(matrices[0].rows);
  }
  int rows = 0;
  for (const Matrix& m : matrices) rows += m.rows;
  return tiles_of(rows);
}

template <class Matrix>
int count_rows(std::span<const Matrix> matrices) {
  int rows = 0;
  for (const Matrix& m : matrices) rows += m.rows;
  return rows;
}

}  // namespace

std::shared_ptr<std::byte> Arena::allocate(size_t bytes) {
  std::lock_guard lock(mutex_);
  bytes = round_up(bytes, 64);
  if (!mapping_ || used_ + bytes > size_) {
    // The system gives memory when it is touched, so an unused end costs nothing.
    const size_t size = round_up(std::max(bytes, least_mapping), huge_page), mapped = size + huge_page;
    void* start = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) throw std::bad_alloc();
    auto* aligned = reinterpret_cast<std::byte*>(round_up(reinterpret_cast<uintptr_t>(start), huge_page));
#ifdef MADV_HUGEPAGE
    madvise(aligned, size, MADV_HUGEPAGE);
#endif
    mapping_ = std::shared_ptr<std::byte>(aligned, [start, mapped](std::byte*) { munmap(start, mapped); });
    used_ = 0;
    size_ = size;
  }
  std::shared_ptr<std::byte> piece(mapping_, mapping_.get() + used_);
  used_ += bytes;
  return piece;
}

PackedWeights::PackedWeights(std::span<const AffineMatrix> matrices, Arrangement arrangement, Arena& arena)
    : arrangement_(arrangement) {
  if (matrices.empty()) throw std::invalid_argument("nothing to pack");
  int bits = 0;
  for (const AffineMatrix& m : matrices) {
    if (m.bits < 2 || m.bits > 8 || m.bits == 7) throw std::invalid_argument("bits must be 2, 3, 4, 5, 6 or 8");
    if (m.group != 32 && m.group != 64 && m.group != 128) throw std::invalid_argument("group must be 32, 64 or 128");
    if (m.group != matrices[0].group)
      throw std::invalid_argument("matrices with different groups cannot be packed together");
    if (m.cols % m.group) throw std::invalid_argument("columns must be a multiple of the group");
    bits = std::max(bits, m.bits);
  }
  tiles_ = count_tiles(matrices, arrangement);
  rows_ = count_rows(matrices);
  cols_ = matrices[0].cols;
  group_ = matrices[0].group;
  groups_ = cols_ / group_;
  storage_ = bits <= 4 ? Storage::Nibbles : Storage::Bytes;
  scale_type_ = holds_all(Scalar::Float16, matrices)    ? Scalar::Float16
                : holds_all(Scalar::BFloat16, matrices) ? Scalar::BFloat16
                                                        : Scalar::Float32;
  values_bytes_ = static_cast<size_t>(group_) * tile_outputs / (storage_ == Storage::Nibbles ? 2 : 1);
  record_bytes_ = values_bytes_ + 2 * tile_outputs * size_of(scale_type_);
  data_ = arena.allocate(bytes());
}

PackedWeights::PackedWeights(std::span<const DenseMatrix> matrices, Arrangement arrangement, Arena& arena)
    : arrangement_(arrangement) {
  if (matrices.empty()) throw std::invalid_argument("nothing to pack");
  Scalar type = matrices[0].type;
  for (const DenseMatrix& m : matrices)
    if (m.type != type) type = Scalar::Float32;
  tiles_ = count_tiles(matrices, arrangement);
  rows_ = count_rows(matrices);
  cols_ = matrices[0].cols;
  group_ = chunk_cols;
  groups_ = (cols_ + group_ - 1) / group_;
  storage_ = type == Scalar::Float32   ? Storage::Float32
             : type == Scalar::Float16 ? Storage::Float16
                                       : Storage::BFloat16;
  values_bytes_ = record_bytes_ = static_cast<size_t>(group_) * tile_outputs * size_of(type);
  data_ = arena.allocate(bytes());
}

void PackedWeights::fill(std::span<const AffineMatrix> matrices, int first, int last) {
  const size_t chunk_bytes = values_bytes_ / (group_ / chunk_cols);
  uint8_t q[chunk_cols];
  for (int t = first; t < last; t++) {
    for (int lane = 0; lane < tile_outputs; lane++) {
      const auto [m, row] = place(matrices, arrangement_, t, lane);
      if (!m) continue;
      const uint32_t* words = m->words + static_cast<size_t>(row) * (cols_ / chunk_cols) * m->bits;
      std::byte* record = data_.get() + t * tile_bytes();
      for (int g = 0; g < groups_; g++, record += record_bytes_) {
        for (int c = 0; c < group_ / chunk_cols; c++, words += m->bits) {
          unpack(m->bits, words, q);
          put_chunk(storage_, q, record + c * chunk_bytes, lane);
        }
        const size_t i = static_cast<size_t>(row) * groups_ + g;
        write(record + values_bytes_, scale_type_, lane, read(m->scales, m->type, i));
        write(record + values_bytes_, scale_type_, tile_outputs + lane, read(m->biases, m->type, i));
      }
    }
  }
}

void PackedWeights::fill(std::span<const DenseMatrix> matrices, int first, int last) {
  const Scalar type = scalar_of(storage_);
  for (int t = first; t < last; t++) {
    std::byte* to = data_.get() + t * tile_bytes();
    for (int lane = 0; lane < tile_outputs; lane++) {
      const auto [m, row] = place(matrices, arrangement_, t, lane);
      if (!m) continue;
      const size_t start = static_cast<size_t>(row) * cols_, size = size_of(type);
      const auto* from = static_cast<const std::byte*>(m->values) + start * size_of(m->type);
      for (int k = 0; k < cols_; k++) {
        if (m->type == type) std::memcpy(to + (k * tile_outputs + lane) * size, from + k * size, size);
        else write(to, type, static_cast<size_t>(k) * tile_outputs + lane, read(from, m->type, k));
      }
    }
  }
}

void PackedWeights::dequantise_row(int n, float* out) const {
  const std::byte* record = tile(n / tile_outputs);
  const int lane = n % tile_outputs;
  if (!quantised()) {
    for (int k = 0; k < cols_; k++)
      out[k] = read(record, scalar_of(storage_), static_cast<size_t>(k) * tile_outputs + lane);
    return;
  }
  for (int g = 0; g < groups_; g++, record += record_bytes_, out += group_) {
    const float scale = read(record + values_bytes_, scale_type_, lane);
    const float bias = read(record + values_bytes_, scale_type_, tile_outputs + lane);
    const auto* values = reinterpret_cast<const uint8_t*>(record) + 4 * lane;
    for (int k = 0; k < group_; k++) {
      const int q =
          storage_ == Storage::Bytes ? values[k / 4 * 64 + k % 4] : values[k / 8 * 64 + k % 4] >> (k & 4) & 15;
      out[k] = scale * static_cast<float>(q) + bias;
    }
  }
}

Split split_gemm(const PackedWeights& weights, const Activations& x, int threads, int tile_multiple) {
  // A matrix unit needs many rows to make up for unpacking, and comes with more cache.
  const bool unit = x.block_rows > few_rows;
  // Rows: their activations should stay in a core's own cache while tiles stream by; the tallest kernel takes twelve,
  // or a larger block.
  const int tallest = unit ? x.block_rows : 12;
  const size_t cache = unit ? 1 << 20 : 256 << 10;
  // Of floats, which always take panels, it is 256 columns at a time that stay.
  size_t row_bytes = std::max<size_t>(1, x.block_bytes() / std::max(1, x.interleaved()));
  if (x.precision == Precision::Exact) row_bytes = std::min<size_t>(row_bytes, 256 * sizeof(float));
  const int most = static_cast<int>(std::clamp<size_t>(cache / row_bytes, tallest, unit ? 512 : 96));
  const int down = std::max(1, (x.rows + most - 1) / most);
  const int rows = static_cast<int>(round_up(std::max(1, (x.rows + down - 1) / down), tallest));
  // Tiles: some pieces for each thread, so that one that comes late leaves little to wait for.
  const int wanted = weights.tiles() * down / (threads * 8);
  const int tiles = std::clamp(wanted, 1, x.rows < tallest ? 32 : 8);
  return {static_cast<int>(round_up(tiles, std::max(1, tile_multiple))), rows};
}

}  // namespace mlxcel
