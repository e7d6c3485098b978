// What the rows of a step begin with: embeddings, and hidden states of another model.
#include <algorithm>

#include "model/worker.h"

namespace suffice {
namespace {

// Multiplies `values` of all rows into the stream.
void multiply_into_stream(const Linear& w, const float* values, int stride, Worker& worker) {
  StepBuffers& shared = worker.shared;
  worker.multiply(w, values, stride, worker.rows, shared.output.data(), shared.width);
  worker.wait();
  worker.take_output(worker.residual, worker.rows);
  worker.wait();
}

// Begins with hidden states and with the embeddings in `normal`: see ModelSpec.
void take_hidden(Worker& worker) {
  const ModelSpec& spec = worker.spec;
  const Step& step = worker.step;
  const size_t width = worker.shared.width, pair = worker.shared.pair_width;
  float *const stream = worker.residual.data(), *const pairs = worker.prepared.pairs.data();
  const Share mine = worker.own(worker.rows);
  if (spec.plain_pairs) {
    const size_t half = spec.hidden_width;
    for (size_t row = mine.first; row < static_cast<size_t>(mine.last); row++) {
      std::copy_n(worker.normal.data() + row * width, half, pairs + row * pair);
      std::copy_n(step.hidden + row * half, half, pairs + row * pair + half);
    }
    return multiply_into_stream(spec.join, pairs, worker.shared.pair_width, worker);
  }
  if (!step.own_hidden && spec.fuse.data)
    multiply_into_stream(spec.fuse, step.hidden, spec.hidden_width, worker);
  else
    for (size_t row = mine.first; row < static_cast<size_t>(mine.last); row++)
      std::copy_n(step.hidden + row * spec.width, spec.width, stream + row * width);
  for (size_t row = mine.first; row < static_cast<size_t>(mine.last); row++) {
    float* const hidden = pairs + row * pair + spec.width;
    worker.normalize_row(spec.embedding_norm, worker.normal.data() + row * width,
                         pairs + row * pair);
    worker.normalize_row(spec.hidden_norm, stream + row * width, hidden);
    if (spec.normed_stream) std::copy_n(hidden, spec.width, stream + row * width);
  }
  if (spec.join.data) multiply_into_stream(spec.join, pairs, worker.shared.pair_width, worker);
}

// Begins with hidden states alone: see ModelSpec::stores_hidden.
void fuse_hidden(Worker& worker) {
  const ModelSpec& spec = worker.spec;
  multiply_into_stream(spec.fuse, worker.step.hidden, spec.hidden_width, worker);
  worker.normalize(spec.hidden_norm, worker.residual.data(), worker.residual.data());
}

}  // namespace

void embed(Worker& worker) {
  const ModelSpec& spec = worker.spec;
  StepBuffers& shared = worker.shared;
  if (only_stores(spec, worker.step)) return fuse_hidden(worker);
  const bool project = spec.project_in.data, apart = project || worker.step.hidden;
  const Share mine = worker.own(worker.rows);
  for (int row = mine.first; row < mine.last; row++) {
    float* to =
        (apart ? worker.normal : worker.residual).data() + static_cast<size_t>(row) * shared.width;
    kernels().products.unpack_row(spec.embedding, worker.step.tokens[row], to);
    for (int i = 0; i < spec.embedding_width; i++) to[i] *= spec.embedding_scale;
  }
  if (worker.step.hidden) return take_hidden(worker);
  if (project) multiply_into_stream(spec.project_in, worker.normal.data(), shared.width, worker);
  for (int row = mine.first; row < mine.last && spec.positions; row++) {
    const float* from =
        spec.positions + static_cast<size_t>(worker.step.positions[row]) * spec.width;
    float* to = worker.residual.data() + static_cast<size_t>(row) * shared.width;
    for (int i = 0; i < spec.width; i++) to[i] += from[i];
  }
  if (spec.embedding_norm.weight)
    worker.normalize(spec.embedding_norm, worker.residual.data(), worker.residual.data());
}

}  // namespace suffice
