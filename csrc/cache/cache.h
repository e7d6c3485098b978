// The keys and values of one request: page-aligned memory per layer, grown by reallocation.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "attention/aet_state.h"
#include "attention/value_sum.h"
#include "cache/kv_head.h"
#include "cache/layer_states.h"

namespace suffice {

struct OutOfMemory : std::runtime_error {
  using std::runtime_error::runtime_error;
};

constexpr size_t kHugePageBytes = size_t{2} << 20;

// Counts the memory of all caches to the byte and enforces a limit (0: none).
class Arena {
 public:
  explicit Arena(size_t limit_bytes = 0) : limit_(limit_bytes) {}
  // Throws OutOfMemory if `more` bytes would exceed the limit after `freed` bytes are freed.
  void require(size_t more, size_t freed) const;
  std::byte* map(size_t bytes);  // zeroed, page-aligned; throws OutOfMemory
  // Extends or cuts memory, perhaps at another address; throws OutOfMemory. What is new is zero.
  std::byte* remap(std::byte* data, size_t bytes, size_t new_bytes);
  void unmap(std::byte* data, size_t bytes);
  size_t used() const { return used_; }
  size_t limit() const { return limit_; }
  static size_t page_bytes();

 private:
  size_t limit_;
  size_t used_ = 0;
};

// Data that a cache keeps in addition to keys and values.
struct Extras {
  bool sketch = false;  // 4-bit copy of the keys, for `certified`
  bool boxes = false;   // around each block of keys, for `quest`
  bool masses = false;  // attention mass of each row, for `h2o`
  bool bases = false;   // rows in kmeans4 next to those of other types, for `tiers`
};

// The entries of keys and values of a head. `joint`: rows are both at once (kv_head.h), and a value
// is the first `joint` entries; 0: keys and values are stored apart.
struct HeadSize {
  int key = 0, joint = 0;

  int value() const { return joint ? joint : key; }
  bool operator==(const HeadSize&) const = default;
};

// The rows of a layer. A layer that `shares` those of an earlier one has its heads and sizes, and
// no rows of its own; -1: it has its own.
struct LayerRows {
  int heads = 0;
  HeadSize size;
  int shares = -1;

  bool operator==(const LayerRows&) const = default;
};

// How a model's keys are rounded to codes: one KeyRounding per layer and head.
class KeyRoundings {
 public:
  // scales, means, weights [layers][heads][size], passed [layers][heads][size][size].
  KeyRoundings(int layers, int heads, int size, const float* scales, const float* means,
               const float* passed, const float* weights);
  KeyRoundings(const KeyRoundings&) = delete;
  KeyRoundings& operator=(const KeyRoundings&) = delete;

  bool fits(const std::vector<LayerRows>& layers) const;
  const KeyRounding* of(int layer, int head) const { return &all_[layer * heads_ + head]; }

 private:
  int layers_, heads_, size_;
  std::vector<float> scales_, inverses_, means_, passed_, weights_;
  std::vector<KeyRounding> all_;  // [layers][heads]
};

// The rows of a layer that a policy lets tokens see: the first `sinks` and the last `recent` (0:
// all); at most `blocks` of their blocks (0: all), those that boxes rank first.
struct Eligible {
  int sinks = 0, recent = 0, blocks = 0;
};

// Tokens are counted from the start of the context, whether evicted or not: token t, if it came
// after the last eviction, has row t - removed(layer) of a layer.
class KVCache {
 public:
  KVCache(std::vector<LayerRows> layers, Type key_type, Type value_type,
          std::shared_ptr<Arena> arena, Extras extras = {},
          std::shared_ptr<const KeyRoundings> rounding = nullptr,
          const std::vector<StateShape>& states = {});
  ~KVCache();
  KVCache(const KVCache&) = delete;
  KVCache& operator=(const KVCache&) = delete;

  int layers() const { return static_cast<int>(shapes_.size()); }
  const std::vector<LayerRows>& shapes() const { return shapes_; }
  int heads(int layer) const { return shapes_[layer].heads; }
  int all_heads() const { return static_cast<int>(states_.size()); }  // of all layers
  std::pair<int, int> place(int index) const;  // layer and head of one of all heads
  int size(int layer) const { return shapes_[layer].size.key; }
  HeadSize sizes(int layer) const { return shapes_[layer].size; }
  bool owns(int layer) const { return shapes_[layer].shares < 0; }              // rows
  const std::vector<int>& readers(int layer) const { return readers_[layer]; }  // of its rows
  int capacity() const;                                                         // tokens
  int removed(int layer) const { return removed_[owner(layer)]; }
  Type key_type() const { return key_type_; }
  Type value_type() const { return value_type_; }
  size_t bytes() const;                // mapped, states included
  int64_t key_bytes(int layer) const;  // of one row in one head, its scale included
  int64_t value_bytes(int layer) const;
  size_t row_bytes() const;             // of one token in all layers and heads, scales included
  size_t row_bytes(int layer) const;    // in one that has rows
  size_t held_bytes(int length) const;  // of the rows that are left of `length` tokens

  // Allocates memory for `capacity` tokens (rounded up to whole panels) and keeps the rows of
  // `keep` tokens; the others are zero. On OutOfMemory the cache is unchanged.
  void resize(int capacity, int keep);

  // Has the system map pages of about `bytes` bytes more, layer by layer, before they are used.
  // Returns whether all are mapped. New pages are zeroed, which takes long for a long prompt.
  bool populate(size_t bytes);

  // Eviction (evict.cpp). Keeps the rows kept[heads][count] of a layer, in that order, out of the
  // rows of `length` tokens; frees the memory of the others.
  void evict(int layer, const int32_t* kept, int count, int length);
  // `compact` closes, in place, the gaps of whole blocks that no token after `length` sees any
  // more. `dead_rows` is the number of rows that this frees in the layer with the fewest.
  int dead_rows(int length) const;
  void compact(int length);
  // Drops the row with the least mass of two candidates: the lightest of the first `sinks` rows,
  // and the row that leaves the window after `length` tokens.
  void keep_heavy(int length);
  Eligible& eligible(int layer) { return eligible_[owner(layer)]; }
  const Eligible& eligible(int layer) const { return eligible_[owner(layer)]; }
  void release();  // frees all memory; the capacity is 0 then

  KVHead head(int layer, int head) const;
  int index(int layer, int head) const { return first_[layer] + head; }  // among all heads
  HeadState& state(int layer, int head) { return states_[index(layer, head)]; }
  ValueSums& sums(int layer, int head) { return sums_[index(layer, head)]; }
  void forget_drafts(int layer);  // tentative rows get replaced: clears what depends on them
  const Extras& extras() const { return extras_; }
  // Whether every row can be read in 4 bits, and the errors of that are known.
  bool has_bases() const { return keeps_errors(key_type_) && keeps_errors(value_type_); }
  // Chunks whose sketch is complete, in every head of a layer.
  int sketched(int layer) const { return sketched_[owner(layer)]; }
  void set_sketched(int layer, int chunks) { sketched_[owner(layer)] = chunks; }
  // Blocks that have their box, in every head of a layer.
  int boxed(int layer) const { return boxed_[owner(layer)]; }
  void set_boxed(int layer, int blocks) { boxed_[owner(layer)] = blocks; }
  void settle(int draft);           // heads take the state after that tentative row
  void forget_rows(int length);     // heads lose the state of rows from `length` on
  void move_row(int from, int to);  // in all layers and heads
  // Heads lose all state of answers, so that a later one begins as after a prompt alone.
  void forget_answers();
  // The states that layers keep along with keys and values; null: they keep none.
  LayerStates* layer_states() const { return layer_states_.get(); }
  // A copy of the rows of `keep` tokens, with memory for `capacity` tokens.
  std::unique_ptr<KVCache> copy(int keep, int capacity) const;
  // Where `count` rows from `first` on lie, both whole panels, layer by layer: all that is stored
  // of them, without what is made of it again (sketches, boxes) or is a request's own (masses).
  struct Piece {
    std::byte* data;
    size_t bytes;
  };
  std::vector<Piece> pieces(int first, int count) const;

 private:
  // A kind of data in a layer's memory: where it begins, and the bytes of a head; 0: it has none.
  struct Array {
    size_t at = 0, stride = 0;
    std::byte* of(std::byte* memory, int head) const {
      return stride ? memory + at + head * stride : nullptr;
    }
  };
  enum {
    kKeys,
    kValues,
    kKeyScales,
    kValueScales,
    kKeyRest,
    kValueRest,
    kBaseKeys,
    kBaseValues,
    kBaseKeyScales,
    kBaseValueScales,
    kKeyErrors,
    kValueErrors,
    kSketch,
    kBoxes,
    kMasses,
    kArrays
  };
  struct Layout {
    Array arrays[kArrays];  // in the order of their places
    size_t total;
  };
  using Sizes = std::array<size_t, kArrays>;
  // The layer whose rows a layer reads.
  int owner(int layer) const { return owns(layer) ? layer : shapes_[layer].shares; }
  Sizes bytes_of(int layer, int rows) const;  // of a head's first `rows` rows, of each kind
  Layout layout(int layer, int rows) const;   // of a layer with rows
  Layout layout(int layer) const { return layout(layer, rows_[layer]); }
  KVHead head_in(int layer, std::byte* memory, const Layout& layout, int head) const;
  void forget_sums(int layer);  // rows moved: clears the sums of all that read them
  void copy_rows(int layer, std::byte* to, const Layout& layout, int keep) const;
  size_t rows_bytes() const;  // mapped for keys and values
  bool keeps_errors(Type type) const { return extras_.bases || type == Type::planes; }
  bool grows_in_place(int capacity, int keep) const;
  void extend(int capacity);
  void replace(int capacity, int keep, size_t needed);
  void spread(int layer, const Layout& from, const Layout& to, int keep);
  int dead_rows(int layer, int length) const;
  int first_kept(int layer) const { return round_up(eligible_[layer].sinks, kPanel); }

  std::vector<LayerRows> shapes_;          // [layers]
  std::vector<int> owners_;                // the layers that have rows
  std::vector<std::vector<int>> readers_;  // [layers]: those that read its rows, itself first
  std::vector<int> first_;                 // [layers]: its first head among all
  Type key_type_, value_type_;
  std::shared_ptr<Arena> arena_;
  Extras extras_;
  std::shared_ptr<const KeyRoundings> rounding_;
  std::vector<int> sketched_, boxed_;  // [layers]
  size_t populated_ = 0;               // owners whose pages are mapped
  std::vector<std::byte*> memory_;     // [layers]
  std::vector<int> rows_, removed_;    // rows allocated, rows evicted
  std::vector<Eligible> eligible_;     // [layers]
  std::vector<HeadState> states_;      // of all heads
  std::vector<ValueSums> sums_;        // of all heads
  std::unique_ptr<LayerStates> layer_states_;
};

// Copies a row of one head to a row of another of the same types.
void copy_row(const KVHead& from, int row, const KVHead& to, int to_row);

}  // namespace suffice
