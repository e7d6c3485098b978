// The work of one thread in a step.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "model/model.h"
#include "model/step_buffers.h"

namespace suffice {

// With few rows, each thread has its own copy of the residual stream and adds the shared outputs to
// it after a barrier, so no thread waits for another to normalise. With many, there is one copy,
// each thread prepares some rows of it, and waits for the others.
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
    if (!shared.split) {
      prepared.prepare(rows, shared.width, shared.input_stride(), shared.value_width,
                       shared.pair_width, shared.joins);
      prepared.prepare(shared.adapted, spec.adapters);
    }
    buffers.key.assign(static_cast<size_t>(rows) * spec.head_size, 0.0f);
    buffers.value.assign(buffers.key.size(), 0.0f);
  }

  Timed time(Part part) { return Timed(buffers.clock, part); }

  // Waits for all threads.
  void wait() {
    const Timed timed = time(Part::waiting);
    team.barrier();
  }

  // Of `count` rows, those that this thread prepares.
  Share own(int count) const {
    return shared.split ? share(count, thread, team.size()) : Share{0, count};
  }

  // Returns once all rows are prepared; `items` of work on them may then be taken.
  void await_rows(int items) {
    if (!shared.split) return;
    if (thread == 0) shared.queue.begin(items, team.size());
    wait();
  }

  // Calls f(first, last) for this thread's panels of a matrix, whole units of them; of prepared
  // rows also for those that other threads are late with.
  template <class F>
  void take_panels(const Linear& w, F f, int unit = 1) {
    const Timed timed = time(Part::products);
    if (!shared.split) {
      const Share mine = share((w.panels() + unit - 1) / unit, thread, team.size());
      const int most = w.panels();
      return f(std::min(mine.first * unit, most), std::min(mine.last * unit, most));
    }
    const int each = panels_at_once(w, team.size(), unit);
    shared.queue.take(thread, team.size(),
                      [&](int item) { f(item * each, std::min((item + 1) * each, w.panels())); });
  }

  void fill(InputBuffers& to, const float* values, int stride, const Linear& w, int count) {
    const Timed timed = time(Part::inputs);
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
    take_panels(
        w, [&](int first, int last) { kernels().products.linear(w, first, last, x, y, stride); });
  }

  // Prepares what the step's adapters add to the products of all rows with `w`; called before
  // `inputs`, which waits for other threads' rows.
  void adapt(LowRankInputs& to, const Matrix& w, const float* values, int stride) {
    const Timed timed = time(Part::products);
    to.fill(shared.adapted, w, values, stride, own(rows), buffers.low_rank_scratch,
            buffers.input_scratch);
  }

  // Multiplies all rows with panels [first, last) of `w`, and adds what adapters do.
  void multiply_panels(const Matrix& w, int first, int last, const Inputs& x,
                       const LowRankInputs& adapted, float* y, int stride) {
    kernels().products.linear(w, first, last, x, y, stride);
    adapted.add(shared.adapted, w, first, last, y, stride, buffers.low_rank_scratch);
  }

  // Multiplies all rows of the step, as `multiply` does; then calls f(first, last) for panels that
  // are done.
  template <class F>
  void multiply_all(const Matrix& w, const float* values, int values_stride, float* y, int stride,
                    F f) {
    adapt(prepared.low_rank, w, values, values_stride);
    const Inputs x = inputs(values, values_stride, w, rows, items_of(w, team.size()));
    take_panels(w, [&](int first, int last) {
      multiply_panels(w, first, last, x, prepared.low_rank, y, stride);
      f(first, last);
    });
  }
  void multiply_all(const Matrix& w, const float* values, int values_stride, float* y, int stride) {
    multiply_all(w, values, values_stride, y, stride, [](int, int) {});
  }

  // y = norm(x) of a row; a norm without weight copies.
  void normalize_row(const Norm& norm, const float* x, float* y) {
    if (norm.weight)
      kernels().pointwise.normalize(x, spec.width, norm.weight, norm.bias, spec.layer_norm,
                                    spec.norm_eps, y);
    else if (x != y)
      std::memcpy(y, x, spec.width * sizeof(float));
  }

  void normalize(const Norm& norm, const float* x, float* y) {
    const Timed timed = time(Part::norms);
    const Share mine = own(rows);
    for (int row = mine.first; row < mine.last; row++) {
      const size_t start = static_cast<size_t>(row) * shared.width;
      normalize_row(norm, x + start, y + start);
    }
  }

  // Copies rows of the shared output.
  void take_output(std::vector<float>& to, int count) {
    const Timed timed = time(Part::norms);
    const Share mine = own(count);
    const float* from = shared.output.data();
    const size_t width = shared.width;
    std::copy(from + mine.first * width, from + mine.last * width, to.data() + mine.first * width);
  }
};

// Rotates pairs of a head's first entries, half of the rotated ones apart.
void rotate_pairs(float* head, int pairs, const float* cos, const float* sin);

// The same of pairs that are next to each other.
void rotate_neighbours(float* head, int pairs, const float* cos, const float* sin);

// Attends by the queries of a layer, once all are there and its keys are stored, and returns once
// every thread has.
void attend(const Sight& sight, int cached, Worker& worker);

// Begins the stream of all rows.
void embed(Worker& worker);

// The logits of `count` rows of the worker's states, of a head whose rows are in groups.
void grouped_logits(Worker& worker, int count);

// Run a block of a layer on the worker's `normal`, and return once every thread has left its part
// of the output in the shared `output`.
void run(const AttentionBlock& block, int layer, Worker& worker);
void run(const ConvolutionBlock& block, int layer, Worker& worker);
void run(const RecurrentBlock& block, int layer, Worker& worker);
void run(const LatentBlock& block, int layer, Worker& worker);
void run(const DenseMlp& block, int layer, Worker& worker);
void run(const ExpertMlp& block, int layer, Worker& worker);
void run(const LayerEmbeddingBlock& block, int layer, Worker& worker);

// Stores the keys and values of a layer, as `run` does, and attends to nothing.
void store(const AttentionBlock& block, int layer, Worker& worker);

// Makes the layer embeddings of the step's tokens, whose rows the worker's `residual` begins with.
void embed_layers(Worker& worker);

}  // namespace suffice
