#include "paged.h"

#include <algorithm>
#include <stdexcept>

#include "mlx/ops.h"

namespace mlxcel::graph {
namespace {

std::vector<KvShape> shapes_of(const std::vector<std::pair<int, int>>& layers) {
  std::vector<KvShape> shapes;
  for (const auto& [heads, head_dim] : layers) shapes.push_back({heads, head_dim});
  return shapes;
}

// Rows [rows, heads, count, head_dim] into columns `first` on of to[rows * count][width].
void put_rows(Worker& worker, const Rows& from, int heads, int count, int head_dim, float* to, size_t width) {
  worker.each(static_cast<int>(from.count()), [&](int i) {
    const int token = i % count, head = i / count % heads, row = i / count / heads;
    std::copy_n(from[i], head_dim, to + (static_cast<size_t>(row) * count + token) * width + head * head_dim);
  });
}

}  // namespace

PagedCache::PagedCache(ContextPtr context, const std::vector<std::pair<int, int>>& layers, size_t budget)
    : context_(std::move(context)), pool_(shapes_of(layers), budget), sequences_(pool_) {}

void PagedCache::begin(const std::vector<int>& rows, int count) {
  if (count <= 0 || rows.empty()) throw std::invalid_argument("a step has at least one token");
  auto step = std::make_shared<Step>();
  for (const int row : rows) step->pieces.push_back({row, count});
  sequences_.reserve(step->pieces);
  step->segments = sequences_.segments(step->pieces);
  for (Segment& segment : step->segments) {
    const size_t blocks = (segment.position + segment.count + kv_block - 1) / kv_block;
    step->blocks.emplace_back(segment.blocks, segment.blocks + blocks);
    segment.blocks = step->blocks.back().data();
  }
  step_ = std::move(step);
}

void PagedCache::commit() {
  if (step_) sequences_.advance(step_->pieces);
  step_.reset();
}

AttentionPlan& PagedCache::Step::plan(const AttentionConfig& config, int threads) {
  for (const auto& made : plans)
    if (made->heads == config.heads && made->head_dim == config.head_dim && made->window == config.window)
      return made->plan;
  plans.push_back(std::make_unique<Plan>(Plan{config.heads, config.head_dim, config.window, {}}));
  plans.back()->plan.make(config, segments, threads);
  return plans.back()->plan;
}

mx::array PagedCache::attend(int layer, const mx::array& queries, const mx::array& keys, const mx::array& values,
                             float scale, int window, const std::optional<mx::array>& sinks) {
  if (!step_) throw std::invalid_argument("no step has begun");
  const int rows = static_cast<int>(step_->pieces.size()), count = step_->pieces[0].count;
  if (queries.ndim() != 4 || layer < 0 || layer >= pool_.layers()) throw std::invalid_argument("no such attention");
  const KvShape shape = pool_.shape(layer);
  const int heads = queries.shape(1);
  const mx::Shape expected{rows, shape.kv_heads, count, shape.head_dim};
  if (queries.shape() != mx::Shape{rows, heads, count, shape.head_dim} || keys.shape() != expected ||
      values.shape() != expected || heads % shape.kv_heads != 0 || window < 0)
    throw std::invalid_argument("queries, keys and values do not fit the cache");
  if (sinks && sinks->size() != static_cast<size_t>(heads)) throw std::invalid_argument("sinks are one value a head");
  std::vector<mx::array> inputs{to_float32(queries), to_float32(keys), to_float32(values)};
  if (sinks) inputs.push_back(to_float32(*sinks));
  AttentionConfig config{.heads = heads, .kv_heads = shape.kv_heads, .head_dim = shape.head_dim, .scale = scale};
  config.window = window;
  config.bfloat16 = context_->precision != Precision::Exact;
  // Token by token, as the kernels write it, seen as head by head.
  mx::array out = node(
      "mlxcel.paged_attention", {rows, count, heads, shape.head_dim}, mx::float32, std::move(inputs),
      [self = shared_from_this(), step = step_, config, layer, count](std::span<const Input> in, void* out) mutable {
        const Rows queries(in[0]), keys(in[1]), values(in[2]);
        const Packed sinks(in.back());
        if (in.size() > 3) config.sinks = sinks.as<float>();
        const size_t width = config.row_elements(), tokens = queries.count() / config.heads;
        std::vector<float> qkv(tokens * width);
        Context& context = *self->context_;
        size_t reach = 0;
        for (const Segment& segment : step->segments) reach += segment.position + segment.count;
        Pool& pool = context.pool_for(reach * count * config.heads * config.head_dim);
        AttentionPlan& plan = step->plan(config, context.pool.threads());
        pool.run([&](Worker& worker) {
          const int size = config.head_dim;
          float* to = qkv.data();
          put_rows(worker, queries, config.heads, count, size, to, width);
          put_rows(worker, keys, config.kv_heads, count, size, to + config.heads * size, width);
          put_rows(worker, values, config.kv_heads, count, size, to + (config.heads + config.kv_heads) * size, width);
          worker.barrier();
          append_and_attend(worker, context.kernels.attention, self->pool_, layer, config, plan, qkv.data(),
                            static_cast<float*>(out));
        });
      });
  return mx::transpose(out, {0, 2, 1, 3});
}

}  // namespace mlxcel::graph
