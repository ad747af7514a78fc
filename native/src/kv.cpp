#include "kv.h"

#include <sys/mman.h>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace mlxcel {

namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kSlabBytes = size_t{16} << 20;  // about; at least one block

// Pages of zeros that start at a huge page's boundary; nullptr if the system has none.
void* map_pages(size_t bytes) {
  const size_t larger = bytes + kHugePage;
  void* mapped = mmap(nullptr, larger, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  char* start = static_cast<char*>(mapped);
  const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(start) % kHugePage) % kHugePage;
  if (before) munmap(start, before);
  if (before < kHugePage) munmap(start + before + bytes, kHugePage - before);
#if defined(MADV_HUGEPAGE)
  madvise(start + before, bytes, MADV_HUGEPAGE);
#endif
  return start + before;
}

size_t round_up(size_t value, size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace

KvPool::KvPool(std::span<const KvShape> layers, size_t budget_bytes) : shapes_(layers.begin(), layers.end()) {
  for (const KvShape& shape : shapes_) {
    if (shape.kv_heads < 1 || shape.head_dim < 16 || shape.head_dim > max_head_dim || shape.head_dim % 16) {
      throw std::invalid_argument("a KV cache needs at least one head, of 16 to 256 elements, a multiple of 16");
    }
    layer_offsets_.push_back(block_elements_);
    block_elements_ += shape.elements();
  }
  if (shapes_.empty()) throw std::invalid_argument("a KV cache needs at least one layer");
  while ((block_bytes() << (slab_shift_ + 1)) <= kSlabBytes) slab_shift_++;
  const size_t most = size_t{std::numeric_limits<int32_t>::max()} >> slab_shift_ << slab_shift_;
  capacity_ = static_cast<int>(std::min(budget_bytes / block_bytes(), most));
  const size_t slabs = round_up(capacity_, size_t{1} << slab_shift_) >> slab_shift_;
  slabs_.resize(slabs);
  slab_used_.resize(slabs);
  owners_.resize(capacity_);
}

KvPool::~KvPool() {
  for (size_t slab = 0; slab < slabs_.size(); slab++) {
    if (slabs_[slab] != nullptr) munmap(slabs_[slab], slab_bytes(slab));
  }
}

// The last slab ends with the budget.
size_t KvPool::slab_bytes(size_t slab) const {
  const size_t first = slab << slab_shift_;
  const size_t blocks = std::min(capacity_ - first, size_t{1} << slab_shift_);
  return round_up(blocks * block_bytes(), size_t{1} << 16);
}

bool KvPool::add_slab(size_t slab) {
  slabs_[slab] = static_cast<uint16_t*>(map_pages(slab_bytes(slab)));
  return slabs_[slab] != nullptr;
}

// Blocks come from the first slab with room, so that the last ones become empty.
int32_t KvPool::allocate() {
  for (size_t slab = 0; slab < slabs_.size(); slab++) {
    const int first = static_cast<int>(slab << slab_shift_);
    const int end = std::min(first + (1 << slab_shift_), capacity_);
    if (slab_used_[slab] == end - first) continue;
    if (slabs_[slab] == nullptr && !add_slab(slab)) return no_kv_block;
    int block = first;
    while (owners_[block] != 0) block++;
    owners_[block] = 1;
    slab_used_[slab]++;
    used_++;
    return block;
  }
  return no_kv_block;
}

bool KvPool::allocate(std::span<int32_t> blocks) {
  if (blocks.size() > static_cast<size_t>(capacity_ - used_)) return false;
  for (size_t i = 0; i < blocks.size(); i++) {
    blocks[i] = allocate();
    if (blocks[i] != no_kv_block) continue;
    for (size_t taken = 0; taken < i; taken++) release(blocks[taken]);
    return false;
  }
  return true;
}

void KvPool::share(int32_t block) {
  assert(owners_[block] > 0);
  owners_[block]++;
}

void KvPool::release(int32_t block) {
  assert(owners_[block] > 0);
  if (--owners_[block] != 0) return;
  used_--;
  if (--slab_used_[block >> slab_shift_] == 0) drop_empty_slabs();
}

// One empty slab stays: a sequence that comes and goes should not cost a page fault each time.
void KvPool::drop_empty_slabs() {
  bool spare = false;
  for (size_t slab = 0; slab < slabs_.size(); slab++) {
    if (slabs_[slab] == nullptr || slab_used_[slab] != 0) continue;
    if (spare) {
      munmap(slabs_[slab], slab_bytes(slab));
      slabs_[slab] = nullptr;
    }
    spare = true;
  }
}

int32_t KvPool::make_writable(int32_t block) {
  if (owners_[block] == 1) return block;
  const int32_t copy = allocate();
  if (copy == no_kv_block) return no_kv_block;
  const KvLayer first = layer(0);
  std::memcpy(kv_tile(first, copy, 0), kv_tile(first, block, 0), block_bytes());
  release(block);
  return copy;
}

size_t KvPool::reserved_bytes() const {
  size_t bytes = 0;
  for (size_t slab = 0; slab < slabs_.size(); slab++) {
    if (slabs_[slab] != nullptr) bytes += slab_bytes(slab);
  }
  return bytes;
}

KvLayer KvPool::layer(int index) const {
  return {slabs_.data(), slab_shift_, block_elements_, layer_offsets_[index], shapes_[index].head_elements()};
}

}  // namespace mlxcel
