// Inputs of linear layers in the form that each type of weight takes.
#pragma once

#include <vector>

#include "kernels/kernels.h"

namespace suffice {

// Whether two matrices take the same copy of their inputs.
bool same_inputs(const Linear& a, const Linear& b);

// Owns quantized copies of rows.
class InputBuffers {
 public:
  // Allocates for up to `rows` rows, at most `stride` floats apart; units of codes may need a few
  // floats more.
  void prepare(int rows, int stride);

  // The inputs of `w`, valid until the next call.
  Inputs of(const float* values, int stride, const Linear& w, int count);

 private:
  // A copy of the rows, put in order, rotated and mapped to centroids as `w` requires.
  const float* changed(const float* values, int stride, const Linear& w, int count);

  int rows_ = 0, stride_ = 0;
  std::vector<int8_t> codes_, row_, bytes_;
  std::vector<int16_t> pairs_;
  std::vector<InputStretch> stretches_;
  std::vector<float> scales_, changed_, scratch_;
  std::vector<int32_t> code_sums_, places_;
};

}  // namespace suffice
