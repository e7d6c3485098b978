#include "model/worker.h"

namespace suffice {

void reserve_inputs(const DenseMlp& block, RowBuffers& to) {
  for (const Linear* w : {&block.up, &block.down}) to.inputs.reserve(*w);
  to.second_inputs.reserve(block.gate);
}

void run(const DenseMlp& block, int, Worker& worker) {
  StepBuffers& shared = worker.shared;
  RowBuffers& prepared = worker.prepared;
  const bool gated = block.gate.data;
  const int rows = worker.rows, stride = shared.inner_width;
  const float* from = worker.normal.data();
  if (block.gate_own) worker.fill(prepared.second_inputs, from, shared.width, block.gate, rows);
  worker.adapt(prepared.low_rank, block.up, from, shared.width);
  if (gated) worker.adapt(prepared.second_low_rank, block.gate, from, shared.width);
  const Inputs x =
      worker.inputs(from, shared.width, block.up, rows, items_of(block.up, worker.team.size()));
  const Inputs of_gate =
      block.gate_own ? prepared.second_inputs.of(from, shared.width, block.gate, rows) : x;
  float* up = shared.inner.data();
  float* gate = gated ? shared.second_inner.data() : up;
  worker.take_panels(block.up, [&](int first, int last) {
    worker.multiply_panels(block.up, first, last, x, prepared.low_rank, up, stride);
    if (gated)
      worker.multiply_panels(block.gate, first, last, of_gate, prepared.second_low_rank, gate,
                             stride);
    const Timed timed = worker.time(Part::activations);
    for (int row = 0; row < rows; row++) {
      const size_t start = static_cast<size_t>(row) * stride + first * kPanel;
      const int size = (last - first) * kPanel;
      for (int i = 0; block.gate_scale != 1 && i < size; i++) gate[start + i] *= block.gate_scale;
      if (block.activation == kXielu)
        kernels().pointwise.xielu(up + start, size, block.curve);
      else
        kernels().pointwise.activate(block.activation, gate + start, gated ? up + start : nullptr,
                                     size);
    }
  });
  worker.wait();
  worker.multiply_all(block.down, gate, stride, shared.output.data(), shared.width);
  worker.wait();
}

}  // namespace suffice
