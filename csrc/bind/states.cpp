// States that layers keep along with keys and values, and the blocks that change them.
#include <nanobind/stl/tuple.h>

#include <algorithm>

#include "bind/py_model.h"

namespace suffice::bind {
namespace {

// Where a recurrence's queries, keys and values are among the channels of its convolution.
using Places = std::tuple<int, int, int>;
// The size of a norm's groups (0: no norm), whether one weight is for all of them, whether gates
// come before it, and its epsilon.
using OutputNorm = std::tuple<int, bool, bool, float>;

void check_activation(int activation) {
  require(activation >= -1 && activation <= kLogistic && activation != kClampedSwish,
          "no such activation");
}

Convolution convolution(PyModel& self, const Parts& parts, int channels, int taps, int activation) {
  require(taps >= 1 && taps <= 64, "from 1 to 64 taps, not " + std::to_string(taps));
  require(channels > 0 && channels % kPanel == 0, "channels are whole panels of 16");
  check_activation(activation);
  Convolution found;
  found.channels = channels;
  found.taps = taps;
  found.activation = activation;
  found.weights = self.vector(parts["convolution"], static_cast<size_t>(taps) * channels);
  if (parts.contains("convolution.bias"))
    found.bias = self.vector(parts["convolution.bias"], channels);
  return found;
}

int add_state(PyModel& self, const StateShape& shape) {
  self.spec.states.push_back(shape);
  return static_cast<int>(self.spec.states.size()) - 1;
}

void add_convolution(PyModel& self, const Parts& parts, int channels, int taps) {
  ConvolutionBlock block;
  ModelSpec& spec = self.spec;
  const int width = spec.width;
  self.set(block.mixed, parts, "mixed", 3 * channels, width);
  self.set(block.out, parts, "mix_out", width, channels);
  block.convolution = convolution(self, parts, channels, taps, -1);
  block.state = add_state(self, {.channels = channels, .taps = taps});
  spec.mixed_width = std::max(spec.mixed_width, block.mixed.rows);
  spec.value_width = std::max(spec.value_width, channels);
  add_block(self, parts, std::move(block));
}

void check_sizes(const StateShape& shape) {
  require(shape.heads > 0 && shape.key_heads > 0 && shape.heads % shape.key_heads == 0,
          "heads must be a multiple of key_heads");
  require(shape.key_size % kPanel == 0 && shape.key_size <= kMostKeySize &&
              shape.value_size % kPanel == 0 && shape.key_size > 0 && shape.value_size > 0,
          "sizes of keys and values are multiples of 16, keys of up to 512");
}

void set_norm(PyModel& self, const Parts& parts, RecurrentBlock& block, const OutputNorm& norm) {
  std::tie(block.norm_size, block.shared_norm, block.gates_first, block.norm_eps) = norm;
  if (!block.norm_size) return;
  const int width = block.value_width();
  require(block.norm_size > 0 && width % block.norm_size == 0, "a norm is of whole groups");
  self.set(block.norm, parts, "mix_norm", block.shared_norm ? block.norm_size : width);
  require(block.norm.weight != nullptr, "the outputs' norm needs a weight");
}

void widen(ModelSpec& spec, const RecurrentBlock& block) {
  const int values = block.value_width(), low = round_up(block.decay_low.rows, kPanel);
  spec.mixed_width = std::max(spec.mixed_width, block.convolution.channels);
  spec.decay_width = std::max(spec.decay_width, block.decay.rows);
  spec.value_width = std::max({spec.value_width, values, 2 * low});
  spec.gate_width = std::max(spec.gate_width, values);
}

void add_recurrence(PyModel& self, const Parts& parts, const StateShape& shape, Places places,
                    int activation, OutputNorm norm, int gate_activation, float most_strength,
                    float least_step, float gate_scale, float decay_scale) {
  check_sizes(shape);
  check_activation(gate_activation);
  RecurrentBlock block;
  block.heads = shape.heads;
  block.key_heads = shape.key_heads;
  block.key_size = shape.key_size;
  block.value_size = shape.value_size;
  block.by_entry = shape.by_entry;
  std::tie(block.queries_at, block.keys_at, block.values_at) = places;
  const int keys = static_cast<int>(shape.keys()), width = self.spec.width;
  for (const auto& [at, size] : {std::pair{block.queries_at, keys},
                                 {block.keys_at, keys},
                                 {block.values_at, block.value_width()}})
    require(at >= 0 && at + size <= shape.channels, "a place outside the channels");
  const int decays = static_cast<int>(shape.decays());
  if (parts.contains("mixed")) {
    self.set(block.mixed, parts, "mixed", shape.channels, width);
  } else {
    self.set(block.queries, parts, "mix_queries", keys, width);
    self.set(block.keys, parts, "mix_keys", keys, width);
    self.set(block.values, parts, "mix_values", block.value_width(), width);
  }
  const bool low = parts.contains("decay_low");
  const int inputs = low ? self.rows_of(parts, "decay_low") : width;
  if (low) {
    self.set(block.decay_low, parts, "decay_low", inputs, width);
    self.set(block.gate_low, parts, "gate_low", inputs, width);
  }
  self.set(block.gate, parts, low ? "gate_up" : "out_gate", block.value_width(), inputs);
  self.set(block.strength, parts, "strength", shape.heads, width, false);
  self.set(block.decay, parts, "decay", decays, inputs);
  self.set(block.out, parts, "mix_out", width, block.value_width());
  block.convolution = convolution(self, parts, shape.channels, shape.taps, activation);
  block.rates = self.vector(parts["rates"], decays);
  block.step_bias = self.vector(parts["step_bias"], decays);
  if (parts.contains("skips")) block.skips = self.vector(parts["skips"], shape.heads);
  require(block.strength.data || !shape.by_entry, "decays by entry come with the delta rule");
  set_norm(self, parts, block, norm);
  block.gate_activation = gate_activation;
  block.most_strength = most_strength;
  block.least_step = least_step;
  block.gate_scale = gate_scale;
  block.decay_scale = decay_scale;
  block.state = add_state(self, shape);
  widen(self.spec, block);
  add_block(self, parts, std::move(block));
}

LayerStates& states_of(KVCache& cache) {
  require(cache.layer_states() != nullptr, "the cache has no layers with states");
  return *cache.layer_states();
}

}  // namespace

void bind_states(nb::class_<PyModel>& model) {
  model.def("add_convolution", &add_convolution, "parts"_a, "channels"_a, "taps"_a)
      .def("add_recurrence", &add_recurrence, "parts"_a, "shape"_a, "places"_a, "activation"_a,
           "norm"_a, "gate_activation"_a, "most_strength"_a, "least_step"_a = 0.0f,
           "gate_scale"_a = 1.0f, "decay_scale"_a = 1.0f);
}

void bind_states(nb::module_& m, nb::class_<KVCache>& cache) {
  nb::class_<StateShape>(m, "StateShape")
      .def(
          "__init__",
          [](StateShape* self, int heads, int key_heads, int key_size, int value_size,
             bool by_entry, int channels, int taps, bool tiled) {
            require(channels > 0 && taps >= 1, "a state has channels and taps");
            new (self)
                StateShape{heads, key_heads, key_size, value_size, by_entry, channels, taps, tiled};
          },
          "heads"_a, "key_heads"_a, "key_size"_a, "value_size"_a, "by_entry"_a, "channels"_a,
          "taps"_a, "tiled"_a = false)
      .def_prop_ro("bytes", [](const StateShape& self) {
        return sizeof(float) * (self.matrices() + static_cast<size_t>(self.past()) * self.channels);
      });
  cache
      .def_prop_ro("state_bytes",
                   [](const KVCache& self) {
                     return self.layer_states() ? self.layer_states()->step_bytes() : 0;
                   })
      .def_prop_ro("state_length", [](KVCache& self) { return states_of(self).length(); })
      .def_prop_ro("kept_states", [](KVCache& self) { return states_of(self).kept(); })
      .def(
          "commit_states",
          [](KVCache& self, const std::vector<int>& path) { states_of(self).commit(path); },
          "path"_a)
      .def(
          "keep_states", [](KVCache& self, int most) { states_of(self).keep(most); }, "most"_a,
          nb::call_guard<nb::gil_scoped_release>())
      .def("drop_states", [](KVCache& self) { return states_of(self).drop_copies(); })
      .def(
          "reachable", [](KVCache& self, int rows) { return states_of(self).reachable(rows); },
          "rows"_a)
      .def(
          "rewind_states",
          [](KVCache& self, int rows) {
            LayerStates& states = states_of(self);
            require(states.reachable(rows) == std::min(rows, states.length()),
                    "no state was kept after " + std::to_string(rows) + " tokens");
            states.rewind(rows);
          },
          "rows"_a, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace suffice::bind
