#include "attention/draft_paths.h"

#include <numeric>
#include <type_traits>

#include "cache/cache.h"

namespace suffice {
namespace {

// The bits of rows up to `row`.
uint32_t up_to(int row) { return (uint32_t{2} << row) - 1; }

size_t whole_lines(size_t bytes) { return (bytes + kLineBytes - 1) / kLineBytes * kLineBytes; }

}  // namespace

uint32_t DraftPath::places(uint32_t mask) const {
  uint32_t found = 0;
  for (size_t i = 0; i < rows.size(); i++) found |= (mask >> rows[i] & 1) << i;
  return found;
}

std::vector<DraftPath> draft_paths(const uint32_t* visible, int count) {
  int stored = 0;  // rows that see all rows before them
  while (stored < count && visible[stored] == up_to(stored)) stored++;
  if (stored == 0 || stored == count) return {};
  std::vector<bool> attends(count, false);
  std::vector<DraftPath> found(1);
  const auto add = [&](DraftPath& path, int row) {
    path.tokens.push_back(row);
    attends[row] = true;
  };
  for (int row = 0; row < stored; row++) {
    found[0].rows.push_back(row);
    add(found[0], row);
  }
  for (int last = count - 1; last >= stored; last--) {  // a leaf, unless a path has it already
    if (attends[last]) continue;
    DraftPath& path = found.emplace_back();
    for (int row = 0; row <= last; row++) {
      if (!(visible[last] >> row & 1)) continue;
      path.rows.push_back(row);
      if (!attends[row] && visible[row] == (visible[last] & up_to(row))) add(path, row);
    }
    if (!attends[last]) add(path, last);  // it does not see itself
  }
  return found;
}

void DraftRows::prepare(const KVHead& head, int first, int count) {
  head_ = saved_ = head;
  first_ = first;
  rows_.resize(count);
  std::iota(rows_.begin(), rows_.end(), 0);
  const auto each = [&](auto f) {
    const size_t rows = round_up(count, kPanel);
    const size_t base = elements_bytes(Type::kmeans4, head.size);
    const size_t key = elements_bytes(head.key_type, head.size);
    const size_t value = elements_bytes(head.value_type, head.size);
    for (std::byte** to : {&saved_.keys, &saved_.key_rest}) f(*to, rows * key);
    if (!head.joint) f(saved_.values, rows * value);
    f(saved_.value_rest, rows * value);
    for (std::byte** to : {&saved_.base_keys, &saved_.base_values}) f(*to, rows * base);
    for (float** to : {&saved_.key_scales, &saved_.value_scales, &saved_.base_key_scales,
                       &saved_.base_value_scales, &saved_.masses})
      f(*to, rows * sizeof(float));
    for (uint8_t** to : {&saved_.key_errors, &saved_.value_errors}) f(*to, rows);
  };
  size_t bytes = kLineBytes;
  each([&](auto* at, size_t size) { bytes += at ? whole_lines(size) : 0; });
  if (memory_.size() < bytes) memory_.resize(bytes);
  const auto start = reinterpret_cast<uintptr_t>(memory_.data());
  std::byte* next = memory_.data() + (kLineBytes - start % kLineBytes) % kLineBytes;
  each([&](auto*& at, size_t size) {
    if (!at) return;
    at = reinterpret_cast<std::remove_reference_t<decltype(at)>>(next);
    next += whole_lines(size);
  });
  if (head.joint) saved_.values = saved_.keys;
}

void DraftRows::save() {
  for (int row = 0; row < static_cast<int>(rows_.size()); row++)
    copy_row(head_, first_ + row, saved_, row);
}

void DraftRows::put(int place, int row) {
  if (rows_[place] == row) return;
  copy_row(saved_, row, head_, first_ + place);
  rows_[place] = row;
}

void DraftRows::arrange(const std::vector<int>& rows) {
  for (size_t place = 0; place < rows.size(); place++) put(static_cast<int>(place), rows[place]);
}

void DraftRows::restore() {
  for (int row = 0; row < static_cast<int>(rows_.size()); row++) put(row, row);
}

}  // namespace suffice
