#include "sequences.h"

#include <algorithm>
#include <new>
#include <stdexcept>

namespace mlxcel {

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

void Sequences::reserve(std::span<const Piece> pieces) {
  const auto missing = [&](const Piece& piece) {
    const Sequence& sequence = at(piece.sequence);
    const size_t wanted = (sequence.length + piece.count + kv_block - 1) / kv_block;
    return wanted - std::min(wanted, sequence.blocks.size());
  };
  size_t total = 0;
  for (const Piece& piece : pieces) total += missing(piece);
  std::vector<int32_t> blocks(total);
  if (!pool_.allocate(blocks)) throw std::bad_alloc();
  auto next = blocks.begin();
  for (const Piece& piece : pieces) {
    const size_t count = missing(piece);
    std::vector<int32_t>& own = at(piece.sequence).blocks;
    own.insert(own.end(), next, next + static_cast<std::ptrdiff_t>(count));
    next += static_cast<std::ptrdiff_t>(count);
  }
}

std::vector<Segment> Sequences::segments(std::span<const Piece> pieces) const {
  std::vector<Segment> segments;
  int row = 0;
  for (const Piece& piece : pieces) {
    const Sequence& sequence = at(piece.sequence);
    segments.push_back({sequence.blocks.data(), sequence.length, piece.count, row});
    row += piece.count;
  }
  return segments;
}

void Sequences::advance(std::span<const Piece> pieces) {
  for (const Piece& piece : pieces) at(piece.sequence).length += piece.count;
}

}  // namespace mlxcel
