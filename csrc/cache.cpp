#include "cache.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace suffice {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

size_t aligned(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

size_t Arena::page_bytes() {
  static const size_t bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

void Arena::require(size_t more, size_t freed) const {
  if (limit_ && used_ - freed + more > limit_)
    throw OutOfMemory("the KV cache needs " + std::to_string(more) + " bytes, but " +
                      std::to_string(used_ - freed) + " of its limit of " + std::to_string(limit_) +
                      " bytes are in use");
}

std::byte* Arena::map(size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED)
    throw OutOfMemory("the system has no memory for " + std::to_string(bytes) +
                      " more bytes of KV cache (" + std::to_string(used_) + " in use)");
  if (bytes >= kHugePage) madvise(data, bytes, MADV_HUGEPAGE);
  used_ += bytes;
  return static_cast<std::byte*>(data);
}

void Arena::unmap(std::byte* data, size_t bytes) {
  if (!data) return;
  munmap(data, bytes);
  used_ -= bytes;
}

KVCache::KVCache(int layers, int heads, int size, Type key_type, Type value_type,
                 std::shared_ptr<Arena> arena, bool sketch)
    : layers_(layers),
      heads_(heads),
      size_(size),
      key_type_(key_type),
      value_type_(value_type),
      arena_(std::move(arena)),
      sketch_(sketch),
      states_(static_cast<size_t>(layers) * heads),
      sums_(states_.size()) {}

KVCache::~KVCache() { release(); }

void KVCache::release() {
  for (std::byte* memory : memory_) arena_->unmap(memory, layout(capacity_).total);
  memory_.clear();
  capacity_ = sketched_ = 0;
}

KVCache::Layout KVCache::layout(int capacity) const {
  Layout at;
  at.rows = round_up(capacity, kPanel);
  const size_t elements = static_cast<size_t>(heads_) * at.rows * size_;
  const size_t scales = static_cast<size_t>(heads_) * at.rows * sizeof(float);
  at.values = aligned(elements * size_of(key_type_), kLineBytes);
  at.key_scales = aligned(at.values + elements * size_of(value_type_), kLineBytes);
  at.value_scales = at.key_scales + (key_type_ == Type::i8 ? aligned(scales, kLineBytes) : 0);
  at.sketch = at.value_scales + (value_type_ == Type::i8 ? aligned(scales, kLineBytes) : 0);
  const size_t sketches = sketch_ ? heads_ * (at.rows / kSketchRows) * sketch_bytes(size_) : 0;
  at.total = aligned(at.sketch + sketches, Arena::page_bytes());
  return at;
}

Head KVCache::head_in(std::byte* memory, const Layout& at, int head) const {
  const size_t elements = static_cast<size_t>(head) * at.rows * size_;
  Head result;
  result.keys = memory + elements * size_of(key_type_);
  result.values = memory + at.values + elements * size_of(value_type_);
  const size_t scales = static_cast<size_t>(head) * at.rows;
  if (key_type_ == Type::i8)
    result.key_scales = reinterpret_cast<float*>(memory + at.key_scales) + scales;
  if (value_type_ == Type::i8)
    result.value_scales = reinterpret_cast<float*>(memory + at.value_scales) + scales;
  if (sketch_)
    result.sketch = memory + at.sketch + head * (at.rows / kSketchRows) * sketch_bytes(size_);
  result.size = size_;
  result.key_type = key_type_;
  result.value_type = value_type_;
  return result;
}

Head KVCache::head(int layer, int head) const {
  return head_in(memory_[layer], layout(capacity_), head);
}

size_t KVCache::bytes() const { return memory_.size() * layout(capacity_).total; }

int64_t KVCache::key_bytes() const {
  return static_cast<int64_t>(size_) * size_of(key_type_) + (key_type_ == Type::i8 ? 4 : 0);
}

int64_t KVCache::value_bytes() const {
  return static_cast<int64_t>(size_) * size_of(value_type_) + (value_type_ == Type::i8 ? 4 : 0);
}

size_t KVCache::row_bytes() const {
  const size_t sketch = sketch_ ? sketch_bytes(size_) / kSketchRows : 0;
  return static_cast<size_t>(layers_) * heads_ * (key_bytes() + value_bytes() + sketch);
}

void KVCache::copy_rows(const Head& from, const Head& to, int keep) const {
  const size_t panels = static_cast<size_t>(round_up(keep, kPanel)) * size_ * size_of(key_type_);
  std::memcpy(to.keys, from.keys, panels);
  std::memcpy(to.values, from.values, static_cast<size_t>(keep) * size_ * size_of(value_type_));
  if (from.sketch) std::memcpy(to.sketch, from.sketch, keep / kSketchRows * sketch_bytes(size_));
  if (from.key_scales) std::memcpy(to.key_scales, from.key_scales, keep * sizeof(float));
  if (from.value_scales) std::memcpy(to.value_scales, from.value_scales, keep * sizeof(float));
}

void KVCache::resize(int capacity, int keep) {
  const Layout old_at = layout(capacity_);
  const Layout new_at = layout(capacity);
  // Mapping first and touching later: untouched pages cost nothing, so the old and the new memory
  // coexist for one layer at a time only.
  arena_->require(layers_ * new_at.total, bytes());
  std::vector<std::byte*> fresh = map_layers(new_at.total);
  for (int layer = 0; layer < static_cast<int>(memory_.size()); layer++) {
    for (int h = 0; h < heads_ && keep > 0; h++)
      copy_rows(head_in(memory_[layer], old_at, h), head_in(fresh[layer], new_at, h), keep);
    arena_->unmap(memory_[layer], old_at.total);
  }
  memory_ = std::move(fresh);
  capacity_ = capacity;
}

std::vector<std::byte*> KVCache::map_layers(size_t bytes) {
  std::vector<std::byte*> fresh;
  try {
    for (int layer = 0; layer < layers_; layer++) fresh.push_back(arena_->map(bytes));
  } catch (const OutOfMemory&) {
    for (std::byte* memory : fresh) arena_->unmap(memory, bytes);
    throw;
  }
  return fresh;
}

void KVCache::move_row(int from, int to) {
  const int key_run = key_pair(key_type_) * size_of(key_type_);
  const auto key_at = [&](const Head& head, int row) {
    return head.keys + static_cast<size_t>(row / kPanel) * kPanel * size_ * size_of(key_type_) +
           static_cast<size_t>(row % kPanel) * key_run;
  };
  const size_t value_bytes = static_cast<size_t>(size_) * size_of(value_type_);
  for (int layer = 0; layer < layers_; layer++)
    for (int h = 0; h < heads_; h++) {
      const Head at = head(layer, h);
      for (int step = 0; step < size_ / key_pair(key_type_); step++)
        std::memcpy(key_at(at, to) + static_cast<size_t>(step) * kPanel * key_run,
                    key_at(at, from) + static_cast<size_t>(step) * kPanel * key_run, key_run);
      std::memcpy(at.values + to * value_bytes, at.values + from * value_bytes, value_bytes);
      if (at.key_scales) at.key_scales[to] = at.key_scales[from];
      if (at.value_scales) at.value_scales[to] = at.value_scales[from];
    }
}

void KVCache::settle(int draft) {
  for (HeadState& state : states_)
    if (draft < static_cast<int>(state.drafts.size()))
      std::swap(state.committed, state.drafts[draft]);
  for (ValueSums& sums : sums_) {
    if (draft < static_cast<int>(sums.drafts.size())) std::swap(sums.committed, sums.drafts[draft]);
    sums.drafts.clear();
  }
}

void KVCache::forget_drafts(int layer) {
  for (int h = 0; h < heads_; h++) sums(layer, h).drafts.clear();
}

void KVCache::forget_rows(int length) {
  for (HeadState& state : states_) state.committed.truncate(length);
  for (ValueSums& sums : sums_) sums.committed.truncate(length);
  sketched_ = std::min(sketched_, length / kSketchRows);
}

std::unique_ptr<KVCache> KVCache::copy(int keep) const {
  auto other =
      std::make_unique<KVCache>(layers_, heads_, size_, key_type_, value_type_, arena_, sketch_);
  other->sketched_ = std::min(sketched_, keep / kSketchRows);
  other->states_ = states_;
  other->sums_ = sums_;
  for (ValueSums& sums : other->sums_) sums.committed.truncate(keep);
  if (capacity_ == 0) return other;
  other->resize(capacity_, 0);
  const Layout at = layout(capacity_);
  for (int layer = 0; layer < layers_; layer++)
    for (int h = 0; h < heads_; h++)
      copy_rows(head_in(memory_[layer], at, h), head_in(other->memory_[layer], at, h), keep);
  return other;
}

}  // namespace suffice
