#include "cache/boxes.h"

#include <algorithm>

#include "kernels/kernels.h"

namespace suffice {
namespace {

float* box_at(const KVHead& head, int block) {
  return head.boxes + static_cast<size_t>(block) * 2 * head.size;
}

}  // namespace

void encode_boxes(KVCache& cache, int first_head, int last_head, int length) {
  for (int i = first_head; i < last_head; i++) {
    const auto [layer, h] = cache.place(i);
    if (!cache.owns(layer)) continue;
    const KVHead head = cache.head(layer, h);
    for (int block = cache.boxed(layer); block < length / kPanel; block++)
      kernels().search.encode_box(head, block, box_at(head, block));
  }
}

int Ranking::sort(const KVHead& head, const float* const* queries, int count, int boxed, int begin,
                  int end, int max_blocks, std::vector<int32_t>& order) {
  ranked_.clear();
  box_.resize(2 * static_cast<size_t>(head.size));
  for (int block = begin; block < end - 1; block++) {
    const float* box = block < boxed ? box_at(head, block) : box_.data();
    if (block >= boxed) kernels().search.encode_box(head, block, box_.data());
    ranked_.push_back({block, kernels().search.bound(box, queries, count, head.size)});
  }
  const auto better = [](const Ranked& a, const Ranked& b) {
    return a.bound != b.bound ? a.bound > b.bound : a.block < b.block;
  };
  const size_t chosen = std::min(ranked_.size(), static_cast<size_t>(max_blocks - 1));
  std::partial_sort(ranked_.begin(), ranked_.begin() + chosen, ranked_.end(), better);
  const size_t given = order.size();
  const auto add = [&](int32_t block) {
    const auto last = order.begin() + given;
    if (std::find(order.begin(), last, block) == last) order.push_back(block);
  };
  add(end - 1);
  for (size_t i = 0; i < chosen; i++) add(ranked_[i].block);
  return static_cast<int>(ranked_.size());
}

}  // namespace suffice
