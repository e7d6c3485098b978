#include "partial.h"

#include <algorithm>
#include <cmath>

namespace suffice {

void merge(const std::vector<Partial>& parts, int count, int size, float* const* outputs) {
  for (int q = 0; q < count; q++) {
    float peak = -INFINITY;
    for (const Partial& part : parts) peak = std::max(peak, part.peak[q]);
    float* output = outputs[q];
    std::fill_n(output, size, 0.0f);
    float sum = 0;
    for (const Partial& part : parts) {
      if (part.sum[q] == 0) continue;
      const float factor = part.peak[q] == peak ? 1.0f : std::exp2(part.peak[q] - peak);
      sum += part.sum[q] * factor;
      for (int d = 0; d < size; d++) output[d] += part.output[q * size + d] * factor;
    }
    const float inverse = sum > 0 ? 1.0f / sum : 0.0f;
    for (int d = 0; d < size; d++) output[d] *= inverse;
  }
}

}  // namespace suffice
