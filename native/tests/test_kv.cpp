#include <cstring>
#include <random>
#include <set>
#include <stdexcept>
#include <vector>

#include "../src/kv.h"
#include "check.h"

using namespace mlxcel;

namespace {

const std::vector<KvShape> kTwoLayers{{3, 64}, {1, 128}};
constexpr size_t kTwoLayersBytes = 2 * 2 * 64 * (3 * 64 + 128);

// Something else in each tile of a block.
void fill(const KvPool& pool, int32_t block, int value) {
  for (int layer = 0; layer < 2; layer++) {
    for (int head = 0; head < pool.shape(layer).kv_heads; head++) {
      uint16_t* tile = kv_tile(pool.layer(layer), block, head);
      for (size_t i = 0; i < pool.shape(layer).head_elements(); i++) {
        tile[i] = static_cast<uint16_t>(value + 10 * layer + head + i);
      }
    }
  }
}

bool filled_with(const KvPool& pool, int32_t block, int value) {
  bool same = true;
  for (int layer = 0; layer < 2; layer++) {
    for (int head = 0; head < pool.shape(layer).kv_heads; head++) {
      const uint16_t* tile = kv_tile(pool.layer(layer), block, head);
      for (size_t i = 0; i < pool.shape(layer).head_elements(); i++) {
        same &= tile[i] == static_cast<uint16_t>(value + 10 * layer + head + i);
      }
    }
  }
  return same;
}

}  // namespace

TEST(kv_blocks_do_not_overlap) {
  KvPool pool(kTwoLayers, 300 * kTwoLayersBytes);
  CHECK(pool.block_bytes() == kTwoLayersBytes);
  CHECK(pool.capacity() == 300);
  CHECK(pool.reserved_bytes() == 0);
  std::vector<int32_t> blocks(300);
  CHECK(pool.allocate(blocks));
  CHECK(std::set<int32_t>(blocks.begin(), blocks.end()).size() == 300);
  for (int32_t block : blocks) {
    CHECK(reinterpret_cast<uintptr_t>(kv_tile(pool.layer(0), block, 0)) % 64 == 0);
    fill(pool, block, 7 * block);
  }
  for (int32_t block : blocks) CHECK(filled_with(pool, block, 7 * block));
}

TEST(kv_budget) {
  KvPool pool(kTwoLayers, 5 * kTwoLayersBytes - 1);
  CHECK(pool.capacity() == 4);
  std::vector<int32_t> blocks(3), more(2);
  CHECK(pool.allocate(blocks));
  CHECK(!pool.allocate(more));  // all or none
  CHECK(pool.used() == 3);
  const int32_t last = pool.allocate();
  CHECK(last != no_kv_block);
  CHECK(pool.allocate() == no_kv_block);
  CHECK(pool.used() == 4);
  pool.release(blocks[1]);
  CHECK(pool.allocate() == blocks[1]);
  for (int32_t block : blocks) pool.release(block);
  pool.release(last);
  CHECK(pool.used() == 0);
  KvPool none(kTwoLayers, 1);
  CHECK(none.capacity() == 0 && none.allocate() == no_kv_block);
}

TEST(kv_memory_goes_back) {
  KvPool pool(kTwoLayers, size_t{1} << 30);
  std::vector<int32_t> blocks((size_t{200} << 20) / kTwoLayersBytes);
  CHECK(pool.allocate(blocks));
  const size_t full = pool.reserved_bytes();
  CHECK(full >= blocks.size() * kTwoLayersBytes && full < blocks.size() * kTwoLayersBytes + (size_t{32} << 20));
  uint16_t* first = kv_tile(pool.layer(0), blocks[0], 0);
  for (size_t i = 1; i < blocks.size(); i++) pool.release(blocks[i]);
  CHECK(pool.reserved_bytes() <= full / 4);
  CHECK(kv_tile(pool.layer(0), blocks[0], 0) == first);
  pool.release(blocks[0]);
  CHECK(pool.reserved_bytes() <= size_t{16} << 20);  // one slab is kept
  CHECK(pool.allocate(blocks));                      // and all of it can be had again
  fill(pool, blocks.back(), 3);
  CHECK(filled_with(pool, blocks.back(), 3));
}

TEST(kv_owners_and_copies) {
  KvPool pool(kTwoLayers, 3 * kTwoLayersBytes);
  const int32_t block = pool.allocate();
  fill(pool, block, 5);
  CHECK(pool.make_writable(block) == block);
  pool.share(block);
  CHECK(pool.owners(block) == 2 && pool.used() == 1);
  const int32_t copy = pool.make_writable(block);
  CHECK(copy != block && pool.owners(block) == 1 && pool.owners(copy) == 1);
  CHECK(filled_with(pool, copy, 5));
  fill(pool, copy, 100);
  CHECK(filled_with(pool, block, 5));
  // No memory for a copy: nothing changes.
  CHECK(pool.allocate() != no_kv_block);
  pool.share(block);
  CHECK(pool.make_writable(block) == no_kv_block);
  CHECK(pool.owners(block) == 2 && pool.used() == 3);
  pool.release(block);
  CHECK(pool.owners(block) == 1 && filled_with(pool, block, 5));
}

TEST(kv_random_use) {
  KvPool pool(kTwoLayers, 700 * kTwoLayersBytes);
  std::mt19937 random(1);
  std::vector<int32_t> held;  // one entry an owner
  for (int step = 0; step < 20000; step++) {
    const int action = static_cast<int>(random() % 8);
    if (action < 4) {
      const int32_t block = pool.allocate();
      if (block != no_kv_block) held.push_back(block);
    } else if (!held.empty()) {
      const size_t i = random() % held.size();
      const int32_t block = held[i];
      if (action == 4) {
        pool.share(block);
        held.push_back(block);
      } else if (action == 5) {
        const int32_t own = pool.make_writable(block);
        if (own != no_kv_block) held[i] = own;
      } else {
        pool.release(block);
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
    CHECK(pool.used() == static_cast<int>(std::set<int32_t>(held.begin(), held.end()).size()));
    if (step % 500 == 0 && step > 2000) {  // come to an end now and then
      for (int32_t block : held) pool.release(block);
      held.clear();
      CHECK(pool.used() == 0);
    }
  }
}

TEST(kv_refuses_shapes) {
  for (const std::vector<KvShape>& shapes : {std::vector<KvShape>{}, {{1, 40}}, {{0, 64}}, {{2, 64}, {2, 8}}, {{1, 272}}}) {
    bool refused = false;
    try {
      KvPool pool(shapes, 1 << 20);
    } catch (const std::invalid_argument&) {
      refused = true;
    }
    CHECK(refused);
  }
}
