// Sequences and the blocks of the KV cache they own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "attention.h"
#include "kv.h"

namespace mlxcel {

// Which sequences there are, how long they are and where their blocks lie. Not thread-safe.
class Sequences {
 public:
  struct Piece {
    int sequence, count;  // the next `count` tokens belong to it
  };

  explicit Sequences(KvPool& pool) : pool_(pool) {}

  // A number that `close` takes back.
  int open();
  // Throws std::out_of_range, as all that take a sequence, for one that is not open.
  void close(int sequence);
  int length(int sequence) const { return at(sequence).length; }

  // The place of the next token in the text: the length, and what was forgotten.
  int position(int sequence) const { return at(sequence).length + at(sequence).forgotten; }

  // A new sequence that begins with the first `length` tokens of `sequence`. They share blocks; whoever writes into a
  // block that it shares gets its own copy first. Throws std::invalid_argument for a length that `sequence` has not, and
  // for one that has forgotten something.
  int fork(int sequence, int length);
  // Let the `count` tokens after the first `first` go, both whole blocks. The others stay as they are: keys are turned
  // by their places in the text. Throws std::invalid_argument for tokens that are not there.
  void forget(int sequence, int first, int count);
  // The blocks that hold the tokens of a sequence.
  std::span<const int32_t> blocks(int sequence) const;
  // How many of a sequence's blocks nobody else has: `close` frees them.
  int exclusive_blocks(int sequence) const;
  // How many blocks `reserve` takes for a piece.
  int missing_blocks(const Piece& piece) const;

  // Blocks for the tokens to come, for all pieces or for none: then std::bad_alloc is thrown. A sequence has one piece.
  void reserve(std::span<const Piece> pieces);
  // What attention needs to know about each piece, rows in their order; valid until the next call of `reserve`.
  std::vector<Segment> segments(std::span<const Piece> pieces) const;
  // The tokens of the pieces have been written.
  void advance(std::span<const Piece> pieces);

 private:
  struct Sequence {
    std::vector<int32_t> blocks;
    int length = 0;     // tokens that are stored
    int forgotten = 0;  // tokens that are not any more
    bool open = false;
  };
  const Sequence& at(int sequence) const;
  // Whether the next token goes into a block that others have too.
  bool continues_shared(const Sequence& sequence) const;
  Sequence& at(int sequence) { return const_cast<Sequence&>(std::as_const(*this).at(sequence)); }

  KvPool& pool_;
  std::vector<Sequence> sequences_;
};

}  // namespace mlxcel
