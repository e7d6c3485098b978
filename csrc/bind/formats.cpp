// Weights as files store them.
#include <nanobind/stl/tuple.h>

#include <cerrno>
#include <tuple>

#include "bind/bind.h"
#include "formats/stored_rows.h"
#include "formats/stored_words.h"

namespace suffice::bind {
namespace {

using Bytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Values = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Words = nb::ndarray<const int32_t, nb::ndim<2>, nb::device::cpu>;  // with any strides

const BlockType& type_named(const std::string& name) {
  const BlockType* type = block_type(name.c_str());
  require(type != nullptr, "unknown block type '" + name + "'");
  return *type;
}

// Returns whether all values are finite; raises what Python raises when it reads a file.
bool checked(Outcome outcome) {
  if (outcome == Outcome::failed) {
    PyErr_SetFromErrno(PyExc_OSError);
    throw nb::python_error();
  }
  if (outcome == Outcome::cut_short) {
    PyErr_SetString(PyExc_EOFError, "the file ends too early");
    throw nb::python_error();
  }
  return outcome == Outcome::ok;
}

std::vector<std::tuple<std::string, int, int, int>> py_block_types() {
  std::vector<std::tuple<std::string, int, int, int>> found;
  for (const BlockType& type : kBlockTypes)
    found.emplace_back(type.name, type.number, type.values, type.bytes);
  return found;
}

// Rows first .. of a matrix that starts at byte `offset` of an open file.
bool py_read_rows(int file, int64_t offset, const std::string& name, int64_t first, Values out,
                  int64_t paired) {
  const BlockType& type = type_named(name);
  const int64_t count = out.shape(0), columns = out.shape(1);
  require(columns > 0 && columns % type.values == 0,
          "rows of " + std::to_string(columns) + " values are no whole blocks");
  require(offset >= 0 && first >= 0, "offset and row cannot be negative");
  require(paired >= 0 && paired % 2 == 0, "a head has an even number of rows");
  const StoredRows stored{file, offset, &type, columns, paired};
  require(first <= (INT64_MAX - offset) / stored.row_bytes() - count - paired,
          "the rows are beyond the end of any file");
  Outcome outcome;
  {
    nb::gil_scoped_release release;
    outcome = read_rows(stored, first, count, out.data());
  }
  return checked(outcome);
}

void py_read_bytes(int file, int64_t offset, Bytes out) {
  require(offset >= 0, "the offset cannot be negative");
  Outcome outcome;
  {
    nb::gil_scoped_release release;
    outcome = read_bytes(file, offset, out.size(), out.data());
  }
  checked(outcome);
}

bool py_all_finite(const std::string& name, ConstBytes values) {
  const BlockType& type = type_named(name);
  require(type.values == 1, "values of " + name + " are in blocks");
  require(values.size() % type.bytes == 0, "the bytes are no whole values");
  nb::gil_scoped_release release;
  return all_finite(type, values.data(), values.size() / type.bytes);
}

// Codes of words [rows, count] as bytes: along rows [rows, codes], or with `places` across rows
// [rows * codes of a word, count].
void py_unpack_words(Words words, int bits, const std::vector<int>& places, Bytes out) {
  require(bits == 2 || bits == 3 || bits == 4 || bits == 8,
          "codes of 2, 3, 4 or 8 bits, not " + std::to_string(bits));
  const StoredWords from{reinterpret_cast<const uint32_t*>(words.data()),
                         static_cast<int64_t>(words.shape(0)),
                         static_cast<int64_t>(words.shape(1)),
                         words.stride(0),
                         words.stride(1),
                         bits};
  require(32 * from.count % bits == 0, "the words have no whole codes");
  const size_t expected = static_cast<size_t>(from.rows * from.codes());
  require(out.size() == expected, "out has " + std::to_string(out.size()) + " bytes; " +
                                      std::to_string(expected) + " expected");
  require(places.empty() || (32 % bits == 0 && places.size() == 32u / bits),
          "a place for each code of a word");
  for (const int place : places)
    require(place >= 0 && place < 32 / bits, "there is no place " + std::to_string(place));
  nb::gil_scoped_release release;
  if (places.empty())
    unpack_streams(from, out.data());
  else
    unpack_across(from, places.data(), out.data());
}

// Reads up to `count` strings, each after its length in 8 bytes, from byte `at` on, until one is
// not whole; returns them and the byte after them.
nb::tuple py_read_strings(ConstBytes data, size_t at, size_t count) {
  require(at <= data.size(), "there is no byte " + std::to_string(at));
  nb::list found;
  for (; count > 0 && data.size() - at >= 8; count--) {
    uint64_t length;
    std::memcpy(&length, data.data() + at, 8);
    if (length > data.size() - at - 8) break;
    const char* text = reinterpret_cast<const char*>(data.data() + at + 8);
    PyObject* made = PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(length), nullptr);
    if (made == nullptr) throw nb::python_error();
    found.append(nb::steal(made));
    at += 8 + length;
  }
  return nb::make_tuple(found, at);
}

}  // namespace

void bind_formats(nb::module_& m) {
  m.def("block_types", &py_block_types,
        "Name, number in GGUF files, values and bytes of each type of blocks.");
  m.def("read_rows", &py_read_rows, "file"_a, "offset"_a, "block_type"_a, "first"_a,
        "out"_a.noconvert(), "paired"_a = 0);
  m.def("read_bytes", &py_read_bytes, "file"_a, "offset"_a, "out"_a.noconvert());
  m.def("all_finite", &py_all_finite, "block_type"_a, "values"_a.noconvert());
  m.def("unpack_words", &py_unpack_words, "words"_a.noconvert(), "bits"_a, "places"_a,
        "out"_a.noconvert());
  m.def("read_strings", &py_read_strings, "data"_a.noconvert(), "at"_a, "count"_a,
        nb::sig("def read_strings(data: NDArray[numpy.uint8], at: int, count: int) -> "
                "tuple[list[str], int]"));
}

}  // namespace suffice::bind
