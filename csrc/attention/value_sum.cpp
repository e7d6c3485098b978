#include "attention/value_sum.h"

namespace suffice {

int ValueSum::extend(const KVHead& head, int begin, int end) {
  if (begin != begin_ || end < end_) {
    begin_ = end_ = begin;
    total_.clear();
  }
  const int first = end_;
  while (end_ < end) add_row(head, end_);
  return end_ - first;
}

void ValueSum::add_row(const KVHead& head, int row) {
  add(head, row, 1.0);
  end_++;
}

void ValueSum::replace(const KVHead& head, int row, int by) {
  if (row < begin_ || row >= end_) return;
  add(head, by, 1.0);
  add(head, row, -1.0);
}

void ValueSum::add(const KVHead& head, int row, double factor) {
  if (total_.empty()) total_.assign(head.size, 0.0);
  float value[kMaxSize];
  kernels().rows.load_rows(head, row, 1, nullptr, value);
  for (int d = 0; d < head.size; d++) total_[d] += factor * value[d];
}

void ValueSum::truncate(int length) {
  if (end_ <= length) return;
  begin_ = end_ = 0;  // subtracting would leave rounding errors behind
  total_.clear();
}

}  // namespace suffice
