#include "linear/inputs.h"

#include <algorithm>
#include <cstring>

namespace suffice {

namespace {

bool takes_floats(const Linear& w) { return w.type != Type::i8 && w.type != Type::codebook; }

bool same_order(const Linear& a, const Linear& b) {
  if (!a.order || !b.order) return a.order == b.order;
  return a.columns == b.columns && std::equal(a.order, a.order + a.columns, b.order);
}

}  // namespace

bool same_inputs(const Linear& a, const Linear& b) {
  if (takes_floats(a) && takes_floats(b)) return true;
  return a.type == b.type && a.rotation.block == b.rotation.block && a.max_code == b.max_code &&
         a.inputs == b.inputs && same_order(a, b);
}

void InputBuffers::prepare(int rows, int stride) {
  rows_ = rows;
  stride_ = round_up(stride, kUnit);
  row_.resize(stride_);
  scales_.resize(rows);
  code_sums_.resize(rows);
}

Inputs InputBuffers::of(const float* values, int stride, const Linear& w, int count) {
  const size_t elements = static_cast<size_t>(rows_) * stride_;
  if (w.type == Type::i8) {
    codes_.resize(elements);
    kernels().quantize_rows(values, stride, count, w.columns, codes_.data(), scales_.data(),
                            code_sums_.data(), row_.data());
  } else if (w.type == Type::codebook) {
    if (kernels().takes_bytes) bytes_.resize(w.max_code > kMaxByte ? 2 * elements : elements);
    if (kernels().takes_pairs) pairs_.resize(elements);
    stretches_.resize(elements / kUnit);
    if (w.order || w.rotation.block || w.inputs.count) values = changed(values, stride, w, count);
    kernels().quantize_for_codes(values, stride, count, w.columns, w.max_code, bytes_.data(),
                                 pairs_.data(), stretches_.data());
  }
  return {values,        codes_.data(), scales_.data(),    code_sums_.data(),
          bytes_.data(), pairs_.data(), stretches_.data(), stride,
          count};
}

const float* InputBuffers::changed(const float* values, int stride, const Linear& w, int count) {
  const size_t size = static_cast<size_t>(count) * stride;
  changed_.resize(static_cast<size_t>(rows_) * stride_);
  std::memcpy(changed_.data(), values, size * sizeof(float));
  if (w.order)
    for (size_t row = 0; row < size; row += stride)
      for (int k = 0; k < w.columns; k++) changed_[row + k] = values[row + w.order[k]];
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
