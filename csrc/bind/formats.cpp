// Weights as files store them.
#include <nanobind/stl/tuple.h>

#include <cerrno>
#include <tuple>

#include "bind/bind.h"
#include "formats/code_arrays.h"
#include "formats/stored_rows.h"
#include "formats/stored_words.h"

namespace suffice::bind {
namespace {

constexpr int kMostColumns = 1 << 28;  // of a matrix, so that sizes fit their types

using Bytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Codes = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Values = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Words = nb::ndarray<const int32_t, nb::ndim<2>, nb::device::cpu>;  // with any strides

const BlockType& type_named(const std::string& name) {
  const BlockType* type = block_type(name.c_str());
  require(type != nullptr, "unknown block type '" + name + "'");
  return *type;
}

size_t panels_of(int64_t rows) { return static_cast<size_t>((rows + kPanel - 1) / kPanel); }

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

std::vector<std::tuple<std::string, int, int, int, bool>> py_block_types() {
  std::vector<std::tuple<std::string, int, int, int, bool>> found;
  for (const BlockType& type : block_types())
    found.emplace_back(type.name, type.number, type.values, type.bytes, type.decoded());
  return found;
}

// Each coded type: its name, layout (bits, group, scales, minima, grid), and levels plus 128.
using NamedLayout =
    std::tuple<std::string, int, int, std::string, std::string, std::string, std::vector<int>>;
std::vector<NamedLayout> py_code_layouts() {
  std::vector<NamedLayout> found;
  for (const BlockType& type : block_types()) {
    if (!type.coded()) continue;
    const CodeLayout& layout = type.layout;
    std::vector<uint8_t> levels(size_t{1} << layout.bits);
    levels_of(type, levels.data());
    found.emplace_back(
        type.name, layout.bits, layout.group, kScaleForms[static_cast<int>(layout.scales)],
        kMinimumForms[static_cast<int>(layout.minima)], kGrids[static_cast<int>(layout.grid)],
        std::vector<int>(levels.begin(), levels.end()));
  }
  return found;
}

// The rows up to `last` of a matrix that starts at byte `offset` of an open file.
StoredRows stored_rows(int file, int64_t offset, const std::string& name, int64_t columns,
                       int64_t last, int64_t paired, int64_t rotated) {
  const BlockType& type = type_named(name);
  require(columns > 0 && columns % type.values == 0,
          "rows of " + std::to_string(columns) + " values are no whole blocks");
  require(offset >= 0, "the offset cannot be negative");
  require(paired >= 0 && paired % 2 == 0, "a head has an even number of rows");
  require(rotated >= 0 && rotated % 2 == 0 && rotated <= paired, "a part of a head is rotated");
  const StoredRows stored{file, offset, &type, columns, paired, rotated == 0 ? paired : rotated};
  require(last <= (INT64_MAX - offset) / stored.row_bytes() - paired,
          "the rows are beyond the end of any file");
  return stored;
}

// Rows first .. of a matrix.
bool py_read_rows(int file, int64_t offset, const std::string& name, int64_t first, Values out,
                  int64_t paired, int64_t rotated) {
  const int64_t count = out.shape(0);
  require(first >= 0 && first <= INT64_MAX - count, "there is no such row");
  const StoredRows stored =
      stored_rows(file, offset, name, out.shape(1), first + count, paired, rotated);
  require(stored.type->decoded(), "values of " + name + " are not decoded here");
  Outcome outcome;
  {
    nb::gil_scoped_release release;
    outcome = read_rows(stored, first, count, out.data());
  }
  return checked(outcome);
}

// All rows of a matrix of codes, as panels.
bool py_read_panels(int file, int64_t offset, const std::string& name, int rows, int columns,
                    Bytes out, int64_t paired, int64_t rotated) {
  require(rows > 0 && columns > 0 && rows <= kMostColumns && columns <= kMostColumns,
          "a matrix has at least one row and one column");
  const StoredRows stored = stored_rows(file, offset, name, columns, rows, paired, rotated);
  require(stored.type->coded(), "values of " + name + " are not in codes");
  require(out.size() == panels_of(rows) * stored.type->layout.panel_bytes(columns),
          "out has " + std::to_string(out.size()) + " bytes, which are not those of the panels");
  Outcome outcome;
  {
    nb::gil_scoped_release release;
    outcome = read_panels(stored, rows, out.data());
  }
  return checked(outcome);
}

// Bytes of the numbers of a form, for `count` groups.
size_t form_bytes(ScaleForm form, int64_t count) {
  return form == ScaleForm::f32                              ? 4 * count
         : form == ScaleForm::f16 || form == ScaleForm::bf16 ? 2 * count
                                                             : count;
}
size_t form_bytes(MinimumForm form, int64_t count) {
  return form == MinimumForm::none ? 0 : form == MinimumForm::f16 ? 2 * count : count;
}

void check_size(const char* name, size_t size, size_t expected) {
  require(size == expected, std::string(name) + " has " + std::to_string(size) + " bytes; " +
                                std::to_string(expected) + " expected");
}

// Codes [rows, columns] and the bytes of their numbers, as panels (formats/code_arrays.h). Returns
// whether all numbers are finite.
bool py_pack_codes(Codes codes, int bits, int group, const std::string& scales,
                   const std::string& minima, ConstBytes scale_bytes,
                   const std::optional<ConstBytes>& outer_bytes,
                   const std::optional<ConstBytes>& minimum_bytes, Bytes out) {
  const auto data = [](const auto& given) { return given ? given->data() : nullptr; };
  const auto size = [](const auto& given) { return given ? given->size() : 0; };
  require(codes.shape(0) > 0 && codes.shape(1) > 0 && codes.shape(0) <= kMostColumns &&
              codes.shape(1) <= kMostColumns,
          "a matrix has from 1 to " + std::to_string(kMostColumns) + " rows and columns");
  const CodeArrays from{layout_of(bits, group, scales, minima),
                        static_cast<int64_t>(codes.shape(0)),
                        static_cast<int64_t>(codes.shape(1)),
                        codes.data(),
                        scale_bytes.data(),
                        data(minimum_bytes),
                        data(outer_bytes)};
  const int64_t groups = from.rows * from.groups();
  const bool nested = from.layout.scales == ScaleForm::nested;
  check_size("scale_bytes", scale_bytes.size(), form_bytes(from.layout.scales, groups));
  check_size("outer_bytes", size(outer_bytes), nested ? 4 * from.rows * from.spans() : 0);
  check_size("minimum_bytes", size(minimum_bytes), form_bytes(from.layout.minima, groups));
  check_size("out", out.size(),
             panels_of(from.rows) * from.layout.panel_bytes(static_cast<int>(from.columns)));
  Fault fault;
  {
    nb::gil_scoped_release release;
    fault = write_panels(from, out.data());
  }
  require(fault != Fault::large_code,
          "codes of " + std::to_string(bits) + " bits are below " + std::to_string(1 << bits));
  return fault == Fault::none;
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
        "out"_a.noconvert(), "paired"_a = 0, "rotated"_a = 0);
  m.def("code_layouts", &py_code_layouts,
        "Name, bits, group, scales, minima, grid, and levels plus 128, of each type of codes.");
  m.def("read_panels", &py_read_panels, "file"_a, "offset"_a, "block_type"_a, "rows"_a, "columns"_a,
        "out"_a.noconvert(), "paired"_a = 0, "rotated"_a = 0);
  m.def("pack_codes", &py_pack_codes, "codes"_a.noconvert(), "bits"_a, "group"_a, "scales"_a,
        "minima"_a, "scale_bytes"_a.noconvert(), "outer_bytes"_a.noconvert().none(),
        "minimum_bytes"_a.noconvert().none(), "out"_a.noconvert());
  m.def("read_bytes", &py_read_bytes, "file"_a, "offset"_a, "out"_a.noconvert());
  m.def("all_finite", &py_all_finite, "block_type"_a, "values"_a.noconvert());
  m.def("unpack_words", &py_unpack_words, "words"_a.noconvert(), "bits"_a, "places"_a,
        "out"_a.noconvert());
  m.def("read_strings", &py_read_strings, "data"_a.noconvert(), "at"_a, "count"_a,
        nb::sig("def read_strings(data: NDArray[numpy.uint8], at: int, count: int) -> "
                "tuple[list[str], int]"));
}

}  // namespace suffice::bind
