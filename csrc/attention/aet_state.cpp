#include "attention/aet_state.h"

#include <algorithm>

namespace suffice {

void AetState::promote(const Aet& rule, Unit unit) {
  if (rule.globals == 0) return;
  if (static_cast<int>(globals_.size()) == rule.globals) {
    const auto lighter = [](const Unit& a, const Unit& b) {
      return a.mass != b.mass ? a.mass < b.mass : a.index < b.index;
    };
    globals_.erase(std::min_element(globals_.begin(), globals_.end(), lighter));
  }
  globals_.push_back(unit);
}

void AetState::advance(const Aet& rule, int length) {
  rows_ = rule.unit();
  const auto leave = [&] {
    while (!locals_.empty() && (locals_.front().index + 1) * rows_ <= length - rule.locals) {
      promote(rule, locals_.front());
      locals_.erase(locals_.begin());
    }
  };
  leave();
  for (; next_ * rows_ < length; next_++) {
    if (next_ >= rule.sinks) locals_.push_back({next_, 0.0f});
    leave();  // at once, so that a long prompt's rows do not pile up
  }
}

void AetState::list(const Aet& rule, int begin, std::vector<int32_t>& to) const {
  const int first = begin / rows_;
  for (int unit = first; unit < std::min(rule.sinks, next_); unit++) to.push_back(unit);
  for (const auto* units : {&globals_, &locals_})
    for (const Unit& unit : *units)
      if (unit.index >= first) to.push_back(unit.index);
}

void AetState::add_mass(int32_t index, float mass) {
  for (auto* units : {&globals_, &locals_})
    for (Unit& unit : *units)
      if (unit.index == index) unit.mass += mass;
}

void AetState::truncate(int length) {
  const auto gone = [=, this](const Unit& unit) { return unit.index * rows_ >= length; };
  std::erase_if(globals_, gone);
  std::erase_if(locals_, gone);
  next_ = std::min(next_, (length + rows_ - 1) / rows_);
}

void AetState::lose(int first, int end) {
  const auto gone = [=, this](const Unit& unit) {
    return unit.index >= first / rows_ && unit.index < end / rows_;
  };
  std::erase_if(globals_, gone);
  std::erase_if(locals_, gone);
}

void AetState::drop(int first, int count) {
  lose(first, first + count);
  const int from = first / rows_, units = count / rows_;
  for (auto* all : {&globals_, &locals_})
    for (Unit& unit : *all)
      if (unit.index >= from) unit.index -= units;
  if (next_ > from) next_ = std::max(from, next_ - units);
}

}  // namespace suffice
