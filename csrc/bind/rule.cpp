// What a traversal leaves out, and what it read.
#include <algorithm>

#include "../kernels.h"
#include "../machine.h"
#include "bind.h"

namespace suffice::bind {

void check_rule(const Rule& rule, int group) {
  require(rule.stop == Stop::never || rule.stop == Stop::aet || rule.stop == Stop::art ||
              rule.stop == Stop::certified,
          "no such stop rule");
  require(rule.look_blocks >= 1 && rule.look_blocks <= kTileBlocks, "a look after 1 to 4 blocks");
  require(!rule.by_sketch || rule.stop == Stop::aet || rule.stop == Stop::art,
          "only termination has an order");
  require(rule.value_share >= 0 && rule.value_share <= 1, "value_share must be in [0, 1]");
  require(rule.sinks >= 0 && rule.globals >= 0 && rule.locals >= 0, "no negative sets");
  require(rule.probe > 0 && rule.probe % kPanel == 0, "the probe must be a multiple of 16");
  require(rule.missing >= 0 && rule.missing < 1, "missing must be in [0, 1)");
  require(rule.patience >= 1, "patience is at least 1");
  require(rule.levels.empty() || rule.stop != Stop::certified,
          "what is certified is of the exact softmax");
  require(rule.levels.empty() || static_cast<int>(rule.levels.size()) == group,
          "levels for each of the " + std::to_string(group) + " query heads that share keys");
}

// `borders` and `weights` of each query head, in base 2 and relative to the largest score.
void set_levels(Rule& rule, const std::vector<std::vector<float>>& borders,
                const std::vector<std::vector<float>>& weights) {
  require(borders.size() == weights.size(), "borders and weights of the same heads");
  std::vector<Levels> all(borders.size());
  for (size_t head = 0; head < all.size(); head++) {
    const auto &own = borders[head], &table = weights[head];
    require(table.size() == 4 || table.size() == 8 || table.size() == 16, "4, 8 or 16 weights");
    require(own.size() + 1 == table.size(), "one border less than weights");
    require(std::is_sorted(own.begin(), own.end()), "ascending borders");
    require(std::all_of(table.begin(), table.end(), [](float w) { return w >= 0; }),
            "no negative weight");
    all[head].codes = static_cast<int>(table.size());
    std::copy(own.begin(), own.end(), all[head].borders);
    std::copy(table.begin(), table.end(), all[head].weights);
  }
  rule.levels = std::move(all);
}

// scores [tiles, query heads, 64], in base 2; by the codes of `rule`, or exact.
double py_softmax_seconds(ConstFloats scores, std::optional<Rule> rule, int repeats) {
  require(scores.ndim() == 3 && scores.shape(2) == kTileRows && scores.size() > 0,
          "scores must be [tiles, query heads, " + std::to_string(kTileRows) + "]");
  require(repeats >= 1, "at least one pass");
  const int count = static_cast<int>(scores.shape(1));
  if (rule) check_rule(*rule, count);
  require(!rule || !rule->levels.empty(), "the rule has no levels");
  nb::gil_scoped_release release;
  return softmax_seconds(scores.data(), static_cast<int>(scores.shape(0)), count,
                         rule ? rule->levels.data() : nullptr, repeats);
}

void bind_rule(nb::module_& m) {
  nb::class_<Reads>(m, "Reads")
      .def_ro("key_rows", &Reads::key_rows)
      .def_ro("value_rows", &Reads::value_rows)
      .def_ro("alone_rows", &Reads::alone_rows)
      .def_ro("held_rows", &Reads::held_rows)
      .def_ro("sketch_bytes", &Reads::sketch_bytes)
      .def_ro("missing", &Reads::missing);

  nb::class_<Rule>(m, "Rule")
      .def_prop_ro("exact", &Rule::exact)
      .def(
          "__init__",
          [](Rule* self, int stop, int look_blocks, bool by_sketch, float value_share,
             float key_share, int sinks, int globals, int locals, float scale, float direction,
             int patience, int probe, float missing, bool bounded) {
            new (self) Rule{static_cast<Stop>(stop),
                            look_blocks,
                            by_sketch,
                            value_share,
                            key_share,
                            sinks,
                            globals,
                            locals,
                            scale,
                            direction,
                            patience,
                            probe,
                            missing,
                            bounded,
                            {}};
          },
          nb::kw_only(), "stop"_a = 0, "look_blocks"_a = 1, "by_sketch"_a = false,
          "value_share"_a = 0.0f, "key_share"_a = 2.0f, "sinks"_a = 1, "globals"_a = 4,
          "locals"_a = 8, "scale"_a = 0.0f, "direction"_a = 0.0f, "patience"_a = 1, "probe"_a = 32,
          "missing"_a = 0.0f, "bounded"_a = true)
      .def("set_levels", &set_levels, "borders"_a, "weights"_a);
  m.def("softmax_seconds", &py_softmax_seconds, "scores"_a.noconvert(), "rule"_a.none(),
        "repeats"_a);
}

}  // namespace suffice::bind
