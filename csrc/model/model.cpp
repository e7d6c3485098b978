#include "model/model.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cache/sketch.h"
#include "model/step_buffers.h"

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

// The work of one thread. With few rows, each thread has its own copy of the residual stream and
// adds the shared outputs to it after a barrier, so no thread waits for another to normalise. With
// many, there is one copy, each thread prepares some rows of it, and waits for the others.
struct Worker {
  const ModelSpec& spec;
  const Step& step;
  StepBuffers& shared;
  Team& team;
  int thread;
  int rows;
  bool selects;  // the rules apply to some request
  ThreadBuffers& buffers;
  RowBuffers& prepared;
  std::vector<float>&residual, &normal;

  Worker(const ModelSpec& spec, const Step& step, StepBuffers& shared, Team& team, int thread)
      : spec(spec),
        step(step),
        shared(shared),
        team(team),
        thread(thread),
        rows(shared.rows),
        selects(step.selects()),
        buffers(shared.threads[thread]),
        prepared(shared.threads[shared.split ? 0 : thread].rows),
        residual(prepared.residual),
        normal(prepared.normal) {
    if (!shared.split) prepared.prepare(rows, shared.width, shared.input_stride());
    buffers.key.assign(static_cast<size_t>(rows) * spec.head_size, 0.0f);
    buffers.value.assign(buffers.key.size(), 0.0f);
  }

  // Of `count` rows, those that this thread prepares.
  Share own(int count) const {
    return shared.split ? share(count, thread, team.size()) : Share{0, count};
  }

  // Returns once all rows are prepared; `items` of work on them may then be taken.
  void await_rows(int items) {
    if (!shared.split) return;
    if (thread == 0) shared.queue.begin(items, team.size());
    team.barrier();
  }

  // Calls f(first, last) for this thread's panels of a matrix; of prepared rows also for those that
  // other threads are late with.
  template <class F>
  void take_panels(const Linear& w, F f) {
    if (!shared.split) {
      const Share mine = share(w.panels(), thread, team.size());
      return f(mine.first, mine.last);
    }
    const int each = panels_at_once(w, team.size());
    shared.queue.take(thread, team.size(),
                      [&](int item) { f(item * each, std::min((item + 1) * each, w.panels())); });
  }

  void fill(InputBuffers& to, const float* values, int stride, const Linear& w, int count) {
    const Share mine = own(count);
    if (!shared.split) to.reserve(w);
    to.fill(values, stride, w, mine.first, mine.last, count, buffers.input_scratch);
  }

  // The inputs of `w`, for `items` of work.
  Inputs inputs(const float* values, int stride, const Linear& w, int count, int items) {
    fill(prepared.inputs, values, stride, w, count);
    await_rows(items);
    return prepared.inputs.of(values, stride, w, count);
  }

  // Multiplies rows; with many, once each thread has prepared its own of them.
  void multiply(const Linear& w, const float* values, int values_stride, int count, float* y,
                int stride) {
    const Inputs x = inputs(values, values_stride, w, count, items_of(w, team.size()));
    take_panels(w, [&](int first, int last) { kernels().linear(w, first, last, x, y, stride); });
  }

  // y = norm(x) of a row; a norm without weight copies.
  void normalize_row(const Norm& norm, const float* x, float* y) {
    if (norm.weight)
      kernels().normalize(x, spec.width, norm.weight, norm.bias, spec.layer_norm, spec.norm_eps, y);
    else if (x != y)
      std::memcpy(y, x, spec.width * sizeof(float));
  }

  void normalize(const Norm& norm, const float* x, float* y) {
    const Share mine = own(rows);
    for (int row = mine.first; row < mine.last; row++) {
      const size_t start = static_cast<size_t>(row) * shared.width;
      normalize_row(norm, x + start, y + start);
    }
  }

  // Copies rows of the shared output.
  void take_output(std::vector<float>& to, int count) {
    const Share mine = own(count);
    const float* from = shared.output.data();
    const size_t width = shared.width;
    std::copy(from + mine.first * width, from + mine.last * width, to.data() + mine.first * width);
  }

  void embed() {
    const bool project = spec.project_in.data;
    const Share mine = own(rows);
    for (int row = mine.first; row < mine.last; row++) {
      float* to = (project ? normal : residual).data() + static_cast<size_t>(row) * shared.width;
      kernels().unpack_row(spec.embedding, step.tokens[row], to);
      for (int i = 0; i < spec.embedding_width; i++) to[i] *= spec.embedding_scale;
    }
    if (project) {
      multiply(spec.project_in, normal.data(), shared.width, rows, shared.output.data(),
               shared.width);
      team.barrier();
      take_output(residual, rows);
      team.barrier();
    }
    if (!spec.positions) return;
    for (int row = mine.first; row < mine.last; row++) {
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

  void project_key_value(const Layer& layer, int index, const Inputs& of_k, const Inputs& of_v,
                         int g) {
    const int size = spec.head_size, panels = size / kPanel;
    // The kernel writes output n at y + n: y is shifted so that this head's outputs start the
    // buffer.
    kernels().linear(layer.k, g * panels, (g + 1) * panels, of_k, buffers.key.data() - g * size,
                     size);
    kernels().linear(layer.v, g * panels, (g + 1) * panels, of_v, buffers.value.data() - g * size,
                     size);
    for (const StepRequest& request : step.requests)
      for (int i = 0; i < request.count; i++) {
        float* k = buffers.key.data() + static_cast<size_t>(request.first_row + i) * size;
        position(layer, layer.k_norm, request.first_row + i, k);
        kernels().store_row(
            request.cache->head(index, g), request.length - request.cache->removed(index) + i, k,
            buffers.value.data() + static_cast<size_t>(request.first_row + i) * size);
      }
  }

  // Per-head normalisation and rotary position.
  void position(const Layer& layer, const Norm& norm, int row, float* head) {
    if (norm.weight)
      kernels().normalize(head, spec.head_size, norm.weight, norm.bias, false, spec.norm_eps, head);
    if (layer.rope < 0) return;
    const Rope& rope = spec.ropes[layer.rope];
    const size_t start = static_cast<size_t>(step.positions[row]) * (spec.head_size / 2);
    rotate(head, spec.head_size, rope.cos + start, rope.sin + start);
  }

  // Query heads cost one matmul, key/value heads two, so these come first where threads take what
  // is left; otherwise each takes the units that start in its share of the cost.
  void project(const Layer& layer, int index) {
    const float* from = normal.data();
    if (layer.k_own) fill(prepared.second_inputs, from, shared.width, layer.k, rows);
    if (layer.v_own) fill(prepared.third_inputs, from, shared.width, layer.v, rows);
    const Inputs x = inputs(from, shared.width, layer.q, rows, spec.heads + spec.kv_heads);
    const Inputs of_k =
        layer.k_own ? prepared.second_inputs.of(from, shared.width, layer.k, rows) : x;
    const Inputs of_v =
        layer.v_own ? prepared.third_inputs.of(from, shared.width, layer.v, rows) : x;
    if (shared.split)
      return shared.queue.take(thread, team.size(), [&](int item) {
        if (item < spec.kv_heads)
          project_key_value(layer, index, of_k, of_v, item);
        else
          project_query(layer, x, item - spec.kv_heads);
      });
    const Share mine = share(spec.heads + 2 * spec.kv_heads, thread, team.size());
    for (int h = mine.first; h < std::min(mine.last, spec.heads); h++) project_query(layer, x, h);
    for (int g = 0; g < spec.kv_heads; g++) {
      const int start = spec.heads + 2 * g;
      if (start >= mine.first && start < mine.last) project_key_value(layer, index, of_k, of_v, g);
    }
  }

  bool sketches(const StepRequest& request) const {
    return !request.exact && spec.needs_sketch(request.technique) && request.cache->extras().sketch;
  }

  // Completes the sketches of the committed keys, if the step needs them.
  void sketch() {
    if (std::none_of(step.requests.begin(), step.requests.end(),
                     [&](const StepRequest& request) { return sketches(request); }))
      return;
    for (const StepRequest& request : step.requests) {
      if (!sketches(request)) continue;
      const int heads = request.cache->layers() * request.cache->heads();
      const Share mine = share(heads, thread, team.size());
      for (int i = mine.first; i < mine.last; i++) {
        const int layer = i / request.cache->heads();
        const KVHead head = request.cache->head(layer, i % request.cache->heads());
        for (int c = request.cache->sketched(layer); c < request.length / kSketchRows; c++)
          encode_sketch(head, c);
      }
    }
    team.barrier();
    if (thread > 0) return;
    for (const StepRequest& request : step.requests)
      for (int layer = 0; sketches(request) && layer < request.cache->layers(); layer++)
        request.cache->set_sketched(
            layer, std::max(request.cache->sketched(layer), request.length / kSketchRows));
  }

  // Completes the boxes around the committed keys.
  void box() {
    if (!selects || !step.requests[0].cache->extras().boxes) return;
    for (const StepRequest& request : step.requests) {
      if (request.exact) continue;
      const Share mine =
          share(request.cache->layers() * request.cache->heads(), thread, team.size());
      encode_boxes(*request.cache, mine.first, mine.last, request.length);
    }
    team.barrier();
    if (thread == 0)
      for (const StepRequest& request : step.requests)
        for (int layer = 0; layer < request.cache->layers() && !request.exact; layer++)
          request.cache->set_boxed(layer,
                                   std::max(request.cache->boxed(layer), request.length / kPanel));
    team.barrier();
  }

  // Copies the watched requests' queries of a layer out, without their scale.
  void hand_out(int index) {
    const float inverse = 1.0f / (spec.attention_scale * kLog2e);
    const size_t width = shared.query_width;
    float* to = step.queries + static_cast<size_t>(index) * step.watched_rows * width;
    for (const StepRequest& request : step.requests) {
      if (!request.watched) continue;
      const float* from = shared.queries.data() + request.first_row * width;
      for (size_t i = 0; i < request.count * width; i++) *to++ = from[i] * inverse;
    }
  }

  void mlp(const Layer& layer) {
    const bool gated = layer.gate.data;
    const float* from = normal.data();
    if (layer.gate_own) fill(prepared.second_inputs, from, shared.width, layer.gate, rows);
    const Inputs x = inputs(from, shared.width, layer.up, rows, items_of(layer.up, team.size()));
    const Inputs of_gate =
        layer.gate_own ? prepared.second_inputs.of(from, shared.width, layer.gate, rows) : x;
    const int stride = shared.mlp_width;
    float* up = shared.up.data();
    float* gate = gated ? shared.gate.data() : up;
    take_panels(layer.up, [&](int first, int last) {
      kernels().linear(layer.up, first, last, x, up, stride);
      if (gated) kernels().linear(layer.gate, first, last, of_gate, gate, stride);
      for (int row = 0; row < rows; row++) {
        const size_t start = static_cast<size_t>(row) * stride + first * kPanel;
        kernels().activate(spec.activation, gate + start, gated ? up + start : nullptr,
                           (last - first) * kPanel);
      }
    });
    team.barrier();
    multiply(layer.down, gate, stride, rows, shared.output.data(), shared.width);
    team.barrier();
  }

  // Adds a sub-layer's shared output to the residual stream.
  void add(const Norm& after, const Norm& whole) {
    float* output = shared.output.data();
    if (spec.placement == Placement::sandwich) {
      normalize(after, output, normal.data());
      output = normal.data();
    }
    const Share mine = own(rows);
    const size_t width = shared.width;
    for (size_t i = mine.first * width; i < mine.last * width; i++) residual[i] += output[i];
    if (spec.placement == Placement::post) normalize(whole, residual.data(), residual.data());
  }

  void layer(int index) {
    const Layer& layer = spec.layers[index];
    const bool post = spec.placement == Placement::post;
    normalize(post ? Norm{} : layer.attention_norm, residual.data(), normal.data());
    if (thread == 0) shared.plan(spec, step, index, team.size());
    project(layer, index);
    team.barrier();
    if (step.queries && thread == 0) hand_out(index);
    shared.attention.work(buffers.scratch, team, thread);
    team.barrier();
    multiply(layer.o, shared.attended.data(), shared.query_width, rows, shared.output.data(),
             shared.width);
    team.barrier();
    add(layer.post_attention_norm, layer.attention_norm);
    normalize(post ? Norm{} : layer.mlp_norm, residual.data(), normal.data());
    mlp(layer);
    add(layer.post_mlp_norm, layer.mlp_norm);
  }

  void logits() {
    const int count = static_cast<int>(step.outputs.size());
    if (shared.split) team.barrier();  // all rows of the last layer are added
    const Share mine = own(count);
    for (int i = mine.first; i < mine.last; i++)
      normalize_row(spec.final_norm,
                    residual.data() + static_cast<size_t>(step.outputs[i]) * shared.width,
                    normal.data() + static_cast<size_t>(i) * shared.width);
    if (spec.project_out.data) {
      team.barrier();  // all threads have added the last layer's output
      multiply(spec.project_out, normal.data(), shared.width, count, shared.output.data(),
               shared.width);
      team.barrier();
      take_output(normal, count);
    }
    multiply(spec.head, normal.data(), shared.width, count, step.logits,
             round_up(spec.vocabulary, kPanel));
  }
};

}  // namespace

int64_t weight_bytes(const ModelSpec& spec) {
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
      // A layer's own window may not reach the sinks. Larger values would overflow.
      layer.sinks = layer.window ? 0 : std::min(sinks, 1 << 30);
      layer.window = recent;
    }
  for (const int index : skipped) spec_.layers[index].skipped = true;
}

Model::Model(ModelSpec spec) : spec_(std::move(spec)), buffers_(std::make_unique<StepBuffers>()) {}

Model::~Model() = default;

void Model::step(Step& step, Team& team, Counts& counts, std::vector<RequestReads>& by_request) {
  const std::lock_guard lock(stepping_);
  StepBuffers& shared = *buffers_;
  shared.prepare(spec_, step, team.size());
  team.run([&](int thread) {
    Worker worker(spec_, step, shared, team, thread);
    worker.sketch();
    worker.box();
    worker.embed();
    for (int layer = 0; layer < static_cast<int>(spec_.layers.size()); layer++)
      if (!spec_.layers[layer].skipped) worker.layer(layer);
    if (!step.outputs.empty()) worker.logits();
  });
  by_request.assign(step.requests.size(), {});
  counts.add_reads(shared.reads, spec_.kv_heads, *step.requests[0].cache, by_request);
  counts.weight_bytes += weight_bytes(spec_);
}

}  // namespace suffice
