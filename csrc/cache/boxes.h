// Blocks selected for a query by the boxes around their keys (Quest).
#pragma once

#include <cstdint>
#include <vector>

#include "cache/cache.h"

namespace suffice {

// Writes the missing boxes of the blocks of `length` rows, for some of the cache's [layers][heads].
void encode_boxes(KVCache& cache, int first_head, int last_head, int length);

// Ranks the blocks of one token: the newest first, then by the largest score that a key in their
// box can have.
class Ranking {
 public:
  // Appends the newest of the blocks [begin, end) and the `max_blocks` - 1 others that rank first,
  // unless they are in the order; ties go to the older. Boxes of blocks from `boxed` on are
  // computed here. Returns the number of boxes read.
  int sort(const KVHead& head, const float* const* queries, int count, int boxed, int begin,
           int end, int max_blocks, std::vector<int32_t>& order);

 private:
  struct Ranked {
    int32_t block;
    float bound;
  };
  std::vector<Ranked> ranked_;
  std::vector<float> box_;
};

}  // namespace suffice
