#include "model/worker.h"

namespace suffice {
namespace {

// The part of one thread in a layer's attention.
struct AttentionWork {
  const AttentionBlock& block;
  const int layer;
  Worker& worker;
  const ModelSpec& spec;
  const Step& step;
  StepBuffers& shared;
  ThreadBuffers& buffers;
  const int rows, size;       // of the step, and of a head
  const int heads, kv_heads;  // that attend, and that are stored

  AttentionWork(const AttentionBlock& block, int layer, Worker& worker, bool attends)
      : block(block),
        layer(layer),
        worker(worker),
        spec(worker.spec),
        step(worker.step),
        shared(worker.shared),
        buffers(worker.buffers),
        rows(worker.rows),
        size(block.size),
        heads(attends ? spec.heads : 0),
        kv_heads(block.k.data ? block.kv_heads : 0) {}

  // Row `row` of query head `h`, or of key head `g`.
  float* query(int row, int h) const {
    return shared.queries.data() + static_cast<size_t>(row) * shared.query_width + h * size;
  }
  float* key(int row, int g) const {
    return shared.keys.data() + static_cast<size_t>(row) * shared.key_width + g * size;
  }

  // The norm of a head and its rotary position.
  void place(const Norm& norm, int row, float* head) const {
    const bool own = norm.weight && !block.whole_norms;
    if (own && !block.late_norms) normalize(norm, head);
    if (block.rope >= 0) {
      const Rope& rope = spec.ropes[block.rope];
      const size_t start = static_cast<size_t>(step.positions[row]) * rope.pairs;
      rotate_pairs(head, rope.pairs, rope.cos + start, rope.sin + start);
    }
    if (own && block.late_norms) normalize(norm, head);
  }

  void normalize(const Norm& norm, float* head) const {
    kernels().pointwise.normalize(head, size, norm.weight, norm.bias, false, spec.norm_eps, head);
  }

  void multiply_query(const Inputs& x, int h) const {
    const Timed timed = worker.time(Part::products);
    const int panels = size / kPanel;
    worker.multiply_panels(block.q, h * panels, (h + 1) * panels, x, worker.prepared.low_rank,
                           shared.queries.data(), shared.query_width);
  }

  void place_query(int h) const {
    for (int row = 0; row < rows; row++) {
      float* q = query(row, h);
      place(block.q_norm, row, q);
      float scale = spec.attention_scale * kLog2e;
      if (spec.query_scales && block.grows) scale *= spec.query_scales[step.positions[row]];
      for (int i = 0; i < size; i++) q[i] *= scale;
    }
  }

  // Multiplies a key or value head into a buffer of its own. The kernel writes output n at y + n: y
  // is shifted so that this head's outputs start the buffer.
  void multiply_head(const Matrix& w, const Inputs& x, const LowRankInputs& adapted, int g,
                     std::vector<float>& to) const {
    const Timed timed = worker.time(Part::products);
    const int panels = size / kPanel;
    worker.multiply_panels(w, g * panels, (g + 1) * panels, x, adapted, to.data() - g * size, size);
  }

  // The values of a head: `from` are its keys, before they are placed.
  void multiply_values(const Inputs& x, int g, const std::vector<float>& from) const {
    if (block.v.data)
      multiply_head(block.v, x, worker.prepared.third_low_rank, g, buffers.value);
    else
      buffers.value = from;
    for (int row = 0; row < rows && block.v_norm.weight; row++)
      normalize(block.v_norm, buffers.value.data() + static_cast<size_t>(row) * size);
  }

  // Stores the keys key(row) of a head, once placed, and its values. A key is spread over the lines
  // of a panel, which are fetched while those of the requests before are stored.
  template <class Key>
  void store(int g, Key key) const {
    constexpr size_t ahead = 3;  // requests
    KVHead heads[ahead + 1];
    const auto first_of = [&](const StepRequest& request) {
      return request.length - request.cache->removed(layer);
    };
    const size_t count = step.requests.size();
    for (size_t at = 0; at < count + ahead; at++) {
      if (at < count) {
        const StepRequest& next = step.requests[at];
        heads[at % (ahead + 1)] = next.cache->head(layer, g);
        kernels().rows.fetch_place(heads[at % (ahead + 1)], first_of(next));
      }
      if (at < ahead) continue;
      const StepRequest& request = step.requests[at - ahead];
      const KVHead& head = heads[(at - ahead) % (ahead + 1)];
      for (int row = request.first_row; row < request.first_row + request.count; row++) {
        float* k = key(row);
        place(block.k_norm, row, k);
        kernels().rows.store_row(head, first_of(request) + row - request.first_row, k,
                                 buffers.value.data() + static_cast<size_t>(row) * size);
      }
    }
  }

  // Calls of_query(h) and of_key(g) for this thread's heads. Query heads cost one matmul, key/value
  // heads two, so these come first where threads take what is left; otherwise each takes the units
  // that start in its share of the cost.
  template <class OfQuery, class OfKey>
  void each_head(OfQuery of_query, OfKey of_key) const {
    if (shared.split)
      return shared.queue.take(worker.thread, worker.team.size(), [&](int item) {
        if (item < kv_heads)
          of_key(item);
        else
          of_query(item - kv_heads);
      });
    const Share mine = share(heads + 2 * kv_heads, worker.thread, worker.team.size());
    for (int h = mine.first; h < std::min(mine.last, heads); h++) of_query(h);
    for (int g = 0; g < kv_heads; g++) {
      const int start = heads + 2 * g;
      if (start >= mine.first && start < mine.last) of_key(g);
    }
  }

  void project() const {
    const Timed timed = worker.time(Part::heads);
    RowBuffers& prepared = worker.prepared;
    const float* from = block.paired ? prepared.pairs.data() : worker.normal.data();
    const int stride = block.paired ? shared.pair_width : shared.width;
    const int items = heads + kv_heads;
    if (block.k_own) worker.fill(prepared.second_inputs, from, stride, block.k, rows);
    if (block.v_own) worker.fill(prepared.third_inputs, from, stride, block.v, rows);
    worker.adapt(prepared.low_rank, block.q, from, stride);
    if (block.k.data) worker.adapt(prepared.second_low_rank, block.k, from, stride);
    if (block.v.data) worker.adapt(prepared.third_low_rank, block.v, from, stride);
    const Inputs x = worker.inputs(from, stride, block.q, rows, items);
    const Inputs of_k = block.k_own ? prepared.second_inputs.of(from, stride, block.k, rows) : x;
    const Inputs of_v = block.v_own ? prepared.third_inputs.of(from, stride, block.v, rows) : x;
    if (block.whole_norms) return project_and_normalize(x, of_k, of_v, items);
    each_head(
        [&](int h) {
          multiply_query(x, h);
          place_query(h);
        },
        [&](int g) {
          multiply_head(block.k, of_k, prepared.second_low_rank, g, buffers.key);
          multiply_values(of_v, g, buffers.key);
          store(g, [&](int row) { return buffers.key.data() + static_cast<size_t>(row) * size; });
        });
  }

  // The same with norms over all heads, for which each thread waits until all are multiplied.
  void project_and_normalize(const Inputs& x, const Inputs& of_k, const Inputs& of_v,
                             int items) const {
    const int panels = size / kPanel;
    each_head([&](int h) { multiply_query(x, h); },
              [&](int g) {
                const Timed timed = worker.time(Part::products);
                worker.multiply_panels(block.k, g * panels, (g + 1) * panels, of_k,
                                       worker.prepared.second_low_rank, shared.keys.data(),
                                       shared.key_width);
              });
    worker.wait();
    const Share mine = share(rows, worker.thread, worker.team.size());
    for (int row = mine.first; row < mine.last; row++) {
      if (heads) normalize_heads(block.q_norm, query(row, 0), shared.query_width);
      normalize_heads(block.k_norm, key(row, 0), shared.key_width);
    }
    worker.await_rows(items);
    if (!shared.split) worker.wait();
    each_head([&](int h) { place_query(h); },
              [&](int g) {
                multiply_head(block.v, of_v, worker.prepared.third_low_rank, g, buffers.value);
                store(g, [&](int row) { return key(row, g); });
              });
  }

  void normalize_heads(const Norm& norm, float* heads, int width) const {
    kernels().pointwise.normalize(heads, width, norm.weight, norm.bias, false, spec.norm_eps,
                                  heads);
  }
};

// Copies the watched requests' queries of a layer out, without their scale.
void hand_out(const Sight& sight, int layer, const Worker& worker) {
  const Step& step = worker.step;
  const float inverse = 1.0f / (worker.spec.attention_scale * kLog2e);
  const size_t width = worker.shared.query_width;
  const size_t own = static_cast<size_t>(worker.spec.heads) * sight.size;
  float* to = step.queries + static_cast<size_t>(layer) * step.watched_rows * width;
  for (const StepRequest& request : step.requests) {
    if (!request.watched) continue;
    const float* from = worker.shared.queries.data() + request.first_row * width;
    for (int row = 0; row < request.count; row++, from += width, to += width) {
      for (size_t i = 0; i < own; i++) to[i] = from[i] * inverse;
      std::fill(to + own, to + width, 0.0f);
    }
  }
}

}  // namespace

// [x1, x2] -> [x1 cos - x2 sin, x2 cos + x1 sin]
void rotate_pairs(float* head, int pairs, const float* cos, const float* sin) {
  for (int i = 0; i < pairs; i++) {
    const float a = head[i], b = head[pairs + i];
    head[i] = a * cos[i] - b * sin[i];
    head[pairs + i] = b * cos[i] + a * sin[i];
  }
}

void rotate_neighbours(float* head, int pairs, const float* cos, const float* sin) {
  for (int i = 0; i < pairs; i++, head += 2) {
    const float a = head[0], b = head[1];
    head[0] = a * cos[i] - b * sin[i];
    head[1] = b * cos[i] + a * sin[i];
  }
}

void attend(const Sight& sight, int cached, Worker& worker) {
  StepBuffers& shared = worker.shared;
  if (worker.step.queries && worker.thread == 0) hand_out(sight, cached, worker);
  {
    const Timed timed = worker.time(Part::attention);
    if (worker.thread == 0 && worker.step.outside.attend)
      shared.attend_outside(worker.spec, worker.step, sight, cached);
    shared.attention.work(worker.buffers.scratch, worker.team, worker.thread);
  }
  worker.wait();
}

void reserve_inputs(const AttentionBlock& block, RowBuffers& to) {
  for (const Linear* w : {&block.q, &block.gate, &block.o})
    if (w->data) to.inputs.reserve(*w);
  if (block.k.data) to.second_inputs.reserve(block.k);
  if (block.v.data) to.third_inputs.reserve(block.v);
}

namespace {

// Multiplies the outputs of heads by the logistic of the gates' products.
void gate(const AttentionBlock& block, Worker& worker) {
  StepBuffers& shared = worker.shared;
  const int stride = shared.query_width;
  const auto apply = [&](int first, int last) {
    const Timed timed = worker.time(Part::activations);
    for (int row = 0; row < worker.rows; row++) {
      const size_t start = static_cast<size_t>(row) * stride + first * kPanel;
      float* const gates = shared.gates.data() + start;
      kernels().pointwise.activate(kLogistic, gates, shared.attended.data() + start,
                                   (last - first) * kPanel);
    }
  };
  worker.multiply_all(block.gate, worker.normal.data(), shared.width, shared.gates.data(), stride,
                      apply);
}

}  // namespace

void store(const AttentionBlock& block, int layer, Worker& worker) {
  AttentionWork(block, worker.spec.layers[layer].cached, worker, false).project();
  worker.wait();
}

void run(const AttentionBlock& block, int layer, Worker& worker) {
  StepBuffers& shared = worker.shared;
  const int cached = worker.spec.layers[layer].cached;
  const AttentionWork work(block, cached, worker, true);
  if (worker.thread == 0) shared.plan(worker.spec, worker.step, block, cached, worker.team.size());
  work.project();
  worker.wait();
  attend(block, cached, worker);
  if (block.gate.data) {
    gate(block, worker);
    worker.wait();
  }
  const float* const outputs = block.gate.data ? shared.gates.data() : shared.attended.data();
  worker.multiply_all(block.o, outputs, shared.query_width, shared.output.data(), shared.width);
  worker.wait();
}

}  // namespace suffice
