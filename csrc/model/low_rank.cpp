#include "model/low_rank.h"

#include <algorithm>

namespace suffice {
namespace {

template <class T>
T* at_least(std::vector<T>& values, size_t size) {
  if (values.size() < size) values.resize(size);
  return values.data();
}

// `count` rows of `values` one after the other: where they are, or a copy of them.
const float* in_a_row(const int* rows, int count, const float* values, int stride,
                      std::vector<float>& copy) {
  if (rows[count - 1] - rows[0] == count - 1) return values + static_cast<size_t>(rows[0]) * stride;
  float* const to = at_least(copy, static_cast<size_t>(count) * stride);
  for (int i = 0; i < count; i++)
    std::copy_n(values + static_cast<size_t>(rows[i]) * stride, stride,
                to + static_cast<size_t>(i) * stride);
  return to;
}

}  // namespace

void LowRankInputs::prepare(const std::vector<AdapterRows>& groups, const Adapters& adapters) {
  if (groups.empty()) return;
  stride_ = round_up(adapters.most_rank, kPanel);
  const AdapterRows& last = groups.back();
  at_least(middle_, (last.first + last.rows.size()) * stride_);
  at_least(inputs_, groups.size());
  for (size_t i = 0; i < groups.size(); i++) {
    inputs_[i].prepare(static_cast<int>(groups[i].rows.size()), stride_);
    inputs_[i].reserve(adapters.like);
  }
}

void LowRankInputs::fill(const std::vector<AdapterRows>& groups, const Matrix& w,
                         const float* values, int stride, Share own, LowRankScratch& scratch,
                         InputScratch& input_scratch) {
  for (size_t i = 0; i < groups.size(); i++) {
    const AdapterRows& group = groups[i];
    const LowRank* const by = w.adapter(group.adapter);
    if (!by) continue;
    const auto place = [&](int row) {
      const auto found = std::lower_bound(group.rows.begin(), group.rows.end(), row);
      return static_cast<int>(found - group.rows.begin());
    };
    const int first = place(own.first), last = place(own.last), count = last - first;
    if (count == 0) continue;
    const float* const from =
        in_a_row(group.rows.data() + first, count, values, stride, scratch.gathered);
    scratch.inputs.prepare(count, stride);
    scratch.inputs.reserve(by->down);
    scratch.inputs.fill(from, stride, by->down, 0, count, count, input_scratch);
    kernels().products.linear(by->down, 0, by->down.panels(),
                              scratch.inputs.of(from, stride, by->down, count),
                              middle(group) + static_cast<size_t>(first) * stride_, stride_);
    inputs_[i].fill(middle(group), stride_, by->up, first, last,
                    static_cast<int>(group.rows.size()), input_scratch);
  }
}

void LowRankInputs::add(const std::vector<AdapterRows>& groups, const Matrix& w, int first,
                        int last, float* y, int stride, LowRankScratch& scratch) const {
  const int width = (last - first) * kPanel;
  for (size_t i = 0; i < groups.size() && width > 0; i++) {
    const AdapterRows& group = groups[i];
    const LowRank* const by = w.adapter(group.adapter);
    if (!by) continue;
    const int count = static_cast<int>(group.rows.size());
    float* const products = at_least(scratch.products, static_cast<size_t>(count) * width);
    kernels().products.linear(by->up, first, last,
                              inputs_[i].of(middle(group), stride_, by->up, count),
                              products - first * kPanel, width);
    for (int row = 0; row < count; row++) {
      const float* const from = products + static_cast<size_t>(row) * width;
      float* const to = y + static_cast<size_t>(group.rows[row]) * stride + first * kPanel;
      for (int c = 0; c < width; c++) to[c] += from[c];
    }
  }
}

}  // namespace suffice
