#include <optional>

#include "bind/bind.h"
#include "kernels/kernels.h"

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

std::vector<StepRequest> requests_of(const std::vector<KVCache*>& caches, int layer,
                                     const ConstInts& lengths, const ConstInts& counts,
                                     size_t rows) {
  require(!caches.empty() && lengths.size() == caches.size() && counts.size() == caches.size(),
          "one length and one count per cache, of at least one");
  std::vector<StepRequest> requests;
  size_t first = 0;
  for (size_t i = 0; i < caches.size(); i++) {
    const KVCache &cache = *caches[i], &alike = *caches[0];
    require(cache.shapes() == alike.shapes() && cache.key_type() == alike.key_type() &&
                cache.value_type() == alike.value_type(),
            "caches of one call must be of one model");
    require(layer >= 0 && layer < cache.layers(), "there is no such layer");
    const int count = counts.data()[i], length = lengths.data()[i];
    check_rows(cache, layer, length - cache.removed(layer), count);
    requests.push_back({caches[i], length, static_cast<int>(first), count});
    first += count;
  }
  require(first == rows, "the counts add up to " + std::to_string(first) + ", not to the " +
                             std::to_string(rows) + " rows given");
  return requests;
}

namespace {

void check_shape(const KVCache& cache, int layer, size_t heads, size_t rows, size_t size,
                 size_t count) {
  const int own = cache.heads(layer), entries = cache.size(layer);
  require(
      heads == static_cast<size_t>(own) && rows == count && size == static_cast<size_t>(entries),
      "keys and values must be [" + std::to_string(own) + ", " + std::to_string(count) + ", " +
          std::to_string(entries) + "]");
}

// Of a layer whose rows are to be written.
void check_owner(const KVCache& cache, int layer) {
  require(layer >= 0 && layer < cache.layers(), "there is no such layer");
  require(cache.owns(layer), "layer " + std::to_string(layer) + " has no rows of its own");
}

// Writes rows first.. of a layer; strides of k and v are in elements. Joint rows have no v.
void store(KVCache& cache, int layer, int first, int count, const float* k, const float* v,
           size_t head_stride, size_t row_stride) {
  if (count == 0) return;  // a cache of no rows has no memory to point into
  cache.forget_drafts(layer);
  for (int h = 0; h < cache.heads(layer); h++) {
    const KVHead head = cache.head(layer, h);
    for (int i = 0; i < count; i++) {
      const size_t start = h * head_stride + i * row_stride;
      kernels().rows.store_row(head, first + i, k + start, v ? v + start : nullptr);
    }
  }
}

// Writes k, v [G, T, D] of the tokens first.. to a layer; joint rows have no v.
void py_store(KVCache& cache, int layer, int token, ConstFloats k, std::optional<ConstFloats> v) {
  check_owner(cache, layer);
  require(cache.sizes(layer).joint ? !v : v.has_value(),
          "all but joint rows have values of their own");
  require(k.ndim() == 3 && (!v || v->ndim() == 3), "keys and values must have three dimensions");
  const int count = static_cast<int>(k.shape(1));
  const int first = token - cache.removed(layer);
  check_rows(cache, layer, first, count);
  check_shape(cache, layer, k.shape(0), k.shape(1), k.shape(2), count);
  if (v) check_shape(cache, layer, v->shape(0), v->shape(1), v->shape(2), count);
  nb::gil_scoped_release release;
  const size_t size = cache.size(layer);
  store(cache, layer, first, count, k.data(), v ? v->data() : nullptr, count * size, size);
}

// Writes k, v [rows, G, D] of a layer: counts[i] rows to cache i, after its first lengths[i]
// tokens.
void py_store_rows(std::vector<KVCache*> caches, int layer, ConstInts lengths, ConstInts counts,
                   ConstFloats k, ConstFloats v) {
  require(k.ndim() == 3 && v.ndim() == 3, "keys and values must have three dimensions");
  const std::vector<StepRequest> requests = requests_of(caches, layer, lengths, counts, k.shape(0));
  check_owner(*caches[0], layer);
  require(!caches[0]->sizes(layer).joint, "joint rows have no values of their own");
  const size_t heads = caches[0]->heads(layer), size = caches[0]->size(layer), rows = k.shape(0);
  for (const ConstFloats* array : {&k, &v})
    require(array->shape(0) == rows && array->shape(1) == heads && array->shape(2) == size,
            "keys and values must be [" + std::to_string(rows) + ", " + std::to_string(heads) +
                ", " + std::to_string(size) + "]");
  nb::gil_scoped_release release;
  for (const StepRequest& request : requests) {
    const size_t start = request.first_row * heads * size;
    store(*request.cache, layer, request.length - request.cache->removed(layer), request.count,
          k.data() + start, v.data() + start, size, heads * size);
  }
}

// Reads the rows first.. of a layer into keys and values [G, T, D]; either may be None.
// `base`: rows by their bases alone, if they have any.
void py_load(const KVCache& cache, int layer, int first, std::optional<Floats> keys,
             std::optional<Floats> values, bool base) {
  if (!keys && !values) return;
  const Floats& shape = keys ? *keys : *values;
  require(shape.ndim() == 3, "keys and values must have three dimensions");
  const int count = static_cast<int>(shape.shape(1));
  check_rows(cache, layer, first, count);
  for (const auto* array : {&keys, &values})
    if (*array) {
      require((*array)->ndim() == 3, "keys and values must have three dimensions");
      check_shape(cache, layer, (*array)->shape(0), (*array)->shape(1), (*array)->shape(2), count);
    }
  if (count == 0) return;
  nb::gil_scoped_release release;
  for (int h = 0; h < cache.heads(layer); h++) {
    const size_t start = static_cast<size_t>(h) * count * cache.size(layer);
    const KVHead head = cache.head(layer, h);
    kernels().rows.load_rows(base ? base_of(head) : head, first, count,
                             keys ? keys->data() + start : nullptr,
                             values ? values->data() + start : nullptr);
  }
}

// Joint rows have one type, whose elements stand alone, and of what is in 4 bits sketches alone.
void check_joint(int size, int joint, const std::string& key_type, const std::string& value_type,
                 bool coded) {
  require(joint > 0 && joint % kPanel == 0 && joint < size,
          "the value of a joint row is its first multiple of 16 entries");
  require(key_type == value_type && !is_four_bits(type_of(key_type)),
          "joint rows have one type for keys and values, of float32, bfloat16, float16 and int8");
  require(!coded, "joint rows have neither bases nor a rounding of their own");
}

// `heads`, `sizes` and `shares` [layers]: see LayerRows.
void make_cache(KVCache* self, const std::vector<int>& heads, const std::vector<int>& sizes,
                const std::vector<int>& shares, const std::string& key_type,
                const std::string& value_type, std::shared_ptr<Arena> arena, bool sketch,
                bool boxes, bool masses, bool bases, std::shared_ptr<KeyRoundings> rounding,
                const std::vector<StateShape>& states, int joint) {
  require(!heads.empty() && sizes.size() == heads.size() && shares.size() == heads.size(),
          "a cache needs layers, each with heads, a size and the layer that it shares");
  const int most = joint ? kMaxSize : kMaxApart;
  std::vector<LayerRows> layers;
  for (size_t i = 0; i < heads.size(); i++) {
    const int size = sizes[i];
    require(heads[i] > 0, "a layer needs heads");
    if (joint) check_joint(size, joint, key_type, value_type, bases || rounding);
    require(size > 0 && size % kPanel == 0 && size <= most,
            "the head size must be a multiple of 16 up to " + std::to_string(most) + ", not " +
                std::to_string(size));
    layers.push_back({heads[i], {size, joint}, shares[i]});
    if (shares[i] < 0) continue;
    require(
        shares[i] < static_cast<int>(i) && layers[shares[i]] == LayerRows{heads[i], {size, joint}},
        "a layer shares rows with an earlier one of its heads and size that has its own");
  }
  require(layers[0].shares < 0, "the first layer has rows of its own");
  require(!rounding || (rounding->fits(layers) && (bases || is_four_bits(type_of(key_type)))),
          "the key rounding must have the cache's layers, heads and size, and bases, or storage "
          "kmeans4 or planes");
  new (self) KVCache(std::move(layers), type_of(key_type), type_of(value_type), arena,
                     Extras{sketch, boxes, masses, bases}, rounding, states);
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

void bind_arena(nb::module_& m) {
  nb::class_<Arena>(m, "Arena")
      .def(nb::init<size_t>(), "limit_bytes"_a = 0)
      .def_prop_ro("used", &Arena::used)
      .def_prop_ro("limit", &Arena::limit);
}

void bind_rounding(nb::module_& m) {
  nb::class_<KeyRoundings>(m, "KeyRoundings")
      .def("__init__", &make_roundings, "scales"_a.noconvert(), "means"_a.noconvert(),
           "passed"_a.noconvert(), "weights"_a.noconvert());
}

// What stores and reads rows.
void bind_rows(nb::module_& m, nb::class_<KVCache>& cache) {
  cache.def("store", &py_store, "layer"_a, "first"_a, "k"_a.noconvert(), "v"_a.noconvert().none())
      .def("load", &py_load, "layer"_a, "first"_a, "keys"_a.noconvert().none(),
           "values"_a.noconvert().none(), "base"_a = false);
  m.def("store_rows", &py_store_rows, "caches"_a, "layer"_a, "lengths"_a.noconvert(),
        "counts"_a.noconvert(), "k"_a.noconvert(), "v"_a.noconvert());
}

// What files of their own bind.
void bind_others(nb::module_& m, nb::class_<KVCache>& cache) {
  bind_policy(cache);
  bind_attention(m, cache);
  bind_states(m, cache);
  bind_row_bytes(m, cache);
}

}  // namespace

void bind_cache(nb::module_& m) {
  bind_arena(m);
  bind_rounding(m);

  nb::class_<KVCache> cache(m, "KVCache");
  bind_others(m, cache);
  cache
      .def("__init__", &make_cache, "heads"_a, "sizes"_a, "shares"_a, "key_type"_a, "value_type"_a,
           "arena"_a, "sketch"_a = false, "boxes"_a = false, "masses"_a = false, "bases"_a = false,
           "rounding"_a.none() = nb::none(), "states"_a = std::vector<StateShape>(), "joint"_a = 0)
      .def_prop_ro("layers", &KVCache::layers)
      .def("heads", [](const KVCache& self, int layer) { return self.shapes().at(layer).heads; })
      .def("size", [](const KVCache& self, int layer) { return self.shapes().at(layer).size.key; })
      .def_prop_ro("joint", [](const KVCache& self) { return self.sizes(0).joint; })
      .def_prop_ro("capacity", &KVCache::capacity)
      .def_prop_ro("bytes", &KVCache::bytes)
      .def("held_bytes", &KVCache::held_bytes, "length"_a)
      .def_prop_ro("row_bytes", [](const KVCache& self) { return self.row_bytes(); })
      .def_prop_ro("key_type", [](const KVCache& self) { return name_of(self.key_type()); })
      .def_prop_ro("value_type", [](const KVCache& self) { return name_of(self.value_type()); })
      .def(
          "resize",
          [](KVCache& self, int capacity, int keep) {
            require(keep >= 0 && keep <= capacity && keep <= self.capacity(),
                    "cannot keep " + std::to_string(keep) + " rows of " +
                        std::to_string(self.capacity()) + " in " + std::to_string(capacity));
            require(capacity > 0, "the capacity must be at least one row");
            nb::gil_scoped_release release;
            self.resize(capacity, keep);
          },
          "capacity"_a, "keep"_a)
      .def("release", &KVCache::release)
      .def("populate", &KVCache::populate, "bytes"_a, nb::call_guard<nb::gil_scoped_release>())
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
          [](const KVCache& self, int keep, int capacity) {
            check_tokens(self, 0, keep);
            require(keep <= capacity,
                    "cannot keep " + std::to_string(keep) + " rows in " + std::to_string(capacity));
            nb::gil_scoped_release release;
            return self.copy(keep, capacity);
          },
          "keep"_a, "capacity"_a)
      .def("forget_answers", &KVCache::forget_answers);
  bind_rows(m, cache);
}

}  // namespace suffice::bind
