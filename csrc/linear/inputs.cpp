#include "linear/inputs.h"

#include <algorithm>

namespace suffice {

namespace {

bool takes_rounded(const Linear& w) {
  return w.type == Type::bf16 && kernels().products.rounds_inputs;
}

// Whatever the instruction set, which may be changed once a model is built.
bool takes_floats(const Linear& w) { return w.type == Type::f32 || w.type == Type::f8; }

bool takes_changed(const Linear& w) {
  return w.type == Type::codebook && (w.order || w.rotation.block || w.inputs.count);
}

// Whether `count` rows are crossed: on some processors many are that are not multiplied as bytes.
bool takes_crossed(const Linear& w, int count) {
  const CodeKernels& codes = kernels().codes;
  const bool as_bytes = w.max_code == kMaxByte && w.range <= codes.byte_range;
  const bool crosses =
      codes.crossing == Crossing::always || (codes.crossing == Crossing::on_amd && on_amd());
  return w.type == Type::codebook && crosses && !as_bytes && count >= codes.crossed_rows;
}

// Whether bytes of inputs are multiplied as bytes by every instruction set that has such products.
bool bytes_of_all(const Linear& w) { return w.max_code == kMaxByte && w.range <= kMaxByte; }

bool same_order(const Linear& a, const Linear& b) {
  if (!a.order || !b.order) return a.order == b.order;
  return a.columns == b.columns && std::equal(a.order, a.order + a.columns, b.order);
}

template <class T>
void grow(std::vector<T>& values, size_t size) {
  if (values.size() < size) values.resize(size);
}

}  // namespace

bool same_inputs(const Linear& a, const Linear& b) {
  if (takes_floats(a) && takes_floats(b)) return true;
  return a.type == b.type && a.rotation.block == b.rotation.block && a.max_code == b.max_code &&
         bytes_of_all(a) == bytes_of_all(b) && a.inputs == b.inputs && same_order(a, b);
}

void InputBuffers::prepare(int rows, int stride) {
  rows_ = rows;
  stride_ = round_up(stride, kUnit);  // units of codes may need a few floats more
  grow(scales_, rows);
  grow(code_sums_, rows);
}

void InputBuffers::reserve(const Linear& w) {
  const size_t elements = static_cast<size_t>(rows_) * stride_;
  if (w.type == Type::i8) grow(codes_, elements);
  if (takes_rounded(w)) grow(rounded_, elements / 2 + stride_ / 2);  // rows may lie in pairs
  if (takes_changed(w)) grow(changed_, elements);
  if (w.type != Type::codebook) return;
  if (kernels().codes.takes_bytes) grow(bytes_, w.max_code > kMaxByte ? 2 * elements : elements);
  if (kernels().codes.takes_pairs || takes_crossed(w, rows_)) grow(pairs_, elements);
  grow(stretches_, elements / kUnit);
}

void InputBuffers::fill(const float* values, int stride, const Linear& w, int first, int last,
                        int count, InputScratch& scratch) {
  if (takes_rounded(w)) {
    kernels().products.round_rows(values, stride, first, last, count, w.columns, rounded_.data());
  } else if (w.type == Type::i8) {
    grow(scratch.row, stride_);
    kernels().products.quantize_rows(values, stride, first, last, count, w.columns, codes_.data(),
                                     scales_.data(), code_sums_.data(), scratch.row.data());
  } else if (w.type == Type::codebook) {
    if (takes_changed(w)) change(values, stride, w, first, last, scratch);
    kernels().codes.quantize_inputs(takes_changed(w) ? changed_.data() : values, stride, first,
                                    last, count, w.columns, w.max_code, takes_crossed(w, count),
                                    bytes_.data(), pairs_.data(), stretches_.data());
  }
}

Inputs InputBuffers::of(const float* values, int stride, const Linear& w, int count) const {
  return {takes_changed(w) ? changed_.data() : values,
          codes_.data(),
          scales_.data(),
          code_sums_.data(),
          bytes_.data(),
          pairs_.data(),
          stretches_.data(),
          rounded_.data(),
          stride,
          count,
          takes_crossed(w, count)};
}

void InputBuffers::change(const float* values, int stride, const Linear& w, int first, int last,
                          InputScratch& scratch) {
  const size_t begin = static_cast<size_t>(first) * stride,
               end = static_cast<size_t>(last) * stride;
  float* const own = changed_.data() + begin;
  std::copy(values + begin, values + end, own);
  if (w.order)
    for (size_t row = begin; row < end; row += stride)
      for (int k = 0; k < w.columns; k++) changed_[row + k] = values[row + w.order[k]];
  if (w.rotation.block)
    kernels().pointwise.rotate(own, stride, last - first, w.columns, w.rotation);
  if (w.inputs.count) {
    grow(scratch.places, 2 * w.inputs.outliers);
    grow(scratch.floats, outlier_scratch(w.columns) + 2 * w.inputs.outliers);
    kernels().pointwise.replace_by_levels(own, stride, last - first, w.columns, w.inputs,
                                          scratch.places.data(), scratch.floats.data());
  }
}

}  // namespace suffice
