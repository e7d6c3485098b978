// Rows and states of a cache as bytes.
#include "cache/row_bytes.h"

#include "bind/bind.h"

namespace suffice::bind {
namespace {

void check_panels(const KVCache& cache, int first, int count) {
  require(first >= 0 && count > 0 && first % kPanel == 0 && count % kPanel == 0,
          "rows must be whole panels of 16");
  require(first + count <= round_up(cache.capacity(), kPanel),
          "rows exceed the capacity of " + std::to_string(cache.capacity()));
  for (int layer = 0; layer < cache.layers(); layer++)
    require(cache.removed(layer) == 0, "some rows were evicted");
}

const std::byte* bytes_in(const ConstBytes& array) {
  return reinterpret_cast<const std::byte*>(array.data());
}

uint64_t py_export(const KVCache& cache, int first, int count, Bytes to) {
  check_panels(cache, first, count);
  require(to.size() == bytes_of_rows(cache, first, count), "not the bytes of these rows");
  nb::gil_scoped_release release;
  return export_rows(cache, first, count, reinterpret_cast<std::byte*>(to.data()));
}

std::optional<uint64_t> py_read(KVCache& cache, int first, int count, int file, int64_t offset) {
  check_panels(cache, first, count);
  nb::gil_scoped_release release;
  return read_rows(cache, first, count, file, offset);
}

LayerStates& states_of(KVCache& cache, size_t floats) {
  LayerStates* const states = cache.layer_states();
  require(states != nullptr, "the cache has no layers with states");
  require(floats * sizeof(float) == states->step_bytes(), "not the size of the states");
  return *states;
}

void py_export_state(KVCache& cache, int length, Floats to) {
  const float* const from = states_of(cache, to.size()).kept_after(length);
  require(from != nullptr, "no state was kept after " + std::to_string(length) + " tokens");
  nb::gil_scoped_release release;
  std::copy_n(from, to.size(), to.data());
}

void py_resume(KVCache& cache, int length, ConstFloats from) {
  LayerStates& states = states_of(cache, from.size());
  require(states.length() < length, "states go on to more tokens than they have taken");
  nb::gil_scoped_release release;
  states.resume(length, from.data());
}

}  // namespace

void bind_row_bytes(nb::module_& m, nb::class_<KVCache>& cache) {
  m.def(
      "checksum",
      [](ConstBytes data, uint64_t before) {
        nb::gil_scoped_release release;
        return checksum(bytes_in(data), data.size(), before);
      },
      "data"_a.noconvert(), "before"_a = 0);
  cache
      .def(
          "bytes_of_rows",
          [](const KVCache& self, int count) {
            require(count >= 0 && count % kPanel == 0, "rows must be whole panels of 16");
            return bytes_of_rows(self, 0, count);  // as many wherever they are, and without memory
          },
          "count"_a)
      .def("export_rows", &py_export, "first"_a, "count"_a, "to"_a.noconvert())
      .def("read_rows", &py_read, "first"_a, "count"_a, "file"_a, "offset"_a)
      .def(
          "clear_rows",
          [](KVCache& self, int first, int count) {
            check_panels(self, first, count);
            clear_rows(self, first, count);
          },
          "first"_a, "count"_a)
      .def("export_state", &py_export_state, "length"_a, "to"_a.noconvert())
      .def("resume_state", &py_resume, "length"_a, "state"_a.noconvert());
}

}  // namespace suffice::bind
