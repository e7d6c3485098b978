#include "attention/attention_rule.h"

namespace suffice {

const Aet* AttentionRule::aet() const { return std::get_if<Aet>(&technique); }

const Art* AttentionRule::art() const { return std::get_if<Art>(&technique); }

const Certified* AttentionRule::certified() const { return std::get_if<Certified>(&technique); }

bool AttentionRule::never_stops() const {
  if (std::holds_alternative<ReadAll>(technique)) return true;
  if (!softmax_tables.empty()) return false;
  if (const Aet* rule = aet()) return rule->key_share >= 2;
  const Art* rule = art();
  return rule && (rule->scale == 0 || rule->patience >= kEndless);
}

bool AttentionRule::needs_sketch() const {
  return certified() ? !exact() : by_sketch && !never_stops();
}

bool AttentionRule::exact() const {
  if (!softmax_tables.empty()) return false;
  if (const Certified* rule = certified()) return rule->missing == 0;
  return never_stops() && value_share == 0;
}

bool AttentionRule::coded() const {
  return !softmax_tables.empty() && std::holds_alternative<ReadAll>(technique) && value_share == 0;
}

}  // namespace suffice
