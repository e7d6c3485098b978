// Operations of policies on the rows of a cache.
#include <algorithm>

#include "attention/weight_sums.h"
#include "bind/bind.h"

namespace suffice::bind {
namespace {

using Ints = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Masses = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void check_layer(const KVCache& cache, int layer) {
  require(layer >= 0 && layer < cache.layers(),
          "layer " + std::to_string(layer) + " of " + std::to_string(cache.layers()));
}

// kept [heads, n]: ascending rows of the layer, among those of `length` tokens.
void py_evict(KVCache& cache, int layer, Ints kept, int length) {
  check_layer(cache, layer);
  const int held = length - cache.removed(layer), count = static_cast<int>(kept.shape(1));
  check_rows(cache, layer, 0, held);
  require(cache.owns(layer), "the layer has no rows of its own");
  require(!cache.extras().sketch && !cache.extras().boxes,
          "a sketch or boxes of the keys cannot follow an eviction");
  require(
      kept.shape(0) == static_cast<size_t>(cache.heads(layer)) && count >= 1 && count <= held,
      "kept must be [" + std::to_string(cache.heads(layer)) + ", 1.." + std::to_string(held) + "]");
  for (size_t i = 0; i < kept.size(); i++) {
    const int row = kept.data()[i];
    require(row >= 0 && row < held && (i % count == 0 || row > kept.data()[i - 1]),
            "kept rows must be ascending, in 0.." + std::to_string(held - 1));
  }
  nb::gil_scoped_release release;
  cache.evict(layer, kept.data(), count, length);
}

// order [heads, n]: the first n blocks of a layer, most important first.
void py_set_order(KVCache& cache, int layer, Ints order) {
  check_layer(cache, layer);
  require(order.shape(0) == static_cast<size_t>(cache.heads(layer)), "one order for each head");
  const int count = static_cast<int>(order.shape(1));
  for (int h = 0; h < cache.heads(layer); h++) {
    std::vector<int32_t> blocks(order.data() + h * count, order.data() + (h + 1) * count);
    std::vector<int32_t> sorted = blocks;
    std::sort(sorted.begin(), sorted.end());
    for (int i = 0; i < count; i++)
      require(sorted[i] == i, "an order must contain each block from 0 on once");
    for (const int reader : cache.readers(layer)) cache.state(reader, h).order = blocks;
  }
}

void py_set_eligible(KVCache& cache, int layer, int sinks, int recent, int blocks) {
  check_layer(cache, layer);
  require(sinks >= 0 && recent >= 0 && blocks >= 0, "sinks, recent and blocks cannot be negative");
  require(blocks == 0 || cache.extras().boxes, "the cache has no boxes of its keys");
  cache.eligible(layer) = {sinks, recent, blocks};
}

// masses [heads, n] of a layer's first rows: copied out, or in if `set`.
void py_masses(KVCache& cache, int layer, Masses masses, bool set) {
  check_layer(cache, layer);
  require(cache.extras().masses, "the cache does not sum row masses");
  const int count = static_cast<int>(masses.shape(1));
  check_rows(cache, layer, 0, count);
  require(masses.shape(0) == static_cast<size_t>(cache.heads(layer)), "one row for each head");
  for (int h = 0; h < cache.heads(layer); h++) {
    float* held = cache.head(layer, h).masses;
    float* given = masses.data() + static_cast<size_t>(h) * count;
    std::copy_n(set ? given : held, count, set ? held : given);
  }
}

// q [H, T, D] of the last T of `length` tokens; sums [kv_heads, length]: see weight_sums.h.
void py_sum_weights(const KVCache& cache, int layer, int length, ConstFloats q, float scale,
                    Masses sums) {
  check_layer(cache, layer);
  check_rows(cache, layer, 0, length);
  require(cache.removed(layer) == 0, "rows are missing");
  require(q.ndim() == 3 && q.shape(0) % cache.heads(layer) == 0 && q.shape(1) >= 1 &&
              q.shape(1) <= static_cast<size_t>(length) &&
              q.shape(2) == static_cast<size_t>(cache.size(layer)),
          "q must be [H, 1.." + std::to_string(length) + ", " + std::to_string(cache.size(layer)) +
              "] with H a multiple of " + std::to_string(cache.heads(layer)));
  require(sums.shape(0) == static_cast<size_t>(cache.heads(layer)) &&
              sums.shape(1) == static_cast<size_t>(length),
          "sums must be [kv_heads, length]");
  const std::vector<float> queries = scaled(q, scale);
  nb::gil_scoped_release release;
  sum_weights(cache, layer,
              {queries.data(), static_cast<int>(q.shape(0)), static_cast<int>(q.shape(1)), length},
              sums.data());
}

}  // namespace

void bind_policy(nb::class_<KVCache>& cache) {
  cache
      .def(
          "removed",
          [](const KVCache& self, int layer) {
            check_layer(self, layer);
            return self.removed(layer);
          },
          "layer"_a)
      .def("evict", &py_evict, "layer"_a, "kept"_a.noconvert(), "length"_a)
      .def("set_order", &py_set_order, "layer"_a, "order"_a.noconvert())
      .def("set_eligible", &py_set_eligible, "layer"_a, "sinks"_a, "recent"_a, "blocks"_a)
      .def(
          "load_masses",
          [](KVCache& self, int layer, Masses to) { py_masses(self, layer, to, false); }, "layer"_a,
          "masses"_a.noconvert())
      .def(
          "store_masses",
          [](KVCache& self, int layer, Masses from) { py_masses(self, layer, from, true); },
          "layer"_a, "masses"_a.noconvert())
      .def("sum_weights", &py_sum_weights, "layer"_a, "length"_a, "q"_a.noconvert(), "scale"_a,
           "sums"_a.noconvert())
      .def("dead_rows", nb::overload_cast<int>(&KVCache::dead_rows, nb::const_), "length"_a)
      .def("compact", &KVCache::compact, "length"_a)
      .def("keep_heavy", &KVCache::keep_heavy, "length"_a);
}

}  // namespace suffice::bind
