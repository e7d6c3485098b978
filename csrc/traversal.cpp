#include "traversal.h"

#include <algorithm>
#include <mutex>

namespace suffice {

Range Traversal::chunk(int index) const {
  const int start = (begin / kChunkBlocks + index) * kChunkBlocks;
  return {std::max(start, begin), std::min(start + kChunkBlocks, end)};
}

int64_t Traversal::rows_before(int most) const {
  if (!list) return std::min(end * kPanel, most) - static_cast<int64_t>(begin) * kPanel;
  int64_t rows = 0;
  for (int i = begin; i < end; i++) rows += std::clamp(most - list[i] * kPanel, 0, kPanel);
  return rows;
}

void count_reads(const Traversal& traversal, int row, const Reads& found) {
  if (!traversal.reads) return;
  static std::mutex counting;  // tokens of a request count into the same place
  const std::lock_guard lock(counting);
  Reads& reads = *traversal.reads;
  reads.key_rows += found.key_rows;
  reads.value_rows += found.value_rows;
  reads.alone_rows += found.alone_rows;
  reads.held_rows += traversal.length(row) + traversal.bounds.removed;
  reads.sketch_bytes += found.sketch_bytes;
  reads.missing = std::max(reads.missing, found.missing);
}

}  // namespace suffice
