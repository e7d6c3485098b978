#include "bind/named_rule.h"

#include <cmath>
#include <limits>
#include <optional>
#include <stdexcept>

#include "kernels/kernels.h"

namespace suffice::bind {
namespace {

void require_that(bool holds, const std::string& message) {
  if (!holds) throw std::invalid_argument(message);
}

void set(float& field, double value, const std::string&) { field = static_cast<float>(value); }

void set(int& field, double value, const std::string& name) {
  require_that(std::abs(value) <= std::numeric_limits<int>::max() && value == std::trunc(value),
               name + " must be a whole number");
  field = static_cast<int>(value);
}

void set(bool& field, double value, const std::string& name) {
  require_that(value == 0 || value == 1, name + " must be true or false");
  field = value != 0;
}

// Moves a parameter into its field; returns whether it is given.
template <class T>
bool take(Parameters& parameters, const std::string& name, T& field) {
  const auto given = parameters.extract(name);
  if (given) set(field, given.mapped(), name);
  return !given.empty();
}

template <class T>
T made(Parameters parameters) {
  const std::string own = T::kName;
  T technique;
  technique.parameters([&](const std::string& name, auto& field) {
    require_that(take(parameters, name, field), own + " needs the parameter " + name);
  });
  if (!parameters.empty())
    throw std::invalid_argument(own + " has no parameter " + parameters.begin()->first);
  if (const char* fault = technique.fault()) throw std::invalid_argument(fault);
  return technique;
}

// Makes the technique of that name; the first argument only tells which are known.
template <class... Known>
Technique find(const std::variant<Known...>&, const std::string& name,
               const Parameters& parameters) {
  std::optional<Technique> found;
  std::string names;
  const auto look_at = [&]<class T>() {
    if (name == T::kName) found = made<T>(parameters);
    names += std::string(" ") + T::kName;
  };
  (look_at.template operator()<Known>(), ...);
  require_that(found.has_value(), "there is no technique " + name + "; known are:" + names);
  return *found;
}

}  // namespace

AttentionRule named_rule(const std::string& technique, Parameters parameters, float value_share) {
  require_that(value_share >= 0 && value_share <= 1, "value_share must be in [0, 1]");
  AttentionRule rule{.technique = {}, .value_share = value_share};
  take(parameters, "check_blocks", rule.check_blocks);
  take(parameters, "by_sketch", rule.by_sketch);
  require_that(rule.check_blocks >= 1 && rule.check_blocks <= kTileBlocks,
               "check_blocks must be 1 to 4");
  rule.technique = find(Technique{}, technique, parameters);
  return rule;
}

}  // namespace suffice::bind
