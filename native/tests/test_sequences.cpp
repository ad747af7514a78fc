// Sequences that share blocks: whatever one of them writes, the others keep what they had.
#include "../src/sequences.h"

#include <algorithm>
#include <map>
#include <new>
#include <random>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "check.h"

using namespace mlxcel;

namespace {

const std::vector<KvShape> kShape{{1, 16}};
constexpr size_t kBlockBytes = 2 * 2 * 64 * 16;

// A cache in which every token is a number, written where its key would begin.
class Numbers {
 public:
  explicit Numbers(int blocks) : pool(kShape, blocks * kBlockBytes), sequences(pool) {}

  void append(int sequence, const std::vector<int>& tokens) {
    const Sequences::Piece piece{sequence, static_cast<int>(tokens.size())};
    const int before = pool.used(), missing = sequences.missing_blocks(piece);
    sequences.reserve({&piece, 1});
    CHECK(pool.used() - before == missing);
    const Segment segment = sequences.segments({&piece, 1})[0];
    for (size_t i = 0; i < tokens.size(); i++) *cell(segment.blocks, segment.position + static_cast<int>(i)) = tokens[i];
    sequences.advance({&piece, 1});
  }

  std::vector<int> tokens(int sequence) {
    const auto blocks = sequences.blocks(sequence);
    std::vector<int> found;
    for (int i = 0; i < sequences.length(sequence); i++) found.push_back(*cell(blocks.data(), i));
    return found;
  }

  KvPool pool;
  Sequences sequences;

 private:
  uint16_t* cell(const int32_t* blocks, int position) {
    return kv_tile(pool.layer(0), blocks[position / kv_block], 0) + position % kv_block;
  }
};

std::vector<int> counting(int first, int count) {
  std::vector<int> numbers(count);
  for (int i = 0; i < count; i++) numbers[i] = first + i;
  return numbers;
}

std::vector<int> joined(std::vector<int> a, const std::vector<int>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

TEST(sequences_fork_and_write) {
  Numbers numbers(8);
  const int first = numbers.sequences.open();
  numbers.append(first, counting(0, 100));
  const int second = numbers.sequences.fork(first, 90);
  CHECK(numbers.pool.used() == 2);
  CHECK(numbers.sequences.exclusive_blocks(first) == 0);
  numbers.append(second, counting(1000, 5));  // copies the block it goes on in
  CHECK(numbers.pool.used() == 3);
  numbers.append(first, counting(100, 1));  // that block is its own again
  CHECK(numbers.pool.used() == 3);
  CHECK(numbers.tokens(first) == counting(0, 101));
  CHECK(numbers.tokens(second) == joined(counting(0, 90), counting(1000, 5)));
  const int third = numbers.sequences.fork(first, 64), empty = numbers.sequences.fork(first, 0);
  numbers.append(third, counting(2000, 64));
  CHECK(numbers.pool.used() == 4);
  numbers.sequences.close(first);
  CHECK(numbers.pool.used() == 3);
  CHECK(numbers.tokens(third) == joined(counting(0, 64), counting(2000, 64)));
  CHECK(numbers.sequences.exclusive_blocks(third) == 1);
  numbers.sequences.close(second);
  CHECK(numbers.sequences.exclusive_blocks(third) == 2);
  numbers.sequences.close(third);
  numbers.sequences.close(empty);
  CHECK(numbers.pool.used() == 0);
}

TEST(sequences_forget) {
  Numbers numbers(8);
  const int first = numbers.sequences.open();
  numbers.append(first, counting(0, 200));
  const int second = numbers.sequences.fork(first, 150);
  numbers.sequences.forget(second, 64, 64);
  CHECK(numbers.tokens(second) == joined(counting(0, 64), counting(128, 22)));
  CHECK(numbers.sequences.length(second) == 86 && numbers.sequences.position(second) == 150);
  CHECK(numbers.tokens(first) == counting(0, 200));
  numbers.append(second, counting(1000, 50));
  CHECK(numbers.sequences.position(second) == 200);
  CHECK(numbers.tokens(first) == counting(0, 200));
  const Sequences::Piece piece{second, 1};
  numbers.sequences.reserve({&piece, 1});
  const Segment segment = numbers.sequences.segments({&piece, 1})[0];
  CHECK(segment.position == 136 && segment.forgotten == 64);
  numbers.sequences.close(first);
  CHECK(numbers.pool.used() == 3);
  numbers.sequences.close(second);
  CHECK(numbers.pool.used() == 0);
  CHECK(numbers.sequences.position(numbers.sequences.open()) == 0);
}

TEST(sequences_forget_refuses_what_is_not_there) {
  Numbers numbers(8);
  const int sequence = numbers.sequences.open();
  numbers.append(sequence, counting(0, 200));
  const std::pair<int, int> wrong[] = {{-64, 64}, {64, -64}, {64, 192}, {32, 64}, {64, 32}, {256, 0}};
  for (const auto& [first, count] : wrong) {
    bool refused = false;
    try {
      numbers.sequences.forget(sequence, first, count);
    } catch (const std::invalid_argument&) {
      refused = true;
    }
    CHECK(refused);
  }
  CHECK(numbers.tokens(sequence) == counting(0, 200));
}

TEST(sequences_fork_refuses_what_is_not_there) {
  Numbers numbers(3);
  const int sequence = numbers.sequences.open();
  numbers.append(sequence, {1, 2, 3});
  for (const int length : {-1, 4}) {
    bool refused = false;
    try {
      numbers.sequences.fork(sequence, length);
    } catch (const std::invalid_argument&) {
      refused = true;
    }
    CHECK(refused);
  }
  numbers.append(sequence, counting(3, 125));
  numbers.sequences.forget(sequence, 0, 64);
  bool refused = false;
  try {
    numbers.sequences.fork(sequence, 1);  // its first token is another one
  } catch (const std::invalid_argument&) {
    refused = true;
  }
  CHECK(refused);
}

// Random forks, appends and ends, within a budget that is often used up.
TEST(sequences_random_use) {
  Numbers numbers(40);
  std::mt19937 random(3);
  std::map<int, std::vector<int>> expected;
  int next = 0, refusals = 0;
  for (int step = 0; step < 6000; step++) {
    const int action = static_cast<int>(random() % 6);
    if (action == 0 || expected.empty()) {
      expected[numbers.sequences.open()] = {};
    } else {
      auto chosen = std::next(expected.begin(), static_cast<std::ptrdiff_t>(random() % expected.size()));
      if (action == 1) {
        const int length = static_cast<int>(random() % (chosen->second.size() + 1));
        expected[numbers.sequences.fork(chosen->first, length)] = {chosen->second.begin(), chosen->second.begin() + length};
      } else if (action == 2) {
        numbers.sequences.close(chosen->first);
        expected.erase(chosen);
      } else {
        const std::vector<int> tokens = counting(next, 1 + static_cast<int>(random() % 100));
        next = (next + 100) % 60000;
        try {
          numbers.append(chosen->first, tokens);
          chosen->second = joined(chosen->second, tokens);
        } catch (const std::bad_alloc&) {
          refusals++;
        }
      }
    }
    std::set<int32_t> used;
    for (const auto& [sequence, tokens] : expected) {
      const auto blocks = numbers.sequences.blocks(sequence);
      used.insert(blocks.begin(), blocks.end());
      if (step % 10 == 0) CHECK(numbers.tokens(sequence) == tokens);
    }
    // A refused step may have made a copy, which then is in use, or have taken nothing.
    CHECK(numbers.pool.used() == static_cast<int>(used.size()));
  }
  CHECK(refusals > 100);
  for (const auto& [sequence, tokens] : expected) numbers.sequences.close(sequence);
  CHECK(numbers.pool.used() == 0);
}
