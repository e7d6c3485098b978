// The sum of one head's values, kept from token to token, for techniques by which most keys weigh
// the same.
#pragma once

#include <vector>

#include "kernels.h"

namespace suffice {

// Sums rows from 0 on, one after the other and in double precision: so the sum of so many rows has
// the same bits whichever steps they came in.
class ValueSum {
 public:
  // Sums up to row `end`, from 0 if more have been summed, and returns how many rows it read.
  int extend(const Head& head, int end);
  // Adds the row that lies at `row`.
  void add_row(const Head& head, int row);
  // Knows nothing of rows from `length` on.
  void truncate(int length);
  const std::vector<double>& total() const { return total_; }

 private:
  int rows_ = 0;
  std::vector<double> total_;  // [size], in units of the values as they are stored
};

// What a head keeps between steps: after the committed rows, and after each tentative one.
struct ValueSums {
  ValueSum committed;
  std::vector<ValueSum> drafts;
};

}  // namespace suffice
