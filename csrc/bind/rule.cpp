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

// Checks scores [tiles, query heads, 64], in base 2; returns the tables of `rule`, null for none.
template <class Scores>
const SoftmaxTable* tables_for(const Scores& scores, const AttentionRule* rule, bool packed) {
  require(scores.ndim() == 3 && scores.shape(2) == kTileRows && scores.size() > 0,
          "scores must be [tiles, query heads, " + std::to_string(kTileRows) + "]");
  if (rule) check_rule(*rule, static_cast<int>(scores.shape(1)));
  require(!rule || !rule->softmax_tables.empty(), "the rule has no softmax tables");
  const auto fits = [](const SoftmaxTable& each) {
    return each.codes == 4 && each.weights[0] > 0 && each.weights[0] < each.weights[3];
  };
  const auto all_fit = [&] {
    return rule && std::all_of(rule->softmax_tables.begin(), rule->softmax_tables.end(), fits);
  };
  require(!packed || all_fit(),
          "packed codes have 2 bits, and four weights that ascend from above 0");
  return rule ? rule->softmax_tables.data() : nullptr;
}

// Softmax by the tables of `rule`, with packed codes if `packed`; or exact.
double py_softmax_seconds(ConstFloats scores, std::optional<AttentionRule> rule, bool packed,
                          int repeats) {
  const SoftmaxTable* const tables = tables_for(scores, rule ? &*rule : nullptr, packed);
  require(repeats >= 1, "at least one pass");
  nb::gil_scoped_release release;
  return softmax_seconds(scores.data(), static_cast<int>(scores.shape(0)),
                         static_cast<int>(scores.shape(1)), tables, packed, repeats);
}

// Turns scores into weights by packed codes; `sums` [query heads] are theirs.
void py_soften_packed(Floats scores, const AttentionRule& rule, Floats sums) {
  const SoftmaxTable* const tables = tables_for(scores, &rule, true);
  const int count = static_cast<int>(scores.shape(1));
  require(sums.ndim() == 1 && static_cast<int>(sums.shape(0)) == count,
          "sums must have one entry per query head");
  kernels().search.soften_packed(scores.data(), static_cast<int>(scores.shape(0)), count, tables,
                                 byte_sums(tables, count).data(), sums.data());
}

}  // namespace

void bind_rule(nb::module_& m) {
  nb::class_<Reads>(m, "Reads")
      .def_ro("key_rows", &Reads::key_rows)
      .def_ro("value_rows", &Reads::value_rows)
      .def_ro("per_head_rows", &Reads::per_head_rows)
      .def_ro("dense_rows", &Reads::dense_rows)
      .def_ro("sketch_bytes", &Reads::sketch_bytes)
      .def_ro("missing", &Reads::missing)
      .def_ro("shift", &Reads::shift);

  nb::class_<AttentionRule>(m, "AttentionRule")
      .def("__init__", &make_rule, "technique"_a, "parameters"_a, "value_share"_a)
      .def_prop_ro("exact", &AttentionRule::exact)
      .def("with_softmax_tables", &with_softmax_tables, "borders"_a, "weights"_a);
  m.def("softmax_seconds", &py_softmax_seconds, "scores"_a.noconvert(), "rule"_a.none(), "packed"_a,
        "repeats"_a);
  m.def("soften_packed", &py_soften_packed, "scores"_a.noconvert(), "rule"_a, "sums"_a.noconvert());
}

}  // namespace suffice::bind
