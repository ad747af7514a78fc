// SdpaKernels in the operations of simd.h.
//
// A block's keys and values are brought into panels of float32, sixteen columns wide, whatever they were: keys
// [4][head_dim][16] (sixteen keys side by side), values [value_dim / 16][64][16]. Both products then are rows of floats
// times panels, and the same for one query as for many.
#pragma once

#include "attention_kernels.h"
#include "sdpa.h"
#include "simd_transpose.h"

namespace mlxcel::MLXCEL_ISA {

constexpr int kSdpaRows = 6;  // queries of all heads that go through a block together

struct SdpaScratch {
  float *queries, *states, *biases, *keys, *values, *block_states, *scores, *weights, *square;
  uint8_t* sees;  // for each row of a tile: any key of the block
};

MLXCEL_INLINE SdpaScratch scratch_of(const SdpaTask& task, void* memory) {
  const size_t rows = static_cast<size_t>(sdpa_tile_queries(task)) * task.group();
  const int dim = (task.head_dim + 15) / 16 * 16, state = softmax_state(task.padded_value_dim());
  SdpaScratch s;
  s.queries = static_cast<float*>(memory);
  s.states = s.queries + rows * dim;
  s.biases = s.states + rows * state;
  s.keys = s.biases + rows * sdpa_block;
  s.values = s.keys + sdpa_block * dim;
  s.block_states = s.values + sdpa_block * task.padded_value_dim();
  s.scores = s.block_states + kSdpaRows * state;
  s.weights = s.scores + kSdpaRows * sdpa_block;
  s.square = s.weights + kSdpaRows * sdpa_block;
  s.sees = reinterpret_cast<uint8_t*>(s.square + 256);
  return s;
}

// --- products of rows and panels

// c[r][16 v ..] = sum over i < depth of a[r][i] * panel v [i].
template <int Rows, int Panels>
static void multiply_panels(const float* a, int lda, const float* b, size_t panel, int depth, float* c, int ldc) {
  f32x16 sums[Rows][Panels];
  for (int r = 0; r < Rows; r++) {
    for (int v = 0; v < Panels; v++) sums[r][v] = splat(0.0f);
  }
  for (int i = 0; i < depth; i++) {
    f32x16 values[Panels];
    for (int v = 0; v < Panels; v++) values[v] = load(b + v * panel + 16 * i);
    for (int r = 0; r < Rows; r++) {
      const f32x16 x = splat(a[r * lda + i]);
      for (int v = 0; v < Panels; v++) sums[r][v] = fma(x, values[v], sums[r][v]);
    }
  }
  for (int r = 0; r < Rows; r++) {
    for (int v = 0; v < Panels; v++) store(c + r * ldc + 16 * v, sums[r][v]);
  }
}

template <int Rows>
MLXCEL_INLINE void multiply_all_panels(int panels, const float* a, int lda, const float* b, size_t panel, int depth,
                                       float* c, int ldc) {
  constexpr int kFitting = kRegisters / (Rows + 1), kWidest = kFitting < kMaxVectors ? kFitting : kMaxVectors;
  int v = 0;
  for (; v + kWidest <= panels; v += kWidest) {
    multiply_panels<Rows, kWidest>(a, lda, b + v * panel, panel, depth, c + 16 * v, ldc);
  }
  for (; v < panels; v++) multiply_panels<Rows, 1>(a, lda, b + v * panel, panel, depth, c + 16 * v, ldc);
}

static void multiply_rows(int rows, int panels, const float* a, int lda, const float* b, size_t panel, int depth,
                          float* c, int ldc) {
  switch (rows) {
    case 1: return multiply_all_panels<1>(panels, a, lda, b, panel, depth, c, ldc);
    case 2: return multiply_all_panels<2>(panels, a, lda, b, panel, depth, c, ldc);
    case 3: return multiply_all_panels<3>(panels, a, lda, b, panel, depth, c, ldc);
    case 4: return multiply_all_panels<4>(panels, a, lda, b, panel, depth, c, ldc);
    case 5: return multiply_all_panels<5>(panels, a, lda, b, panel, depth, c, ldc);
    case 6: return multiply_all_panels<6>(panels, a, lda, b, panel, depth, c, ldc);
  }
}

// --- panels

MLXCEL_INLINE const void* row_of(const SdpaArray& array, int batch, int head, int time) {
  const ptrdiff_t at = batch * array.batch + head * array.head + time * array.time;
  return static_cast<const char*>(array.data) + at * static_cast<ptrdiff_t>(array.type == Scalar::Float32 ? 4 : 2);
}

// Both return whether all elements are finite.
static bool pack_keys(const SdpaTask& task, const SdpaTile& tile, int first_key, int keys, float* square, float* to) {
  const int n = task.head_dim;
  f32x16 zeros = splat(0.0f);  // becomes NaN where an element is not finite
  for (int k = 0; k < sdpa_block; k += 16, to += 16 * n) {
    const int count = keys - k < 16 ? keys - k : 16;
    if (count <= 0) {
      std::memset(to, 0, sizeof(float) * 16 * n);
      continue;
    }
    if (count < 16) std::memset(square, 0, sizeof(float) * 256);
    for (int d = 0; d < n; d += 16) {
      const int dims = n - d < 16 ? n - d : 16;
      const char* row = static_cast<const char*>(row_of(task.k, tile.batch, tile.kv_head, first_key + k));
      const ptrdiff_t item = task.k.type == Scalar::Float32 ? 4 : 2, step = task.k.time * item;
      row += d * item;
      for (int i = 0; i < count; i++, row += step) {
        __builtin_prefetch(row + sdpa_block * step);  // the next block's: rows may lie far apart
        const f32x16 x = load_as(row, task.k.type, dims);
        zeros = fma(x, splat(0.0f), zeros);
        store(square + 16 * i, x);
      }
      if (dims == 16) {
        transpose_16(square, to + 16 * d);
      } else {
        for (int i = 0; i < 16 * dims; i++) to[16 * d + i] = square[i % 16 * 16 + i / 16];
      }
    }
  }
  return !any_nan(zeros);
}

static bool pack_values(const SdpaTask& task, const SdpaTile& tile, int first_key, int keys, float* to) {
  const int n = task.value_dim, panels = task.padded_value_dim() / 16;
  f32x16 zeros = splat(0.0f);
  for (int k = 0; k < sdpa_block; k++) {
    if (k >= keys) {
      for (int p = 0; p < panels; p++) store(to + (p * sdpa_block + k) * 16, splat(0.0f));
      continue;
    }
    const char* row = static_cast<const char*>(row_of(task.v, tile.batch, tile.kv_head, first_key + k));
    const ptrdiff_t item = task.v.type == Scalar::Float32 ? 4 : 2;
    for (int p = 0; p < panels; p++) {
      __builtin_prefetch(row + 16 * p * item + sdpa_block * task.v.time * item);
      const f32x16 x = load_as(row + 16 * p * item, task.v.type, n - 16 * p < 16 ? n - 16 * p : 16);
      zeros = fma(x, splat(0.0f), zeros);
      store(to + (p * sdpa_block + k) * 16, x);
    }
  }
  return !any_nan(zeros);
}

static void load_queries(const SdpaTask& task, const SdpaTile& tile, float* to) {
  const int group = task.group(), n = task.head_dim;
  for (int r = 0; r < tile.count * group; r++, to += n) {
    load_row(row_of(task.q, tile.batch, tile.kv_head * group + r % group, tile.first + r / group), task.q.type, n, to);
    scale_row(to, task.scale, n, to);
  }
}

// --- what a query sees

MLXCEL_INLINE Range visible(const SdpaTask& task, const SdpaTile& tile, int row, int block) {
  const int start = block * sdpa_block, position = tile.first + row / task.group() + task.keys - task.queries;
  int64_t first = 0, end = task.keys - start;
  if (end > sdpa_block) end = sdpa_block;
  if (task.causal && position + 1 - start < end) end = position + 1 - start;
  if (task.window) {
    const int64_t low = int64_t{position} - task.window + 1 - start, high = int64_t{position} + task.window - start;
    if (low > first) first = low;
    if (high < end) end = high;
  }
  if (end < 0) end = 0;
  if (first > end) first = end;
  return {static_cast<int>(first), static_cast<int>(end)};
}

// The mask of a row for one block as numbers to add, -inf for what the range leaves out. Returns whether any is not.
static bool load_bias(const SdpaTask& task, const SdpaTile& tile, int row, int block, Range range, float* bias) {
  const SdpaMask& mask = task.mask;
  const int head = tile.kv_head * task.group() + row % task.group(), query = tile.first + row / task.group();
  const ptrdiff_t at = tile.batch * mask.batch + head * mask.head + query * mask.query + block * sdpa_block * mask.key;
  for (int i = 0; i < sdpa_block; i++) bias[i] = -INFINITY;
  bool any = false;
  if (mask.kind == SdpaMask::Kind::Boolean) {
    const uint8_t* seen = static_cast<const uint8_t*>(mask.data) + at;
    // `step` of 1 as a constant: this loop runs for every row and block.
    const auto look_at = [&](ptrdiff_t step) {
      uint8_t some = 0;
      for (int i = range.first; i < range.end; i++) {
        some |= seen[i * step];
        bias[i] = seen[i * step] != 0 ? 0.0f : -INFINITY;
      }
      return some != 0;
    };
    return mask.key == 1 ? look_at(1) : look_at(mask.key);
  }
  const char* from = static_cast<const char*>(mask.data) + at * (mask.type == Scalar::Float32 ? 4 : 2);
  if (mask.key == 1) {
    const ptrdiff_t item = mask.type == Scalar::Float32 ? 4 : 2;
    load_row(from + range.first * item, mask.type, range.end - range.first, bias + range.first);
  } else {
    for (int i = range.first; i < range.end; i++) {
      bias[i] = load_one(from, mask.type, i * mask.key);
    }
  }
  for (int i = range.first; i < range.end; i++) any |= bias[i] != -INFINITY;
  return any;
}

// --- one block

// Heads that share a mask share the numbers: the row of a tile whose numbers hold.
MLXCEL_INLINE int bias_row(const SdpaTask& task, int row) {
  return task.mask.head == 0 ? row / task.group() * task.group() : row;
}

// Which rows of the tile see any key of the block; false: none.
static bool look(const SdpaTask& task, const SdpaTile& tile, int block, const SdpaScratch& s) {
  bool any = false;
  for (int r = 0; r < tile.count * task.group(); r++) {
    const Range range = visible(task, tile, r, block);
    if (range.empty()) {
      s.sees[r] = 0;
    } else if (task.mask.kind == SdpaMask::Kind::None) {
      s.sees[r] = 1;
    } else if (bias_row(task, r) != r) {
      s.sees[r] = s.sees[bias_row(task, r)];
    } else {
      s.sees[r] = load_bias(task, tile, r, block, range, s.biases + r * sdpa_block);
    }
    any |= s.sees[r] != 0;
  }
  return any;
}

// Weights of the keys and the tail of the state of one row. Scores become -inf for keys that are not seen.
MLXCEL_INLINE void sdpa_softmax(const SdpaTask& task, Range range, const float* bias, float* scores, float* weights,
                                float* tail) {
  const f32x16 none = splat(-INFINITY);
  f32x16 s[kBlockVectors];
  for (int v = 0; v < kBlockVectors; v++) {
    const int first_lane = range.first - 16 * v, end_lane = range.end - 16 * v;
    s[v] = none;
    if (end_lane > 0 && first_lane < 16) {
      s[v] = load(scores + 16 * v);
      if (task.softcap != 0.0f) s[v] = softcap(s[v], splat(task.softcap), splat(1.0f / task.softcap));
      if (bias != nullptr) s[v] = add(s[v], load(bias + 16 * v));
      if (end_lane < 16) s[v] = first(end_lane, s[v], none);
      if (first_lane > 0) s[v] = first(first_lane, none, s[v]);
    }
    store(scores + 16 * v, s[v]);
  }
  float top = max_of(max(max(s[0], s[1]), max(s[2], s[3])));
  if (top < -FLT_MAX) top = -FLT_MAX;  // nothing but scores of -inf: weights of 0
  for (int v = 0; v < kBlockVectors; v++) {
    const bool reached = range.end > 16 * v && range.first < 16 * v + 16;
    s[v] = reached ? exp_nonpositive(sub(s[v], splat(top))) : splat(0.0f);
    store(weights + 16 * v, s[v]);
  }
  tail[0] = top;
  tail[1] = sum(add(add(s[0], s[1]), add(s[2], s[3])));
}

// Rows [first, first + rows) of the tile against a block in panels, each state that block's alone.
static void sdpa_rows(const SdpaTask& task, const SdpaTile& tile, int block, int first, int rows, bool finite,
                      const SdpaScratch& s, float* states) {
  const int n = task.head_dim, width = task.padded_value_dim(), stride = softmax_state(width);
  Range ranges[kSdpaRows], any{sdpa_block, 0};
  for (int r = 0; r < rows; r++) {
    states[r * stride + width + 1] = 0.0f;
    ranges[r] = s.sees[first + r] ? visible(task, tile, first + r, block) : Range{0, 0};
    if (ranges[r].empty()) continue;
    if (ranges[r].first < any.first) any.first = ranges[r].first;
    if (ranges[r].end > any.end) any.end = ranges[r].end;
  }
  if (any.empty()) return;
  const int first_panel = any.first / 16, panels = (any.end + 15) / 16 - first_panel;
  multiply_rows(rows, panels, s.queries + static_cast<size_t>(first) * n, n, s.keys + first_panel * 16 * n, 16 * n, n,
                s.scores + 16 * first_panel, sdpa_block);
  for (int r = 0; r < rows; r++) {
    float *scores = s.scores + r * sdpa_block, *weights = s.weights + r * sdpa_block;
    if (ranges[r].empty()) {
      std::memset(weights, 0, sizeof(float) * sdpa_block);
      continue;
    }
    const bool masked = task.mask.kind != SdpaMask::Kind::None;
    const float* bias = masked ? s.biases + bias_row(task, first + r) * sdpa_block : nullptr;
    if (masked && !finite) {  // a hidden key's NaN would stay when -inf is added
      for (int i = 0; i < sdpa_block; i++) scores[i] = bias[i] == -INFINITY ? 0.0f : scores[i];
    }
    sdpa_softmax(task, ranges[r], bias, scores, weights, states + r * stride + width);
  }
  if (finite) {
    multiply_rows(rows, width / 16, s.weights + any.first, sdpa_block, s.values + 16 * any.first, 16 * sdpa_block,
                  any.end - any.first, states, stride);
    return;
  }
  // Hidden values, times 0, could be NaN: leave them out. For other values it makes no difference.
  for (int r = 0; r < rows; r++) {
    if (ranges[r].empty()) continue;
    float* state = states + r * stride;
    std::memset(state, 0, sizeof(float) * width);
    for (int i = ranges[r].first; i < ranges[r].end; i++) {
      if (s.scores[r * sdpa_block + i] == -INFINITY) continue;
      const f32x16 weight = splat(s.weights[r * sdpa_block + i]);
      for (int d = 0; d < width; d += 16) {
        store(state + d, fma(weight, load(s.values + d * sdpa_block + 16 * i), load(state + d)));
      }
    }
  }
}

// body(first row, rows, panels are finite) for the rows of the tile, if any of them sees the block.
template <class Body>
MLXCEL_INLINE bool each_sdpa_rows(const SdpaTask& task, const SdpaTile& tile, int block, const SdpaScratch& s,
                                  Body body) {
  if (!look(task, tile, block, s)) return false;
  const int first_key = block * sdpa_block;
  const int keys = task.keys - first_key < sdpa_block ? task.keys - first_key : sdpa_block;
  bool finite = pack_keys(task, tile, first_key, keys, s.square, s.keys);
  finite &= pack_values(task, tile, first_key, keys, s.values);
  each_row_block(tile.count * task.group(), kSdpaRows, [&](int first, int rows) { body(first, rows, finite); });
  return true;
}

// --- tiles

static void start_sdpa(const SdpaTask& task, const SdpaTile& tile, float* states) {
  const int width = task.padded_value_dim(), group = task.group();
  for (int r = 0; r < tile.count * group; r++, states += softmax_state(width)) {
    std::memset(states, 0, sizeof(float) * width);
    states[width] = task.sinks ? task.sinks[tile.kv_head * group + r % group] : -INFINITY;
    states[width + 1] = task.sinks ? 1.0f : 0.0f;
  }
}

static void finish_sdpa(const SdpaTask& task, const SdpaTile& tile, float* states) {
  const int width = task.padded_value_dim(), group = task.group();
  for (int r = 0; r < tile.count * group; r++, states += softmax_state(width)) {
    const float total = states[width + 1];
    scale_row(states, total == 0.0f ? 0.0f : 1.0f / total, width, states);
    const void* out = row_of(task.out, tile.batch, tile.kv_head * group + r % group, tile.first + r / group);
    store_row(states, task.value_dim, task.out.type, const_cast<void*>(out));
  }
}

static void sdpa_attend(const SdpaTask& task, const SdpaTile& tile, void* scratch) {
  const SdpaScratch s = scratch_of(task, scratch);
  const int width = task.padded_value_dim(), stride = softmax_state(width);
  load_queries(task, tile, s.queries);
  start_sdpa(task, tile, s.states);
  for (int block = tile.first_block; block < tile.end_block; block++) {
    each_sdpa_rows(task, tile, block, s, [&](int first, int rows, bool finite) {
      sdpa_rows(task, tile, block, first, rows, finite, s, s.block_states);
      fold_states(s.states + first * stride, s.block_states, rows, width);
    });
  }
  finish_sdpa(task, tile, s.states);
}

static void sdpa_attend_blocks(const SdpaTask& task, const SdpaTile& tile, int first_block, int end_block,
                               float* partials, void* scratch) {
  const SdpaScratch s = scratch_of(task, scratch);
  const int width = task.padded_value_dim(), stride = softmax_state(width), rows = tile.count * task.group();
  load_queries(task, tile, s.queries);
  for (int block = first_block; block < end_block; block++, partials += static_cast<size_t>(rows) * stride) {
    const bool seen = each_sdpa_rows(task, tile, block, s, [&](int first, int count, bool finite) {
      sdpa_rows(task, tile, block, first, count, finite, s, partials + first * stride);
    });
    for (int r = 0; !seen && r < rows; r++) partials[r * stride + width + 1] = 0.0f;
  }
}

static void sdpa_fold(const SdpaTask& task, const SdpaTile& tile, const float* partials, void* scratch) {
  const SdpaScratch s = scratch_of(task, scratch);
  const int width = task.padded_value_dim(), stride = softmax_state(width), rows = tile.count * task.group();
  start_sdpa(task, tile, s.states);
  for (int block = tile.first_block; block < tile.end_block; block++, partials += static_cast<size_t>(rows) * stride) {
    each_row_block(rows, 8, [&](int first, int count) {
      fold_states(s.states + first * stride, partials + first * stride, count, width);
    });
  }
  finish_sdpa(task, tile, s.states);
}

MLXCEL_INLINE SdpaKernels sdpa_kernels() { return {sdpa_attend, sdpa_attend_blocks, sdpa_fold}; }

}  // namespace mlxcel::MLXCEL_ISA
