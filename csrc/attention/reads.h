// KV rows that a step reads, counted while it runs and summed at its end.
#pragma once

#include <vector>

#include "attention/traversal.h"

namespace suffice {

// Sums over bounded softmaxes: of a token and a key/value head, the largest bounds of the heads
// that share it. A share of a softmax is at most 1, and an output is moved by at most twice the
// length of the longest value, so larger bounds count as that. Sums are in units of 2^-30, so that
// they do not depend on the order in which threads add.
struct BoundSums {
  static constexpr double kUnit = 1.0 / (1 << 30);
  int64_t softmaxes = 0;
  int64_t missing = 0, shift = 0;

  void add(const Reads& found);
  void add(const BoundSums& other);
};

// What several tokens read.
struct ReadSums : Reads {
  BoundSums bounds;
};

// Counts the rows read for token `row`; thread-safe. A row counts once for every token it is read
// for.
void count_reads(const Traversal& traversal, int row, const Reads& found);

// What one request read in a step, in all layers and heads.
struct RequestReads {
  int64_t key_rows = 0;
  int64_t value_rows = 0;
  int64_t dense_rows = 0;
  int64_t bytes_read = 0;
  int64_t bytes_held = 0;
  float missing = 0, shift = 0;
  BoundSums bounds;
  int64_t tile_rows_read = 0, tile_rows_held = 0;  // see Counts
};

// Counts by layer and key/value head, [layers][kv_heads] each.
struct Counts {
  int64_t* key_rows = nullptr;  // added to, like the next four
  int64_t* value_rows = nullptr;
  int64_t* dense_rows = nullptr;
  int64_t* per_head_rows = nullptr;
  int64_t* sketch_bytes_by_head = nullptr;
  int64_t kv_bytes = 0;
  int64_t sketch_bytes = 0;
  float missing = 0;  // bound on the largest share of a sum of weights left out
  float shift = 0;    // bound on how far an output is moved, see `Reads`
  BoundSums bounds;
  int64_t dense_bytes = 0;
  int64_t weight_bytes = 0;
  int64_t experts_read = 0;  // of layers; their bytes are weight bytes too
  int64_t experts_held = 0;
  int64_t expert_bytes_read = 0;
  int64_t expert_bytes_held = 0;
  int64_t visits_left_out = 0;  // experts of rows that were not computed
  float share_left_out = 0;     // the largest share of a row's weights that they had
  int64_t tile_rows_read = 0;   // key rows that tiles of prompts read, and those that they see
  int64_t tile_rows_held = 0;

  // Adds the reads [layers][requests][kv_heads] of caches like this one, from the layer `first` on,
  // here and by request.
  void add_reads(const std::vector<ReadSums>& reads, int kv_heads, const KVCache& cache,
                 std::vector<RequestReads>& by_request, int first = 0);
  // Adds what tiles of the requests' prompts read.
  void add_tiles(const std::vector<ReadSums>& reads, std::vector<RequestReads>& by_request);
};

}  // namespace suffice
