#include "attention/partial.h"

#include <algorithm>
#include <cmath>

#include "attention/traversal.h"

namespace suffice {
namespace {
// The share of a query row's sum of weights whose values were left out.
float missing_share(const std::vector<Partial>& parts, const Partial& exact, int q) {
  if (parts.empty()) return NAN;
  double kept = 0;
  for (const Partial& part : parts)
    if (part.sum[q] > 0)
      kept +=
          (double{part.sum[q]} - part.dropped[q]) * std::exp2(double{part.peak[q]} - exact.peak[q]);
  return static_cast<float>(std::max(0.0, 1.0 - kept / exact.sum[q]));
}

// |output - exact| / |exact|
float relative_error(const float* output, const Partial& exact, int q, int size) {
  double difference = 0, length = 0;
  for (int d = 0; d < size; d++) {
    const double wanted = double{exact.output[q * size + d]} / exact.sum[q];
    difference += (output[d] - wanted) * (output[d] - wanted);
    length += wanted * wanted;
  }
  return length > 0 ? static_cast<float>(std::sqrt(difference / length)) : 0.0f;
}

}  // namespace

Total total_of(const std::vector<Partial>& parts, int query) {
  Total total{-INFINITY, 0};
  for (const Partial& part : parts) total.peak = std::max(total.peak, part.peak[query]);
  for (const Partial& part : parts)
    if (part.sum[query] > 0)
      total.sum += part.sum[query] * std::exp2(part.peak[query] - total.peak);
  return total;
}

Total Spare::add(Total total, int query) const {
  if (logits) total.sum += std::exp2(logits[query % group] * kLog2e - total.peak);
  return total;
}

void merge(const std::vector<Partial>& parts, int count, int size, float* const* outputs,
           const Spare& spare) {
  for (int q = 0; q < count; q++) {
    const Total total = spare.add(total_of(parts, q), q);
    const float inverse = total.sum > 0 ? 1.0f / total.sum : 0.0f;
    float* const output = outputs[q];
    if (parts.size() == 1) {
      const float* const only = parts[0].output + q * size;
      for (int d = 0; d < size; d++) output[d] = only[d] * inverse;
      continue;
    }
    std::fill_n(output, size, 0.0f);
    for (const Partial& part : parts) {
      if (part.sum[q] == 0) continue;
      const float factor = std::exp2(part.peak[q] - total.peak);
      const float* const from = part.output + q * size;
      for (int d = 0; d < size; d++) output[d] += from[d] * factor;
    }
    for (int d = 0; d < size; d++) output[d] *= inverse;
  }
}

void audit(const Traversal& traversal, int row, const std::vector<Partial>& parts, float bound,
           Scratch& scratch) {
  const Audit& to = traversal.audit;
  if (!to.missing) return;
  const int group = traversal.group, size = traversal.head.size, first = row * group;
  float* const floats = scratch.at_least(attend_scratch(group, size) + partial_floats(group, size));
  const Partial exact = partial_at(floats + attend_scratch(group, size), group, size);
  const Queries& queries =
      scratch.queries.of(traversal.head, traversal.queries.data() + first, group);
  kernels().attention.attend(traversal.head, queries, traversal.visible.data() + first, group,
                             traversal.list, traversal.begin, traversal.end, exact, floats, {});
  for (int q = 0; q < group; q++) {
    const size_t place = static_cast<size_t>(traversal.row_of(row)) * to.stride + q;
    to.missing[place] = missing_share(parts, exact, q);
    to.error[place] = relative_error(traversal.outputs[first + q], exact, q, size);
    to.bound[place] = bound;
    to.shift[place] = to.shift_bound[place] = NAN;  // unless the technique bounds it
  }
}

}  // namespace suffice
