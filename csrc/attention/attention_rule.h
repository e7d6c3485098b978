// What attention reads of a cache: the technique, its parameters and those that all of them share.
#pragma once

#include <variant>
#include <vector>

namespace suffice {

// What stands for 2^x, x = score - peak: the code of x is the number of `borders` it reaches, and
// `weights[code]` its weight.
constexpr int kMaxCodes = 16;
struct SoftmaxTable {
  int codes = 0;                      // 4, 8 or 16
  float borders[kMaxCodes - 1] = {};  // ascending
  float weights[kMaxCodes] = {};
};

// Every key is read.
struct ReadAll {};

// Early termination (Scrooge) once the sum of weights that is known is the share `key_share` of the
// estimated whole; 2 never stops. The first `sinks` blocks, the `globals` blocks of the greatest
// mass so far and the newest `locals` rows are always read.
struct Aet {
  float key_share = 2;
  int sinks = 1, globals = 4, locals = 8;
};

// Run-time termination (ART) once the output is stable `patience` checks in a row: the probe, so
// many elements of it, moved by less than `scale` and turned by less than `direction` (1 - cosine).
// A scale of 0 never stops.
struct Art {
  float scale = 0, direction = 0;
  int patience = 1, probe = 32;
};
constexpr int kEndless = 1 << 20;  // patience: more checks than any context has

// Reads the heaviest blocks, as sketches of the keys estimate them, until at most the share
// `missing` of the sum of weights is unread: as bounded, or else as estimated.
struct Certified {
  float missing = 0;
  bool bounded = true;
};

struct AttentionRule {
  std::variant<ReadAll, Aet, Art, Certified> technique;
  // A value is not read if its weight is below this fraction of the largest, in every head.
  float value_share = 0;
  int check_blocks = 1;    // blocks between two checks of `Aet` or `Art`, at most a tile
  bool by_sketch = false;  // the order of these: heaviest first by sketches, not newest first
  // Of each query head that shares the keys; empty: weights are 2^x itself. Codes are relative to
  // the largest score so far, so the order of blocks matters then.
  std::vector<SoftmaxTable> softmax_tables = {};

  const Aet* aet() const;  // null: another technique; likewise the next two
  const Art* art() const;
  const Certified* certified() const;
  bool never_stops() const;
  bool needs_sketch() const;
  bool exact() const;  // nothing can be left out
  // Every key is read, and codes alone say what it weighs.
  bool coded() const;
};

}  // namespace suffice
