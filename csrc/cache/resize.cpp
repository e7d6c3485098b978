// Growth of a cache, and copies of its rows.
#include <algorithm>
#include <cstring>

#include "cache/cache.h"
#include "runtime/parallel.h"

namespace suffice {

// Copies the first rows of a layer to memory with another layout.
void KVCache::copy_rows(int layer, std::byte* to, const Layout& layout_to, int keep) const {
  const Sizes bytes = bytes_of(layer, keep);
  const Layout from = layout(layer);
  for (int i = 0; i < kArrays; i++)
    for (int h = 0; h < heads(layer) && bytes[i]; h++)
      std::memcpy(layout_to.arrays[i].of(to, h), from.arrays[i].of(memory_[layer], h), bytes[i]);
}

// Whether every layer gets more memory and is so large that its pages are worth keeping: the system
// zeroes a new page before it can be written, which takes longer than the copy itself.
bool KVCache::grows_in_place(int capacity, int keep) const {
  for (const int layer : owners_)
    if (!memory_[layer] || capacity - removed_[layer] < rows_[layer] ||
        layout(layer).total < kHugePageBytes)
      return false;
  return keep > 0;
}

// Extends the memory of all layers to `capacity` tokens; on OutOfMemory of none.
void KVCache::extend(int capacity) {
  const auto total = [&](int layer) { return layout(layer, capacity - removed_[layer]).total; };
  size_t done = 0;
  try {
    for (; done < owners_.size(); done++) {
      const int layer = owners_[done];
      memory_[layer] = arena_->remap(memory_[layer], layout(layer).total, total(layer));
    }
  } catch (const OutOfMemory&) {
    for (size_t i = 0; i < done; i++) {
      const int layer = owners_[i];
      memory_[layer] = arena_->remap(memory_[layer], total(layer), layout(layer).total);
    }
    throw;
  }
}

// Moves a layer's rows within its memory from one layout to a larger one. The last go first, so
// none is overwritten; what lay between the new places of two heads is zeroed.
void KVCache::spread(int layer, const Layout& from, const Layout& to, int keep) {
  const Sizes kept = bytes_of(layer, keep);
  std::byte* const memory = memory_[layer];
  std::byte* const used = memory + from.total;  // behind it memory is new, and zero
  std::byte* end = memory + to.total;
  for (int i = kArrays - 1; i >= 0; i--)
    for (int h = heads(layer) - 1; h >= 0 && to.arrays[i].stride; h--) {
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
  const auto after = [&](int layer) { return layout(layer, capacity - removed_[layer]); };
  for (const int layer : owners_) needed += after(layer).total;
  if (grows_in_place(capacity, keep)) {
    arena_->require(needed, rows_bytes());
    extend(capacity);
    team()->run([&](int thread) {
      const Share own = share(static_cast<int>(owners_.size()), thread, team()->size());
      for (int i = own.first; i < own.last; i++) {
        const int layer = owners_[i];
        spread(layer, layout(layer), after(layer), keep - removed_[layer]);
      }
    });
  } else {
    replace(capacity, keep, needed);
  }
  for (const int layer : owners_) rows_[layer] = capacity - removed_[layer];
  populated_ = 0;
}

// Gives every layer new memory, `needed` bytes in all. Old and new memory exist together for one
// layer at a time: pages are not there until they are used.
void KVCache::replace(int capacity, int keep, size_t needed) {
  size_t copied = 0;
  for (const int layer : owners_)
    if (keep > 0) copied = std::max(copied, layout(layer).total);
  arena_->require(needed + copied, rows_bytes());
  const auto after = [&](int layer) { return layout(layer, capacity - removed_[layer]); };
  std::vector<std::byte*> fresh;
  try {
    for (const int layer : owners_) fresh.push_back(arena_->map(after(layer).total));
  } catch (const OutOfMemory&) {
    for (size_t i = 0; i < fresh.size(); i++) arena_->unmap(fresh[i], after(owners_[i]).total);
    throw;
  }
  for (size_t i = 0; i < fresh.size(); i++) {
    const int layer = owners_[i];
    if (keep > 0) copy_rows(layer, fresh[i], after(layer), keep - removed_[layer]);
    arena_->unmap(memory_[layer], layout(layer).total);
    memory_[layer] = fresh[i];
  }
}

}  // namespace suffice
