// The keys and values of one request: page-aligned memory per layer, grown by reallocation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "known.h"
#include "types.h"
#include "value_sum.h"

namespace suffice {

struct OutOfMemory : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Accounts the memory of all caches to the byte and enforces a limit (0: none).
class Arena {
 public:
  explicit Arena(size_t limit_bytes = 0) : limit_(limit_bytes) {}
  // Throws OutOfMemory if `more` bytes exceed the limit once `freed` bytes are given back.
  void require(size_t more, size_t freed) const;
  std::byte* map(size_t bytes);  // zeroed, page-aligned; throws OutOfMemory
  void unmap(std::byte* data, size_t bytes);
  size_t used() const { return used_; }
  size_t limit() const { return limit_; }
  static size_t page_bytes();

 private:
  size_t limit_;
  size_t used_ = 0;
};

class KVCache {
 public:
  // `sketch`: there is room for a sketch of the keys.
  KVCache(int layers, int heads, int size, Type key_type, Type value_type,
          std::shared_ptr<Arena> arena, bool sketch = false);
  ~KVCache();
  KVCache(const KVCache&) = delete;
  KVCache& operator=(const KVCache&) = delete;

  int layers() const { return layers_; }
  int heads() const { return heads_; }
  int size() const { return size_; }
  int capacity() const { return capacity_; }
  Type key_type() const { return key_type_; }
  Type value_type() const { return value_type_; }
  size_t bytes() const;       // mapped
  int64_t key_bytes() const;  // of one row in one layer and head, its scale included
  int64_t value_bytes() const;
  size_t row_bytes() const;  // of one token in all layers and heads, scales included

  // New memory for `capacity` rows (rounded up to whole panels inside), `keep` rows copied, one
  // layer at a time. On OutOfMemory the cache is as it was.
  void resize(int capacity, int keep);
  void release();  // all memory; the capacity is 0 then

  Head head(int layer, int head) const;
  HeadState& state(int layer, int head) { return states_[layer * heads_ + head]; }
  ValueSums& sums(int layer, int head) { return sums_[layer * heads_ + head]; }
  void forget_drafts(int layer);  // other rows come in place of those that were attended from
  bool has_sketch() const { return sketch_; }
  int sketched() const { return sketched_; }  // chunks, in every layer and head
  void set_sketched(int chunks) { sketched_ = chunks; }
  void settle(int draft);           // heads now know what they knew after that tentative row
  void forget_rows(int length);     // heads know nothing of rows from `length` on
  void move_row(int from, int to);  // in all layers and heads
  std::unique_ptr<KVCache> copy(int keep) const;

 private:
  struct Layout {
    size_t values, key_scales, value_scales, sketch, total;  // offsets in a layer's memory
    int rows;
  };
  Layout layout(int capacity) const;
  Head head_in(std::byte* memory, const Layout& at, int head) const;
  void copy_rows(const Head& from, const Head& to, int keep) const;
  std::vector<std::byte*> map_layers(size_t bytes);

  int layers_, heads_, size_;
  Type key_type_, value_type_;
  std::shared_ptr<Arena> arena_;
  bool sketch_;
  int capacity_ = 0, sketched_ = 0;
  std::vector<std::byte*> memory_;
  std::vector<HeadState> states_;  // [layers][heads]
  std::vector<ValueSums> sums_;    // [layers][heads]
};

}  // namespace suffice
