// Removal of rows from a cache before its request ends.
#include <algorithm>
#include <cstring>

#include "cache/cache.h"

namespace suffice {
namespace {

// The elements of a key lie a panel's width apart, in runs of sizeof(Run) bytes.
template <class Run>
void copy_key(const std::byte* from, std::byte* to, int runs) {
  for (int i = 0; i < runs; i++)
    std::memcpy(to + i * kPanel * sizeof(Run), from + i * kPanel * sizeof(Run), sizeof(Run));
}

// The bases that lie next to exact rows, as a head of nothing else.
KVHead extra_bases(const KVHead& head) {
  KVHead bases;
  bases.keys = head.base_keys;
  bases.values = head.base_values;
  bases.key_scales = head.base_key_scales;
  bases.value_scales = head.base_value_scales;
  bases.size = bases.value_size = head.size;
  bases.key_type = bases.value_type = Type::kmeans4;
  return bases;
}

// Moves `count` rows up by whole blocks.
void move_rows(const KVHead& head, int from, int to, int count) {
  const size_t key_bytes = elements_bytes(head.key_type, head.size);
  const size_t value_bytes = elements_bytes(head.value_type, head.size);
  for (std::byte* plane : {head.keys, head.key_rest})
    if (plane)
      std::memmove(plane + to * key_bytes, plane + from * key_bytes,
                   round_up(count, kPanel) * key_bytes);
  for (std::byte* plane : {head.joint ? nullptr : head.values, head.value_rest})
    if (plane)
      std::memmove(plane + to * value_bytes, plane + from * value_bytes, count * value_bytes);
  for (float* row : {head.key_scales, head.value_scales, head.masses})
    if (row) std::memmove(row + to, row + from, count * sizeof(float));
  for (uint8_t* errors : {head.key_errors, head.value_errors})
    if (errors) std::memmove(errors + to, errors + from, count);
  if (head.masses) std::fill_n(head.masses + to + count, from - to, 0.0f);
  if (head.base_keys || head.base_values) move_rows(extra_bases(head), from, to, count);
}

// The elements of a row: of joint rows those of its value are among the key's.
void copy_elements(const KVHead& from, int row, const KVHead& to, int to_row) {
  const size_t key_bytes = elements_bytes(from.key_type, from.size);
  if (from.joint) {
    std::memcpy(to.keys + to_row * key_bytes, from.keys + row * key_bytes, key_bytes);
    return;
  }
  const int run = key_run(from.key_type), runs = from.size / key_pair(from.key_type);
  const auto key_at = [=](const KVHead& head, std::byte* plane, int index) {
    return plane + index / kPanel * kPanel * elements_bytes(head.key_type, head.size) +
           static_cast<size_t>(index % kPanel) * run;
  };
  for (const auto plane : {&KVHead::keys, &KVHead::key_rest}) {
    if (!(from.*plane)) continue;
    const std::byte* const source = key_at(from, from.*plane, row);
    std::byte* const target = key_at(to, to.*plane, to_row);
    if (run == 4)
      copy_key<uint32_t>(source, target, runs);
    else
      copy_key<uint16_t>(source, target, runs);
  }
  const size_t value_bytes = elements_bytes(from.value_type, from.size);
  for (const auto plane : {&KVHead::values, &KVHead::value_rest})
    if (from.*plane)
      std::memcpy(to.*plane + to_row * value_bytes, from.*plane + row * value_bytes, value_bytes);
}

}  // namespace

void copy_row(const KVHead& from, int row, const KVHead& to, int to_row) {
  copy_elements(from, row, to, to_row);
  for (const auto scalar : {&KVHead::key_scales, &KVHead::value_scales, &KVHead::masses})
    if (from.*scalar) (to.*scalar)[to_row] = (from.*scalar)[row];
  for (const auto errors : {&KVHead::key_errors, &KVHead::value_errors})
    if (from.*errors) (to.*errors)[to_row] = (from.*errors)[row];
  if (from.base_keys || from.base_values) copy_row(extra_bases(from), row, extra_bases(to), to_row);
}

void KVCache::evict(int layer, const int32_t* kept, int count, int length) {
  const int gone = length - removed_[layer] - count;
  const int rows = rows_[layer] - gone;
  const Layout old_at = layout(layer), new_at = layout(layer, rows);
  arena_->require(new_at.total, old_at.total);
  std::byte* fresh = arena_->map(new_at.total);
  for (int h = 0; h < heads(layer); h++) {
    const KVHead from = head_in(layer, memory_[layer], old_at, h);
    const KVHead to = head_in(layer, fresh, new_at, h);
    for (int i = 0; i < count; i++) copy_row(from, kept[h * count + i], to, i);
  }
  for (const int reader : readers(layer))
    for (int h = 0; h < heads(layer); h++) {
      state(reader, h).committed = {};
      state(reader, h).order.clear();
    }
  forget_sums(layer);
  arena_->unmap(memory_[layer], old_at.total);
  memory_[layer] = fresh;
  rows_[layer] = rows;
  removed_[layer] += gone;
}

int KVCache::dead_rows(int layer, int length) const {
  if (!eligible_[layer].recent) return 0;
  const int seen = length - removed_[layer] - eligible_[layer].recent + 1;
  return std::max(seen / kPanel * kPanel - first_kept(layer), 0);
}

int KVCache::dead_rows(int length) const {
  int least = dead_rows(owners_[0], length);
  for (const int layer : owners_) least = std::min(least, dead_rows(layer, length));
  return least;
}

void KVCache::compact(int length) {
  for (const int layer : owners_) {
    const int dead = dead_rows(layer, length), to = first_kept(layer), from = to + dead;
    if (dead == 0) continue;
    for (int h = 0; h < heads(layer); h++)
      move_rows(head(layer, h), from, to, length - removed_[layer] - from);
    for (const int reader : readers(layer))
      for (int h = 0; h < heads(layer); h++) state(reader, h).committed.drop(to, dead);
    forget_sums(layer);
    removed_[layer] += dead;
  }
}

void KVCache::keep_heavy(int length) {
  for (const int layer : owners_) {
    const int heavy = eligible_[layer].sinks;
    const int leaving = length - removed_[layer] - eligible_[layer].recent;
    if (heavy == 0 || leaving < heavy) continue;
    for (int h = 0; h < heads(layer); h++) {
      const KVHead kv = head(layer, h);
      const float* lightest = std::min_element(kv.masses, kv.masses + heavy);
      if (*lightest >= kv.masses[leaving]) continue;
      const int row = static_cast<int>(lightest - kv.masses);
      for (const int reader : readers(layer))
        sums(reader, h).committed.all.replace(kv, row, leaving);
      copy_row(kv, leaving, kv, row);
    }
  }
}

}  // namespace suffice
