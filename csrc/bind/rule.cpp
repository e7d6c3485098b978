// Rules of attention, and counts of rows read.
#include <algorithm>

#include "bind/bind.h"
#include "kernels/kernels.h"
#include "runtime/machine.h"

namespace suffice::bind {

void check_rule(const AttentionRule& rule, int group) {
  const size_t tables = rule.softmax_tables.size();
  require(tables == 0 || !rule.certified(), "the certified rule needs the exact softmax");
  require(tables == 0 || static_cast<int>(tables) == group,
          "levels for each of the " + std::to_string(group) + " query heads that share keys");
}

namespace {

void check_share(float value_share) {
  require(value_share >= 0 && value_share <= 1, "value_share must be in [0, 1]");
}

void check_checks(int blocks) {
  require(blocks >= 1 && blocks <= kTileBlocks, "check_blocks must be 1 to 4");
}

AttentionRule read_all(float value_share) {
  check_share(value_share);
  return {.technique = ReadAll{}, .value_share = value_share};
}

AttentionRule aet(float key_share, float value_share, int sinks, int globals, int locals,
                  int check_blocks, bool by_sketch) {
  check_share(value_share);
  check_checks(check_blocks);
  require(sinks >= 0 && globals >= 0 && locals >= 0, "sinks, globals, locals cannot be negative");
  return {.technique =
              Aet{.key_share = key_share, .sinks = sinks, .globals = globals, .locals = locals},
          .value_share = value_share,
          .check_blocks = check_blocks,
          .by_sketch = by_sketch};
}

AttentionRule art(float scale, float direction, int patience, int probe, float value_share,
                  int check_blocks, bool by_sketch) {
  check_share(value_share);
  check_checks(check_blocks);
  require(probe > 0 && probe % kPanel == 0, "the probe must be a multiple of 16");
  require(patience >= 1, "patience must be at least 1");
  return {.technique =
              Art{.scale = scale, .direction = direction, .patience = patience, .probe = probe},
          .value_share = value_share,
          .check_blocks = check_blocks,
          .by_sketch = by_sketch};
}

AttentionRule certified(float missing, bool bounded, float value_share) {
  check_share(value_share);
  require(missing >= 0 && missing < 1, "missing must be in [0, 1)");
  return {.technique = Certified{.missing = missing, .bounded = bounded},
          .value_share = value_share};
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
      .def_static("read_all", &read_all, nb::kw_only(), "value_share"_a = 0.0f)
      .def_static("aet", &aet, nb::kw_only(), "key_share"_a, "value_share"_a, "sinks"_a,
                  "globals"_a, "locals"_a, "check_blocks"_a = 1, "by_sketch"_a = false)
      .def_static("art", &art, nb::kw_only(), "scale"_a, "direction"_a, "patience"_a, "probe"_a,
                  "value_share"_a, "check_blocks"_a, "by_sketch"_a = false)
      .def_static("certified", &certified, nb::kw_only(), "missing"_a, "bounded"_a, "value_share"_a)
      .def_prop_ro("exact", &AttentionRule::exact)
      .def("with_softmax_tables", &with_softmax_tables, "borders"_a, "weights"_a);
  m.def("softmax_seconds", &py_softmax_seconds, "scores"_a.noconvert(), "rule"_a.none(),
        "repeats"_a);
}

}  // namespace suffice::bind
