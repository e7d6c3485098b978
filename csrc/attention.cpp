#include "attention.h"

#include <algorithm>
#include <cmath>

namespace suffice {

void Attention::plan(std::vector<Traversal>& traversals) {
  traversals_ = &traversals;
  chunks_.clear();
  offsets_.clear();
  size_t floats = 0;
  for (int t = 0; t < static_cast<int>(traversals.size()); t++) {
    Traversal& traversal = traversals[t];
    // Chunks start at multiples of kChunkBlocks of the list, wherever the traversal starts: the
    // split, and so the rounding, depends on the keys alone.
    const int first = traversal.begin / kChunkBlocks;
    const int last = (traversal.end + kChunkBlocks - 1) / kChunkBlocks;
    traversal.chunks = std::max(last - first, 1);
    for (int i = 0; i < traversal.chunks; i++) chunks_.push_back({t, i});
    offsets_.push_back(floats);
    const size_t count = traversal.queries.size();
    floats += traversal.chunks * count * (traversal.head.size + 2);
  }
  if (partials_.size() < floats) partials_.resize(floats);
  if (left_size_ < traversals.size()) {
    left_size_ = traversals.size();
    left_ = std::make_unique<std::atomic<int>[]>(left_size_);
  }
  for (size_t t = 0; t < traversals.size(); t++) left_[t].store(traversals[t].chunks);
  next_.store(0);
}

Partial Attention::partial(const Traversal& traversal, int chunk) {
  const size_t index = &traversal - traversals_->data();
  const size_t count = traversal.queries.size();
  float* base = partials_.data() + offsets_[index] + chunk * count * (traversal.head.size + 2);
  return {base + count * traversal.head.size, base + count * (traversal.head.size + 1), base};
}

void Attention::attend(const Traversal& traversal, int chunk, std::vector<float>& scratch) {
  const int count = static_cast<int>(traversal.queries.size());
  const int size = traversal.head.size;
  const Partial state = partial(traversal, chunk);
  const int start = (traversal.begin / kChunkBlocks + chunk) * kChunkBlocks;
  const int begin = std::max(start, traversal.begin);
  const int end = std::min(start + kChunkBlocks, traversal.end);
  const size_t needed = attend_scratch(count, size);
  if (scratch.size() < needed) scratch.resize(needed);
  kernels().attend(traversal.head, traversal.queries.data(), traversal.visible.data(), count,
                   traversal.list, begin, end, state, scratch.data());
}

void Attention::merge(const Traversal& traversal) {
  const int count = static_cast<int>(traversal.queries.size());
  const int size = traversal.head.size;
  for (int q = 0; q < count; q++) {
    float peak = -INFINITY;
    for (int i = 0; i < traversal.chunks; i++) peak = std::max(peak, partial(traversal, i).peak[q]);
    float* output = traversal.outputs[q];
    std::fill_n(output, size, 0.0f);
    float sum = 0;
    for (int i = 0; i < traversal.chunks; i++) {
      const Partial part = partial(traversal, i);
      if (part.sum[q] == 0) continue;
      const float factor = part.peak[q] == peak ? 1.0f : std::exp2(part.peak[q] - peak);
      sum += part.sum[q] * factor;
      for (int d = 0; d < size; d++) output[d] += part.output[q * size + d] * factor;
    }
    const float inverse = sum > 0 ? 1.0f / sum : 0.0f;
    for (int d = 0; d < size; d++) output[d] *= inverse;
  }
}

void Attention::work(std::vector<float>& scratch) {
  const int total = static_cast<int>(chunks_.size());
  for (int i = next_.fetch_add(1); i < total; i = next_.fetch_add(1)) {
    const Traversal& traversal = (*traversals_)[chunks_[i].traversal];
    attend(traversal, chunks_[i].index, scratch);
    if (left_[chunks_[i].traversal].fetch_sub(1, std::memory_order_acq_rel) == 1) merge(traversal);
  }
}

}  // namespace suffice
