// Rules of attention, and counts of rows read.
#include <nanobind/stl/map.h>

#include <algorithm>
#include <utility>

#include "bind/bind.h"
#include "bind/named_rule.h"
#include "kernels/kernels.h"
#include "runtime/machine.h"

namespace suffice::bind {

void check_rule(const AttentionRule& rule, int group) {
  const size_t tables = rule.softmax_tables.size();
  require(tables == 0 || !std::holds_alternative<Certified>(rule.technique),
          "the certified rule needs the exact softmax");
  require(tables == 0 || !std::holds_alternative<Tiers>(rule.technique),
          "the tiers rule needs the exact softmax");
  require(tables == 0 || static_cast<int>(tables) == group,
          "levels for each of the " + std::to_string(group) + " query heads that share keys");
}

namespace {

void make_rule(AttentionRule* rule, const std::string& technique, Parameters parameters,
               float value_share) {
  new (rule) AttentionRule(named_rule(technique, std::move(parameters), value_share));
}

SoftmaxTable softmax_table(const std::vector<float>& borders, const std::vector<float>& weights) {
  require(weights.size() == 4 || weights.size() == 8 || weights.size() == 16, "4, 8 or 16 weights");
  require(borders.size() + 1 == weights.size(), "borders must be one fewer than weights");
  require(std::is_sorted(borders.begin(), borders.end()), "borders must ascend");
  require(std::all_of(weights.begin(), weights.end(), [](float w) { return w >= 0; }),
          "weights cannot be negative");
  SoftmaxTable table{.codes = static_cast<int>(weights.size())};
  std::copy(borders.begin(), borders.end(), table.borders);
  std::copy(weights.begin(), weights.end(), table.weights);
  return table;
}

// `borders` and `weights` of each query head, in base 2 and relative to the largest score.
AttentionRule with_softmax_tables(AttentionRule rule,
                                  const std::vector<std::vector<float>>& borders,
                                  const std::vector<std::vector<float>>& weights) {
  require(borders.size() == weights.size(), "borders and weights must have one entry per head");
  rule.softmax_tables.clear();
  for (size_t head = 0; head < borders.size(); head++)
    rule.softmax_tables.push_back(softmax_table(borders[head], weights[head]));
  return rule;
}

// scores [tiles, query heads, 64], in base 2; softmax by the tables of `rule`, or exact.
double py_softmax_seconds(ConstFloats scores, std::optional<AttentionRule> rule, int repeats) {
  require(scores.ndim() == 3 && scores.shape(2) == kTileRows && scores.size() > 0,
          "scores must be [tiles, query heads, " + std::to_string(kTileRows) + "]");
  require(repeats >= 1, "at least one pass");
  const int count = static_cast<int>(scores.shape(1));
  if (rule) check_rule(*rule, count);
  require(!rule || !rule->softmax_tables.empty(), "the rule has no softmax tables");
  nb::gil_scoped_release release;
  return softmax_seconds(scores.data(), static_cast<int>(scores.shape(0)), count,
                         rule ? rule->softmax_tables.data() : nullptr, repeats);
}

}  // namespace

void bind_rule(nb::module_& m) {
  nb::class_<Reads>(m, "Reads")
      .def_ro("key_rows", &Reads::key_rows)
      .def_ro("value_rows", &Reads::value_rows)
      .def_ro("per_head_rows", &Reads::per_head_rows)
      .def_ro("dense_rows", &Reads::dense_rows)
      .def_ro("sketch_bytes", &Reads::sketch_bytes)
      .def_ro("missing", &Reads::missing);

  nb::class_<AttentionRule>(m, "AttentionRule")
      .def("__init__", &make_rule, "technique"_a, "parameters"_a, "value_share"_a)
      .def_prop_ro("exact", &AttentionRule::exact)
      .def("with_softmax_tables", &with_softmax_tables, "borders"_a, "weights"_a);
  m.def("softmax_seconds", &py_softmax_seconds, "scores"_a.noconvert(), "rule"_a.none(),
        "repeats"_a);
}

}  // namespace suffice::bind
