#include "linear/inputs.h"

#include <cstring>

namespace suffice {

void InputBuffers::prepare(int rows, int stride) {
  rows_ = rows;
  stride_ = round_up(stride, kMaxUnit);
  row_.resize(stride_);
  scales_.resize(rows);
  code_sums_.resize(rows);
}

Inputs InputBuffers::of(const float* values, int stride, const Linear& w, int count) {
  const size_t elements = static_cast<size_t>(rows_) * stride_;
  if (w.type == Type::i8) {
    codes_.resize(elements);
    kernels().quantize_rows(values, stride, count, w.columns, codes_.data(), scales_.data(),
                            code_sums_.data(), reinterpret_cast<int8_t*>(row_.data()));
  } else if (w.type == Type::codebook) {
    if (w.narrow)
      codes_.resize(elements);
    else
      wide_.resize(elements);
    starts_.resize(elements / 8);
    if (w.rotation.block || w.inputs.count) values = changed(values, stride, w, count);
    kernels().quantize_for_codes(values, stride, count, w, codes_.data(), wide_.data(),
                                 scales_.data(), starts_.data(), row_.data());
  }
  return {values,       codes_.data(),  scales_.data(), code_sums_.data(),
          wide_.data(), starts_.data(), stride,         count};
}

const float* InputBuffers::changed(const float* values, int stride, const Linear& w, int count) {
  changed_.resize(static_cast<size_t>(rows_) * stride_);
  std::memcpy(changed_.data(), values, static_cast<size_t>(count) * stride * sizeof(float));
  if (w.rotation.block) kernels().rotate(changed_.data(), stride, count, w.columns, w.rotation);
  if (w.inputs.count) {
    places_.resize(2 * w.inputs.outliers);
    scratch_.resize(outlier_scratch(w.columns) + places_.size());
    kernels().replace_by_levels(changed_.data(), stride, count, w.columns, w.inputs, places_.data(),
                                scratch_.data());
  }
  return changed_.data();
}

}  // namespace suffice
