#include "attention/attention_rule.h"

namespace suffice {

bool AttentionRule::never_stops() const {
  if (!softmax_tables.empty()) return std::holds_alternative<ReadAll>(technique);
  return std::visit([](const auto& rule) { return rule.never_stops(); }, technique);
}

bool AttentionRule::tests_output() const {
  return std::visit([](const auto& rule) { return rule.kTestsOutput; }, technique);
}

bool AttentionRule::greatest_of_always() const {
  return std::visit([](const auto& rule) { return rule.kGreatestOfAlways; }, technique);
}

bool AttentionRule::looks_after_more() const {
  return std::visit([](const auto& rule) { return rule.kLooksAfterMore; }, technique);
}

bool AttentionRule::oldest_first() const {
  return std::visit([](const auto& rule) { return rule.kOldestFirst; }, technique);
}

bool AttentionRule::needs_sketch() const {
  return std::holds_alternative<Certified>(technique) ? !exact() : by_sketch && !never_stops();
}

bool AttentionRule::needs_bases() const {
  return std::holds_alternative<Tiers>(technique) && !exact();
}

bool AttentionRule::exact() const {
  if (!softmax_tables.empty()) return false;
  if (const auto* rule = std::get_if<Certified>(&technique)) return rule->missing == 0;
  if (const auto* rule = std::get_if<Tiers>(&technique))
    return rule->estimated == 0 && rule->lightest == 0;
  return never_stops() && value_share == 0;
}

bool AttentionRule::coded() const {
  return !softmax_tables.empty() && std::holds_alternative<ReadAll>(technique) && value_share == 0;
}

}  // namespace suffice
