#include "sequences.h"

#include <algorithm>
#include <new>
#include <stdexcept>

namespace mlxcel {

namespace {

size_t blocks_for(int tokens) { return (static_cast<size_t>(tokens) + kv_block - 1) / kv_block; }

}  // namespace

const Sequences::Sequence& Sequences::at(int sequence) const {
  if (sequence < 0 || sequence >= static_cast<int>(sequences_.size()) || !sequences_[sequence].open)
    throw std::out_of_range("there is no such sequence");
  return sequences_[sequence];
}

int Sequences::open() {
  const auto closed = std::find_if(sequences_.begin(), sequences_.end(), [](const Sequence& s) { return !s.open; });
  const int index = static_cast<int>(closed - sequences_.begin());
  if (closed == sequences_.end()) sequences_.emplace_back();
  sequences_[index].open = true;
  return index;
}

void Sequences::close(int sequence) {
  Sequence& closing = at(sequence);
  for (const int32_t block : closing.blocks) pool_.release(block);
  closing = Sequence();
}

int Sequences::fork(int sequence, int length) {
  if (length < 0 || length > at(sequence).length || at(sequence).forgotten > 0)
    throw std::invalid_argument("a sequence has no such beginning");
  const int index = open();
  const std::span<const int32_t> shared = blocks(sequence).first(blocks_for(length));
  for (const int32_t block : shared) pool_.share(block);
  at(index).blocks.assign(shared.begin(), shared.end());
  at(index).length = length;
  return index;
}

void Sequences::forget(int sequence, int first, int count) {
  Sequence& from = at(sequence);
  if (first < 0 || count < 0 || first % kv_block != 0 || count % kv_block != 0 || count > from.length - first)
    throw std::invalid_argument("a sequence has no such blocks to forget");
  const auto begin = from.blocks.begin() + first / kv_block, end = begin + count / kv_block;
  std::for_each(begin, end, [&](int32_t block) { pool_.release(block); });
  from.blocks.erase(begin, end);
  from.length -= count;
  from.forgotten += count;
}

std::span<const int32_t> Sequences::blocks(int sequence) const {
  const Sequence& found = at(sequence);
  return std::span(found.blocks).first(blocks_for(found.length));
}

int Sequences::exclusive_blocks(int sequence) const {
  const std::vector<int32_t>& own = at(sequence).blocks;
  return static_cast<int>(
      std::count_if(own.begin(), own.end(), [&](int32_t block) { return pool_.owners(block) == 1; }));
}

bool Sequences::continues_shared(const Sequence& sequence) const {
  return sequence.length % kv_block != 0 && pool_.owners(sequence.blocks[sequence.length / kv_block]) > 1;
}

int Sequences::missing_blocks(const Piece& piece) const {
  const Sequence& sequence = at(piece.sequence);
  const size_t wanted = blocks_for(sequence.length + piece.count);
  return static_cast<int>(wanted - std::min(wanted, sequence.blocks.size())) + continues_shared(sequence);
}

void Sequences::reserve(std::span<const Piece> pieces) {
  // If memory ends after some copies were made, they stay: they hold the same as what they were made from.
  for (const Piece& piece : pieces) {
    Sequence& sequence = at(piece.sequence);
    if (!continues_shared(sequence)) continue;
    int32_t& last = sequence.blocks[sequence.length / kv_block];
    const int32_t own = pool_.make_writable(last);
    if (own == no_kv_block) throw std::bad_alloc();
    last = own;
  }
  size_t total = 0;
  for (const Piece& piece : pieces) total += missing_blocks(piece);
  std::vector<int32_t> blocks(total);
  if (!pool_.allocate(blocks)) throw std::bad_alloc();
  auto next = blocks.begin();
  for (const Piece& piece : pieces) {
    const int count = missing_blocks(piece);
    std::vector<int32_t>& own = at(piece.sequence).blocks;
    own.insert(own.end(), next, next + count);
    next += count;
  }
}

std::vector<Segment> Sequences::segments(std::span<const Piece> pieces) const {
  std::vector<Segment> segments;
  int row = 0;
  for (const Piece& piece : pieces) {
    const Sequence& sequence = at(piece.sequence);
    segments.push_back({sequence.blocks.data(), sequence.length, piece.count, row, sequence.forgotten});
    row += piece.count;
  }
  return segments;
}

void Sequences::advance(std::span<const Piece> pieces) {
  for (const Piece& piece : pieces) at(piece.sequence).length += piece.count;
}

}  // namespace mlxcel
