// The keys and values of all sequences, in blocks of 64 positions.
//
// A block holds 64 positions of one sequence in all layers and for all KV heads; the blocks of a sequence may lie
// anywhere. For each layer and head it has a tile: the keys, then the values, as bfloat16 in pairs:
//   keys    [head_dim / 2][64 positions][2]   two dimensions of one position side by side
//   values  [32][head_dim][2]                 one dimension of two positions side by side
// so that a row of pairs times a pair of queries (or of probabilities) adds to one output per pair.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace mlxcel {

constexpr int kv_block = 64;            // positions in a block
constexpr int max_head_dim = 256;
constexpr int32_t no_kv_block = -1;     // "no memory", and a place in a block table that holds nothing

// What one layer keeps for a position.
struct KvShape {
  int kv_heads, head_dim;
  size_t head_elements() const { return static_cast<size_t>(2) * kv_block * head_dim; }  // of a tile
  size_t elements() const { return kv_heads * head_elements(); }
};

// Where the tiles of one layer are: plain data, for kernels. Valid as long as the pool.
struct KvLayer {
  uint16_t* const* slabs;
  int slab_shift;         // a slab has 2^slab_shift blocks
  size_t block_elements;  // of all layers
  size_t layer_offset;    // in a block
  size_t head_elements;
};

// The tile of a block and KV head. Internal linkage: kernels are compiled for several instruction sets.
static inline uint16_t* kv_tile(const KvLayer& layer, int32_t block, int kv_head) {
  const int32_t in_slab = block & ((1 << layer.slab_shift) - 1);
  return layer.slabs[block >> layer.slab_shift] + in_slab * layer.block_elements + layer.layer_offset +
         kv_head * layer.head_elements;
}

// Blocks within a budget of bytes. Memory comes in slabs that never move and go back to the system once they are
// empty. A block may belong to several owners (sequences with the same beginning): it is free when the last one lets
// go, and must be made one's own before it is written. The contents of a new block are arbitrary.
//
// Not thread-safe; not while kernels run.
class KvPool {
 public:
  // Takes no memory yet. Throws std::invalid_argument for shapes the kernels cannot handle.
  KvPool(std::span<const KvShape> layers, size_t budget_bytes);
  ~KvPool();
  KvPool(const KvPool&) = delete;
  KvPool& operator=(const KvPool&) = delete;

  // A block with one owner, or no_kv_block: the budget or the memory is used up.
  int32_t allocate();
  // One for each place of `blocks`, or none at all and false.
  bool allocate(std::span<int32_t> blocks);
  // One more owner, one owner less.
  void share(int32_t block);
  void release(int32_t block);
  // This owner's block with the same contents that nobody else has: the block itself, or a copy in its place. No
  // memory for a copy: no_kv_block, and all stays as it was.
  int32_t make_writable(int32_t block);

  int owners(int32_t block) const { return owners_[block]; }
  int capacity() const { return capacity_; }  // blocks within the budget
  int used() const { return used_; }
  size_t block_bytes() const { return block_elements_ * sizeof(uint16_t); }
  size_t reserved_bytes() const;  // taken from the system

  int layers() const { return static_cast<int>(shapes_.size()); }
  const KvShape& shape(int layer) const { return shapes_[layer]; }
  KvLayer layer(int index) const;

 private:
  size_t slab_bytes(size_t slab) const;
  bool add_slab(size_t slab);
  void drop_empty_slabs();

  std::vector<KvShape> shapes_;
  std::vector<size_t> layer_offsets_;
  size_t block_elements_ = 0;
  int slab_shift_ = 0, capacity_ = 0, used_ = 0;
  std::vector<uint16_t*> slabs_;   // nullptr: not taken; one entry for each slab the budget allows
  std::vector<int> slab_used_;
  std::vector<int32_t> owners_;    // of each block
};

}  // namespace mlxcel
