#include <numeric>
#include <optional>

#include "../attention.h"
#include "../kernels.h"
#include "../model.h"
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

// The rows of each cache, of a layer, that a call for several requests is about.
std::vector<Item> items_of(const std::vector<KVCache*>& caches, int layer, const ConstInts& lengths,
                           const ConstInts& counts, size_t rows) {
  require(!caches.empty() && lengths.size() == caches.size() && counts.size() == caches.size(),
          "one length and one count per cache, of at least one");
  std::vector<Item> items;
  size_t first = 0;
  for (size_t i = 0; i < caches.size(); i++) {
    const KVCache &cache = *caches[i], &alike = *caches[0];
    require(cache.heads() == alike.heads() && cache.size() == alike.size() &&
                cache.layers() == alike.layers() && cache.key_type() == alike.key_type() &&
                cache.value_type() == alike.value_type(),
            "caches of one call must be of one model");
    require(layer >= 0 && layer < cache.layers(), "there is no such layer");
    const int count = counts.data()[i], length = lengths.data()[i];
    check_rows(cache, layer, length - cache.removed(layer), count);
    items.push_back({caches[i], length, static_cast<int>(first), count});
    first += count;
  }
  require(first == rows, "the counts add up to " + std::to_string(first) + ", not to the " +
                             std::to_string(rows) + " rows given");
  return items;
}

// Writes rows first.. of a layer; strides of k and v are in elements.
void store(KVCache& cache, int layer, int first, int count, const float* k, const float* v,
           size_t head_stride, size_t row_stride) {
  if (count == 0) return;  // a cache of no rows has no memory to point into
  cache.forget_drafts(layer);
  for (int h = 0; h < cache.heads(); h++) {
    const Head head = cache.head(layer, h);
    for (int i = 0; i < count; i++) {
      const size_t at = h * head_stride + i * row_stride;
      kernels().store_row(head, first + i, k + at, v + at);
    }
  }
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
  nb::gil_scoped_release release;
  const size_t size = cache.size();
  store(cache, layer, first, count, k.data(), v.data(), count * size, size);
}

// Writes k, v [rows, G, D] of a layer: counts[i] rows to cache i, behind its first lengths[i]
// tokens.
void py_store_rows(std::vector<KVCache*> caches, int layer, ConstInts lengths, ConstInts counts,
                   ConstFloats k, ConstFloats v) {
  require(k.ndim() == 3 && v.ndim() == 3, "keys and values must have three dimensions");
  const std::vector<Item> items = items_of(caches, layer, lengths, counts, k.shape(0));
  const size_t heads = caches[0]->heads(), size = caches[0]->size(), rows = k.shape(0);
  for (const ConstFloats* array : {&k, &v})
    require(array->shape(0) == rows && array->shape(1) == heads && array->shape(2) == size,
            "keys and values must be [" + std::to_string(rows) + ", " + std::to_string(heads) +
                ", " + std::to_string(size) + "]");
  nb::gil_scoped_release release;
  for (const Item& item : items) {
    const size_t at = item.first_row * heads * size;
    store(*item.cache, layer, item.length - item.cache->removed(layer), item.count, k.data() + at,
          v.data() + at, size, heads * size);
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

void complete_sketch(const AttentionRule& rule, KVCache& cache, int layer, int length) {
  if (!rule.needs_sketch()) return;
  require(cache.extras().sketch, "the cache has no sketch of its keys");
  for (int c = cache.sketched(layer); c < length / kSketchRows; c++)
    for (int g = 0; g < cache.heads(); g++) encode_sketch(cache.head(layer, g), c);
  cache.set_sketched(layer, std::max(cache.sketched(layer), length / kSketchRows));
}

// What attention to one layer is about.
struct Call {
  int layer = 0, window = 0;
  int heads = 0;                            // of queries
  const float* queries;                     // [rows][heads][size]
  float* out;                               // like the queries
  const int32_t* visible;                   // [rows]
  std::vector<const AttentionRule*> rules;  // of each key/value head; empty: everything is read
};

// q [rows, H, D] in the kernel's units.
std::vector<float> scaled(const ConstFloats& q, float scale) {
  std::vector<float> result(q.size());
  for (size_t i = 0; i < q.size(); i++) result[i] = q.data()[i] * scale * 1.4426950408889634f;
  return result;
}

void check_call(const KVCache& cache, const ConstFloats& q, const ConstInts& visible,
                const Floats& out) {
  require(q.ndim() == 3 && q.shape(2) == static_cast<size_t>(cache.size()) &&
              q.shape(1) % cache.heads() == 0,
          "q must be [T, H, " + std::to_string(cache.size()) + "] with H a multiple of " +
              std::to_string(cache.heads()));
  require(visible.size() == q.shape(0), "visible needs one entry per query row");
  require(out.ndim() == 3 && out.size() == q.size(), "out must have the shape of q");
}

void check_count(const KVCache& cache, int rows) {
  require(rows >= 1 && rows <= 32, "1 to 32 query rows, not " + std::to_string(rows));
  require(rows == 1 || !cache.extras().masses, "a cache that sums what rows weigh takes one token");
}

// Adds the traversals of one request, which count in reads[kv_heads].
void lay_out(const Call& call, const Item& item, Reads* reads, std::vector<Traversal>& all) {
  KVCache& cache = *item.cache;
  const int group = call.heads / cache.heads(), layer = call.layer;
  for (const AttentionRule* rule : call.rules) complete_sketch(*rule, cache, layer, item.length);
  if (cache.extras().boxes) {
    encode_boxes(cache, layer * cache.heads(), (layer + 1) * cache.heads(), item.length);
    cache.set_boxed(layer, std::max(cache.boxed(layer), item.length / kPanel));
  }
  const Bounds bounds = bounds_of(cache, layer, call.window);
  std::vector<int> positions(item.count);
  std::iota(positions.begin(), positions.end(), item.length);
  const std::vector<uint32_t> masks(call.visible + item.first_row,
                                    call.visible + item.first_row + item.count);
  for (int g = 0; g < cache.heads(); g++) {
    Traversal t;
    t.head = cache.head(layer, g);
    if (!cache.eligible(layer).sinks) t.head.masses = nullptr;
    t.state = &cache.state(layer, g);
    t.sums = &cache.sums(layer, g);
    t.reads = reads + g;
    t.rule = call.rules.empty() ? nullptr : call.rules[g];
    t.group = group;
    t.most_blocks = cache.eligible(layer).blocks;
    t.boxed = item.length / kPanel;
    place(t, bounds, item.length, item.count, positions.data(), masks.data());
    for (int row = item.first_row; row < item.first_row + item.count; row++)
      for (int h = g * group; h < (g + 1) * group; h++) {
        const size_t at = (static_cast<size_t>(row) * call.heads + h) * cache.size();
        t.queries.push_back(call.queries + at);
        t.outputs.push_back(call.out + at);
      }
    all.push_back(std::move(t));
  }
}

void run(std::vector<Traversal>& traversals) {
  nb::gil_scoped_release release;
  const auto threads = team();
  static thread_local Attention attention;  // keeps its buffers between calls
  attention.plan(traversals, threads->size());
  Attention& shared = attention;  // the other threads must use this thread's
  threads->run([&](int thread) {
    Scratch scratch;
    shared.work(scratch, *threads, thread);
  });
}

// q [T, H, D] over rows 0..length+T of a layer, the last T tentative; out [T, H, D].
// Returns what was read, [kv_heads] each. `rule` null: everything. `audit` [3, T, H]: see audit.h.
std::vector<Reads> py_attend(KVCache& cache, int layer, int length, ConstFloats q,
                             ConstInts visible, float scale, int window,
                             std::optional<ConstInts> blocks, Floats out,
                             std::optional<AttentionRule> rule, std::optional<Floats> audit) {
  check_call(cache, q, visible, out);
  require(layer >= 0 && layer < cache.layers(), "there is no such layer");
  const int rows = static_cast<int>(q.shape(0)), heads = static_cast<int>(q.shape(1));
  check_count(cache, rows);
  check_rows(cache, layer, length - cache.removed(layer), rows);
  const int last_block = (length - cache.removed(layer) + rows + kPanel - 1) / kPanel;
  if (blocks)
    for (size_t i = 0; i < blocks->size(); i++)
      require(blocks->data()[i] >= 0 && blocks->data()[i] < last_block,
              "a block index is out of range");
  if (rule) check_rule(*rule, heads / cache.heads());
  require(!rule || rule->exact() || !blocks, "a rule orders the blocks itself");
  require(!audit || audit->size() == 3 * static_cast<size_t>(rows) * heads,
          "audit must be [3, T, H]");
  const std::vector<float> queries = scaled(q, scale);
  Call call{layer, window, heads, queries.data(), out.data(), visible.data(), {}};
  if (rule) call.rules.assign(cache.heads(), &*rule);
  std::vector<Reads> reads(cache.heads());
  std::vector<Traversal> traversals;
  lay_out(call, {&cache, length, 0, rows}, reads.data(), traversals);
  for (size_t g = 0; audit && g < traversals.size(); g++) {
    const size_t part = static_cast<size_t>(rows) * heads;
    float* const first = audit->data() + g * traversals[g].group;
    traversals[g].audit = {first, first + part, first + 2 * part, heads};
  }
  if (blocks)
    for (Traversal& t : traversals) {
      t.most_blocks = 0;
      t.list = blocks->data();
      t.begin = 0;
      t.end = static_cast<int>(blocks->size());
    }
  run(traversals);
  return reads;
}

// The same for several requests in one go: q [rows, H, D] has counts[i] rows over cache i. `rules`
// of each key/value head, empty: everything is read. Adds to reads [4, layers, kv_heads]: see
// py_step.
Counts py_attend_rows(std::vector<KVCache*> caches, int layer, ConstInts lengths, ConstInts counts,
                      ConstFloats q, ConstInts visible, float scale, int window, Floats out,
                      std::vector<const AttentionRule*> rules, Longs reads) {
  require(q.ndim() == 3, "q must have three dimensions");
  const std::vector<Item> items = items_of(caches, layer, lengths, counts, q.shape(0));
  KVCache& first = *caches[0];
  check_call(first, q, visible, out);
  for (const Item& item : items) check_count(*item.cache, item.count);
  const int heads = static_cast<int>(q.shape(1)), kv_heads = first.heads();
  require(rules.empty() || rules.size() == static_cast<size_t>(kv_heads),
          "one rule for each key/value head");
  for (const AttentionRule* rule : rules) check_rule(*rule, heads / kv_heads);
  const size_t all = static_cast<size_t>(first.layers()) * kv_heads;
  require(reads.ndim() == 3 && reads.shape(0) == 4 && reads.size() == 4 * all,
          "reads must be [4, layers, kv_heads]");
  const std::vector<float> queries = scaled(q, scale);
  const Call call{layer, window, heads, queries.data(), out.data(), visible.data(), rules};
  std::vector<Reads> found(items.size() * kv_heads);
  std::vector<Traversal> traversals;
  for (size_t i = 0; i < items.size(); i++)
    lay_out(call, items[i], found.data() + i * kv_heads, traversals);
  run(traversals);
  Counts result;
  int64_t* const at = reads.data() + static_cast<size_t>(layer) * kv_heads;
  result.key_rows = at;
  result.value_rows = at + all;
  result.held_rows = at + 2 * all;
  result.alone_rows = at + 3 * all;
  result.add_reads(found, static_cast<int>(items.size()), kv_heads, first);
  return result;
}

void make_cache(KVCache* self, int layers, int heads, int size, const std::string& key_type,
                const std::string& value_type, std::shared_ptr<Arena> arena, bool sketch,
                bool boxes, bool masses, std::shared_ptr<KeyRoundings> rounding) {
  require(layers > 0 && heads > 0, "a cache needs layers and heads");
  require(size > 0 && size % kPanel == 0 && size <= kMostSize,
          "the head size must be a multiple of 16 up to " + std::to_string(kMostSize) + ", not " +
              std::to_string(size));
  require(!rounding || (rounding->layers() == layers && rounding->heads() == heads &&
                        rounding->size() == size && type_of(key_type) == Type::codes),
          "the rounding is of keys in codes, of as many layers and heads and of this size");
  new (self) KVCache(layers, heads, size, type_of(key_type), type_of(value_type), arena,
                     Extras{sketch, boxes, masses}, rounding);
}

void make_roundings(KeyRoundings* self, ConstFloats scales, ConstFloats means, ConstFloats passed,
                    ConstFloats weights) {
  const size_t all = scales.size();
  require(scales.ndim() == 3 && means.size() == all && weights.size() == all &&
              passed.size() == all * scales.shape(2),
          "scales, means and weights must be [L, G, D], passed [L, G, D, D]");
  for (size_t i = 0; i < all; i++) require(scales.data()[i] > 0, "scales must be positive");
  const auto length = [&](int i) { return static_cast<int>(scales.shape(i)); };
  new (self) KeyRoundings(length(0), length(1), length(2), scales.data(), means.data(),
                          passed.data(), weights.data());
}

void bind_rounding(nb::module_& m) {
  nb::class_<KeyRoundings>(m, "KeyRoundings")
      .def("__init__", &make_roundings, "scales"_a.noconvert(), "means"_a.noconvert(),
           "passed"_a.noconvert(), "weights"_a.noconvert());
}

// What takes the rows of several requests.
void bind_rows(nb::module_& m) {
  m.def("store_rows", &py_store_rows, "caches"_a, "layer"_a, "lengths"_a.noconvert(),
        "counts"_a.noconvert(), "k"_a.noconvert(), "v"_a.noconvert());
  m.def("attend_rows", &py_attend_rows, "caches"_a, "layer"_a, "lengths"_a.noconvert(),
        "counts"_a.noconvert(), "q"_a.noconvert(), "visible"_a.noconvert(), "scale"_a, "window"_a,
        "out"_a.noconvert(), "rules"_a, "reads"_a.noconvert());
}

}  // namespace

void bind_cache(nb::module_& m) {
  nb::class_<Arena>(m, "Arena")
      .def(nb::init<size_t>(), "limit_bytes"_a = 0)
      .def_prop_ro("used", &Arena::used)
      .def_prop_ro("limit", &Arena::limit);

  bind_rounding(m);

  nb::class_<KVCache> cache(m, "KVCache");
  bind_policy(cache);
  cache
      .def("__init__", &make_cache, "layers"_a, "heads"_a, "size"_a, "key_type"_a, "value_type"_a,
           "arena"_a, "sketch"_a = false, "boxes"_a = false, "masses"_a = false,
           "rounding"_a.none() = nb::none())
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
  bind_rows(m);
}

}  // namespace suffice::bind
