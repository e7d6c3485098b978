#include "model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include "inputs.h"
#include "place.h"
#include "sketch.h"

namespace suffice {
namespace {

constexpr float kLog2e = 1.4426950408889634f;

// Rotates the halves of one head: [x1, x2] -> [x1 cos - x2 sin, x2 cos + x1 sin].
void rotate(float* head, int size, const float* cos, const float* sin) {
  const int half = size / 2;
  for (int i = 0; i < half; i++) {
    const float a = head[i], b = head[half + i];
    head[i] = a * cos[i] - b * sin[i];
    head[half + i] = b * cos[i] + a * sin[i];
  }
}

void gather_row(const Linear& table, int row, float* to) {
  const int pair = weight_pair(table.type);
  const std::byte* panel = table.data + (row / kPanel) * table.panel_bytes();
  for (int k = 0; k < table.columns; k++) {
    const size_t at =
        static_cast<size_t>(k / pair) * kPanel * pair + (row % kPanel) * pair + k % pair;
    if (table.type == Type::f32) {
      to[k] = reinterpret_cast<const float*>(panel)[at];
    } else if (table.type == Type::bf16) {
      const uint32_t bits = static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(panel)[at])
                            << 16;
      std::memcpy(to + k, &bits, 4);
    } else {
      to[k] = table.scale[row] * reinterpret_cast<const int8_t*>(panel)[at];
    }
  }
}

}  // namespace

struct Model::Shared {
  int rows, width, query_width, mlp_width;  // strides, padded to whole panels
  std::vector<float> queries, attended, output, gate, up;
  std::map<int, std::vector<Traversal>> traversals;  // by window
  std::vector<Reads> reads;                          // [layers][requests][kv_heads]
  Attention attention;

  Shared(const Spec& spec, const Step& step)
      : rows(static_cast<int>(step.tokens.size())),
        width(round_up(std::max(spec.width, spec.embedding_width), kPanel)),
        query_width(spec.heads * spec.head_size),
        mlp_width(round_up(spec.mlp_width, kPanel)),
        queries(static_cast<size_t>(rows) * query_width),
        attended(queries.size()),
        output(static_cast<size_t>(rows) * width),
        gate(static_cast<size_t>(rows) * mlp_width),
        up(gate.size()),
        reads(spec.layers.size() * step.items.size() * spec.kv_heads) {
    for (const Layer& layer : spec.layers)
      if (!traversals.count(layer.window))
        traversals[layer.window] = lay_out(spec, step, layer.window);
  }

  // One traversal per request and key/value head; the same in every layer of this window but for
  // the head's memory, until a policy removes rows.
  std::vector<Traversal> lay_out(const Spec& spec, const Step& step, int window) {
    const int group = spec.heads / spec.kv_heads;
    std::vector<Traversal> all;
    for (const Item& item : step.items)
      for (int g = 0; g < spec.kv_heads; g++) {
        Traversal traversal;
        traversal.group = group;
        for (int row = item.first_row; row < item.first_row + item.count; row++)
          for (int h = g * group; h < (g + 1) * group; h++) {
            const size_t at = static_cast<size_t>(row) * query_width + h * spec.head_size;
            traversal.queries.push_back(queries.data() + at);
            traversal.outputs.push_back(attended.data() + at);
          }
        place(step, item, {window}, traversal);
        all.push_back(std::move(traversal));
      }
    return all;
  }

  void place(const Step& step, const Item& item, const Bounds& bounds, Traversal& traversal) {
    suffice::place(traversal, bounds, item.length, item.count,
                   step.positions.data() + item.first_row, step.visible.data() + item.first_row);
  }

  Audit audit_of(const Spec& spec, const Step& step, int layer, int row, int kv_head) {
    const size_t part = spec.layers.size() * rows * spec.heads;
    const size_t at = (static_cast<size_t>(layer) * rows + row) * spec.heads;
    float* const first = step.audit + at + kv_head * (spec.heads / spec.kv_heads);
    return {first, first + part, first + 2 * part, spec.heads};
  }

  void plan(const Spec& spec, const Step& step, int layer, int threads) {
    auto& all = traversals[spec.layers[layer].window];
    size_t index = 0;
    for (const Item& item : step.items)
      for (int g = 0; g < spec.kv_heads; g++, index++) {
        Traversal& traversal = all[index];
        const auto [window, sinks] = std::pair(spec.layers[layer].window, spec.layers[layer].sinks);
        const Bounds bounds = step.exact ? Bounds{window, item.cache->removed(layer), sinks}
                                         : bounds_of(*item.cache, layer, window, sinks);
        if (bounds != traversal.bounds) place(step, item, bounds, traversal);
        traversal.most_blocks = step.exact ? 0 : item.cache->eligible(layer).blocks;
        traversal.boxed = item.cache->boxed(layer);
        traversal.head = item.cache->head(layer, g);
        if (step.exact || !item.cache->eligible(layer).sinks) traversal.head.masses = nullptr;
        traversal.state = &item.cache->state(layer, g);
        traversal.sums = &item.cache->sums(layer, g);
        traversal.reads = &reads[layer * all.size() + index];
        if (step.audit) traversal.audit = audit_of(spec, step, layer, item.first_row, g);
        if (step.exact) traversal.state->drafts.clear();
        if (step.exact) traversal.sums->drafts.clear();
        const bool by_rule = !spec.rules.empty() && !step.exact;
        traversal.rule = by_rule ? &spec.rules[layer * spec.kv_heads + g] : nullptr;
      }
    attention.plan(all, threads);
  }
};

// What one thread does. The residual stream is each thread's own copy: everyone adds the shared
// outputs after a barrier, and no thread waits for another to normalise.
struct Model::Worker {
  const Spec& spec;
  const Step& step;
  Shared& shared;
  Team& team;
  int thread;
  int rows;
  std::vector<float> residual, normal, key, value;
  Scratch scratch;
  InputBuffers buffers;

  Worker(const Spec& spec, const Step& step, Shared& shared, Team& team, int thread)
      : spec(spec),
        step(step),
        shared(shared),
        team(team),
        thread(thread),
        rows(shared.rows),
        residual(static_cast<size_t>(rows) * shared.width),
        normal(residual.size()),
        key(static_cast<size_t>(rows) * spec.head_size),
        value(key.size()),
        buffers(rows, std::max({shared.width, shared.query_width, shared.mlp_width})) {}

  Inputs inputs(const float* values, int stride, const Linear& w, int count) {
    return buffers.of(values, stride, w, count);
  }

  void multiply(const Linear& w, const Inputs& x, float* y, int stride) {
    const Share mine = share(w.panels(), thread, team.size());
    kernels().linear(w, mine.first, mine.last, x, y, stride);
  }

  // y = norm(x) row by row; a norm without weight copies.
  void normalize(const Norm& norm, const float* x, float* y, int count) {
    for (int row = 0; row < count; row++) {
      const size_t at = static_cast<size_t>(row) * shared.width;
      if (norm.weight)
        kernels().normalize(x + at, spec.width, norm.weight, norm.bias, spec.layer_norm,
                            spec.norm_eps, y + at);
      else if (x != y)
        std::memcpy(y + at, x + at, spec.width * sizeof(float));
    }
  }

  void embed() {
    const bool project = spec.project_in.data;
    for (int row = 0; row < rows; row++) {
      float* to = (project ? normal : residual).data() + static_cast<size_t>(row) * shared.width;
      gather_row(spec.embedding, step.tokens[row], to);
      for (int i = 0; i < spec.embedding_width; i++) to[i] *= spec.embedding_scale;
    }
    if (project) {
      multiply(spec.project_in, inputs(normal.data(), shared.width, spec.project_in, rows),
               shared.output.data(), shared.width);
      team.barrier();
      std::copy(shared.output.begin(), shared.output.end(), residual.begin());
      team.barrier();
    }
    if (!spec.positions) return;
    for (int row = 0; row < rows; row++) {
      const float* from = spec.positions + static_cast<size_t>(step.positions[row]) * spec.width;
      float* to = residual.data() + static_cast<size_t>(row) * shared.width;
      for (int i = 0; i < spec.width; i++) to[i] += from[i];
    }
  }

  void project_query(const Layer& layer, const Inputs& x, int h) {
    const int panels = spec.head_size / kPanel;
    float* queries = shared.queries.data();
    kernels().linear(layer.q, h * panels, (h + 1) * panels, x, queries, shared.query_width);
    for (int row = 0; row < rows; row++) {
      float* q = queries + static_cast<size_t>(row) * shared.query_width + h * spec.head_size;
      position(layer, layer.q_norm, row, q);
      for (int i = 0; i < spec.head_size; i++) q[i] *= spec.attention_scale * kLog2e;
    }
  }

  void project_key_value(const Layer& layer, int index, const Inputs& x, int g) {
    const int size = spec.head_size, panels = size / kPanel;
    // The kernel writes output n at y + n: shift y so that this head's outputs start the buffer.
    kernels().linear(layer.k, g * panels, (g + 1) * panels, x, key.data() - g * size, size);
    kernels().linear(layer.v, g * panels, (g + 1) * panels, x, value.data() - g * size, size);
    for (const Item& item : step.items)
      for (int i = 0; i < item.count; i++) {
        float* k = key.data() + static_cast<size_t>(item.first_row + i) * size;
        position(layer, layer.k_norm, item.first_row + i, k);
        kernels().store_row(item.cache->head(index, g),
                            item.length - item.cache->removed(index) + i, k,
                            value.data() + static_cast<size_t>(item.first_row + i) * size);
      }
  }

  // Per-head normalisation and rotary position.
  void position(const Layer& layer, const Norm& norm, int row, float* head) {
    if (norm.weight)
      kernels().normalize(head, spec.head_size, norm.weight, norm.bias, false, spec.norm_eps, head);
    if (layer.rope < 0) return;
    const Rope& rope = spec.ropes[layer.rope];
    const size_t at = static_cast<size_t>(step.positions[row]) * (spec.head_size / 2);
    rotate(head, spec.head_size, rope.cos + at, rope.sin + at);
  }

  // Query heads cost one linear, key/value heads two: each thread takes the units that start in its
  // share of the cost.
  void project(const Layer& layer, int index) {
    const Inputs x = inputs(normal.data(), shared.width, layer.q, rows);
    const Share mine = share(spec.heads + 2 * spec.kv_heads, thread, team.size());
    for (int h = mine.first; h < std::min(mine.last, spec.heads); h++) project_query(layer, x, h);
    for (int g = 0; g < spec.kv_heads; g++) {
      const int start = spec.heads + 2 * g;
      if (start >= mine.first && start < mine.last) project_key_value(layer, index, x, g);
    }
  }

  // Completes the sketches of the committed keys, where the step looks at them.
  void sketch() {
    if (step.exact || !spec.sketched() || !step.items[0].cache->extras().sketch) return;
    for (const Item& item : step.items) {
      const int heads = item.cache->layers() * item.cache->heads();
      const Share mine = share(heads, thread, team.size());
      for (int i = mine.first; i < mine.last; i++) {
        const int layer = i / item.cache->heads();
        const Head head = item.cache->head(layer, i % item.cache->heads());
        for (int c = item.cache->sketched(layer); c < item.length / kSketchRows; c++)
          encode_sketch(head, c);
      }
    }
    team.barrier();
    if (thread > 0) return;
    for (const Item& item : step.items)
      for (int layer = 0; layer < item.cache->layers(); layer++)
        item.cache->set_sketched(layer,
                                 std::max(item.cache->sketched(layer), item.length / kSketchRows));
  }

  // Completes the boxes around the committed keys.
  void box() {
    if (step.exact || !step.items[0].cache->extras().boxes) return;
    for (const Item& item : step.items) {
      const Share mine = share(item.cache->layers() * item.cache->heads(), thread, team.size());
      encode_boxes(*item.cache, mine.first, mine.last, item.length);
    }
    team.barrier();
    if (thread == 0)
      for (const Item& item : step.items)
        for (int layer = 0; layer < item.cache->layers(); layer++)
          item.cache->set_boxed(layer, std::max(item.cache->boxed(layer), item.length / kPanel));
    team.barrier();
  }

  // Hands out a layer's queries as they were before they were scaled.
  void hand_out(int index) {
    const float inverse = 1.0f / (spec.attention_scale * kLog2e);
    float* to = step.queries + index * shared.queries.size();
    for (size_t i = 0; i < shared.queries.size(); i++) to[i] = shared.queries[i] * inverse;
  }

  void mlp(const Layer& layer) {
    const bool gated = layer.gate.data;
    const Inputs x = inputs(normal.data(), shared.width, layer.up, rows);
    const Share mine = share(layer.up.panels(), thread, team.size());
    const int stride = shared.mlp_width, first = mine.first * kPanel;
    float* up = shared.up.data();
    float* gate = gated ? shared.gate.data() : up;
    kernels().linear(layer.up, mine.first, mine.last, x, up, stride);
    if (gated) kernels().linear(layer.gate, mine.first, mine.last, x, gate, stride);
    for (int row = 0; row < rows; row++) {
      const size_t at = static_cast<size_t>(row) * stride + first;
      kernels().activate(spec.activation, gate + at, gated ? up + at : nullptr,
                         (mine.last - mine.first) * kPanel);
    }
    team.barrier();
    multiply(layer.down, inputs(gate, stride, layer.down, rows), shared.output.data(),
             shared.width);
    team.barrier();
  }

  // Adds a sub-layer's shared output to the residual stream.
  void add(const Norm& after, const Norm& whole) {
    float* output = shared.output.data();
    if (spec.placement == Placement::sandwich) {
      normalize(after, output, normal.data(), rows);
      output = normal.data();
    }
    for (size_t i = 0; i < residual.size(); i++) residual[i] += output[i];
    if (spec.placement == Placement::post) normalize(whole, residual.data(), residual.data(), rows);
  }

  void layer(int index) {
    const Layer& layer = spec.layers[index];
    const bool post = spec.placement == Placement::post;
    normalize(post ? Norm{} : layer.attention_norm, residual.data(), normal.data(), rows);
    if (thread == 0) shared.plan(spec, step, index, team.size());
    project(layer, index);
    team.barrier();
    if (step.queries && thread == 0) hand_out(index);
    shared.attention.work(scratch, team, thread);
    team.barrier();
    multiply(layer.o, inputs(shared.attended.data(), shared.query_width, layer.o, rows),
             shared.output.data(), shared.width);
    team.barrier();
    add(layer.post_attention_norm, layer.attention_norm);
    normalize(post ? Norm{} : layer.mlp_norm, residual.data(), normal.data(), rows);
    mlp(layer);
    add(layer.post_mlp_norm, layer.mlp_norm);
  }

  void logits() {
    const int count = static_cast<int>(step.outputs.size());
    for (int i = 0; i < count; i++)
      std::memmove(residual.data() + static_cast<size_t>(i) * shared.width,
                   residual.data() + static_cast<size_t>(step.outputs[i]) * shared.width,
                   shared.width * sizeof(float));
    normalize(spec.final_norm, residual.data(), normal.data(), count);
    if (spec.project_out.data) {
      team.barrier();  // the last layer's output has been added by everyone
      multiply(spec.project_out, inputs(normal.data(), shared.width, spec.project_out, count),
               shared.output.data(), shared.width);
      team.barrier();
      std::copy(shared.output.begin(), shared.output.end(), normal.begin());
    }
    multiply(spec.head, inputs(normal.data(), shared.width, spec.head, count), step.logits,
             round_up(spec.vocabulary, kPanel));
  }
};

int64_t weight_bytes(const Spec& spec) {
  int64_t bytes = 0;
  const auto add = [&](const Linear& w) { bytes += w.data ? w.bytes() : 0; };
  for (const Layer& layer : spec.layers)
    for (const Linear* w :
         {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down})
      if (!layer.skipped) add(*w);
  for (const Linear* w : {&spec.project_in, &spec.project_out, &spec.head}) add(*w);
  return bytes;
}

void Model::leave_out(int recent, int sinks, const std::vector<int>& skipped) {
  for (Layer& layer : spec_.layers)
    if (recent && (!layer.window || layer.window > recent)) {
      // A window of its own may not reach them. More than there ever are would overflow.
      layer.sinks = layer.window ? 0 : std::min(sinks, 1 << 30);
      layer.window = recent;
    }
  for (const int index : skipped) spec_.layers[index].skipped = true;
}

void Model::step(Step& step, Team& team, Counts& counts) {
  Shared shared(spec_, step);
  team.run([&](int thread) {
    Worker worker(spec_, step, shared, team, thread);
    worker.sketch();
    worker.box();
    worker.embed();
    for (int layer = 0; layer < static_cast<int>(spec_.layers.size()); layer++)
      if (!spec_.layers[layer].skipped) worker.layer(layer);
    if (!step.outputs.empty()) worker.logits();
  });

  counts.add_reads(shared.reads, static_cast<int>(step.items.size()), spec_.kv_heads,
                   *step.items[0].cache);
  counts.weight_bytes += weight_bytes(spec_);
}

}  // namespace suffice
