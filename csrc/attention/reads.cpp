#include "attention/reads.h"

#include <algorithm>
#include <cmath>
#include <mutex>

namespace suffice {
namespace {

// Whether the rule says how much of a softmax is missing, by a bound or an estimate.
bool says_what_is_missing(const AttentionRule& rule) {
  if (const auto* tiers = std::get_if<Tiers>(&rule.technique)) return tiers->bounds();
  return std::holds_alternative<Certified>(rule.technique);
}

}  // namespace

void BoundSums::add(const Reads& found) {
  softmaxes++;
  missing += std::llround(std::min(double{found.missing}, 1.0) / kUnit);
  shift += std::llround(std::min(double{found.shift}, 2.0) / kUnit);
}

void BoundSums::add(const BoundSums& other) {
  softmaxes += other.softmaxes;
  missing += other.missing;
  shift += other.shift;
}

void count_reads(const Traversal& traversal, int row, const Reads& found) {
  if (!traversal.reads) return;
  static std::mutex counting;  // tokens of a request share a counter
  const std::lock_guard lock(counting);
  ReadSums& reads = *traversal.reads;
  reads.key_rows += found.key_rows;
  reads.value_rows += found.value_rows;
  reads.per_head_rows += found.per_head_rows;
  reads.dense_rows += traversal.length(row) + traversal.bounds.removed;
  reads.sketch_bytes += found.sketch_bytes;
  reads.missing = std::max(reads.missing, found.missing);
  reads.shift = std::max(reads.shift, found.shift);
  if (traversal.rule && says_what_is_missing(*traversal.rule)) reads.bounds.add(found);
}

void Counts::add_reads(const std::vector<ReadSums>& reads, int kv_heads, const KVCache& cache,
                       std::vector<RequestReads>& by_request, int first) {
  const size_t of_layer = by_request.size() * kv_heads;
  for (size_t i = 0; i < reads.size(); i++) {
    const size_t head = i / of_layer * kv_heads + i % kv_heads;
    const int layer = first + static_cast<int>(i / of_layer);
    const int64_t of_key = cache.key_bytes(layer), of_value = cache.value_bytes(layer);
    const ReadSums& found = reads[i];
    key_rows[head] += found.key_rows;
    value_rows[head] += found.value_rows;
    dense_rows[head] += found.dense_rows;
    per_head_rows[head] += found.per_head_rows;
    sketch_bytes_by_head[head] += found.sketch_bytes;
    const int64_t read = found.key_rows * of_key + found.value_rows * of_value;
    const int64_t held = found.dense_rows * (of_key + of_value);
    kv_bytes += read;
    sketch_bytes += found.sketch_bytes;
    missing = std::max(missing, found.missing);
    shift = std::max(shift, found.shift);
    bounds.add(found.bounds);
    dense_bytes += held;
    RequestReads& own = by_request[i % of_layer / kv_heads];
    own.key_rows += found.key_rows;
    own.value_rows += found.value_rows;
    own.dense_rows += found.dense_rows;
    own.bytes_read += read + found.sketch_bytes;
    own.bytes_held += held;
    own.missing = std::max(own.missing, found.missing);
    own.shift = std::max(own.shift, found.shift);
    own.bounds.add(found.bounds);
  }
}

void Counts::add_tiles(const std::vector<ReadSums>& reads, std::vector<RequestReads>& by_request) {
  for (size_t i = 0; i < reads.size(); i++) {
    by_request[i].tile_rows_read += reads[i].key_rows;
    by_request[i].tile_rows_held += reads[i].dense_rows;
    tile_rows_read += reads[i].key_rows;
    tile_rows_held += reads[i].dense_rows;
  }
}

}  // namespace suffice
