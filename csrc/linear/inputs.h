// Inputs of linear layers in the form that each type of weight takes.
#pragma once

#include <vector>

#include "kernels/kernels.h"

namespace suffice {

// Whether two matrices take the same copy of their inputs.
bool same_inputs(const Linear& a, const Linear& b);

// What a thread needs while it prepares rows.
struct InputScratch {
  std::vector<int8_t> row;
  std::vector<float> floats;
  std::vector<int32_t> places;
};

// Owns quantized copies of rows. Several threads may fill different rows.
class InputBuffers {
 public:
  // For up to `rows` rows, at most `stride` floats apart.
  void prepare(int rows, int stride);
  // Allocates what inputs of `w` take.
  void reserve(const Linear& w);

  // Prepares rows [first, last) of `count` as inputs of `w`.
  void fill(const float* values, int stride, const Linear& w, int first, int last, int count,
            InputScratch& scratch);
  // The inputs of `w`, once all rows are prepared; valid until the next are.
  Inputs of(const float* values, int stride, const Linear& w, int count) const;

 private:
  // A copy of the rows, put in order, rotated and mapped to centroids as `w` requires.
  void change(const float* values, int stride, const Linear& w, int first, int last,
              InputScratch& scratch);

  int rows_ = 0, stride_ = 0;
  std::vector<int8_t> codes_, bytes_;
  std::vector<int16_t> pairs_;
  std::vector<uint32_t> rounded_;
  std::vector<InputStretch> stretches_;
  std::vector<float> scales_, changed_;
  std::vector<int32_t> code_sums_;
};

}  // namespace suffice
