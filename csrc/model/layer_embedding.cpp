#include "model/worker.h"

namespace suffice {

void reserve_inputs(const LayerEmbeddingBlock& block, RowBuffers& to) {
  for (const Linear* w : {&block.gate, &block.out}) to.inputs.reserve(*w);
}

void embed_layers(Worker& worker) {
  const LayerEmbeddings& all = worker.spec.layer_embeddings;
  StepBuffers& shared = worker.shared;
  const int width = shared.layer_embedding_width;
  worker.multiply(all.project, worker.residual.data(), shared.width, worker.rows,
                  shared.layer_embeddings.data(), width);
  worker.wait();
  std::vector<float> row(width);
  const Share mine = share(worker.rows, worker.thread, worker.team.size());
  for (int i = mine.first; i < mine.last; i++) {
    float* const to = shared.layer_embeddings.data() + static_cast<size_t>(i) * width;
    kernels().products.unpack_row(all.table, worker.step.tokens[i], row.data());
    for (int j = 0; j < width; j++) to[j] *= all.project_scale;
    for (int first = 0; first < width; first += all.size)
      kernels().pointwise.normalize(to + first, all.size, all.norm.weight, nullptr, false,
                                    worker.spec.norm_eps, to + first);
    for (int j = 0; j < width; j++) to[j] = (to[j] + row[j] * all.table_scale) * all.scale;
  }
  worker.wait();
}

void run(const LayerEmbeddingBlock& block, int, Worker& worker) {
  StepBuffers& shared = worker.shared;
  const int stride = shared.inner_width;
  const float* const from = shared.layer_embeddings.data() + block.place * block.size();
  float* const gated = shared.inner.data();
  worker.multiply_all(
      block.gate, worker.normal.data(), shared.width, gated, stride, [&](int first, int last) {
        const Timed timed = worker.time(Part::activations);
        for (int row = 0; row < worker.rows; row++) {
          const size_t own = static_cast<size_t>(row) * shared.layer_embedding_width;
          kernels().pointwise.activate(block.activation,
                                       gated + static_cast<size_t>(row) * stride + first * kPanel,
                                       from + own + first * kPanel, (last - first) * kPanel);
        }
      });
  worker.wait();
  worker.multiply_all(block.out, gated, stride, shared.output.data(), shared.width);
  worker.wait();
}

}  // namespace suffice
