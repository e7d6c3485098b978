#include "audit.h"

#include <algorithm>
#include <cmath>

namespace suffice {
namespace {

// The share of a query row's sum of weights of which the values were not added.
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

void audit(const Traversal& traversal, int row, const std::vector<Partial>& parts, float bound,
           Scratch& scratch) {
  const Audit& to = traversal.audit;
  if (!to.missing) return;
  const int group = traversal.group, size = traversal.head.size, at = row * group;
  float* const floats = scratch.at_least(attend_scratch(group, size) + partial_floats(group, size));
  const Partial exact = partial_at(floats + attend_scratch(group, size), group, size);
  kernels().attend(traversal.head, traversal.queries.data() + at, traversal.visible.data() + at,
                   group, traversal.list, traversal.begin, traversal.end, exact, floats, {});
  for (int q = 0; q < group; q++) {
    const size_t place = static_cast<size_t>(row) * to.stride + q;
    to.missing[place] = missing_share(parts, exact, q);
    to.error[place] = relative_error(traversal.outputs[at + q], exact, q, size);
    to.bound[place] = bound;
  }
}

}  // namespace suffice
