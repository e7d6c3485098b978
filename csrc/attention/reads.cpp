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
  reads.shift = std::max(reads.shift, found.shift);
}

void Counts::add_reads(const std::vector<Reads>& reads, int kv_heads, const KVCache& cache,
                       std::vector<RequestReads>& by_request) {
  const size_t of_layer = by_request.size() * kv_heads;
  for (size_t i = 0; i < reads.size(); i++) {
    const size_t head = i / of_layer * kv_heads + i % kv_heads;
    const Reads& found = reads[i];
    key_rows[head] += found.key_rows;
    value_rows[head] += found.value_rows;
    dense_rows[head] += found.dense_rows;
    per_head_rows[head] += found.per_head_rows;
    const int64_t read =
        found.key_rows * cache.key_bytes() + found.value_rows * cache.value_bytes();
    const int64_t held = found.dense_rows * (cache.key_bytes() + cache.value_bytes());
    kv_bytes += read;
    sketch_bytes += found.sketch_bytes;
    missing = std::max(missing, found.missing);
    shift = std::max(shift, found.shift);
    dense_bytes += held;
    RequestReads& own = by_request[i % of_layer / kv_heads];
    own.key_rows += found.key_rows;
    own.value_rows += found.value_rows;
    own.dense_rows += found.dense_rows;
    own.bytes_read += read + found.sketch_bytes;
    own.bytes_held += held;
    own.missing = std::max(own.missing, found.missing);
  }
}

}  // namespace suffice
