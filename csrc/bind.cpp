// The only file that knows Python: every check of an argument, no arithmetic.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <stdexcept>
#include <string>

#include "attention.h"
#include "cache.h"
#include "kernels.h"
#include "machine.h"
#include "model.h"
#include "parallel.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace suffice;

namespace {

using Floats = nb::ndarray<float, nb::c_contig, nb::device::cpu>;
using ConstFloats = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using ConstBytes = nb::ndarray<const uint8_t, nb::c_contig, nb::device::cpu>;
using ConstInts = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

[[noreturn]] void refuse(const std::string& message) { throw std::invalid_argument(message); }

void require(bool holds, const std::string& message) {
  if (!holds) refuse(message);
}

Type type_of(const std::string& name) {
  if (name == "float32") return Type::f32;
  if (name == "bfloat16") return Type::bf16;
  if (name == "float16") return Type::f16;
  if (name == "int8") return Type::i8;
  refuse("unknown storage type '" + name + "'. Known: float32, bfloat16, float16, int8");
}

const char* name_of(Type type) {
  constexpr const char* names[] = {"float32", "bfloat16", "float16", "int8"};
  return names[static_cast<int>(type)];
}

// Owns padded copies of scale and bias; keeps the weight's array alive.
struct PyLinear {
  Linear linear;
  ConstBytes data;
  std::vector<float> scale, bias;

  PyLinear(ConstBytes bytes, int rows, int columns, const std::string& type,
           std::optional<ConstFloats> scales, std::optional<ConstFloats> biases)
      : data(bytes) {
    require(rows > 0 && columns > 0, "a linear layer needs at least one row and one column");
    linear.rows = rows;
    linear.columns = columns;
    linear.type = type_of(type);
    require(linear.type != Type::f16, "weights are float32, bfloat16 or int8");
    const size_t expected = linear.panels() * linear.panel_bytes();
    require(bytes.size() == expected, "packed weight has " + std::to_string(bytes.size()) +
                                          " bytes; " + std::to_string(expected) + " expected");
    require((linear.type == Type::i8) == scales.has_value(), "int8 weights, and only these, need a scale");
    linear.data = reinterpret_cast<const std::byte*>(bytes.data());
    linear.scale = padded(scales, scale, "scale");
    linear.bias = padded(biases, bias, "bias");
  }
  PyLinear(const PyLinear&) = delete;

  const float* padded(const std::optional<ConstFloats>& from, std::vector<float>& to, const char* name) {
    if (!from) return nullptr;
    require(from->size() == static_cast<size_t>(linear.rows),
            std::string(name) + " has " + std::to_string(from->size()) + " entries; " +
                std::to_string(linear.rows) + " expected");
    to.assign(round_up(linear.rows, kPanel), 0.0f);
    std::memcpy(to.data(), from->data(), from->size() * sizeof(float));
    return to.data();
  }
};

void py_linear(const PyLinear& w, ConstFloats x, Floats y) {
  require(x.ndim() == 2 && x.shape(1) == static_cast<size_t>(w.linear.columns),
          "x must be [rows, " + std::to_string(w.linear.columns) + "]");
  const int count = static_cast<int>(x.shape(0));
  const int width = round_up(w.linear.rows, kPanel);
  require(y.ndim() == 2 && y.shape(0) == x.shape(0) && y.shape(1) == static_cast<size_t>(width),
          "y must be [rows, " + std::to_string(width) + "]");
  const int stride = round_up(w.linear.columns, kPanel);
  std::vector<float> values(static_cast<size_t>(count) * stride), scales(count);
  std::vector<int8_t> codes(values.size());
  std::vector<int32_t> sums(count);
  for (int row = 0; row < count; row++)
    std::memcpy(values.data() + static_cast<size_t>(row) * stride,
                x.data() + static_cast<size_t>(row) * w.linear.columns,
                w.linear.columns * sizeof(float));
  nb::gil_scoped_release release;
  if (w.linear.type == Type::i8)
    kernels().quantize_rows(values.data(), stride, count, w.linear.columns, codes.data(),
                            scales.data(), sums.data());
  const Inputs inputs{values.data(), codes.data(), scales.data(), sums.data(), stride, count};
  const auto threads = team();
  threads->run([&](int thread) {
    const Share mine = share(w.linear.panels(), thread, threads->size());
    kernels().linear(w.linear, mine.first, mine.last, inputs, y.data(), width);
  });
}

// Writes the dense float32 weight [rows, columns], in the caller's thread: its callers are in
// PyTorch's parallel code, where a second team would only compete for the cores.
void py_unpack(const PyLinear& w, Floats out) {
  require(out.ndim() == 2 && out.shape(0) == static_cast<size_t>(w.linear.rows) &&
              out.shape(1) == static_cast<size_t>(w.linear.columns),
          "out must be [" + std::to_string(w.linear.rows) + ", " +
              std::to_string(w.linear.columns) + "]");
  nb::gil_scoped_release release;
  kernels().unpack(w.linear, 0, w.linear.panels(), out.data(), w.linear.columns);
}

void check_rows(const KVCache& cache, int layer, int first, int count) {
  require(layer >= 0 && layer < cache.layers(), "layer " + std::to_string(layer) + " of " +
                                                    std::to_string(cache.layers()));
  require(first >= 0 && count >= 0 && first + count <= cache.capacity(),
          "rows " + std::to_string(first) + ".." + std::to_string(first + count) +
              " exceed the capacity of " + std::to_string(cache.capacity()));
}

void check_shape(const KVCache& cache, size_t heads, size_t rows, size_t size, size_t count) {
  require(heads == static_cast<size_t>(cache.heads()) && rows == count &&
              size == static_cast<size_t>(cache.size()),
          "keys and values must be [" + std::to_string(cache.heads()) + ", " +
              std::to_string(count) + ", " + std::to_string(cache.size()) + "]");
}

// Writes k, v [G, T, D] to the rows first.. of a layer.
void py_store(KVCache& cache, int layer, int first, ConstFloats k, ConstFloats v) {
  require(k.ndim() == 3 && v.ndim() == 3, "keys and values must have three dimensions");
  const int count = static_cast<int>(k.shape(1));
  check_rows(cache, layer, first, count);
  check_shape(cache, k.shape(0), k.shape(1), k.shape(2), count);
  check_shape(cache, v.shape(0), v.shape(1), v.shape(2), count);
  if (count == 0) return;  // a cache of no rows has no memory to point into
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

// q [T, H, D] over rows 0..length+T of a layer, the last T tentative; out [T, H, D].
void py_attend(const KVCache& cache, int layer, int length, ConstFloats q, ConstInts visible,
               float scale, int window, std::optional<ConstInts> blocks, Floats out) {
  require(q.ndim() == 3 && q.shape(2) == static_cast<size_t>(cache.size()) &&
              q.shape(1) % cache.heads() == 0,
          "q must be [T, H, " + std::to_string(cache.size()) + "] with H a multiple of " +
              std::to_string(cache.heads()));
  const int rows = static_cast<int>(q.shape(0)), heads = static_cast<int>(q.shape(1));
  require(rows >= 1 && rows <= 32, "1 to 32 query rows, not " + std::to_string(rows));
  check_rows(cache, layer, length, rows);
  require(visible.size() == q.shape(0), "visible needs one entry per query row");
  require(out.ndim() == 3 && out.size() == q.size(), "out must have the shape of q");
  const int size = cache.size(), group = heads / cache.heads();
  const int last_block = (length + rows + kPanel - 1) / kPanel;
  if (blocks)
    for (size_t i = 0; i < blocks->size(); i++)
      require(blocks->data()[i] >= 0 && blocks->data()[i] < last_block, "a block index is out of range");
  std::vector<float> scaled(q.size());
  for (size_t i = 0; i < q.size(); i++) scaled[i] = q.data()[i] * scale * 1.4426950408889634f;
  std::vector<Traversal> traversals;
  for (int g = 0; g < cache.heads(); g++) {
    Traversal t;
    t.head = cache.head(layer, g);
    t.rows_end = length + rows;
    t.list = blocks ? blocks->data() : nullptr;
    t.begin = blocks || !window ? 0 : std::max(0, length - window + 1) / kTileRows * kTileBlocks;
    t.end = blocks ? static_cast<int>(blocks->size()) : last_block;
    for (int row = 0; row < rows; row++)
      for (int h = g * group; h < (g + 1) * group; h++) {
        const size_t at = (static_cast<size_t>(row) * heads + h) * size;
        t.queries.push_back(scaled.data() + at);
        t.outputs.push_back(out.data() + at);
        const int first = window ? std::max(0, length + row - window + 1) : 0;
        t.visible.push_back({first, length, static_cast<uint32_t>(visible.data()[row])});
      }
    traversals.push_back(std::move(t));
  }
  nb::gil_scoped_release release;
  const auto threads = team();
  Attention attention;
  attention.plan(traversals);
  threads->run([&](int) {
    std::vector<float> scratch;
    attention.work(scratch);
  });
}

// A model built part by part from Python; keeps every array it points into.
struct PyModel {
  Spec spec;
  std::vector<nb::object> keep;
  std::unique_ptr<Model> model;

  const Linear* linear(nb::handle object) {
    if (object.is_none()) return nullptr;
    keep.push_back(nb::borrow(object));
    return &nb::cast<const PyLinear&>(object).linear;
  }
  void set(Linear& to, const nb::dict& parts, const char* name) {
    if (!parts.contains(name)) return;
    if (const Linear* from = linear(parts[name])) to = *from;
  }
  const float* vector(nb::handle object, size_t expected) {
    const auto array = nb::cast<ConstFloats>(object);
    require(array.size() == expected, "a vector has " + std::to_string(array.size()) +
                                          " entries; " + std::to_string(expected) + " expected");
    keep.push_back(nb::borrow(object));
    return array.data();
  }
  void set(Norm& to, const nb::dict& parts, const std::string& name, size_t size) {
    const std::string bias = name + ".bias";
    if (parts.contains(name.c_str())) to.weight = vector(parts[name.c_str()], size);
    if (parts.contains(bias.c_str())) to.bias = vector(parts[bias.c_str()], size);
  }
};

void check_linear(const Linear& w, int rows, int columns, const char* name, bool required = true) {
  if (!w.data) {
    require(!required, std::string("the model lacks its ") + name + " weight");
    return;
  }
  require(w.rows == rows && w.columns == columns,
          std::string(name) + " is [" + std::to_string(w.rows) + ", " + std::to_string(w.columns) +
              "]; [" + std::to_string(rows) + ", " + std::to_string(columns) + "] expected");
}

void add_layer(PyModel& self, const nb::dict& parts, int window, int rope) {
  const Spec& spec = self.spec;
  Layer layer;
  const int queries = spec.heads * spec.head_size, keys = spec.kv_heads * spec.head_size;
  self.set(layer.q, parts, "q");
  self.set(layer.k, parts, "k");
  self.set(layer.v, parts, "v");
  self.set(layer.o, parts, "o");
  self.set(layer.gate, parts, "gate");
  self.set(layer.up, parts, "up");
  self.set(layer.down, parts, "down");
  check_linear(layer.q, queries, spec.width, "q");
  check_linear(layer.k, keys, spec.width, "k");
  check_linear(layer.v, keys, spec.width, "v");
  check_linear(layer.o, spec.width, queries, "o");
  check_linear(layer.gate, spec.mlp_width, spec.width, "gate", false);
  check_linear(layer.up, spec.mlp_width, spec.width, "up");
  check_linear(layer.down, spec.width, spec.mlp_width, "down");
  self.set(layer.attention_norm, parts, "attn_norm", spec.width);
  self.set(layer.mlp_norm, parts, "mlp_norm", spec.width);
  self.set(layer.post_attention_norm, parts, "post_attn_norm", spec.width);
  self.set(layer.post_mlp_norm, parts, "post_mlp_norm", spec.width);
  self.set(layer.q_norm, parts, "q_norm", spec.head_size);
  self.set(layer.k_norm, parts, "k_norm", spec.head_size);
  require(window >= 0, "a negative window");
  require(rope >= -1 && rope < static_cast<int>(spec.ropes.size()), "no such rope table");
  layer.window = window;
  layer.rope = rope;
  self.spec.layers.push_back(layer);
}

void finish(PyModel& self, const nb::dict& parts) {
  Spec& spec = self.spec;
  self.set(spec.embedding, parts, "embed");
  self.set(spec.project_in, parts, "project_in");
  self.set(spec.project_out, parts, "project_out");
  self.set(spec.head, parts, "head");
  check_linear(spec.embedding, spec.vocabulary, spec.embedding_width, "embed");
  check_linear(spec.project_in, spec.width, spec.embedding_width, "project_in",
               spec.width != spec.embedding_width);
  check_linear(spec.project_out, spec.embedding_width, spec.width, "project_out",
               spec.width != spec.embedding_width);
  check_linear(spec.head, spec.vocabulary, spec.embedding_width, "head");
  self.set(spec.final_norm, parts, "final_norm", spec.width);
  if (parts.contains("positions"))
    spec.positions = self.vector(parts["positions"], static_cast<size_t>(spec.position_rows) * spec.width);
  require(!spec.layers.empty(), "a model needs at least one layer");
  self.model = std::make_unique<Model>(spec);
}

void add_rope(PyModel& self, nb::object cos, nb::object sin, int positions) {
  const size_t size = static_cast<size_t>(positions) * (self.spec.head_size / 2);
  self.spec.ropes.push_back({self.vector(cos, size), self.vector(sin, size), positions});
}

// tokens, positions [rows]; counts [requests] rows each; visible [rows] bit masks over the
// request's own rows; outputs: rows whose logits [outputs, padded vocabulary] are wanted.
Counts py_step(PyModel& self, std::vector<KVCache*> caches, ConstInts lengths, ConstInts counts,
               ConstInts tokens, ConstInts positions, ConstInts visible, ConstInts outputs,
               Floats logits) {
  require(self.model != nullptr, "the model is not complete");
  const Spec& spec = self.spec;
  const size_t rows = tokens.size();
  require(rows > 0 && positions.size() == rows && visible.size() == rows,
          "tokens, positions and visible need the same, positive, length");
  require(lengths.size() == caches.size() && counts.size() == caches.size(),
          "one length and one count per cache");
  const int padded = round_up(spec.vocabulary, kPanel);
  require(logits.ndim() == 2 && logits.shape(0) == outputs.size() &&
              logits.shape(1) == static_cast<size_t>(padded),
          "logits must be [outputs, " + std::to_string(padded) + "]");
  int limit = spec.positions ? spec.position_rows : INT32_MAX;
  for (const Rope& rope : spec.ropes) limit = std::min(limit, rope.positions);
  Step step;
  size_t at = 0;
  for (size_t i = 0; i < caches.size(); i++) {
    const int length = lengths.data()[i], count = counts.data()[i];
    require(count >= 1 && count <= 32, "1 to 32 rows per request, not " + std::to_string(count));
    require(caches[i]->layers() == static_cast<int>(spec.layers.size()) &&
                caches[i]->heads() == spec.kv_heads && caches[i]->size() == spec.head_size,
            "the cache was made for another model");
    check_rows(*caches[i], 0, length, count);
    step.items.push_back({caches[i], length, static_cast<int>(at), count});
    at += count;
  }
  require(at == rows, "the counts add up to " + std::to_string(at) + ", not to the " +
                          std::to_string(rows) + " tokens given");
  for (size_t i = 0; i < rows; i++) {
    const int token = tokens.data()[i], position = positions.data()[i];
    require(token >= 0 && token < spec.vocabulary, "token " + std::to_string(token) +
                                                       " is outside the vocabulary of " +
                                                       std::to_string(spec.vocabulary));
    require(position >= 0 && position < limit, "position " + std::to_string(position) +
                                                   " exceeds the model's " + std::to_string(limit));
  }
  for (size_t i = 0; i < outputs.size(); i++)
    require(outputs.data()[i] >= 0 && outputs.data()[i] < static_cast<int>(rows) &&
                (i == 0 || outputs.data()[i] > outputs.data()[i - 1]),
            "outputs must be rows of the step in ascending order");
  step.tokens.assign(tokens.data(), tokens.data() + rows);
  step.positions.assign(positions.data(), positions.data() + rows);
  step.visible.assign(visible.data(), visible.data() + rows);
  step.outputs.assign(outputs.data(), outputs.data() + outputs.size());
  step.logits = logits.data();
  nb::gil_scoped_release release;
  return self.model->step(step, *team());
}

}  // namespace

NB_MODULE(_native, m) {
  m.attr("PANEL") = kPanel;
  nb::exception<OutOfMemory>(m, "OutOfMemory", PyExc_MemoryError);

  m.def("isas", [] {
    int count;
    const char* const* names = available_isas(&count);
    return std::vector<std::string>(names, names + count);
  });
  m.def("isa", [] { return std::string(kernels().name); });
  m.def("use_isa", [](const std::string& name) { return use_isa(name.c_str()); }, "name"_a);
  m.def("cores", &usable_cores);
  m.def("threads", [] { return team()->size(); });
  m.def("set_threads", [](int threads) {
    require(threads >= 1, "at least one thread");
    set_threads(threads);
  }, "threads"_a);
  m.def("read_bandwidth", &read_bandwidth, "bytes"_a, "threads"_a, "repeats"_a,
        nb::call_guard<nb::gil_scoped_release>());
  m.def("copy_bandwidth", &copy_bandwidth, "bytes"_a, "threads"_a, "repeats"_a,
        nb::call_guard<nb::gil_scoped_release>());

  nb::class_<PyLinear>(m, "Linear")
      .def(nb::init<ConstBytes, int, int, const std::string&, std::optional<ConstFloats>,
                    std::optional<ConstFloats>>(),
           "data"_a.noconvert(), "rows"_a, "columns"_a, "dtype"_a,
           "scale"_a.noconvert().none() = nb::none(), "bias"_a.noconvert().none() = nb::none())
      .def_prop_ro("bytes", [](const PyLinear& self) { return self.linear.bytes(); })
      .def("__call__", &py_linear, "x"_a.noconvert(), "y"_a.noconvert())
      .def("unpack", &py_unpack, "out"_a.noconvert());

  nb::class_<Arena>(m, "Arena")
      .def(nb::init<size_t>(), "limit_bytes"_a = 0)
      .def_prop_ro("used", &Arena::used)
      .def_prop_ro("limit", &Arena::limit);

  nb::class_<KVCache>(m, "KVCache")
      .def("__init__",
           [](KVCache* self, int layers, int heads, int size, const std::string& key_type,
              const std::string& value_type, std::shared_ptr<Arena> arena) {
             require(layers > 0 && heads > 0, "a cache needs layers and heads");
             require(size > 0 && size % kPanel == 0 && size <= 512,
                     "the head size must be a multiple of 16 up to 512, not " + std::to_string(size));
             new (self) KVCache(layers, heads, size, type_of(key_type), type_of(value_type), arena);
           },
           "layers"_a, "heads"_a, "size"_a, "key_type"_a, "value_type"_a, "arena"_a)
      .def_prop_ro("layers", &KVCache::layers)
      .def_prop_ro("heads", &KVCache::heads)
      .def_prop_ro("size", &KVCache::size)
      .def_prop_ro("capacity", &KVCache::capacity)
      .def_prop_ro("bytes", &KVCache::bytes)
      .def_prop_ro("row_bytes", &KVCache::row_bytes)
      .def_prop_ro("key_type", [](const KVCache& self) { return name_of(self.key_type()); })
      .def_prop_ro("value_type", [](const KVCache& self) { return name_of(self.value_type()); })
      .def("resize",
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
      .def("move_row",
           [](KVCache& self, int from, int to) {
             check_rows(self, 0, from, 1);
             check_rows(self, 0, to, 1);
             self.move_row(from, to);
           },
           "source"_a, "target"_a)
      .def("copy",
           [](const KVCache& self, int keep) {
             check_rows(self, 0, 0, keep);
             nb::gil_scoped_release release;
             return self.copy(keep);
           },
           "keep"_a)
      .def("store", &py_store, "layer"_a, "first"_a, "k"_a.noconvert(), "v"_a.noconvert())
      .def("load", &py_load, "layer"_a, "first"_a, "keys"_a.noconvert().none(),
           "values"_a.noconvert().none())
      .def("attend", &py_attend, "layer"_a, "length"_a, "q"_a.noconvert(), "visible"_a.noconvert(),
           "scale"_a, "window"_a, "blocks"_a.noconvert().none(), "out"_a.noconvert());

  nb::class_<Counts>(m, "Counts")
      .def_ro("key_rows", &Counts::key_rows)
      .def_ro("value_rows", &Counts::value_rows)
      .def_ro("held_rows", &Counts::held_rows)
      .def_ro("kv_bytes", &Counts::kv_bytes)
      .def_ro("weight_bytes", &Counts::weight_bytes);

  nb::class_<PyModel>(m, "Model")
      .def("__init__",
           [](PyModel* self, int width, int heads, int kv_heads, int head_size, int mlp_width,
              int vocabulary, int embedding_width, bool layer_norm, float norm_eps, int placement,
              int activation, float attention_scale, float embedding_scale, int position_rows) {
             require(width > 0 && heads > 0 && kv_heads > 0 && mlp_width > 0 && vocabulary > 0 &&
                         embedding_width > 0,
                     "every size of a model is positive");
             require(heads % kv_heads == 0, "heads must be a multiple of kv_heads");
             require(head_size > 0 && head_size % kPanel == 0, "head_size must be a multiple of 16");
             require(placement >= 0 && placement <= 2, "no such placement of norms");
             require(activation >= kSilu && activation <= kRelu, "no such activation");
             new (self) PyModel();
             Spec& spec = self->spec;
             spec.width = width;
             spec.heads = heads;
             spec.kv_heads = kv_heads;
             spec.head_size = head_size;
             spec.mlp_width = mlp_width;
             spec.vocabulary = vocabulary;
             spec.embedding_width = embedding_width;
             spec.layer_norm = layer_norm;
             spec.norm_eps = norm_eps;
             spec.placement = static_cast<Placement>(placement);
             spec.activation = activation;
             spec.attention_scale = attention_scale;
             spec.embedding_scale = embedding_scale;
             spec.position_rows = position_rows;
           },
           "width"_a, "heads"_a, "kv_heads"_a, "head_size"_a, "mlp_width"_a, "vocabulary"_a,
           "embedding_width"_a, "layer_norm"_a, "norm_eps"_a, "placement"_a, "activation"_a,
           "attention_scale"_a, "embedding_scale"_a, "position_rows"_a)
      .def("add_rope", &add_rope, "cos"_a, "sin"_a, "positions"_a)
      .def("add_layer", &add_layer, "parts"_a, "window"_a, "rope"_a)
      .def("finish", &finish, "parts"_a)
      .def("step", &py_step, "caches"_a, "lengths"_a.noconvert(), "counts"_a.noconvert(),
           "tokens"_a.noconvert(), "positions"_a.noconvert(), "visible"_a.noconvert(),
           "outputs"_a.noconvert(), "logits"_a.noconvert());
}
