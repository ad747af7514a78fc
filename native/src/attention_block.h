// Attention of some queries to one block of keys, in the operations of simd.h.
//
// Both products, queries with keys and weights with values, are one routine: rows of pairs times a tile of pairs
// (see kv.h). "Weights" are the exponentials of a softmax before its division.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstring>

#include "attention.h"
#include "rows_kernels.h"
#include "simd.h"

namespace mlxcel::MLXCEL_ISA {

// --- products of pairs

// Queries that go through a block together, and how many vectors of sums and of values the registers hold.
#if defined(__AVX512F__)
constexpr int kRowBlock = 6;
constexpr int kRegisters = 28;
#else
constexpr int kRowBlock = 5;
constexpr int kRegisters = 7;
#endif
constexpr int kMaxVectors = 4;
constexpr int kBlockVectors = kv_block / 16;  // of the scores of a query for a block

// The first and the second of each pair, as floats.
#if defined(__AVX512F__)
MLXCEL_INLINE f32x16 low_of_pairs(const uint16_t* p) {
  return {_mm512_castsi512_ps(_mm512_maskz_slli_epi32(0xffff, _mm512_loadu_si512(p), 16))};
}
MLXCEL_INLINE f32x16 high_of_pairs(const uint16_t* p) {
  const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), high))};
}
#elif defined(__AVX2__)
MLXCEL_INLINE __m256 low_of_eight(const uint16_t* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), 16));
}
MLXCEL_INLINE __m256 high_of_eight(const uint16_t* p) {
  // No mask: it would take the register that the largest block of sums leaves.
  const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm256_castsi256_ps(_mm256_blend_epi16(_mm256_setzero_si256(), pairs, 0xaa));
}
MLXCEL_INLINE f32x16 low_of_pairs(const uint16_t* p) { return {low_of_eight(p), low_of_eight(p + 16)}; }
MLXCEL_INLINE f32x16 high_of_pairs(const uint16_t* p) { return {high_of_eight(p), high_of_eight(p + 16)}; }
#else
template <class Half>
MLXCEL_INLINE f32x16 each_pair(const uint16_t* p, Half half) {
  uint32_t bits[16];
  float floats[16];
  std::memcpy(bits, p, sizeof bits);
  for (uint32_t& pair : bits) pair = half(pair);
  std::memcpy(floats, bits, sizeof bits);
  return load(floats);
}
MLXCEL_INLINE f32x16 low_of_pairs(const uint16_t* p) {
  return each_pair(p, [](uint32_t pair) { return pair << 16; });
}
MLXCEL_INLINE f32x16 high_of_pairs(const uint16_t* p) {
  return each_pair(p, [](uint32_t pair) { return pair & 0xffff0000u; });
}
#endif

template <int Rows, int Vectors>
MLXCEL_INLINE void add_pair(f32x16 (&sums)[Rows][Vectors], const float* a, int lda, const uint16_t* b) {
  f32x16 values[Vectors];
  for (int v = 0; v < Vectors; v++) values[v] = low_of_pairs(b + 32 * v);
  for (int r = 0; r < Rows; r++) {
    const f32x16 x = splat(a[r * lda]);
    for (int v = 0; v < Vectors; v++) sums[r][v] = fma(x, values[v], sums[r][v]);
  }
  for (int v = 0; v < Vectors; v++) values[v] = high_of_pairs(b + 32 * v);
  for (int r = 0; r < Rows; r++) {
    const f32x16 x = splat(a[r * lda + 1]);
    for (int v = 0; v < Vectors; v++) sums[r][v] = fma(x, values[v], sums[r][v]);
  }
}

template <int Rows, int Vectors>
MLXCEL_INLINE void add_pair(f32x16 (&sums)[Rows][Vectors], const uint16_t* a, int lda, const uint16_t* b) {
  for (int r = 0; r < Rows; r++) {
    uint32_t pair;
    std::memcpy(&pair, a + r * lda, sizeof pair);
    for (int v = 0; v < Vectors; v++) sums[r][v] = dot_bf16(sums[r][v], b + 32 * v, pair);
  }
}

// c[r][0 .. 16 Vectors) = or += sum over p < pairs of a[r][p] . b[p], pair by pair. `a` is float or bfloat16. What lies
// `ahead` of the elements read is brought into the cache: it is needed next, and the processor does not guess so, as
// tiles lie anywhere and are read in columns.
template <int Rows, int Vectors, class Operand>
static void multiply_block(const Operand* a, int lda, const uint16_t* b, int ldb, int pairs, bool add_to, float* c,
                           int ldc, ptrdiff_t ahead) {
  f32x16 sums[Rows][Vectors];
  for (int r = 0; r < Rows; r++) {
    for (int v = 0; v < Vectors; v++) sums[r][v] = add_to ? load(c + r * ldc + 16 * v) : splat(0.0f);
  }
  for (int p = 0; p < pairs; p++, b += ldb) {
    for (int v = 0; v < Vectors; v++) __builtin_prefetch(b + 32 * v + ahead);
    add_pair(sums, a + 2 * p, lda, b);
  }
  for (int r = 0; r < Rows; r++) {
    for (int v = 0; v < Vectors; v++) store(c + r * ldc + 16 * v, sums[r][v]);
  }
}

template <int Rows, int Vectors, class... Arguments>
MLXCEL_INLINE void multiply_if_it_fits(Arguments... arguments) {
  if constexpr ((Rows + 1) * Vectors <= kRegisters) multiply_block<Rows, Vectors>(arguments...);
}

template <int Rows, class... Arguments>
MLXCEL_INLINE void multiply_vectors(int vectors, Arguments... arguments) {
  switch (vectors) {
    case 1: return multiply_if_it_fits<Rows, 1>(arguments...);
    case 2: return multiply_if_it_fits<Rows, 2>(arguments...);
    case 3: return multiply_if_it_fits<Rows, 3>(arguments...);
    case 4: return multiply_if_it_fits<Rows, 4>(arguments...);
  }
}

// The same for up to kRowBlock rows and any number of vectors.
template <class Operand>
static void multiply(int rows, int vectors, const Operand* a, int lda, const uint16_t* b, int ldb, int pairs,
                     bool add_to, float* c, int ldc, ptrdiff_t ahead) {
  const int fitting = kRegisters / (rows + 1), widest = fitting < kMaxVectors ? fitting : kMaxVectors;
  for (int v = 0; v < vectors; v += widest, b += 32 * widest, c += 16 * widest) {
    const int width = vectors - v < widest ? vectors - v : widest;
    switch (rows) {
      case 1: multiply_vectors<1>(width, a, lda, b, ldb, pairs, add_to, c, ldc, ahead); break;
      case 2: multiply_vectors<2>(width, a, lda, b, ldb, pairs, add_to, c, ldc, ahead); break;
      case 3: multiply_vectors<3>(width, a, lda, b, ldb, pairs, add_to, c, ldc, ahead); break;
      case 4: multiply_vectors<4>(width, a, lda, b, ldb, pairs, add_to, c, ldc, ahead); break;
      case 5: multiply_vectors<5>(width, a, lda, b, ldb, pairs, add_to, c, ldc, ahead); break;
      case 6:
        if constexpr (kRowBlock >= 6) multiply_vectors<6>(width, a, lda, b, ldb, pairs, add_to, c, ldc, ahead);
        break;
    }
  }
}

// --- queries, keys and values of new tokens

MLXCEL_INLINE void store_operand(float* p, f32x16 a) { store(p, a); }
// As store_bf16, but subnormal values, which no product would take, may become 0.
MLXCEL_INLINE void store_operand(uint16_t* p, f32x16 a) {
#if defined(__AVX512BF16__)
  const __m256bh halves = _mm512_cvtneps_pbh(a.v);
  std::memcpy(p, &halves, sizeof halves);
#else
  store_bf16(p, a);
#endif
}

// One head of a new token: norm, turn, scale.
template <class Operand>
static void prepare_head(const AttentionTask& task, const float* x, const float* norm, int position, float scale,
                         Operand* out) {
  const AttentionConfig& config = *task.config;
  const int n = config.head_dim;
  alignas(64) float prepared[max_head_dim];
  if (norm != nullptr) {
    rms_norm_row(x, norm, n, config.norm_eps, config.norm_offset, prepared);
    x = prepared;
  }
  if (task.rope_dims != 0) {
    const float* table = task.rope + static_cast<size_t>(position) * task.rope_dims;
    rope_head(x, table, n, task.rope_dims, config.rope_style, prepared);
    x = prepared;
  }
  for (int i = 0; i < n; i += 16) store_operand(out + i, mul(load(x + i), splat(scale)));
}

template <class Operand>
static void prepare_queries(const AttentionTask& task, const AttentionTile& tile, Operand* out) {
  const AttentionConfig& config = *task.config;
  const int n = config.head_dim, group = config.group();
  for (int r = 0; r < tile.rows; r++) {
    const int token = tile.first_row + r, position = tile.segment.position + tile.segment.forgotten + token;
    const float* row = task.qkv + static_cast<size_t>(tile.segment.row + token) * config.row_elements();
    for (int h = 0; h < group; h++, out += n) {
      prepare_head(task, row + (tile.kv_head * group + h) * n, config.q_norm, position, config.scale, out);
    }
  }
}

static void append(const AttentionTask& task, const Segment& segment, int first, int end, int kv_head) {
  const AttentionConfig& config = *task.config;
  const int n = config.head_dim, rows = end - first, position = segment.position + first;
  alignas(64) uint16_t keys[append_rows][max_head_dim], values[append_rows][max_head_dim];
  for (int r = 0; r < rows; r++) {
    const float* row = task.qkv + static_cast<size_t>(segment.row + first + r) * config.row_elements();
    const float* key = row + (config.heads + kv_head) * n;
    const float* value = key + config.kv_heads * n;
    prepare_head(task, key, config.k_norm, position + segment.forgotten + r, 1.0f, keys[r]);
    for (int d = 0; d < n; d += 16) store_bf16(values[r] + d, load(value + d));
  }
  const int in_block = position % kv_block;
  uint16_t* key_pairs = kv_tile(task.cache, segment.blocks[position / kv_block], kv_head);
  uint16_t* value_pairs = key_pairs + kv_block * n;
  for (int d = 0; d < n; d += 2) {
    for (int r = 0; r < rows; r++) std::memcpy(key_pairs + d * kv_block + 2 * (in_block + r), keys[r] + d, 4);
  }
  for (int r = 0; r < rows; r++) {
    uint16_t* to = value_pairs + (in_block + r) / 2 * 2 * n + (in_block + r) % 2;
    for (int d = 0; d < n; d++) to[2 * d] = values[r][d];
  }
}

// --- softmax states: head_dim weighted values, the maximum score, the sum of weights

// One block's state into the state of the blocks before it, for up to eight queries.
static void fold_states(float* states, const float* block_states, int queries, int head_dim) {
  const int stride = softmax_state(head_dim);
  alignas(64) float factors[16] = {};
  for (int q = 0; q < queries; q++) {
    float& top = states[q * stride + head_dim];
    const float block_top = block_states[q * stride + head_dim];
    if (block_states[q * stride + head_dim + 1] == 0.0f) continue;  // saw no key
    const float new_top = block_top > top ? block_top : top;
    factors[q] = top - new_top;
    factors[8 + q] = block_top - new_top;
    top = new_top;
  }
  store(factors, exp_nonpositive(load(factors)));
  for (int q = 0; q < queries; q++, states += stride, block_states += stride) {
    if (block_states[head_dim + 1] == 0.0f) continue;
    const f32x16 before = splat(factors[q]), block = splat(factors[8 + q]);
    for (int d = 0; d < head_dim; d += 16) {
      store(states + d, fma(load(block_states + d), block, mul(load(states + d), before)));
    }
    states[head_dim + 1] = std::fma(block_states[head_dim + 1], factors[8 + q], states[head_dim + 1] * factors[q]);
  }
}

// Before the first block.
static void start_states(const AttentionTask& task, const AttentionTile& tile, float* states) {
  const AttentionConfig& config = *task.config;
  const int group = config.group(), stride = softmax_state(config.head_dim);
  std::memset(states, 0, sizeof(float) * tile.rows * group * stride);
  for (int q = 0; q < tile.rows * group; q++) {
    float* tail = states + q * stride + config.head_dim;
    tail[0] = config.sinks ? config.sinks[tile.kv_head * group + q % group] : -INFINITY;
    tail[1] = config.sinks ? 1.0f : 0.0f;
  }
}

static void finish_states(const AttentionTask& task, const AttentionTile& tile, const float* states) {
  const AttentionConfig& config = *task.config;
  const int n = config.head_dim, group = config.group();
  for (int q = 0; q < tile.rows * group; q++, states += softmax_state(n)) {
    const size_t row = tile.segment.row + tile.first_row + q / group;
    scale_row(states, 1.0f / states[n + 1], n, task.out + (row * config.heads + tile.kv_head * group + q % group) * n);
  }
}

// --- one block

// The keys of a block that a query sees: [first, end).
struct Range {
  int first, end;
  bool empty() const { return end <= first; }
};

MLXCEL_INLINE Range visible(int position, int window, int block) {
  const int start = block * kv_block;
  const int first = window && position - window + 1 > start ? position - window + 1 - start : 0;
  return {first, position + 1 - start < kv_block ? position + 1 - start : kv_block};
}

// e^x for x up to 0, as exactly as the weights' type deserves.
template <class Operand>
MLXCEL_INLINE f32x16 weight(f32x16 x) {
#if defined(__AVX512F__)
  if constexpr (sizeof(Operand) == sizeof(uint16_t)) {
    // 2^whole times a polynomial that is exact at 0 and 1 and within 1.1e-4 between; 0 below 2^-126.
    const __m512 power = _mm512_mul_ps(x.v, _mm512_set1_ps(1.44269504f));
    const f32x16 f{_mm512_reduce_ps(power, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
    f32x16 p = fma(splat(0.07826797801f), f, splat(0.2263076710f));
    p = fma(p, f, splat(0.6954243510f));
    p = fma(p, f, splat(1.0f));
    return {_mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(power, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ), p.v, power)};
  }
#endif
  return exp_nonpositive(x);
}

// The weights of the keys in `range`, 0 for the others; the maximum and the sum behind the state's values. `whole`: the
// range is the block.
template <bool whole, class Operand>
MLXCEL_INLINE void softmax_range(const AttentionConfig& config, Range range, const float* scores, Operand* weights,
                                 float* tail) {
  const f32x16 none = splat(-INFINITY);
  const int first_vector = whole ? 0 : range.first / 16, end_vector = whole ? kBlockVectors : (range.end + 15) / 16;
  f32x16 s[kBlockVectors] = {none, none, none, none};
#pragma GCC unroll 4
  for (int v = first_vector; v < end_vector; v++) {
    s[v] = load(scores + 16 * v);
    if (config.softcap != 0.0f) s[v] = softcap(s[v], splat(config.softcap), splat(1.0f / config.softcap));
    if constexpr (!whole) {
      const int first_lane = range.first - 16 * v, end_lane = range.end - 16 * v;
      if (end_lane < 16) s[v] = first(end_lane, s[v], none);
      if (first_lane > 0) s[v] = first(first_lane, none, s[v]);
    }
  }
  float top = max_of(max(max(s[0], s[1]), max(s[2], s[3])));
  if (top < -FLT_MAX) top = -FLT_MAX;  // nothing but scores of -inf: weights of 0
#pragma GCC unroll 4
  for (int v = 0; v < kBlockVectors; v++) {
    s[v] = v >= first_vector && v < end_vector ? weight<Operand>(sub(s[v], splat(top))) : splat(0.0f);
    store_operand(weights + 16 * v, s[v]);
  }
  tail[0] = top;
  tail[1] = sum(add(add(s[0], s[1]), add(s[2], s[3])));
}

template <class Operand>
MLXCEL_INLINE void softmax_block(const AttentionConfig& config, Range range, const float* scores, Operand* weights,
                                 float* tail) {
  if (range.first == 0 && range.end == kv_block) softmax_range<true>(config, range, scores, weights, tail);
  else softmax_range<false>(config, range, scores, weights, tail);
}

// state += weights . values for pairs [first, end) of the block, as far as `range` goes. Where the range has one half
// of a pair, the other half is left out altogether: 0 times what is in memory there could be NaN.
template <class Operand>
static void add_values(const Operand* weights, const uint16_t* values, int head_dim, Range range, int first, int end,
                       float* state) {
  const int vectors = head_dim / 16;
  if (first < range.first / 2) first = range.first / 2;
  if (end > (range.end + 1) / 2) end = (range.end + 1) / 2;
  for (int p = first; p < end;) {
    const uint16_t* v = values + p * 2 * head_dim;
    const bool low = 2 * p >= range.first, high = 2 * p + 1 < range.end;
    if (low && high) {
      const int whole = (end < range.end / 2 ? end : range.end / 2) - p;
      multiply(1, vectors, weights + 2 * p, 0, v, 2 * head_dim, whole, true, state, 0, 0);
      p += whole;
      continue;
    }
    alignas(64) uint16_t half[2 * max_head_dim];
    const uint32_t mask = (low ? 0xffffu : 0u) | (high ? 0xffff0000u : 0u);
    for (int d = 0; d < 2 * head_dim; d += 2) {
      uint32_t pair;
      std::memcpy(&pair, v + d, sizeof pair);
      pair &= mask;
      std::memcpy(half + d, &pair, sizeof pair);
    }
    multiply(1, vectors, weights + 2 * p, 0, half, 0, 1, true, state, 0, 0);
    p++;
  }
}

// The states of up to kRowBlock queries of a tile after one block alone.
template <class Operand>
static void attend_block(const AttentionTask& task, const AttentionTile& tile, int block, int first_query, int queries,
                         const Operand* prepared, int end_block, float* states) {
  const AttentionConfig& config = *task.config;
  const int n = config.head_dim, stride = softmax_state(n);
  alignas(64) float scores[kRowBlock * kv_block];
  alignas(64) Operand weights[kRowBlock * kv_block];
  Range ranges[kRowBlock], any{kv_block, 0};    // any: keys that some query sees
  int first_pair = 0, end_pair = kv_block / 2;  // pairs that all queries see, but for those that see nothing
  for (int q = 0; q < queries; q++) {
    const int position = tile.segment.position + tile.first_row + (first_query + q) / config.group();
    const Range range = ranges[q] = visible(position, config.window, block);
    if (range.empty()) {
      states[q * stride + n + 1] = 0.0f;
      std::memset(weights + q * kv_block, 0, sizeof(Operand) * kv_block);
      continue;
    }
    if (range.first < any.first) any.first = range.first;
    if (range.end > any.end) any.end = range.end;
    if ((range.first + 1) / 2 > first_pair) first_pair = (range.first + 1) / 2;
    if (range.end / 2 < end_pair) end_pair = range.end / 2;
  }
  if (any.empty()) return;
  if (end_pair < first_pair) end_pair = first_pair;

  const uint16_t* keys = kv_tile(task.cache, tile.segment.blocks[block], tile.kv_head);
  const uint16_t* values = keys + kv_block * n;
  const uint16_t* next_keys =
      block + 1 < end_block ? kv_tile(task.cache, tile.segment.blocks[block + 1], tile.kv_head) : values;
  const int first_vector = any.first / 16, vectors = (any.end + 15) / 16 - first_vector;
  multiply(queries, vectors, prepared + first_query * n, n, keys + 32 * first_vector, 2 * kv_block, n / 2, false,
           scores + 16 * first_vector, kv_block, values - keys);
  for (int q = 0; q < queries; q++) {
    if (ranges[q].empty()) continue;
    float* state = states + q * stride;
    softmax_block(config, ranges[q], scores + q * kv_block, weights + q * kv_block, state + n);
    std::memset(state, 0, sizeof(float) * n);
    add_values(weights + q * kv_block, values, n, ranges[q], 0, first_pair, state);
  }
  multiply(queries, n / 16, weights + 2 * first_pair, kv_block, values + first_pair * 2 * n, 2 * n,
           end_pair - first_pair, true, states, stride, next_keys - values);
  for (int q = 0; q < queries; q++) {
    if (ranges[q].empty()) continue;
    add_values(weights + q * kv_block, values, n, ranges[q], end_pair, kv_block / 2, states + q * stride);
  }
}

}  // namespace mlxcel::MLXCEL_ISA
