// What the kernels of attention take and give.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/attention_rule.h"
#include "cache/kv_head.h"

namespace suffice {

// Which keys a query row may see: those of the committed rows in [0, sinks) and [first, committed),
// and of the tentative rows committed + j those whose bit j is set in `tentative`.
struct Visible {
  int first = 0;
  int committed = 0;
  uint32_t tentative = 0;
  int sinks = 0;  // at most `first`

  bool sees(int row) const {
    const int draft = row - committed;
    return draft < 0 ? row >= first || row < sinks : draft < 32 && (tentative >> draft & 1);
  }
  // Whether all rows of the block at `row` are committed and seen.
  bool sees_block(int row) const {
    return (row >= first || row + kPanel <= sinks) && row + kPanel <= committed;
  }
  int rows() const { return sinks + committed - first + __builtin_popcount(tentative); }
};

// What one traversal read.
struct Reads {
  int64_t key_rows = 0;
  int64_t value_rows = 0;
  int64_t per_head_rows = 0;  // of values: what each query head would have read alone, added up
  int64_t dense_rows = 0;     // what attention to everything would have read
  int64_t sketch_bytes = 0;
  float missing = 0;  // the largest share of a sum of weights that was left out, as bounded
};

// The blocks of a traversal in their order. The first `always` are read whatever the rule says.
struct Order {
  const int32_t* blocks = nullptr;
  int count = 0;
  int always = 0;
  bool ranked = false;  // not newest first: checks come after so many blocks of the list
  const SoftmaxTable* tables = nullptr;  // [query rows], or null: weights are 2^x
};

// What the sketches of some chunks say of `count` query rows. Their blocks are padded to a multiple
// of 16, those beyond weigh nothing.
struct Estimates {
  int first = 0;  // the first chunk
  int chunks = 0;
  int count = 0;
  float* masses;  // [count][blocks()]: sums of 2^(score - peak) of a block
  float* peaks;   // [count][blocks()]
  // How large a mass may be in truth (first log2 of how many times larger); or null.
  float* bounds;
  size_t blocks() const { return round_up(chunks * kSketchBlocks, kPanel); }
};

// Which values of selected blocks are left out.
struct Filter {
  const float* floors = nullptr;  // [count]: values of lower scores, in every head; null: none
  float share = 0;                // of the sum of weights of one call, that is left out at most
};

// The rows that were read of selected blocks.
struct SelectedReads {
  int64_t key_rows = 0;
  int64_t value_rows = 0;
  int64_t per_head_rows = 0;
};

// Rows of values that were read.
struct ValueReads {
  int64_t rows = 0;
  int64_t per_head = 0;  // what each query head would have read alone, added up
};

// The scores of one token's query rows for the blocks list[begin..end) (list null: the identity).
struct CodedTiles {
  const float* scores = nullptr;  // [tile][query rows][kTileRows]
  int stride = 0;                 // floats from tile to tile
  const int32_t* list = nullptr;
  int begin = 0, end = 0;
  int64_t keys = 0;     // that the token sees
  bool summed = false;  // the sum of their values is known: what they weigh at least is left to it
};

// Running softmax state of `count` query rows: `peak` in base 2 (scores are pre-multiplied by
// log2 e), sum of exp2(score - peak), and the unnormalised output.
struct Partial {
  float* peak;      // [count]
  float* sum;       // [count]
  float* output;    // [count][size]
  float* dropped;   // [count]: of the sum, the keys whose values were left out; or null
  float* greatest;  // [count]: the largest score (`attend_selected` only)
};

// Where an audit of some tokens' query heads goes, rows `stride` apart; see partial.h.
struct Audit {
  float* missing = nullptr;  // null: nothing is audited
  float* error = nullptr;
  float* bound = nullptr;
  int stride = 0;
};

// Where the scores of a traversal are kept, unless `rows` is null: [query rows][stride].
struct Scores {
  float* rows = nullptr;
  int stride = 0;
};

}  // namespace suffice
