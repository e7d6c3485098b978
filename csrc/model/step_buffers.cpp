#include "model/step_buffers.h"

#include <algorithm>

#include "attention/partial.h"
#include "attention/reads.h"

namespace suffice {
namespace {

void set_rows_visible(const Step& step, const StepRequest& request, const Bounds& bounds,
                      Traversal& traversal) {
  set_visibility(traversal, bounds, request.length, request.count,
                 step.positions.data() + request.first_row,
                 step.visible.data() + request.first_row);
}

// The rows of a layer that a request's tokens see; prompts see all rows of the layer's window.
Bounds bounds_in(const Sight& block, int index, const StepRequest& request) {
  const KVCache& cache = *request.cache;
  Bounds bounds{block.window, cache.removed(index), block.sinks};
  if (!request.exact) bounds = bounds_of(cache, index, block.window, block.sinks);
  bounds.mutual = block.mutual;
  return bounds;
}

}  // namespace

void RowBuffers::prepare(int rows, int width, int stride, int value_width, int pair_width,
                         bool joins) {
  // Zero, because matmuls read inputs up to a multiple of 8 columns.
  residual.assign(static_cast<size_t>(rows) * width, 0.0f);
  normal.assign(residual.size(), 0.0f);
  for (std::vector<float>* each : {&routed, &held}) each->assign(joins ? normal.size() : 0, 0.0f);
  gated.assign(static_cast<size_t>(rows) * value_width, 0.0f);
  pairs.assign(static_cast<size_t>(rows) * pair_width, 0.0f);
  for (InputBuffers* each : {&inputs, &second_inputs, &third_inputs}) each->prepare(rows, stride);
}

void RowBuffers::prepare(const std::vector<AdapterRows>& adapted, const Adapters& adapters) {
  for (LowRankInputs* each : {&low_rank, &second_low_rank, &third_low_rank})
    each->prepare(adapted, adapters);
}

void RowBuffers::reserve(const ModelSpec& spec) {
  for (const Layer& layer : spec.layers)
    for (const Block& block : layer.blocks)
      std::visit([&](const auto& part) { reserve_inputs(part, *this); }, block.part);
  for (const Linear* w : {&spec.project_in, &spec.project_out, &spec.head, &spec.fuse, &spec.join,
                          &spec.groups, &spec.layer_embeddings.project})
    inputs.reserve(*w);
}

void StepBuffers::prepare(const ModelSpec& spec, const Step& step, int thread_count) {
  rows = static_cast<int>(step.tokens.size());
  width = round_up(std::max(spec.width, spec.embedding_width), kPanel);
  query_width = spec.heads * spec.head_size;
  latent_width = round_up(spec.latent_width, kPanel);
  hidden_width = spec.hidden_width;
  pair_width = hidden_width ? round_up(spec.pair_width(), kPanel) : 0;
  key_width = spec.key_width();
  inner_width = round_up(spec.inner_width, kPanel);
  queries.assign(static_cast<size_t>(rows) * query_width, 0.0f);
  attended.assign(queries.size(), 0.0f);
  if (spec.joint || spec.has_whole_norms())
    keys.assign(static_cast<size_t>(rows) * key_width, 0.0f);
  for (std::vector<float>* each : {&low, &latent})
    each->assign(static_cast<size_t>(rows) * latent_width, 0.0f);
  layer_embedding_width = spec.layer_embeddings.project.rows;
  layer_embeddings.resize(static_cast<size_t>(rows) * layer_embedding_width);
  group_scores.resize(step.outputs.size() * round_up(spec.groups.rows, kPanel));
  kept_groups.resize(step.outputs.size() * spec.kept_groups);
  output.assign(static_cast<size_t>(rows) * width, 0.0f);
  inner.assign(static_cast<size_t>(rows) * inner_width, 0.0f);
  second_inner.assign(inner.size(), 0.0f);
  prepare_states(spec, step);
  reads.assign(spec.rows.size() * step.requests.size() * spec.kv_heads, ReadSums{});
  tile_reads.assign(step.requests.size(), ReadSums{});
  if (static_cast<int>(threads.size()) < thread_count) threads.resize(thread_count);
  group_by_adapter(step);
  joins = spec.joins();
  const bool many = rows >= kSharedRows || adapted.size() >= kSharedAdapters;
  split = thread_count > 1 && many;
  if (split) {
    threads[0].rows.prepare(rows, width, input_stride(), value_width, pair_width, joins);
    threads[0].rows.prepare(adapted, spec.adapters);
    threads[0].rows.reserve(spec);
  }
  routes.reads = {};
  for (const Layer& layer : spec.layers)
    for (const Block& block : layer.blocks)
      if (const auto* part = std::get_if<ExpertMlp>(&block.part))
        routes.reserve(*part, rows, width);
  for (const Layer& layer : spec.layers)
    if (layer.sight()) window_of(*layer.sight());
  for (Window& window : windows_) lay_out(spec, step, window);
}

void StepBuffers::group_by_adapter(const Step& step) {
  adapted.clear();
  for (const StepRequest& request : step.requests) {
    if (request.adapter < 0) continue;
    const auto known = std::find_if(adapted.begin(), adapted.end(), [&](const AdapterRows& each) {
      return each.adapter == request.adapter;
    });
    AdapterRows& group =
        known != adapted.end() ? *known : adapted.emplace_back(AdapterRows{request.adapter, 0, {}});
    for (int i = 0; i < request.count; i++) group.rows.push_back(request.first_row + i);
  }
  int before = 0;
  for (AdapterRows& group : adapted) {
    group.first = before;
    before += static_cast<int>(group.rows.size());
  }
}

void StepBuffers::prepare_states(const ModelSpec& spec, const Step& step) {
  mixed_width = round_up(spec.mixed_width, kPanel);
  decay_width = round_up(spec.decay_width, kPanel);
  value_width = round_up(spec.value_width, kPanel);
  const size_t count = rows;
  mixed.assign(count * mixed_width, 0.0f);
  recurred.assign(count * value_width, 0.0f);
  strengths.assign(count * decay_width, 0.0f);
  decays.assign(strengths.size(), 0.0f);
  // Rows are as wide as those of queries or of values.
  gates.assign(spec.gate_width ? count * std::max(query_width, value_width) : 0, 0.0f);
  state_rows = spec.states.empty() ? std::vector<StateRows>() : rows_of_states(step);
}

int StepBuffers::input_stride() const {
  return std::max(
      {width, query_width, inner_width, value_width, latent_width, pair_width, hidden_width});
}

StepBuffers::Window& StepBuffers::window_of(const Sight& block) {
  for (Window& known : windows_)
    if (known.window == block.window && known.kv_heads == block.kv_heads &&
        known.size == block.size)
      return known;
  return windows_.emplace_back(Window{block.window, block.kv_heads, block.size, {}});
}

void StepBuffers::lay_out(const ModelSpec& spec, const Step& step, Window& window) {
  const int group = spec.heads / window.kv_heads;
  window.traversals.resize(step.requests.size() * window.kv_heads);
  auto traversal = window.traversals.begin();
  for (const StepRequest& request : step.requests)
    for (int g = 0; g < window.kv_heads; g++, ++traversal) {
      traversal->group = group;
      traversal->queries.clear();
      traversal->outputs.clear();
      for (int row = request.first_row; row < request.first_row + request.count; row++)
        for (int h = g * group; h < (g + 1) * group; h++) {
          const size_t start = static_cast<size_t>(row) * query_width + h * window.size;
          traversal->queries.push_back(queries.data() + start);
          traversal->outputs.push_back(attended.data() + start);
        }
      set_rows_visible(step, request, {window.window}, *traversal);
    }
}

Audit StepBuffers::audit_of(const ModelSpec& spec, const Step& step, int layer, int row,
                            int head) const {
  const size_t part = spec.rows.size() * rows * spec.heads;
  const size_t start = (static_cast<size_t>(layer) * rows + row) * spec.heads;
  return audit_at(step.audit + start + head, part, spec.heads);
}

void StepBuffers::plan(const ModelSpec& spec, const Step& step, const Sight& block, int layer,
                       int thread_count) {
  std::vector<Traversal>& traversals = window_of(block).traversals;
  const int kv_heads = block.kv_heads, group = spec.heads / kv_heads;
  const size_t count = step.requests.size();
  for (size_t i = 0; i < count; i++) {
    const StepRequest& request = step.requests[i];
    KVCache& cache = *request.cache;
    ReadSums* const own = &reads[(layer * count + i) * spec.kv_heads];
    const Bounds bounds = bounds_in(block, layer, request);
    const std::vector<AttentionRule>& rules = spec.rules[request.technique];
    const bool exact = request.exact, by_rule = !rules.empty() && !exact;
    const bool audited = step.audit && request.counted;
    for (int g = 0; g < kv_heads; g++) {
      Traversal& traversal = traversals[i * kv_heads + g];
      if (bounds != traversal.bounds) set_rows_visible(step, request, bounds, traversal);
      traversal.max_blocks = exact ? 0 : cache.eligible(layer).blocks;
      traversal.boxed = cache.boxed(layer);
      traversal.outside = request.outside;
      traversal.place = layer * spec.kv_heads + g;
      traversal.head = cache.head(layer, g);
      traversal.head.cap = spec.score_cap * kLog2e;
      traversal.spare = block.spare ? block.spare + g * group : nullptr;
      if (exact || !cache.eligible(layer).sinks) traversal.head.masses = nullptr;
      traversal.state = &cache.state(layer, g);
      traversal.sums = &cache.sums(layer, g);
      traversal.reads = request.counted ? own + g : nullptr;
      if (request.tiled) traversal.reads = &tile_reads[i];
      traversal.audit =
          audited ? audit_of(spec, step, layer, request.first_row, g * group) : Audit{};
      if (exact) traversal.state->drafts.clear();
      if (exact) traversal.sums->drafts.clear();
      traversal.unread = request.tiled ? spec.unread_in_prompts : 0.0f;
      traversal.rule = by_rule ? &rules[layer * spec.kv_heads + g] : nullptr;
    }
  }
  attention.plan(traversals, thread_count);
}

void StepBuffers::forget_drafts(const ModelSpec& spec, const Step& step, int layer) {
  for (; layer < static_cast<int>(spec.layers.size()); layer++)
    for (const StepRequest& request : step.requests) {
      const int cached = spec.layers[layer].cached;
      for (int g = 0; cached >= 0 && g < request.cache->heads(cached); g++) {
        request.cache->state(cached, g).drafts.clear();
        request.cache->sums(cached, g).drafts.clear();
      }
    }
}

void StepBuffers::attend_outside(const ModelSpec& spec, const Step& step, const Sight& block,
                                 int layer) {
  const Outside& outside = step.outside;
  const std::vector<Traversal>& traversals = window_of(block).traversals;
  const auto each = [&](auto f) {  // f(row, the row within its request, the first traversal)
    for (size_t i = 0; i < step.requests.size(); i++)
      for (int row = 0; step.requests[i].outside && row < step.requests[i].count; row++)
        f(step.requests[i].first_row + row, row, traversals.data() + i * block.kv_heads);
  };
  const float inverse = 1.0f / (spec.attention_scale * kLog2e);
  each([&](int row, int own, const Traversal* first) {
    const size_t start = static_cast<size_t>(row) * query_width;
    for (int i = 0; i < query_width; i++) outside.queries[start + i] = queries[start + i] * inverse;
    const Visible& sees = first->visible[static_cast<size_t>(own) * first->group];
    int32_t* const to = outside.visible + static_cast<size_t>(row) * Outside::kSeen;
    to[0] = sees.first;
    to[1] = sees.committed;
    to[2] = static_cast<int32_t>(sees.tentative);
    to[3] = sees.sinks;
  });
  outside.attend(layer);
  each([&](int row, int own, const Traversal* first) {
    const size_t start = static_cast<size_t>(row) * query_width;
    std::copy_n(outside.outputs + start, query_width, attended.data() + start);
    for (int g = 0; g < block.kv_heads; g++) {
      const int64_t* const from =
          outside.reads + (static_cast<size_t>(row) * spec.kv_heads + g) * Outside::kCounts;
      Reads found;
      found.key_rows = from[0];
      found.value_rows = from[1];
      found.per_head_rows = from[2];
      found.sketch_bytes = from[3];
      count_reads(first[g], own, found);
    }
  });
}

}  // namespace suffice
