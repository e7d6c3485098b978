// What a step reads, counted while it runs and added up at its end.
#pragma once

#include <vector>

#include "attention/traversal.h"

namespace suffice {

// Counts what was read for token `row`; any thread may. A row counts for every token that it is
// read for.
void count_reads(const Traversal& traversal, int row, const Reads& found);

// Rows are counted by layer and key/value head, [layers][kv_heads] each.
struct Counts {
  int64_t* key_rows = nullptr;  // to which is added
  int64_t* value_rows = nullptr;
  int64_t* dense_rows = nullptr;
  int64_t* per_head_rows = nullptr;
  int64_t kv_bytes = 0;
  int64_t sketch_bytes = 0;
  float missing = 0;  // the largest share of a sum of weights that was left out, as bounded
  int64_t dense_bytes = 0;
  int64_t weight_bytes = 0;

  // Adds the reads [layers][requests][kv_heads] of caches like this one.
  void add_reads(const std::vector<Reads>& reads, int requests, int kv_heads, const KVCache& cache);
};

}  // namespace suffice
