// Sums of one head's values, kept from token to token, for techniques that give most keys the same
// weight.
#pragma once

#include <vector>

#include "kernels/kernels.h"

namespace suffice {

// Sums rows one after the other in double precision: the bits of the sum of n rows do not depend on
// the steps they came in.
class ValueSum {
 public:
  // Makes this the sum of the rows [begin, end). Starts over unless they continue the rows already
  // summed. Returns the number of rows read.
  int extend(const KVHead& head, int begin, int end);
  // Adds the next row, stored at `row`.
  void add_row(const KVHead& head, int row);
  // Subtracts `row` and adds row `by`.
  void replace(const KVHead& head, int row, int by);
  // Restarts if it contains rows from `length` on.
  void truncate(int length);
  // Element `d`, in the unit of the stored values.
  double at(int d) const { return total_.empty() ? 0.0 : total_[d]; }

 private:
  void add(const KVHead& head, int row, double factor);

  int begin_ = 0, end_ = 0;
  std::vector<double> total_;  // [size]
};

// The values that a token sees: all rows up to its own, except those between the sinks and its
// window.
struct SeenValues {
  ValueSum all, hidden;

  void truncate(int length) {
    all.truncate(length);
    hidden.truncate(length);
  }
  double at(int d) const { return all.at(d) - hidden.at(d); }
};

// Sums that a head keeps between steps: after the committed rows, and after each tentative one.
struct ValueSums {
  SeenValues committed;
  std::vector<SeenValues> drafts;
};

}  // namespace suffice
