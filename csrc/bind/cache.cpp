#include <numeric>
#include <optional>

#include "../attention.h"
#include "../kernels.h"
#include "../parallel.h"
#include "../place.h"
#include "../sketch.h"
#include "bind.h"

namespace suffice::bind {

void check_tokens(const KVCache& cache, int first, int count) {
  require(first >= 0 && count >= 0 && first + count <= cache.capacity(),
          "rows " + std::to_string(first) + ".." + std::to_string(first + count) +
              " exceed the capacity of " + std::to_string(cache.capacity()));
}

void check_rows(const KVCache& cache, int layer, int first, int count) {
  require(layer >= 0 && layer < cache.layers(),
          "layer " + std::to_string(layer) + " of " + std::to_string(cache.layers()));
  const int removed = cache.removed(layer);
  check_tokens(cache, first + removed, count);
  require(first >= 0, "token " + std::to_string(first + removed) + " of layer " +
                          std::to_string(layer) + " was evicted");
}

namespace {

void check_shape(const KVCache& cache, size_t heads, size_t rows, size_t size, size_t count) {
  require(heads == static_cast<size_t>(cache.heads()) && rows == count &&
              size == static_cast<size_t>(cache.size()),
          "keys and values must be [" + std::to_string(cache.heads()) + ", " +
              std::to_string(count) + ", " + std::to_string(cache.size()) + "]");
}

// Writes k, v [G, T, D] of the tokens first.. to a layer.
void py_store(KVCache& cache, int layer, int token, ConstFloats k, ConstFloats v) {
  require(k.ndim() == 3 && v.ndim() == 3, "keys and values must have three dimensions");
  require(layer >= 0 && layer < cache.layers(), "there is no such layer");
  const int count = static_cast<int>(k.shape(1));
  const int first = token - cache.removed(layer);
  check_rows(cache, layer, first, count);
  check_shape(cache, k.shape(0), k.shape(1), k.shape(2), count);
  check_shape(cache, v.shape(0), v.shape(1), v.shape(2), count);
  if (count == 0) return;  // a cache of no rows has no memory to point into
  cache.forget_drafts(layer);
  nb::gil_scoped_release release;
  for (int h = 0; h < cache.heads(); h++) {
    const Head head = cache.head(layer, h);
    for (int i = 0; i < count; i++) {
      const size_t at = (static_cast<size_t>(h) * count + i) * cache.size();
      kernels().store_row(head, first + i, k.data() + at, v.data() + at);
    }
  }
}

// Reads the rows first.. of a layer into keys and values [G, T, D], either of which may be None.
void py_load(const KVCache& cache, int layer, int first, std::optional<Floats> keys,
             std::optional<Floats> values) {
  if (!keys && !values) return;
  const Floats& shape = keys ? *keys : *values;
  require(shape.ndim() == 3, "keys and values must have three dimensions");
  const int count = static_cast<int>(shape.shape(1));
  check_rows(cache, layer, first, count);
  for (const auto* array : {&keys, &values})
    if (*array) {
      require((*array)->ndim() == 3, "keys and values must have three dimensions");
      check_shape(cache, (*array)->shape(0), (*array)->shape(1), (*array)->shape(2), count);
    }
  if (count == 0) return;
  nb::gil_scoped_release release;
  for (int h = 0; h < cache.heads(); h++) {
    const size_t at = static_cast<size_t>(h) * count * cache.size();
    kernels().load_rows(cache.head(layer, h), first, count, keys ? keys->data() + at : nullptr,
                        values ? values->data() + at : nullptr);
  }
}

void complete_sketch(const Rule& rule, KVCache& cache, int layer, int length) {
  if (!rule.sketched()) return;
  require(cache.extras().sketch, "the cache has no sketch of its keys");
  for (int c = cache.sketched(layer); c < length / kSketchRows; c++)
    for (int g = 0; g < cache.heads(); g++) encode_sketch(cache.head(layer, g), c);
  cache.set_sketched(layer, std::max(cache.sketched(layer), length / kSketchRows));
}

// The traversal of one key/value head for the last rows of a layer, but for queries and outputs.
Traversal lay_out(KVCache& cache, int layer, int head, int length, const ConstInts& visible,
                  const Bounds& bounds, int group) {
  const int rows = static_cast<int>(visible.size());
  std::vector<int> positions(rows);
  std::iota(positions.begin(), positions.end(), length);
  const std::vector<uint32_t> masks(visible.data(), visible.data() + rows);
  Traversal t;
  t.head = cache.head(layer, head);
  if (!cache.eligible(layer).sinks) t.head.masses = nullptr;
  t.state = &cache.state(layer, head);
  t.group = group;
  t.most_blocks = cache.eligible(layer).blocks;
  t.boxed = length / kPanel;
  place(t, bounds, length, rows, positions.data(), masks.data());
  return t;
}

void run(std::vector<Traversal>& traversals) {
  nb::gil_scoped_release release;
  const auto threads = team();
  static thread_local Attention attention;  // keeps its buffers between calls
  attention.plan(traversals);
  Attention& shared = attention;  // the other threads must use this thread's
  threads->run([&](int) {
    Scratch scratch;
    shared.work(scratch, *threads);
  });
}

// q [T, H, D] over rows 0..length+T of a layer, the last T tentative; out [T, H, D].
// Returns what was read, [kv_heads] each. `rule` null: everything. `audit` [3, T, H]: see audit.h.
std::vector<Reads> py_attend(KVCache& cache, int layer, int length, ConstFloats q,
                             ConstInts visible, float scale, int window,
                             std::optional<ConstInts> blocks, Floats out, std::optional<Rule> rule,
                             std::optional<Floats> audit) {
  require(q.ndim() == 3 && q.shape(2) == static_cast<size_t>(cache.size()) &&
              q.shape(1) % cache.heads() == 0,
          "q must be [T, H, " + std::to_string(cache.size()) + "] with H a multiple of " +
              std::to_string(cache.heads()));
  const int rows = static_cast<int>(q.shape(0)), heads = static_cast<int>(q.shape(1));
  require(rows >= 1 && rows <= 32, "1 to 32 query rows, not " + std::to_string(rows));
  require(layer >= 0 && layer < cache.layers(), "there is no such layer");
  check_rows(cache, layer, length - cache.removed(layer), rows);
  require(rows == 1 || !cache.extras().masses, "a cache that sums what rows weigh takes one token");
  require(visible.size() == q.shape(0), "visible needs one entry per query row");
  require(out.ndim() == 3 && out.size() == q.size(), "out must have the shape of q");
  require(!audit || audit->size() == 3 * static_cast<size_t>(rows) * heads,
          "audit must be [3, T, H]");
  const int size = cache.size(), group = heads / cache.heads();
  const Bounds bounds = bounds_of(cache, layer, window);
  const int last_block = (length - bounds.removed + rows + kPanel - 1) / kPanel;
  if (blocks)
    for (size_t i = 0; i < blocks->size(); i++)
      require(blocks->data()[i] >= 0 && blocks->data()[i] < last_block,
              "a block index is out of range");
  std::vector<float> scaled(q.size());
  for (size_t i = 0; i < q.size(); i++) scaled[i] = q.data()[i] * scale * 1.4426950408889634f;
  if (rule) check_rule(*rule, group);
  if (rule) complete_sketch(*rule, cache, layer, length);
  require(!rule || rule->exact() || !blocks, "a rule orders the blocks itself");
  if (cache.extras().boxes)
    encode_boxes(cache, layer * cache.heads(), (layer + 1) * cache.heads(), length);
  std::vector<Reads> reads(cache.heads());
  std::vector<Traversal> traversals;
  for (int g = 0; g < cache.heads(); g++) {
    Traversal t = lay_out(cache, layer, g, length, visible, bounds, group);
    t.rule = rule ? &*rule : nullptr;
    t.sums = &cache.sums(layer, g);
    t.reads = &reads[g];
    if (audit) {
      const size_t part = static_cast<size_t>(rows) * heads;
      float* const first = audit->data() + g * group;
      t.audit = {first, first + part, first + 2 * part, heads};
    }
    if (blocks) {
      t.most_blocks = 0;
      t.list = blocks->data();
      t.begin = 0;
      t.end = static_cast<int>(blocks->size());
    }
    for (int row = 0; row < rows; row++)
      for (int h = g * group; h < (g + 1) * group; h++) {
        const size_t at = (static_cast<size_t>(row) * heads + h) * size;
        t.queries.push_back(scaled.data() + at);
        t.outputs.push_back(out.data() + at);
      }
    traversals.push_back(std::move(t));
  }
  run(traversals);
  return reads;
}

void make_cache(KVCache* self, int layers, int heads, int size, const std::string& key_type,
                const std::string& value_type, std::shared_ptr<Arena> arena, bool sketch,
                bool boxes, bool masses) {
  require(layers > 0 && heads > 0, "a cache needs layers and heads");
  require(size > 0 && size % kPanel == 0 && size <= 512,
          "the head size must be a multiple of 16 up to 512, not " + std::to_string(size));
  new (self) KVCache(layers, heads, size, type_of(key_type), type_of(value_type), arena,
                     Extras{sketch, boxes, masses});
}

}  // namespace

void bind_cache(nb::module_& m) {
  nb::class_<Arena>(m, "Arena")
      .def(nb::init<size_t>(), "limit_bytes"_a = 0)
      .def_prop_ro("used", &Arena::used)
      .def_prop_ro("limit", &Arena::limit);

  nb::class_<KVCache> cache(m, "KVCache");
  bind_policy(cache);
  cache
      .def("__init__", &make_cache, "layers"_a, "heads"_a, "size"_a, "key_type"_a, "value_type"_a,
           "arena"_a, "sketch"_a = false, "boxes"_a = false, "masses"_a = false)
      .def_prop_ro("layers", &KVCache::layers)
      .def_prop_ro("heads", &KVCache::heads)
      .def_prop_ro("size", &KVCache::size)
      .def_prop_ro("capacity", &KVCache::capacity)
      .def_prop_ro("bytes", &KVCache::bytes)
      .def_prop_ro("row_bytes", &KVCache::row_bytes)
      .def_prop_ro("key_type", [](const KVCache& self) { return name_of(self.key_type()); })
      .def_prop_ro("value_type", [](const KVCache& self) { return name_of(self.value_type()); })
      .def(
          "resize",
          [](KVCache& self, int capacity, int keep) {
            require(keep >= 0 && keep <= capacity && keep <= self.capacity(),
                    "cannot keep " + std::to_string(keep) + " rows of " +
                        std::to_string(self.capacity()) + " in " + std::to_string(capacity));
            require(capacity > 0, "a capacity of at least one row");
            nb::gil_scoped_release release;
            self.resize(capacity, keep);
          },
          "capacity"_a, "keep"_a)
      .def("release", &KVCache::release)
      .def(
          "move_row",
          [](KVCache& self, int from, int to) {
            check_tokens(self, from, 1);
            check_tokens(self, to, 1);
            self.move_row(from, to);
          },
          "source"_a, "target"_a)
      .def("settle", &KVCache::settle, "draft"_a)
      .def("forget_rows", &KVCache::forget_rows, "length"_a)
      .def(
          "copy",
          [](const KVCache& self, int keep) {
            check_tokens(self, 0, keep);
            nb::gil_scoped_release release;
            return self.copy(keep);
          },
          "keep"_a)
      .def("store", &py_store, "layer"_a, "first"_a, "k"_a.noconvert(), "v"_a.noconvert())
      .def("load", &py_load, "layer"_a, "first"_a, "keys"_a.noconvert().none(),
           "values"_a.noconvert().none())
      .def("attend", &py_attend, "layer"_a, "length"_a, "q"_a.noconvert(), "visible"_a.noconvert(),
           "scale"_a, "window"_a, "blocks"_a.noconvert().none(), "out"_a.noconvert(),
           "rule"_a.none() = nb::none(), "audit"_a.noconvert().none() = nb::none());
}

}  // namespace suffice::bind
