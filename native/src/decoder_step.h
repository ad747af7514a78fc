// One step of a decoder: what each thread of the pool runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "decoder_model.h"
#include "dispatch.h"
#include "kv.h"
#include "pool.h"
#include "profile.h"

namespace mlxcel {

// Bytes that grow and forget what they held, 64-byte aligned.
class Buffer {
 public:
  void reserve(size_t bytes) {
    if (size_ >= bytes) return;
    memory_ = std::make_unique_for_overwrite<std::byte[]>(bytes + 64);
    size_ = bytes;
  }
  std::byte* data() const {
    return memory_.get() + (64 - reinterpret_cast<uintptr_t>(memory_.get()) % 64) % 64;
  }

 private:
  std::unique_ptr<std::byte[]> memory_;
  size_t size_ = 0;
};

// Memory that all threads share in a step, for as many rows as the largest one had.
struct Workspace {
  Buffer hidden[2];    // the hidden state: the sum of all branches but the last, in one or the other
  Buffer branch;       // what the last branch adds to it
  Buffer qkv, attended;
  Buffer activations;  // the input of a product
  Buffer gated;        // the input of a layer's last product
  std::vector<float> ones;

  void reserve(const DecoderModel& model, int rows, int block_rows);
};

struct StepTask {
  const DecoderModel& model;
  const Kernels& kernels;
  KvPool& cache;
  std::span<AttentionPlan*> plans;  // of each layer
  Workspace& space;
  int threads;
  std::span<const int32_t> tokens;
  std::span<const int32_t> last_rows;  // whose logits are wanted
  float* logits;                       // nullptr: none are
};

// The phases of a step, on one thread.
void run_step(Worker& worker, const StepTask& task, StepClock clock);

}  // namespace mlxcel
