// What a traversal leaves out, and what it read.
#include "../kernels.h"
#include "bind.h"

namespace suffice::bind {

void check_rule(const Rule& rule) {
  require(rule.stop == Stop::never || rule.stop == Stop::aet || rule.stop == Stop::art ||
              rule.stop == Stop::certified,
          "no such stop rule");
  require(rule.look_blocks >= 1 && rule.look_blocks <= kTileBlocks, "a look after 1 to 4 blocks");
  require(rule.value_share >= 0 && rule.value_share <= 1, "value_share must be in [0, 1]");
  require(rule.sinks >= 0 && rule.globals >= 0 && rule.locals >= 0, "no negative sets");
  require(rule.probe > 0 && rule.probe % kPanel == 0, "the probe must be a multiple of 16");
  require(rule.missing >= 0 && rule.missing < 1, "missing must be in [0, 1)");
  require(rule.patience >= 1, "patience is at least 1");
}

void bind_rule(nb::module_& m) {
  nb::class_<Reads>(m, "Reads")
      .def_ro("key_rows", &Reads::key_rows)
      .def_ro("value_rows", &Reads::value_rows)
      .def_ro("held_rows", &Reads::held_rows)
      .def_ro("sketch_bytes", &Reads::sketch_bytes)
      .def_ro("missing", &Reads::missing);

  nb::class_<Rule> rule(m, "Rule");
  rule.def_prop_ro("exact", &Rule::exact);
  rule.def(
      "__init__",
      [](Rule* self, int stop, int look_blocks, float value_share, float key_share, int sinks,
         int globals, int locals, float scale, float direction, int patience, int probe,
         float missing, bool bounded) {
        new (self) Rule{static_cast<Stop>(stop),
                        look_blocks,
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
                        bounded};
      },
      nb::kw_only(), "stop"_a = 0, "look_blocks"_a = 1, "value_share"_a = 0.0f,
      "key_share"_a = 2.0f, "sinks"_a = 1, "globals"_a = 4, "locals"_a = 8, "scale"_a = 0.0f,
      "direction"_a = 0.0f, "patience"_a = 1, "probe"_a = 32, "missing"_a = 0.0f,
      "bounded"_a = true);
}

}  // namespace suffice::bind
