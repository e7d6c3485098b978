// Adapters: low-rank changes of matrices, for the rows of the requests that name them.
#pragma once

#include <vector>

#include "linear/inputs.h"
#include "runtime/parallel.h"

namespace suffice {

// y = up (down x), added to the product of a matrix with x.
struct LowRank {
  Linear down;  // [rank, columns]; data null: the adapter leaves the matrix as it is
  Linear up;    // [rows, rank], times the adapter's scale
};

// A matrix, and what each adapter adds to its products; empty: none changes it.
struct Matrix : Linear {
  std::vector<LowRank> adapters;

  const LowRank* adapter(int index) const {
    return !adapters.empty() && adapters[index].down.data ? &adapters[index] : nullptr;
  }
};

// What the adapters of a model have in common.
struct Adapters {
  std::vector<int64_t> bytes;  // of each
  int most_rank = 0;
  Linear like;  // one of their matrices: all have its type
};

// The rows of a step that an adapter changes, ascending.
struct AdapterRows {
  int adapter = 0;
  int first = 0;  // rows of the step's adapters before it
  std::vector<int> rows;
};

// What a thread needs for the rows of one adapter.
struct LowRankScratch {
  std::vector<float> gathered, products;
  InputBuffers inputs;
};

// down x of all rows that have an adapter, as inputs of `up`. Several threads may fill different
// rows.
class LowRankInputs {
 public:
  void prepare(const std::vector<AdapterRows>& groups, const Adapters& adapters);
  // Computes those of rows [own.first, own.last) of the step; `values` are inputs of `w`.
  void fill(const std::vector<AdapterRows>& groups, const Matrix& w, const float* values,
            int stride, Share own, LowRankScratch& scratch, InputScratch& input_scratch);
  // Adds the products with `up`, panels [first, last), once all rows are filled.
  void add(const std::vector<AdapterRows>& groups, const Matrix& w, int first, int last, float* y,
           int stride, LowRankScratch& scratch) const;

 private:
  float* middle(const AdapterRows& group) {
    return middle_.data() + static_cast<size_t>(group.first) * stride_;
  }
  const float* middle(const AdapterRows& group) const {
    return middle_.data() + static_cast<size_t>(group.first) * stride_;
  }

  int stride_ = 0;
  std::vector<float> middle_;         // [rows with adapters][stride_]
  std::vector<InputBuffers> inputs_;  // of each group
};

}  // namespace suffice
