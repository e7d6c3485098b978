#include "model/worker.h"

namespace suffice {
namespace {

// The part of one thread in a layer's attention to joint rows.
struct LatentWork {
  const LatentBlock& block;
  const int layer;
  Worker& worker;
  const ModelSpec& spec;
  const Step& step;
  StepBuffers& shared;
  const int rows, stride;          // of the step; of the buffers around the heads
  const int size, rotated, query;  // of a joint row, of its rotated part, of a head's query
  const Share mine;                // of the rows, whether they are shared out or not

  LatentWork(const LatentBlock& block, int layer, Worker& worker)
      : block(block),
        layer(layer),
        worker(worker),
        spec(worker.spec),
        step(worker.step),
        shared(worker.shared),
        rows(worker.rows),
        stride(shared.latent_width),
        size(block.size),
        rotated(size - block.rank),
        query(block.plain + rotated),
        mine(share(rows, worker.thread, worker.team.size())) {}

  static float* at(std::vector<float>& values, int row, int width) {
    return values.data() + static_cast<size_t>(row) * width;
  }

  void normalize(const Norm& norm, int count, float* values) const {
    const Timed timed = worker.time(Part::norms);
    kernels().pointwise.normalize(values, count, norm.weight, norm.bias, false, block.norm_eps,
                                  values);
  }

  // What makes the input of queries, or queries, and what makes joint rows, of one input.
  void project() const {
    const Timed timed = worker.time(Part::heads);
    RowBuffers& prepared = worker.prepared;
    const Matrix& first_of = block.q_low.data ? block.q_low : block.q;
    std::vector<float>& to = block.q_low.data ? shared.low : shared.latent;
    const float* from = worker.normal.data();
    const int before = first_of.panels(), all = before + block.kv.panels();
    if (block.kv_own) worker.fill(prepared.second_inputs, from, shared.width, block.kv, rows);
    worker.adapt(prepared.low_rank, first_of, from, shared.width);
    worker.adapt(prepared.second_low_rank, block.kv, from, shared.width);
    const Inputs x = worker.inputs(from, shared.width, first_of, rows, all);
    const Inputs of_kv =
        block.kv_own ? prepared.second_inputs.of(from, shared.width, block.kv, rows) : x;
    take(all, [&](int first, int last) {
      const Timed products = worker.time(Part::products);
      if (first < before)
        worker.multiply_panels(first_of, first, std::min(last, before), x, prepared.low_rank,
                               to.data(), stride);
      if (last > before)
        worker.multiply_panels(block.kv, std::max(first - before, 0), last - before, of_kv,
                               prepared.second_low_rank, shared.keys.data(), shared.key_width);
    });
    worker.wait();
  }

  // Calls f(first, last) for this thread's share of `count` items; where rows are shared out also
  // for what other threads are late with, one by one.
  template <class F>
  void take(int count, F f) const {
    if (shared.split)
      return shared.queue.take(worker.thread, worker.team.size(),
                               [&](int item) { f(item, item + 1); });
    const Share own = share(count, worker.thread, worker.team.size());
    if (own.first < own.last) f(own.first, own.last);
  }

  // Normalises, rotates and stores this thread's joint rows.
  void store() const {
    for (const StepRequest& request : step.requests) {
      const int last = std::min(mine.last, request.first_row + request.count);
      const int cached = request.length - request.cache->removed(layer) - request.first_row;
      for (int row = std::max(mine.first, request.first_row); row < last; row++) {
        float* const key = at(shared.keys, row, shared.key_width);
        normalize(block.kv_norm, block.rank, key);
        rotate(row, key + block.rank);
        kernels().rows.store_row(request.cache->head(layer, 0), cached + row, key, nullptr);
      }
    }
  }

  void rotate(int row, float* entries) const {
    if (block.rope < 0) return;
    const Rope& rope = spec.ropes[block.rope];
    const size_t start = static_cast<size_t>(step.positions[row]) * rope.pairs;
    const auto turn = block.adjacent ? rotate_neighbours : rotate_pairs;
    turn(entries, rope.pairs, rope.cos + start, rope.sin + start);
  }

  // The queries of all heads, of the normalised output of `q_low`.
  void raise() const {
    for (int row = mine.first; row < mine.last; row++)
      normalize(block.q_norm, block.q_low.rows, at(shared.low, row, stride));
    worker.wait();
    worker.multiply_all(block.q, shared.low.data(), stride, shared.latent.data(), stride);
    worker.wait();
  }

  // Calls f(head, first, last, inputs) for parts of the heads' matrices in a stack of `panels` for
  // each. Inputs of a head are the columns of `w` from head * apart on.
  template <class F>
  void each_part(const Linear& w, int panels, const std::vector<float>& from, int from_stride,
                 int apart, F f) const {
    worker.await_rows(spec.heads);
    const int unit = shared.split ? panels : 1;
    take(spec.heads * panels / unit, [&](int begin, int end) {
      for (int panel = begin * unit; panel < end * unit;) {
        const int head = panel / panels, first = panel % panels;
        const int last = std::min(panels, first + end * unit - panel);
        f(head, first, last, inputs_of(w, from.data() + head * apart, from_stride));
        panel += last - first;
      }
    });
    worker.wait();
  }

  Inputs inputs_of(const Linear& w, const float* from, int from_stride) const {
    const Timed timed = worker.time(Part::inputs);
    HeadInputs& own = worker.buffers.of_head;
    own.rows.resize(static_cast<size_t>(rows) * w.columns);
    for (int row = 0; row < rows; row++)
      std::copy_n(from + static_cast<size_t>(row) * from_stride, w.columns,
                  own.rows.data() + static_cast<size_t>(row) * w.columns);
    own.inputs.prepare(rows, w.columns);
    own.inputs.reserve(w);
    own.inputs.fill(own.rows.data(), w.columns, w, 0, rows, rows, worker.buffers.input_scratch);
    return own.inputs.of(own.rows.data(), w.columns, w, rows);
  }

  // Queries for joint rows: the plain entries times `key_up`, and the rotated ones.
  void absorb() const {
    const int panels = block.rank / kPanel;
    each_part(block.key_up, panels, shared.latent, stride, query,
              [&](int head, int first, int last, const Inputs& x) {
                {
                  const Timed timed = worker.time(Part::products);
                  kernels().products.linear(
                      block.key_up, head * panels + first, head * panels + last, x,
                      shared.queries.data() + head * (size - block.rank), shared.query_width);
                }
                place(head, first * kPanel, last * kPanel);
              });
  }

  // Rotates a head's queries with its first entries, and scales entries [first, last).
  void place(int head, int first, int last) const {
    for (int row = 0; row < rows; row++) {
      float* const to = at(shared.queries, row, shared.query_width) + head * size;
      float scale = spec.attention_scale * kLog2e;
      if (spec.query_scales) scale *= spec.query_scales[step.positions[row]];
      for (int i = first; i < last; i++) to[i] *= scale;
      if (first > 0) continue;
      std::copy_n(at(shared.latent, row, stride) + head * query + block.plain, rotated,
                  to + block.rank);
      rotate(row, to + block.rank);
      for (int i = block.rank; i < size; i++) to[i] *= scale;
    }
  }

  // The values of heads, of what each finds in joint rows.
  void release() const {
    const int panels = block.value / kPanel;
    each_part(block.value_up, panels, shared.attended, shared.query_width, size,
              [&](int head, int first, int last, const Inputs& x) {
                const Timed timed = worker.time(Part::products);
                kernels().products.linear(block.value_up, head * panels + first,
                                          head * panels + last, x, shared.latent.data(), stride);
              });
  }
};

}  // namespace

void reserve_inputs(const LatentBlock& block, RowBuffers& to) {
  for (const Linear* w : {&block.q_low, &block.q, &block.o}) to.inputs.reserve(*w);
  to.second_inputs.reserve(block.kv);
}

void run(const LatentBlock& block, int layer, Worker& worker) {
  StepBuffers& shared = worker.shared;
  const int cached = worker.spec.layers[layer].cached;
  const LatentWork work(block, cached, worker);
  if (worker.thread == 0) shared.plan(worker.spec, worker.step, block, cached, worker.team.size());
  work.project();
  work.store();
  if (block.q_low.data) work.raise();
  work.absorb();
  attend(block, cached, worker);
  work.release();
  worker.multiply_all(block.o, shared.latent.data(), shared.latent_width, shared.output.data(),
                      shared.width);
  worker.wait();
}

}  // namespace suffice
