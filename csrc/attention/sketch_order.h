// The order of blocks by the mass of their keys, estimated from sketches.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernels.h"

namespace suffice {

// Positions of `count` shares, largest first, in four buckets per factor of 2: blocks of nearly
// equal share keep the order of their keys. `buckets` is a buffer.
void sort_by_share(const float* shares, int count, std::vector<int>& buckets,
                   std::vector<int32_t>& sorted);

// The complete chunks among the keys that a token of `length` rows sees.
void set_chunks(const Visible& visible, int length, Estimates& estimates);

class SketchOrder {
 public:
  // Sets `blocks` to those of the complete chunks, heaviest first, by the sum of shares over the
  // token's `count` query rows. Returns the number of chunks whose sketches it read.
  int sort(const KVHead& head, const float* const* queries, int count, const Visible& visible,
           int length);

  std::vector<int32_t> blocks;

 private:
  std::vector<float> masses_, peaks_, greatest_, totals_, shares_;
  std::vector<int> buckets_;
};

}  // namespace suffice
