#include "attention/aet_state.h"

#include <algorithm>

namespace suffice {

void AetState::promote(const Aet& rule, Block block) {
  if (rule.globals == 0) return;
  if (static_cast<int>(globals_.size()) == rule.globals) {
    const auto lighter = [](const Block& a, const Block& b) {
      return a.mass != b.mass ? a.mass < b.mass : a.index < b.index;
    };
    globals_.erase(std::min_element(globals_.begin(), globals_.end(), lighter));
  }
  globals_.push_back(block);
}

void AetState::advance(const Aet& rule, int length) {
  for (; next_ * kPanel < length; next_++)
    if (next_ >= rule.sinks) locals_.push_back({next_, 0.0f});
  while (!locals_.empty() && (locals_.front().index + 1) * kPanel <= length - rule.locals) {
    promote(rule, locals_.front());
    locals_.erase(locals_.begin());
  }
}

void AetState::list(const Aet& rule, int begin, std::vector<int32_t>& to) const {
  for (int block = begin; block < std::min(rule.sinks, next_); block++) to.push_back(block);
  for (const auto* blocks : {&globals_, &locals_})
    for (const Block& block : *blocks)
      if (block.index >= begin) to.push_back(block.index);
}

void AetState::add_mass(int32_t index, float mass) {
  for (auto* blocks : {&globals_, &locals_})
    for (Block& block : *blocks)
      if (block.index == index) block.mass += mass;
}

void AetState::truncate(int length) {
  const auto gone = [length](const Block& block) { return block.index * kPanel >= length; };
  std::erase_if(globals_, gone);
  std::erase_if(locals_, gone);
  next_ = std::min(next_, (length + kPanel - 1) / kPanel);
}

void AetState::lose(int first, int end) {
  const auto gone = [=](const Block& block) { return block.index >= first && block.index < end; };
  std::erase_if(globals_, gone);
  std::erase_if(locals_, gone);
}

void AetState::drop(int first, int count) {
  lose(first, first + count);
  for (auto* blocks : {&globals_, &locals_})
    for (Block& block : *blocks)
      if (block.index >= first) block.index -= count;
  if (next_ > first) next_ = std::max(first, next_ - count);
}

}  // namespace suffice
