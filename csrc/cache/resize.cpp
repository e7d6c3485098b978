// Growth of a cache, and copies of its rows.
#include <algorithm>
#include <cstring>

#include "cache/cache.h"
#include "runtime/parallel.h"

namespace suffice {

// Copies the first rows of a layer to memory with another layout.
void KVCache::copy_rows(int layer, std::byte* to, const Layout& layout_to, int keep) const {
  const Sizes bytes = bytes_of(keep);
  const Layout from = layout(rows_[layer]);
  for (int i = 0; i < kArrays; i++)
    for (int h = 0; h < heads_ && bytes[i]; h++)
      std::memcpy(layout_to.arrays[i].of(to, h), from.arrays[i].of(memory_[layer], h), bytes[i]);
}

// Whether every layer gets more memory and is so large that its pages are worth keeping: the system
// zeroes a new page before it can be written, which takes longer than the copy itself.
bool KVCache::grows_in_place(int capacity, int keep) const {
  for (int layer = 0; layer < layers_; layer++)
    if (!memory_[layer] || capacity - removed_[layer] < rows_[layer] ||
        layout(rows_[layer]).total < kHugePageBytes)
      return false;
  return keep > 0;
}

// Extends the memory of all layers to `capacity` tokens; on OutOfMemory of none.
void KVCache::extend(int capacity) {
  const auto total = [&](int layer, int rows) { return layout(rows - removed_[layer]).total; };
  int layer = 0;
  try {
    for (; layer < layers_; layer++)
      memory_[layer] =
          arena_->remap(memory_[layer], layout(rows_[layer]).total, total(layer, capacity));
  } catch (const OutOfMemory&) {
    for (int i = 0; i < layer; i++)
      memory_[i] = arena_->remap(memory_[i], total(i, capacity), layout(rows_[i]).total);
    throw;
  }
}

// Moves a layer's rows within its memory from one layout to a larger one. The last go first, so
// none is overwritten; what lay between the new places of two heads is zeroed.
void KVCache::spread(int layer, const Layout& from, const Layout& to, int keep) {
  const Sizes kept = bytes_of(keep);
  std::byte* const memory = memory_[layer];
  std::byte* const used = memory + from.total;  // behind it memory is new, and zero
  std::byte* end = memory + to.total;
  for (int i = kArrays - 1; i >= 0; i--)
    for (int h = heads_ - 1; h >= 0 && to.arrays[i].stride; h--) {
      std::byte* const place = to.arrays[i].of(memory, h);
      if (kept[i]) std::memmove(place, from.arrays[i].of(memory, h), kept[i]);
      std::byte* const rest = place + kept[i];
      if (rest < used) std::memset(rest, 0, std::min(end, used) - rest);
      end = place;
    }
}

void KVCache::resize(int capacity, int keep) {
  if (layer_states_) layer_states_->reserve();
  size_t needed = 0;
  for (int layer = 0; layer < layers_; layer++) needed += layout(capacity - removed_[layer]).total;
  if (grows_in_place(capacity, keep)) {
    arena_->require(needed, rows_bytes());
    extend(capacity);
    team()->run([&](int thread) {
      const Share own = share(layers_, thread, team()->size());
      for (int layer = own.first; layer < own.last; layer++)
        spread(layer, layout(rows_[layer]), layout(capacity - removed_[layer]),
               keep - removed_[layer]);
    });
  } else {
    replace(capacity, keep, needed);
  }
  for (int layer = 0; layer < layers_; layer++) rows_[layer] = capacity - removed_[layer];
  populated_ = 0;
}

// Gives every layer new memory, `needed` bytes in all. Old and new memory exist together for one
// layer at a time: pages are not there until they are used.
void KVCache::replace(int capacity, int keep, size_t needed) {
  size_t copied = 0;
  for (int layer = 0; layer < layers_ && keep > 0; layer++)
    copied = std::max(copied, layout(rows_[layer]).total);
  arena_->require(needed + copied, rows_bytes());
  std::vector<std::byte*> fresh;
  try {
    for (int layer = 0; layer < layers_; layer++)
      fresh.push_back(arena_->map(layout(capacity - removed_[layer]).total));
  } catch (const OutOfMemory&) {
    for (size_t layer = 0; layer < fresh.size(); layer++)
      arena_->unmap(fresh[layer], layout(capacity - removed_[layer]).total);
    throw;
  }
  for (int layer = 0; layer < layers_; layer++) {
    const Layout to = layout(capacity - removed_[layer]);
    if (keep > 0) copy_rows(layer, fresh[layer], to, keep - removed_[layer]);
    arena_->unmap(memory_[layer], layout(rows_[layer]).total);
    memory_[layer] = fresh[layer];
  }
}

}  // namespace suffice
