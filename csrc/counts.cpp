#include "counts.h"

#include <algorithm>

namespace suffice {

void Counts::add_reads(const std::vector<Reads>& reads, int requests, int kv_heads,
                       const KVCache& cache) {
  const size_t of_layer = static_cast<size_t>(requests) * kv_heads;
  for (size_t i = 0; i < reads.size(); i++) {
    const size_t head = i / of_layer * kv_heads + i % kv_heads;
    const Reads& found = reads[i];
    key_rows[head] += found.key_rows;
    value_rows[head] += found.value_rows;
    held_rows[head] += found.held_rows;
    alone_rows[head] += found.alone_rows;
    kv_bytes += found.key_rows * cache.key_bytes() + found.value_rows * cache.value_bytes();
    sketch_bytes += found.sketch_bytes;
    missing = std::max(missing, found.missing);
    held_bytes += found.held_rows * (cache.key_bytes() + cache.value_bytes());
  }
}

}  // namespace suffice
