// A sketch of keys, and what it says of a query: which blocks are worth reading first.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels.h"

namespace suffice {

// Writes the sketch of one chunk of a head from its keys.
void encode_sketch(const Head& head, int chunk);

// Sketched chunks that a token of `length` keys uses. It lags behind by as many rows as a step may
// have: so a token uses the same ones whether it comes alone or in a chain.
inline int sketched_chunks(int length) {
  return length < 32 + kSketchRows ? 0 : (length - 32) / kSketchRows;
}

// The estimates of one token's query rows for the blocks of some chunks.
class Estimates {
 public:
  // Looks at the chunks [begin, end) and appends their blocks to `order`, the heaviest first.
  void sort(const Head& head, const float* const* queries, int count, int begin, int end,
            bool bounded, std::vector<int32_t>& order);
  // For blocks appended after the first `always` of the order: see Order.
  const float* rest() const { return rest_.data(); }
  const float* peaks() const { return peaks_.data(); }

 private:
  std::vector<float> scores_, slopes_, offsets_, peaks_, masses_, bounds_, rest_, shares_;
  std::vector<int32_t> sorted_;
};

}  // namespace suffice
