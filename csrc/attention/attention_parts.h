// Arguments and results of the attention kernels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/attention_rule.h"
#include "cache/kv_head.h"

namespace suffice {

// The keys that a query row may see: committed rows in [0, sinks) and [first, committed), and
// tentative row committed + j where bit j of `tentative` is set.
struct Visible {
  int first = 0;
  int committed = 0;
  uint32_t tentative = 0;
  int sinks = 0;  // at most `first`

  bool sees(int row) const {
    const int draft = row - committed;
    return draft < 0 ? row >= first || row < sinks : draft < 32 && (tentative >> draft & 1);
  }
  // Whether all rows of the block at `row` are committed and visible.
  bool sees_block(int row) const {
    return (row >= first || row + kPanel <= sinks) && row + kPanel <= committed;
  }
  // How many rows of the block at `row` it sees.
  int rows_of_block(int row) const {
    if (sees_block(row)) return kPanel;
    int rows = 0;
    for (int i = row; i < row + kPanel; i++) rows += sees(i);
    return rows;
  }
  int rows() const { return sinks + committed - first + __builtin_popcount(tentative); }
};

// KV rows that one traversal read.
struct Reads {
  int64_t key_rows = 0;
  int64_t value_rows = 0;
  int64_t per_head_rows = 0;  // value rows, summed over query heads, each reading alone
  int64_t dense_rows = 0;     // rows that attention to everything would have read
  int64_t sketch_bytes = 0;
  float missing = 0;  // bound on the largest share of a sum of weights left out
  float shift = 0;    // bound on how far an output is moved, over the length of the longest value
};

// The blocks, or rows, of a traversal in reading order. The first `always` are read whatever the
// rule finds.
struct Order {
  const int32_t* blocks = nullptr;
  int count = 0;
  int always = 0;
  bool ranked = false;                   // not newest first: checks count blocks of the list
  bool by_rows = false;                  // the list has rows, not blocks
  const SoftmaxTable* tables = nullptr;  // [query rows], or null: weights are 2^x
};

// Estimates of some chunks, from their sketches, for `count` query rows. Blocks are padded to a
// multiple of 16; padding has no mass.
struct Estimates {
  int first = 0;  // the first chunk
  int chunks = 0;
  int count = 0;
  float* masses;  // [count][blocks()]: sums of 2^(score - peak) of a block
  float* peaks;   // [count][blocks()]
  // Upper bounds of the masses (at first log2 of the factor above the estimate); or null.
  float* bounds;
  size_t blocks() const { return round_up(chunks * kSketchBlocks, kPanel); }
};

// Values of selected blocks that are not read.
struct Filter {
  const float* floors = nullptr;  // [count]: lowest score whose value is read; null: all are read
  float share = 0;                // largest share of one call's sum of weights that may be left out
};

// Rows of selected blocks that were read.
struct SelectedReads {
  int64_t key_rows = 0;
  int64_t value_rows = 0;
  int64_t per_head_rows = 0;
};

// Value rows that were read.
struct ValueReads {
  int64_t rows = 0;
  int64_t per_head = 0;  // summed over query heads, each reading alone
};

// The scores of one token's query rows for the blocks list[begin..end) (list null: the identity).
struct CodedTiles {
  const float* scores = nullptr;  // [tile][query rows][kTileRows]
  int stride = 0;                 // floats from tile to tile
  const int32_t* list = nullptr;
  int begin = 0, end = 0;
  int64_t keys = 0;     // that the token sees
  bool summed = false;  // the sum of all values, times the lowest weight, is added elsewhere
};

// By how much a query's scores by bases may be off, for a key of scale s, with the multiple
// m of the mean key and the stored length l: s * (l * length + rounding) + m * mean.
struct ErrorUnits {
  float length, rounding, mean;
};

// For each query row and block, [query rows][stride]: of its light rows, the sum of the weights
// that count, by how much the true ones may exceed them and fall short, and of the weights that
// count times the errors of their values.
struct BlockErrors {
  float* used;
  float* more;
  float* less;
  float* lost;
  int stride;
};

// For each query row, of its rows that are not exact: by how much true weights may exceed those
// that are used, block by block [query rows][stride], and in all; by how much they may fall short;
// and the sum of weights that count times the errors of their values.
struct LightBounds {
  struct Totals {
    double more, less, lost;
  };
  float* more;
  int stride;
  Totals* totals;
};

// Running softmax state of `count` query rows: `peak` in base 2 (scores are pre-multiplied by log2
// e), sum of exp2(score - peak), and the unnormalised output.
struct Partial {
  float* peak;      // [count]
  float* sum;       // [count]
  float* output;    // [count][size]
  float* dropped;   // [count]: part of the sum whose values were not read; or null
  float* greatest;  // [count]: the largest score (`attend_selected` only)
};

// Destination of an audit of some tokens' query heads, rows `stride` apart; see partial.h.
struct Audit {
  float* missing = nullptr;  // null: nothing is audited
  float* error = nullptr;
  float* bound = nullptr;
  float* shift = nullptr;
  float* shift_bound = nullptr;
  int stride = 0;
};

// With parts that lie `part` floats apart.
inline Audit audit_at(float* first, size_t part, int stride) {
  return {first, first + part, first + 2 * part, first + 3 * part, first + 4 * part, stride};
}

// Query rows in the form in which keys of one type are multiplied by them: see scores.inl.
struct Queries {
  const float* const* values;  // [count] -> [D]: float32, scaled
  int16_t* codes;              // [count][D]; int8 rows have the same spacing as those of 16 bits
  float* scales;               // [count]
  int32_t* offsets;            // [count]: what their products with unsigned bytes have too much
  float* means;                // [count]: their products with the mean key
  // For joint rows: see joint_queries.inl; and the scales of what multiplies their rest.
  std::byte* lanes;
  float* rest_scales;
};

// Destination of a traversal's scores unless `rows` is null: [query rows][stride].
struct Scores {
  float* rows = nullptr;
  int stride = 0;
};

}  // namespace suffice
