#include <algorithm>
#include <memory>

#include "bind.h"
#include "scrooge.h"

namespace suffice::hw::bind {
namespace {

using Logits = nb::ndarray<const float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using Row = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Totals = nb::ndarray<int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Decisions = std::vector<Decision>;

AetRule make_rule(double key_share, double value_share, int sinks, int globals, int locals,
                  int wave, bool filter_important, bool running_max, bool raw_masses,
                  int group_stop) {
  require(sinks >= 0 && globals >= 0 && locals >= 1 && wave >= 1, "sets and waves of tokens");
  require(group_stop >= kAll && group_stop <= kMasked, "a rule for groups");
  return {key_share, value_share,      sinks,       globals,    locals,
          wave,      filter_important, running_max, raw_masses, group_stop};
}

void check_decision(const Decision& decision, int length) {
  const auto inside = [&](int32_t row) { return row >= 0 && row < length; };
  require(!decision.keys.empty() &&
              std::all_of(decision.keys.begin(), decision.keys.end(), inside) &&
              std::all_of(decision.values.begin(), decision.values.end(), inside),
          "rows of " + std::to_string(length) + " tokens, at least one key");
}

// Runs a head for `totals.shape(1)` steps. Writes totals [3][steps]: keys, values, waves. Returns
// the decisions at `lengths`. Logits are given as `logits` [heads][steps][steps] or by `source`.
Decisions run_steps(const AetRule& rule, int heads, const Synthetic* source, int first_head,
                    const float* logits, const std::vector<int>& lengths, Totals totals) {
  const int steps = static_cast<int>(totals.shape(1));
  Aet aet(rule, heads);
  Decision decision;
  Decisions kept;
  std::vector<float> step(static_cast<size_t>(heads) * steps);
  for (int length = 1; length <= steps; length++) {
    for (int h = 0; h < heads; h++) {
      float* to = step.data() + static_cast<int64_t>(h) * length;
      const float* from = logits + (static_cast<int64_t>(h) * steps + length - 1) * steps;
      if (source)
        make_logits(*source, first_head + h, length, to);
      else
        std::copy_n(from, length, to);
    }
    aet.decide(step.data(), length, &decision);
    totals.data()[length - 1] = static_cast<int32_t>(decision.keys.size());
    totals.data()[steps + length - 1] = static_cast<int32_t>(decision.values.size());
    totals.data()[2 * steps + length - 1] = decision.waves;
    if (std::binary_search(lengths.begin(), lengths.end(), length)) kept.push_back(decision);
  }
  return kept;
}

void check_steps(int heads, const std::vector<int>& lengths, const Totals& totals) {
  require(heads >= 1 && totals.shape(0) == 3 && totals.shape(1) >= 1,
          "heads, and totals [3, steps]");
  require(std::is_sorted(lengths.begin(), lengths.end()), "lengths must ascend");
}

Decisions py_synthetic_steps(const AetRule& rule, int heads, const Synthetic& source,
                             int first_head, const std::vector<int>& lengths, Totals totals) {
  check_steps(heads, lengths, totals);
  nb::gil_scoped_release release;
  return run_steps(rule, heads, &source, first_head, nullptr, lengths, totals);
}

Decisions py_traced_steps(const AetRule& rule, Logits logits, const std::vector<int>& lengths,
                          Totals totals) {
  check_steps(static_cast<int>(logits.shape(0)), lengths, totals);
  require(logits.shape(1) == totals.shape(1) && logits.shape(2) == totals.shape(1),
          "logits must be [heads, steps, steps]");
  nb::gil_scoped_release release;
  return run_steps(rule, static_cast<int>(logits.shape(0)), nullptr, 0, logits.data(), lengths,
                   totals);
}

struct Simulation {
  Port port;
  Machine machine;
};

void check_place(const Simulation& simulation, const HeadPlace& place, int length) {
  int64_t bytes = simulation.port.memory.shape().burst_bytes;
  for (const int64_t size : simulation.port.memory.shape().sizes) bytes *= size;
  const int64_t rows = int64_t{length} * simulation.machine.row_bytes;
  const int64_t last = std::max(
      {place.keys + rows, place.values + rows, place.extra + simulation.machine.extra_bytes});
  require(std::min({place.keys, place.values, place.extra}) >= 0 && last <= bytes,
          "keys and values do not fit into the memory");
}

nb::tuple py_run_head(Simulation& self, const Decision& decision, int length,
                      const std::vector<int64_t>& place, double start) {
  require(place.size() == 3, "addresses of keys, values and query");
  const HeadPlace at{place[0], place[1], place[2]};
  check_decision(decision, length);
  check_place(self, at, length);
  HeadTime time;
  {
    nb::gil_scoped_release release;
    time = run_head(&self.port, self.machine, decision, length, at, start);
  }
  return nb::make_tuple(time.keys_end, time.softmax_end, time.end, time.wasted_rows);
}

double py_run_stream(Simulation& self, const Decisions& decisions, const std::vector<int>& lengths,
                     const std::vector<std::vector<int64_t>>& places, double start) {
  require(decisions.size() == places.size() && decisions.size() == lengths.size(),
          "a place and a length for each decision");
  std::vector<const Decision*> rows;
  std::vector<HeadPlace> at;
  for (size_t i = 0; i < decisions.size(); i++) {
    require(places[i].size() == 3, "addresses of keys, values and query");
    at.push_back({places[i][0], places[i][1], places[i][2]});
    check_decision(decisions[i], lengths[i]);
    check_place(self, at.back(), lengths[i]);
    rows.push_back(&decisions[i]);
  }
  nb::gil_scoped_release release;
  return run_stream(&self.port, self.machine, rows, at, start);
}

Simulation* make_simulation(const Part& part, int row_bytes, int wave, int replays, int window_rows,
                            int softmax_width, const std::vector<double>& latencies,
                            bool early_values, double tck_ns, double controller_ns,
                            int64_t extra_bytes) {
  require(row_bytes >= 1 && wave >= 1 && replays >= 1 && window_rows >= 1 && softmax_width >= 1 &&
              extra_bytes >= 0 && tck_ns > 0 && controller_ns >= 0 && latencies.size() == 4,
          "sizes of at least 1 and four latencies");
  return new Simulation{
      {Memory(part.shape, part.timing)},
      {row_bytes, wave, replays, window_rows, softmax_width, latencies[0], latencies[1],
       latencies[2], latencies[3], early_values, tck_ns, controller_ns, extra_bytes}};
}

}  // namespace

void bind_scrooge(nb::module_& m) {
  nb::class_<AetRule>(m, "AetRule");
  m.def("rule", &make_rule, "key_share"_a, "value_share"_a, "sinks"_a, "globals"_a, "locals"_a,
        "wave"_a, "filter_important"_a, "running_max"_a, "raw_masses"_a, "group_stop"_a);
  nb::class_<Synthetic>(m, "Synthetic")
      .def(nb::init<double, double, double, double, double, uint64_t>(), "sink"_a, "spread"_a,
           "noise"_a, "recency"_a, "reach"_a, "seed"_a);
  nb::class_<Decision>(m, "Decision")
      .def(
          "__init__",
          [](Decision* self, std::vector<int32_t> keys, std::vector<int32_t> values, int important,
             int waves) {
            new (self) Decision{std::move(keys), std::move(values), important, waves};
          },
          "keys"_a, "values"_a, "important"_a, "waves"_a)
      .def_ro("keys", &Decision::keys)
      .def_ro("values", &Decision::values)
      .def_ro("important", &Decision::important)
      .def_ro("waves", &Decision::waves);
  m.def("synthetic_steps", &py_synthetic_steps, "rule"_a, "heads"_a, "source"_a, "first_head"_a,
        "lengths"_a, "totals"_a.noconvert());
  m.def("traced_steps", &py_traced_steps, "rule"_a, "logits"_a.noconvert(), "lengths"_a,
        "totals"_a.noconvert());
  m.def(
      "make_logits",
      [](const Synthetic& source, int head, Row logits) {
        make_logits(source, head, static_cast<int>(logits.size()), logits.data());
      },
      "source"_a, "head"_a, "logits"_a.noconvert());
  nb::class_<Simulation>(m, "Simulation")
      .def("run_head", &py_run_head, "decision"_a, "length"_a, "place"_a, "start"_a)
      .def("run_stream", &py_run_stream, "decisions"_a, "lengths"_a, "places"_a, "start"_a)
      .def("finish", [](Simulation& self) { return self.port.memory.finish(); });
  m.def("simulation", &make_simulation, "part"_a, "row_bytes"_a, "wave"_a, "replays"_a,
        "window_rows"_a, "softmax_width"_a, "latencies"_a, "early_values"_a, "tck_ns"_a,
        "controller_ns"_a, "extra_bytes"_a);
}

}  // namespace suffice::hw::bind
