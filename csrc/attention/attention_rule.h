// What attention reads of a cache: the technique and its parameters, and parameters of all
// techniques.
#pragma once

#include <variant>
#include <vector>

namespace suffice {

// Replaces 2^x, x = score - peak: the code of x is the number of `borders` that x reaches, and
// `weights[code]` is its weight.
constexpr int kMaxCodes = 16;
struct SoftmaxTable {
  int codes = 0;                      // 4, 8 or 16
  float borders[kMaxCodes - 1] = {};  // ascending
  float weights[kMaxCodes] = {};
};

// Every key is read.
struct ReadAll {};

// Early termination (Scrooge). Stops once the known sum of weights is at least the share
// `key_share` of the estimated total; 2 never stops. Always reads the first `sinks` blocks, the
// `globals` blocks of the largest mass so far and the newest `locals` rows.
struct Aet {
  float key_share = 2;
  int sinks = 1, globals = 4, locals = 8;
};

// Run-time termination (ART). Stops once the output is stable in `patience` consecutive checks. It
// is stable if a probe of `probe` elements changed by less than `scale` in norm and by less than
// `direction` in direction (1 - cosine). A scale of 0 never stops.
struct Art {
  float scale = 0, direction = 0;
  int patience = 1, probe = 32;
};
constexpr int kEndless = 1 << 20;  // patience: more checks than any context has

// Reads the heaviest blocks, as estimated from sketches of the keys, until at most the share
// `missing` of the sum of weights is unread: by bounds, or else by estimates.
struct Certified {
  float missing = 0;
  bool bounded = true;
};

struct AttentionRule {
  std::variant<ReadAll, Aet, Art, Certified> technique;
  // A value is not read if its weight is below this fraction of the largest, in every head.
  float value_share = 0;
  int check_blocks = 1;    // blocks between two checks of `Aet` or `Art`, at most a tile
  bool by_sketch = false;  // `Aet` and `Art` read heaviest first by sketches, not newest first
  // One per query head that shares the keys; empty: weights are 2^x itself. Codes are relative to
  // the largest score so far, so with tables the order of blocks changes the result.
  std::vector<SoftmaxTable> softmax_tables = {};

  const Aet* aet() const;  // null: another technique; likewise the next two
  const Art* art() const;
  const Certified* certified() const;
  bool never_stops() const;
  bool needs_sketch() const;
  bool exact() const;  // nothing can be left out
  // Every key is read, and its weight follows from its code alone.
  bool coded() const;
};

}  // namespace suffice
