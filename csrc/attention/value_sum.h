// Sums of one head's values, kept from token to token, for techniques by which most keys weigh the
// same.
#pragma once

#include <vector>

#include "kernels/kernels.h"

namespace suffice {

// Sums rows one after the other and in double precision: so the sum of so many rows has the same
// bits whichever steps they came in.
class ValueSum {
 public:
  // Makes it the sum of the rows [begin, end), starting over unless these continue the rows that
  // are in it; returns how many rows it read.
  int extend(const KVHead& head, int begin, int end);
  // Adds the next row, which lies at `row`.
  void add_row(const KVHead& head, int row);
  // The row `by` comes in place of `row`.
  void replace(const KVHead& head, int row, int by);
  // Knows nothing of rows from `length` on.
  void truncate(int length);
  // Element `d`, in units of the values as they are stored.
  double at(int d) const { return total_.empty() ? 0.0 : total_[d]; }

 private:
  void add(const KVHead& head, int row, double factor);

  int begin_ = 0, end_ = 0;
  std::vector<double> total_;  // [size]
};

// What a token sees: all rows up to its own, but those between the sinks and its window.
struct SeenValues {
  ValueSum all, hidden;

  void truncate(int length) {
    all.truncate(length);
    hidden.truncate(length);
  }
  double at(int d) const { return all.at(d) - hidden.at(d); }
};

// What a head keeps between steps: after the committed rows, and after each tentative one.
struct ValueSums {
  SeenValues committed;
  std::vector<SeenValues> drafts;
};

}  // namespace suffice
