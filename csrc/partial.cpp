#include "partial.h"

#include <algorithm>
#include <cmath>

namespace suffice {

Total total_of(const std::vector<Partial>& parts, int query) {
  Total total{-INFINITY, 0};
  for (const Partial& part : parts) total.peak = std::max(total.peak, part.peak[query]);
  for (const Partial& part : parts)
    if (part.sum[query] > 0)
      total.sum += part.sum[query] * std::exp2(part.peak[query] - total.peak);
  return total;
}

void merge(const std::vector<Partial>& parts, int count, int size, float* const* outputs) {
  for (int q = 0; q < count; q++) {
    const Total total = total_of(parts, q);
    const float inverse = total.sum > 0 ? 1.0f / total.sum : 0.0f;
    float* output = outputs[q];
    std::fill_n(output, size, 0.0f);
    for (const Partial& part : parts) {
      if (part.sum[q] == 0) continue;
      const float factor = std::exp2(part.peak[q] - total.peak);
      for (int d = 0; d < size; d++) output[d] += part.output[q * size + d] * factor;
    }
    for (int d = 0; d < size; d++) output[d] *= inverse;
  }
}

}  // namespace suffice
