#include "attention/reads.h"

#include <algorithm>
#include <mutex>

namespace suffice {

void count_reads(const Traversal& traversal, int row, const Reads& found) {
  if (!traversal.reads) return;
  static std::mutex counting;  // tokens of a request share a counter
  const std::lock_guard lock(counting);
  Reads& reads = *traversal.reads;
  reads.key_rows += found.key_rows;
  reads.value_rows += found.value_rows;
  reads.per_head_rows += found.per_head_rows;
  reads.dense_rows += traversal.length(row) + traversal.bounds.removed;
  reads.sketch_bytes += found.sketch_bytes;
  reads.missing = std::max(reads.missing, found.missing);
}

void Counts::add_reads(const std::vector<Reads>& reads, int requests, int kv_heads,
                       const KVCache& cache) {
  const size_t of_layer = static_cast<size_t>(requests) * kv_heads;
  for (size_t i = 0; i < reads.size(); i++) {
    const size_t head = i / of_layer * kv_heads + i % kv_heads;
    const Reads& found = reads[i];
    key_rows[head] += found.key_rows;
    value_rows[head] += found.value_rows;
    dense_rows[head] += found.dense_rows;
    per_head_rows[head] += found.per_head_rows;
    kv_bytes += found.key_rows * cache.key_bytes() + found.value_rows * cache.value_bytes();
    sketch_bytes += found.sketch_bytes;
    missing = std::max(missing, found.missing);
    dense_bytes += found.dense_rows * (cache.key_bytes() + cache.value_bytes());
  }
}

}  // namespace suffice
