// Logits of a head whose rows are sorted into groups: a row of the step needs a few of them.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "model/worker.h"

namespace suffice {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

// Sets `kept` to the places of the best scores, in ascending order; of equal ones the first.
void choose(const float* scores, std::vector<int>& order, int* kept, int count) {
  const auto score = [&](int i) { return std::isnan(scores[i]) ? kNone : scores[i]; };
  std::iota(order.begin(), order.end(), 0);
  std::nth_element(order.begin(), order.begin() + count - 1, order.end(), [&](int a, int b) {
    return score(a) != score(b) ? score(a) > score(b) : a < b;
  });
  std::copy_n(order.begin(), count, kept);
  std::sort(kept, kept + count);
}

}  // namespace

void grouped_logits(Worker& worker, int count) {
  const ModelSpec& spec = worker.spec;
  StepBuffers& shared = worker.shared;
  float* const logits = worker.step.logits;
  const float* const states = worker.normal.data();
  const size_t stride = round_up(spec.vocabulary, kPanel);
  const int groups = spec.groups.rows, most = spec.kept_groups, scored = round_up(groups, kPanel);
  const int size = spec.vocabulary / groups, panels = size / kPanel;
  worker.multiply(spec.groups, states, shared.width, count, shared.group_scores.data(), scored);
  worker.wait();
  const Share rows = share(count, worker.thread, worker.team.size());
  std::vector<int> order(groups);
  for (int row = rows.first; row < rows.last; row++) {
    choose(shared.group_scores.data() + static_cast<size_t>(row) * scored, order,
           shared.kept_groups.data() + row * most, most);
    std::fill_n(logits + row * stride, stride, kNone);
  }
  worker.wait();
  const int* const kept = shared.kept_groups.data();
  order.assign(kept, kept + count * most);  // each once: a group is read for all rows
  std::sort(order.begin(), order.end());
  order.erase(std::unique(order.begin(), order.end()), order.end());
  const Inputs x = worker.inputs(states, shared.width, spec.head, count, 0);
  const Share mine = share(static_cast<int>(order.size()), worker.thread, worker.team.size());
  const Timed timed = worker.time(Part::products);
  for (int i = mine.first; i < mine.last; i++) {
    const int first = order[i] * panels;
    kernels().products.linear(spec.head, first, first + panels, x, logits,
                              static_cast<int>(stride));
    for (int row = 0; row < count; row++)
      if (!std::binary_search(kept + row * most, kept + (row + 1) * most, order[i]))
        std::fill_n(logits + row * stride + order[i] * size, size, kNone);
  }
}

}  // namespace suffice
