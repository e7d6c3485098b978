#include "cache/layer_states.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cache/cache.h"
#include "kernels/kernels.h"
#include "runtime/parallel.h"

namespace suffice {

StateMemory::StateMemory(std::shared_ptr<Arena> arena, size_t floats, bool checked)
    : arena_(std::move(arena)) {
  const size_t page = Arena::page_bytes();
  bytes_ = (floats * sizeof(float) + page - 1) / page * page;
  if (!bytes_) return;
  if (checked) arena_->require(bytes_, 0);
  data_ = reinterpret_cast<float*>(arena_->map(bytes_));
}

StateMemory::~StateMemory() {
  if (data_) arena_->unmap(reinterpret_cast<std::byte*>(data_), bytes_);
}

StateMemory& StateMemory::operator=(StateMemory&& other) noexcept {
  std::swap(arena_, other.arena_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

LayerStates::LayerStates(std::vector<StateShape> shapes, std::shared_ptr<Arena> arena)
    : shapes_(std::move(shapes)), arena_(std::move(arena)), applied_(shapes_.size()) {
  for (const StateShape& shape : shapes_) {
    starts_.push_back(total_);
    past_starts_.push_back(past_total_);
    row_starts_.push_back(row_total_);
    total_ += shape.matrices();
    past_total_ += static_cast<size_t>(shape.past()) * shape.channels;
    row_total_ += shape.row();
  }
}

size_t LayerStates::bytes() const {
  size_t sum = now_.bytes() + next_.bytes() + logs_[0].memory.bytes() + logs_[1].memory.bytes();
  for (const auto& copy : copies_) sum += copy->memory.bytes();
  return sum;
}

size_t LayerStates::step_bytes() const { return floats() * sizeof(float); }

// Of all layers, first the inputs with those before them, then keys, decays and changes.
StateLog LayerStates::log(int layer, int which) const {
  const Rows& rows = logs_[which];
  const StateShape& shape = shapes_[layer];
  StateLog found;
  found.inputs = rows.memory.data() + past_starts_[layer] + row_starts_[layer] * rows.capacity;
  found.keys = found.inputs + (shape.past() + static_cast<size_t>(rows.capacity)) * shape.channels;
  found.decays = found.keys + rows.capacity * shape.keys();
  found.changes = found.decays + rows.capacity * shape.decays();
  return found;
}

void LayerStates::make(Rows& rows, int capacity) const {
  if (rows.memory.data() && capacity <= rows.capacity) return;
  rows.memory = StateMemory(arena_, past_total_ + row_total_ * capacity, false);
  rows.capacity = capacity;
}

void LayerStates::reserve() {
  if (!now_.data()) now_ = StateMemory(arena_, total_ + 1, true);
}

void LayerStates::begin(int rows, bool settled) {
  if (!now_.data()) now_ = StateMemory(arena_, total_ + 1, false);
  make(logs_[current_], logs_[current_].capacity);
  make(logs_[1 - current_], settled ? 0 : rows);
  if (settled && !next_.data()) next_ = StateMemory(arena_, total_ + 1, false);
  if (!settled) next_ = StateMemory();
  settled_ = settled;
}

void LayerStates::commit(const std::vector<int>& path) {
  if (path.empty()) return;
  if (settled_) std::swap(now_, next_);
  current_ = 1 - current_;
  committed_ = settled_ ? std::vector<int>() : path;
  std::fill(applied_.begin(), applied_.end(), 0);
  length_ += static_cast<int>(path.size());
}

void LayerStates::settle(float* matrices, float* inputs) const {
  std::memcpy(matrices, now_.data(), total_ * sizeof(float));
  for (size_t layer = 0; layer < shapes_.size(); layer++) {
    const StateShape& shape = shapes_[layer];
    const StateLog from = before(static_cast<int>(layer));
    const int past = shape.past(), count = static_cast<int>(committed_.size());
    for (int i = 0; i < past; i++) {  // the last inputs: of committed rows, and before them
      const int at = i + count;
      const int row = at < past ? at : past + committed_[at - past];
      std::memcpy(inputs + past_starts_[layer] + static_cast<size_t>(i) * shape.channels,
                  from.inputs + static_cast<size_t>(row) * shape.channels,
                  shape.channels * sizeof(float));
    }
    if (applied_[layer] || committed_.empty()) continue;
    std::vector<StateRow> rows(count);
    std::vector<float> scratch(recurrence_scratch(shape.key_size));
    for (int head = 0; head < shape.heads; head++) {
      for (int i = 0; i < count; i++) rows[i] = logged(shape, from, committed_[i], head);
      float* const matrix = matrices + starts_[layer] + head * shape.matrix();
      StatePart part{.from = matrix, .back = matrix, .again = rows.data(), .agains = count};
      part.key_size = shape.key_size;
      part.last = shape.value_size / kPanel;
      part.by_entry = shape.by_entry;
      part.scratch = scratch.data();
      kernels().states.advance(part);
    }
  }
}

StateRow logged(const StateShape& shape, const StateLog& log, int row, int head) {
  const size_t each = shape.by_entry ? shape.key_size : 1;
  StateRow found;
  found.key =
      log.keys + row * shape.keys() + static_cast<size_t>(shape.group(head)) * shape.key_size;
  found.decays = log.decays + row * shape.decays() + head * each;
  found.value = log.changes + row * shape.changes() + head * static_cast<size_t>(shape.value_size);
  return found;
}

void LayerStates::keep(int most) {
  if (!length_ || most < 1) return;
  if (!copies_.empty() && copies_.back()->length == length_) return;
  auto copy = std::make_shared<Copy>(Copy{length_, StateMemory(arena_, floats() + 1, true)});
  settle(copy->memory.data(), copy->memory.data() + total_);
  copies_.push_back(std::move(copy));
  while (copies_.size() > static_cast<size_t>(most)) thin();
}

void LayerStates::thin() {
  size_t worst = 0;
  double least = 2;
  for (size_t i = 0; i + 1 < copies_.size(); i++) {
    const int before = i ? copies_[i - 1]->length : 0;
    const double longer = static_cast<double>(copies_[i]->length - before) / (length_ - before);
    if (longer < least) {
      least = longer;
      worst = i;
    }
  }
  copies_.erase(copies_.begin() + static_cast<long>(worst));
}

bool LayerStates::drop_copies() {
  const bool any = !copies_.empty();
  copies_.clear();
  return any;
}

int LayerStates::reachable(int rows) const {
  if (rows >= length_) return length_;
  int found = 0;
  for (const auto& copy : copies_)
    if (copy->length <= rows) found = copy->length;
  return found;
}

void LayerStates::restart(int length) {
  if (!now_.data()) now_ = StateMemory(arena_, total_ + 1, true);
  next_ = StateMemory();
  for (Rows& rows : logs_) rows = {};
  make(logs_[0], 0);  // of inputs alone
  current_ = 0;
  committed_.clear();
  std::fill(applied_.begin(), applied_.end(), 0);
  length_ = length;
}

void LayerStates::take(const Copy& copy) {
  restart(copy.length);
  const float* const from = copy.memory.data();
  std::memcpy(now_.data(), from, total_ * sizeof(float));
  std::copy_n(from + total_, past_total_, logs_[0].memory.data());
}

const float* LayerStates::kept_after(int length) const {
  for (const auto& copy : copies_)
    if (copy->length == length) return copy->memory.data();
  return nullptr;
}

void LayerStates::resume(int length, const float* from) {
  auto copy = std::make_shared<Copy>(Copy{length, StateMemory(arena_, floats() + 1, true)});
  std::memcpy(copy->memory.data(), from, floats() * sizeof(float));
  take(*copy);
  copies_.push_back(std::move(copy));
}

void LayerStates::rewind(int rows) {
  while (!copies_.empty() && copies_.back()->length > rows) copies_.pop_back();
  if (rows >= length_) return;
  if (rows == 0) return release();
  take(*copies_.back());
}

std::unique_ptr<LayerStates> LayerStates::copy(int rows) const {
  auto other = std::make_unique<LayerStates>(shapes_, arena_);
  for (const auto& copy : copies_)
    if (copy->length <= rows) other->copies_.push_back(copy);
  if (rows >= length_ && length_) {
    other->restart(length_);
    settle(other->now_.data(), other->logs_[0].memory.data());
  } else if (rows) {
    other->take(*other->copies_.back());
  }
  return other;
}

void LayerStates::release() {
  copies_.clear();
  now_ = StateMemory();
  next_ = StateMemory();
  for (Rows& rows : logs_) rows = {};
  committed_.clear();
  std::fill(applied_.begin(), applied_.end(), 0);
  length_ = current_ = 0;
}

std::vector<int> LayerStates::kept() const {
  std::vector<int> found;
  for (const auto& copy : copies_) found.push_back(copy->length);
  return found;
}

}  // namespace suffice
