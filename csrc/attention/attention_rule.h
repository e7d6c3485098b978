// What attention reads of a cache: the technique and its parameters, and parameters of all
// techniques.
#pragma once

#include <variant>
#include <vector>

#include "storage.h"

namespace suffice {

// Replaces 2^x, x = score - peak: the code of x is the number of `borders` that x reaches, and
// `weights[code]` is its weight.
constexpr int kMaxCodes = 16;
struct SoftmaxTable {
  int codes = 0;                      // 4, 8 or 16
  float borders[kMaxCodes - 1] = {};  // ascending
  float weights[kMaxCodes] = {};
};

// A technique is a struct of its parameters that declares
//
//   kName           its name, the `kind` of an AttentionRule in Python
//   parameters(f)   calls f(name, field) for each parameter
//
// and, where they differ, its own versions of these:
struct TechniqueDefaults {
  static constexpr bool kTestsOutput = false;   // its stop test needs the output so far
  static constexpr bool kKeepsNothing = false;  // its stop test has no memory
  // Values are filtered by the largest weight among the keys that are always read; else, among all
  // keys so far.
  static constexpr bool kGreatestOfAlways = false;
  // The first check comes after at least one block more than those that are always read.
  static constexpr bool kLooksAfterMore = false;
  // Blocks come oldest first, whatever order a policy gives them, and none is always read. Once the
  // next `check_blocks` are scored, leaves_out says whether they are left out.
  static constexpr bool kOldestFirst = false;
  const char* fault() const { return nullptr; }  // what is wrong with the parameters, or null
  bool never_stops() const { return false; }
};

#include "attention/techniques/all.inl"

struct AttentionRule {
  Technique technique;
  // A value is not read if its weight is below this fraction of the largest, in every head.
  float value_share = 0;
  int check_blocks = 1;    // blocks between two stop tests, at most a tile
  bool by_sketch = false;  // blocks come heaviest first by sketches, not newest first
  // One per query head that shares the keys; empty: weights are 2^x itself. Codes are relative to
  // the largest score so far, so with tables the order of blocks changes the result.
  std::vector<SoftmaxTable> softmax_tables = {};

  bool never_stops() const;
  bool tests_output() const;
  bool greatest_of_always() const;
  bool looks_after_more() const;
  bool oldest_first() const;
  bool needs_sketch() const;
  bool needs_bases() const;  // of keys and values
  bool exact() const;        // nothing can be left out
  // Every key is read, and its weight follows from its code alone.
  bool coded() const;
};

}  // namespace suffice
