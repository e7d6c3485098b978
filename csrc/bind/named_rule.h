// Rules of attention from a technique's name and parameters.
#pragma once

#include <map>
#include <string>

#include "attention/attention_rule.h"

namespace suffice::bind {

using Parameters = std::map<std::string, double>;  // by name; booleans are 0 or 1

// Returns the rule of a technique. `parameters`: all that the technique has and, unless they keep
// their defaults, check_blocks and by_sketch. Throws std::invalid_argument if there is no such
// technique or parameter, one is missing, or a value is not allowed.
AttentionRule named_rule(const std::string& technique, Parameters parameters, float value_share);

}  // namespace suffice::bind
