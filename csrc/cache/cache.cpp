#include "cache/cache.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace suffice {
namespace {

size_t aligned(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

size_t Arena::page_bytes() {
  static const size_t bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

void Arena::require(size_t more, size_t freed) const {
  if (limit_ && used_ - freed + more > limit_)
    throw OutOfMemory("the KV cache needs " + std::to_string(more) +
                      " more bytes, but its limit is " + std::to_string(limit_) + " and " +
                      std::to_string(used_ - freed) + " are in use");
}

std::byte* Arena::map(size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED)
    throw OutOfMemory("the system has no memory for " + std::to_string(bytes) +
                      " more bytes of KV cache (" + std::to_string(used_) + " in use)");
  if (bytes >= kHugePageBytes) madvise(data, bytes, MADV_HUGEPAGE);
  used_ += bytes;
  return static_cast<std::byte*>(data);
}

std::byte* Arena::remap(std::byte* data, size_t bytes, size_t new_bytes) {
  void* moved = mremap(data, bytes, new_bytes, MREMAP_MAYMOVE);
  if (moved == MAP_FAILED)
    throw OutOfMemory("the system has no memory for " + std::to_string(new_bytes - bytes) +
                      " more bytes of KV cache (" + std::to_string(used_) + " in use)");
  used_ += new_bytes - bytes;
  return static_cast<std::byte*>(moved);
}

void Arena::unmap(std::byte* data, size_t bytes) {
  if (!data) return;
  munmap(data, bytes);
  used_ -= bytes;
}

KeyRoundings::KeyRoundings(int layers, int heads, int size, const float* scales, const float* means,
                           const float* passed, const float* weights)
    : layers_(layers),
      heads_(heads),
      size_(size),
      scales_(scales, scales + static_cast<size_t>(layers) * heads * size),
      means_(means, means + scales_.size()),
      passed_(passed, passed + scales_.size() * size),
      weights_(weights, weights + scales_.size()) {
  for (const float scale : scales_) inverses_.push_back(1.0f / scale);
  for (size_t start = 0; start < scales_.size(); start += size)
    all_.push_back({scales_.data() + start, inverses_.data() + start, means_.data() + start,
                    passed_.data() + start * size, weights_.data() + start});
}

bool KeyRoundings::fits(const std::vector<LayerRows>& layers) const {
  return layers == std::vector<LayerRows>(layers_, {.heads = heads_, .size = {.key = size_}});
}

KVCache::KVCache(std::vector<LayerRows> layers, Type key_type, Type value_type,
                 std::shared_ptr<Arena> arena, Extras extras,
                 std::shared_ptr<const KeyRoundings> rounding,
                 const std::vector<StateShape>& states)
    : shapes_(std::move(layers)),
      key_type_(key_type),
      value_type_(value_type),
      arena_(std::move(arena)),
      extras_(extras),
      rounding_(std::move(rounding)),
      sketched_(shapes_.size()),
      boxed_(shapes_.size()),
      memory_(shapes_.size()),
      rows_(shapes_.size()),
      removed_(shapes_.size()),
      eligible_(shapes_.size()),
      layer_states_(states.empty() ? nullptr : std::make_unique<LayerStates>(states, arena_)) {
  size_t count = 0;
  readers_.resize(shapes_.size());
  for (int layer = 0; layer < this->layers(); layer++) {
    if (owns(layer)) owners_.push_back(layer);
    readers_[owner(layer)].push_back(layer);
    first_.push_back(static_cast<int>(count));
    count += heads(layer);
  }
  states_.resize(count);
  sums_.resize(count);
}

KVCache::~KVCache() { release(); }

std::pair<int, int> KVCache::place(int index) const {
  const auto after = std::upper_bound(first_.begin(), first_.end(), index);
  const int layer = static_cast<int>(after - first_.begin()) - 1;
  return {layer, index - first_[layer]};
}

void KVCache::release() {
  for (const int layer : owners_) {
    arena_->unmap(memory_[layer], layout(layer).total);
    memory_[layer] = nullptr;
    rows_[layer] = removed_[layer] = sketched_[layer] = boxed_[layer] = 0;
  }
  if (layer_states_) layer_states_->release();
}

int KVCache::capacity() const {
  int least = rows_[owners_[0]] + removed_[owners_[0]];
  for (const int layer : owners_) least = std::min(least, rows_[layer] + removed_[layer]);
  return least;
}

KVCache::Sizes KVCache::bytes_of(int layer, int rows) const {
  const size_t blocks = round_up(rows, kPanel) / kPanel, scales = rows * sizeof(float);
  Sizes found{};
  const auto [size, joint] = sizes(layer);
  found[kKeys] = blocks * kPanel * elements_bytes(key_type_, size);
  if (!joint) found[kValues] = rows * elements_bytes(value_type_, size);
  if (has_scales(key_type_)) found[kKeyScales] = scales;
  if (has_scales(value_type_)) found[kValueScales] = scales;
  if (planes_of(key_type_) > 1) found[kKeyRest] = found[kKeys];
  if (planes_of(value_type_) > 1) found[kValueRest] = found[kValues];
  const size_t base = elements_bytes(Type::kmeans4, size);
  if (extras_.bases && !is_four_bits(key_type_)) {
    found[kBaseKeys] = blocks * kPanel * base;
    found[kBaseKeyScales] = scales;
  }
  if (extras_.bases && !is_four_bits(value_type_)) {
    found[kBaseValues] = rows * base;
    found[kBaseValueScales] = scales;
  }
  if (keeps_errors(key_type_)) found[kKeyErrors] = rows;
  if (keeps_errors(value_type_)) found[kValueErrors] = rows;
  if (extras_.sketch) found[kSketch] = rows / kSketchRows * sketch_bytes(size);
  if (extras_.boxes) found[kBoxes] = blocks * box_bytes(size);
  if (extras_.masses) found[kMasses] = scales;
  return found;
}

KVCache::Layout KVCache::layout(int layer, int rows) const {
  const Sizes strides = bytes_of(layer, round_up(rows, kPanel));
  Layout found;
  size_t end = 0;
  for (int i = 0; i < kArrays; i++) {
    found.arrays[i] = {aligned(end, kLineBytes), strides[i]};
    end = found.arrays[i].at + heads(layer) * strides[i];
  }
  found.total = aligned(end, Arena::page_bytes());
  return found;
}

KVHead KVCache::head_in(int layer, std::byte* memory, const Layout& layout, int head) const {
  const HeadSize size = sizes(layer);
  const auto array = [&](int kind) { return layout.arrays[kind].of(memory, head); };
  const auto floats = [&](int kind) { return reinterpret_cast<float*>(array(kind)); };
  KVHead result;
  result.keys = array(kKeys);
  result.values = size.joint ? result.keys : array(kValues);
  result.key_scales = floats(kKeyScales);
  result.value_scales = floats(kValueScales);
  result.key_rest = array(kKeyRest);
  result.value_rest = array(kValueRest);
  result.base_keys = array(kBaseKeys);
  result.base_values = array(kBaseValues);
  result.base_key_scales = floats(kBaseKeyScales);
  result.base_value_scales = floats(kBaseValueScales);
  result.key_errors = reinterpret_cast<uint8_t*>(array(kKeyErrors));
  result.value_errors = reinterpret_cast<uint8_t*>(array(kValueErrors));
  result.sketch = array(kSketch);
  result.boxes = floats(kBoxes);
  result.masses = floats(kMasses);
  result.size = size.key;
  result.value_size = size.value();
  result.joint = size.joint > 0;
  result.key_type = key_type_;
  result.value_type = value_type_;
  return result;
}

KVHead KVCache::head(int layer, int head) const {
  const int own = owner(layer);
  KVHead result = head_in(own, memory_[own], layout(own), head);
  if (rounding_) result.rounding = rounding_->of(own, head);
  return result;
}

size_t KVCache::bytes() const {
  return rows_bytes() + (layer_states_ ? layer_states_->bytes() : 0);
}

size_t KVCache::rows_bytes() const {
  size_t bytes = 0;
  for (const int layer : owners_)
    if (memory_[layer]) bytes += layout(layer).total;
  return bytes;
}

// The key of a joint row holds the value; the second scale is the value's.
int64_t KVCache::key_bytes(int layer) const { return stored_bytes(key_type_, size(layer)); }

int64_t KVCache::value_bytes(int layer) const {
  return stored_bytes(value_type_, sizes(layer).joint ? 0 : size(layer));
}

size_t KVCache::row_bytes(int layer) const {
  const int own = size(layer);
  const size_t sketch = extras_.sketch ? sketch_bytes(own) / kSketchRows : 0;
  const size_t box = extras_.boxes ? box_bytes(own) / kPanel : 0;
  const size_t mass = extras_.masses ? sizeof(float) : 0;
  const size_t errors = keeps_errors(key_type_) + keeps_errors(value_type_);
  const size_t bases = extras_.bases ? !is_four_bits(key_type_) + !is_four_bits(value_type_) : 0;
  return static_cast<size_t>(heads(layer)) *
         (key_bytes(layer) + value_bytes(layer) + bases * stored_bytes(Type::kmeans4, own) +
          sketch + box + mass + errors);
}

size_t KVCache::row_bytes() const {
  size_t bytes = 0;
  for (const int layer : owners_) bytes += row_bytes(layer);
  return bytes;
}

size_t KVCache::held_bytes(int length) const {
  size_t bytes = 0;
  for (const int layer : owners_) bytes += row_bytes(layer) * (length - removed_[layer]);
  return bytes;
}

bool KVCache::populate(size_t bytes) {
  for (size_t mapped = 0; populated_ < owners_.size() && mapped < bytes; populated_++) {
    const int layer = owners_[populated_];
    const size_t size = layout(layer).total;
    // A kernel that does not know this maps them at their first use.
    if (memory_[layer]) madvise(memory_[layer], size, MADV_POPULATE_WRITE);
    mapped += size;
  }
  return populated_ == owners_.size();
}

void KVCache::move_row(int from, int to) {
  for (const int layer : owners_)
    for (int h = 0; h < heads(layer); h++) {
      const KVHead kv = head(layer, h);
      copy_row(kv, from - removed_[layer], kv, to - removed_[layer]);
    }
}

void KVCache::settle(int draft) {
  for (size_t i = 0; i < states_.size(); i++) {
    HeadState& state = states_[i];
    if (draft < static_cast<int>(state.drafts.size()))
      std::swap(state.committed, state.drafts[draft]);
    if (state.weights.empty()) continue;
    const auto [layer, h] = place(static_cast<int>(i));
    float* masses = head(layer, h).masses;
    for (size_t row = 0; row < state.weights.size(); row++) masses[row] += state.weights[row];
    state.weights.clear();
  }
  for (ValueSums& sums : sums_) {
    if (draft < static_cast<int>(sums.drafts.size())) std::swap(sums.committed, sums.drafts[draft]);
    sums.drafts.clear();
  }
}

void KVCache::forget_drafts(int layer) {
  for (int h = 0; h < heads(layer); h++) sums(layer, h).drafts.clear();
}

void KVCache::forget_sums(int layer) {
  for (const int reader : readers_[layer])
    for (int h = 0; h < heads(layer); h++) sums(reader, h) = {};
}

void KVCache::forget_rows(int length) {
  for (int i = 0; i < all_heads(); i++) {
    const auto [layer, h] = place(i);
    const int rows = std::max(length - removed(layer), 0);
    states_[i].committed.truncate(rows);
    states_[i].order.clear();
    sums_[i].committed.truncate(rows);
    if (!owns(layer) || !memory_[layer]) continue;
    if (float* masses = head(layer, h).masses)
      std::fill(masses + rows, masses + rows_[layer], 0.0f);
  }
  if (length == 0) std::fill(removed_.begin(), removed_.end(), 0);
  for (int& chunks : sketched_) chunks = std::min(chunks, length / kSketchRows);
  for (int& blocks : boxed_) blocks = std::min(blocks, length / kPanel);
}

void KVCache::forget_answers() {
  std::fill(states_.begin(), states_.end(), HeadState{});
  std::fill(sums_.begin(), sums_.end(), ValueSums{});
}

std::unique_ptr<KVCache> KVCache::copy(int keep, int capacity) const {
  auto other =
      std::make_unique<KVCache>(shapes_, key_type_, value_type_, arena_, extras_, rounding_);
  for (const int layer : owners_) {
    other->sketched_[layer] = std::min(sketched_[layer], keep / kSketchRows);
    other->boxed_[layer] = std::min(boxed_[layer], keep / kPanel);
  }
  other->states_ = states_;
  other->sums_ = sums_;
  for (size_t i = 0; i < sums_.size(); i++)
    other->sums_[i].committed.truncate(keep - removed(place(static_cast<int>(i)).first));
  if (layer_states_) other->layer_states_ = layer_states_->copy(keep);
  other->eligible_ = eligible_;
  other->removed_ = removed_;
  if (capacity == 0) return other;
  other->resize(capacity, 0);
  for (const int layer : owners_)
    copy_rows(layer, other->memory_[layer], other->layout(layer), keep - removed_[layer]);
  return other;
}

}  // namespace suffice
