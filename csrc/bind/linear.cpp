#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numbers>
#include <optional>

#include "bind/bind.h"
#include "kernels/kernels.h"
#include "linear/inputs.h"
#include "runtime/parallel.h"

namespace suffice::bind {

namespace {
constexpr int kMaxWide = 1 << 28;  // rows or columns, so that sizes fit their types

template <class Form, size_t Count>
Form form_named(const char* const (&names)[Count], const std::string& name, const char* what) {
  for (size_t i = 0; i < Count; i++)
    if (name == names[i]) return static_cast<Form>(i);
  throw std::invalid_argument(std::string("no ") + what + " '" + name + "'");
}
}  // namespace

CodeLayout layout_of(int bits, int group, const std::string& scales, const std::string& minima,
                     const std::string& grid) {
  require(code_bits_allowed(bits), "codes of " + std::to_string(bits) + " bits; 2 to 6 or 8");
  const CodeLayout layout{bits, group, form_named<ScaleForm>(kScaleForms, scales, "scales"),
                          form_named<MinimumForm>(kMinimumForms, minima, "minima"),
                          form_named<Grid>(kGrids, grid, "grid")};
  const bool nested = layout.nested();
  require((layout.scales == ScaleForm::nested32) == (layout.grid != Grid::none),
          "nested32 scales go with a grid, and a grid with these");
  const int most = shape_of(layout.grid).columns == 4 ? 4 : 3;
  require(layout.grid == Grid::none || bits == most,
          "codes of " + std::to_string(bits) + " bits do not go with grid '" + grid + "'");
  const bool fit = nested                ? minima == "nested" && layout.grid == Grid::none
                   : scales == "float32" ? minima == "zero"
                                         : !layout.in_bytes() && minima != "nested";
  require(fit || minima == "none", scales + " scales do not go with minima '" + minima + "'");
  const bool halves = layout.scales == ScaleForm::e4m3;
  require(nested   ? group == 16 || group == 32 || group == 64
          : halves ? group == 16
                   : group >= kUnit && group % kUnit == 0 && group <= kMaxWide,
          "a scale for " + std::to_string(group) + " columns; " +
              (nested   ? "16, 32 or 64 are allowed"
               : halves ? "16 are allowed"
                        : "a multiple of 32 is allowed"));
  return layout;
}

PyLinear::PyLinear(ConstBytes bytes, int rows, int columns, const std::string& type,
                   const std::optional<ConstFloats>& scales,
                   const std::optional<ConstFloats>& biases, const CodeParts& parts)
    : data(bytes) {
  require(rows > 0 && columns > 0, "a linear layer needs at least one row and one column");
  require(rows <= kMaxWide && columns <= kMaxWide,
          "a linear layer has at most " + std::to_string(kMaxWide) + " rows and columns");
  linear.rows = rows;
  linear.columns = columns;
  linear.type = type == "codes" ? Type::codebook : type == "float8" ? Type::f8 : type_of(type);
  require(linear.type != Type::f16 && !is_four_bits(linear.type),
          "weights are float32, bfloat16, int8, float8 or codes");
  require((linear.type == Type::codebook) == parts.levels.has_value(),
          "codes, and only these, need levels");
  if (parts.levels) set_codes(parts);
  const size_t expected = linear.panels() * linear.panel_bytes();
  require(bytes.size() == expected, "packed weight has " + std::to_string(bytes.size()) +
                                        " bytes; " + std::to_string(expected) + " expected");
  require((linear.type == Type::i8) == scales.has_value(),
          "int8 weights, and only these, need a scale");
  linear.data = reinterpret_cast<const std::byte*>(bytes.data());
  linear.scale = padded(scales, scale, "scale");
  linear.bias = padded(biases, bias, "bias");
}

void PyLinear::set_codes(const CodeParts& parts) {
  set_levels(*parts.levels);
  const int most = round_up(linear.columns, kUnit);
  require(parts.group <= std::max(most, kNested), "a scale for " + std::to_string(parts.group) +
                                                      " columns; at most " + std::to_string(most) +
                                                      " are allowed");
  linear.layout = layout_of(std::countr_zero(levels.size()), parts.group, parts.scales,
                            parts.minima, parts.grid);
  const size_t places =
      linear.layout.grid == Grid::none ? 0 : size_t{1} << shape_of(linear.layout.grid).place_bits;
  const size_t given = parts.entries ? parts.entries->size() : 0;
  require(given == places, "a grid of " + std::to_string(given) + " entries; " +
                               std::to_string(places) + " expected");
  entries = parts.entries;
  linear.entries = entries ? entries->data() : nullptr;
  if (parts.order) set_order(*parts.order);
  const int rotation = parts.rotation;
  require(rotation == 0 || (rotation > 0 && linear.columns % rotation == 0 &&
                            hadamard_size(rotation) >= kPanel &&
                            rotation / hadamard_size(rotation) <= kMaxParts),
          "no rotation in blocks of " + std::to_string(rotation));
  set_rotation(rotation);
  linear.max_code = parts.max_code;
  require(linear.max_code == kMaxByte || linear.max_code == kMaxPair,
          "codes of inputs up to " + std::to_string(kMaxByte) + " or " + std::to_string(kMaxPair));
}

void PyLinear::set_levels(const ConstBytes& from) {
  const size_t count = from.size();
  require(std::has_single_bit(count) && code_bits_allowed(std::countr_zero(count)),
          "4, 8, 16, 32, 64 or 256 levels, not " + std::to_string(count));
  levels.assign(from.data(), from.data() + count);
  const auto [least, greatest] = std::ranges::minmax(levels);
  linear.levels = levels.data();
  linear.lowest = least - kLevelOffset;
  linear.range = greatest - least;
  linear.even = true;
  for (size_t i = 1; i < count; i++) linear.even &= levels[i] == levels[i - 1] + 1;
  require(count < 256 || linear.even, "256 levels are -128 to 127");
}

void PyLinear::set_order(const ConstInts& from) {
  require(from.size() == static_cast<size_t>(linear.columns),
          "the order has " + std::to_string(from.size()) + " entries; " +
              std::to_string(linear.columns) + " expected");
  order.assign(from.data(), from.data() + from.size());
  std::vector<bool> seen(from.size());
  for (const int column : order) {
    require(column >= 0 && column < linear.columns && !seen[column],
            "the order is no permutation: " + std::to_string(column));
    seen[column] = true;
  }
  linear.order = order.data();
}

void PyLinear::set_rotation(int block) {
  if (block == 0) return;
  const int parts = block / hadamard_size(block);
  const double turn = 2 * std::numbers::pi / parts;
  for (int i = 0; i < parts; i++)
    wave.push_back(
        static_cast<float>((std::cos(turn * i) + std::sin(turn * i)) / std::sqrt(parts)));
  linear.rotation = {block, wave.data()};
}

const float* PyLinear::padded(const std::optional<ConstFloats>& from, std::vector<float>& to,
                              const char* name) {
  if (!from) return nullptr;
  require(from->size() == static_cast<size_t>(linear.rows),
          std::string(name) + " has " + std::to_string(from->size()) + " entries; " +
              std::to_string(linear.rows) + " expected");
  to.assign(round_up(linear.rows, kPanel), 0.0f);
  std::memcpy(to.data(), from->data(), from->size() * sizeof(float));
  return to.data();
}

namespace {

void py_linear(const PyLinear& w, ConstFloats x, Floats y) {
  require(x.ndim() == 2 && x.shape(1) == static_cast<size_t>(w.linear.columns),
          "x must be [rows, " + std::to_string(w.linear.columns) + "]");
  const int count = static_cast<int>(x.shape(0));
  const int width = round_up(w.linear.rows, kPanel);
  require(y.ndim() == 2 && y.shape(0) == x.shape(0) && y.shape(1) == static_cast<size_t>(width),
          "y must be [rows, " + std::to_string(width) + "]");
  const int stride = round_up(w.linear.columns, kPanel);
  std::vector<float> values(static_cast<size_t>(count) * stride);
  for (int row = 0; row < count; row++)
    std::memcpy(values.data() + static_cast<size_t>(row) * stride,
                x.data() + static_cast<size_t>(row) * w.linear.columns,
                w.linear.columns * sizeof(float));
  nb::gil_scoped_release release;
  InputBuffers buffers;
  buffers.prepare(count, stride);
  buffers.reserve(w.linear);
  const auto threads = team();
  const int preparing = std::min(count, threads->size());  // one row is prepared by this thread
  std::vector<InputScratch> scratch(preparing);
  threads->run([&](int thread) {
    const Share rows = thread < preparing ? share(count, thread, preparing) : Share{0, 0};
    if (rows.first < rows.last)
      buffers.fill(values.data(), stride, w.linear, rows.first, rows.last, count, scratch[thread]);
    threads->barrier();
    const Inputs inputs = buffers.of(values.data(), stride, w.linear, count);
    const Share mine = share(w.linear.panels(), thread, threads->size());
    kernels().products.linear(w.linear, mine.first, mine.last, inputs, y.data(), width);
  });
}

// Sets the codebook of the inputs: ascending centroids, the number of outliers at each end, the
// values that share a scale (0: all), and two thresholds; values beyond them stay exact.
void py_set_inputs(PyLinear& w, ConstFloats levels, int outliers, int group, float low,
                   float high) {
  require(w.linear.type == Type::codebook, "only codes have an input codebook");
  require(levels.ndim() == 1 && levels.size() >= 1 && levels.size() <= kLevels,
          "1 to 16 levels, not " + std::to_string(levels.size()));
  for (size_t i = 1; i < levels.size(); i++)
    require(levels.data()[i - 1] <= levels.data()[i], "levels must ascend");
  require(outliers >= 0 && 2 * outliers <= w.linear.columns,
          std::to_string(outliers) + " outliers at each end are too many");
  require(group >= 0 && group % kPanel == 0,
          "a scale for " + std::to_string(group) + " inputs; a multiple of 16 is allowed");
  require(low <= high, "thresholds must ascend");
  w.linear.inputs.low = low;
  w.linear.inputs.high = high;
  w.linear.inputs.group = group;
  w.linear.inputs.count = static_cast<int>(levels.size());
  w.linear.inputs.outliers = outliers;
  std::memcpy(w.linear.inputs.levels, levels.data(), levels.size() * sizeof(float));
}

// y = W x by counting pairs of codes, x being codes of `x_levels`, in the caller's thread.
void py_count_pairs(const PyLinear& w, ConstBytes x, ConstFloats x_levels, Floats y) {
  require(w.linear.type == Type::codebook &&
              w.linear.layout == CodeLayout{4, w.linear.layout.group} &&
              w.linear.layout.group >= w.linear.columns,
          "pairs are counted only for 4-bit codes with one float16 scale a row");
  require(x.ndim() == 1 && x.size() == static_cast<size_t>(w.linear.columns),
          "x must be [" + std::to_string(w.linear.columns) + "]");
  require(x_levels.size() == kLevels, "16 levels of x, not " + std::to_string(x_levels.size()));
  require(y.ndim() == 1 && y.size() == static_cast<size_t>(w.linear.rows),
          "y must be [" + std::to_string(w.linear.rows) + "]");
  for (size_t i = 0; i < x.size(); i++) require(x.data()[i] < kLevels, "codes are below 16");
  nb::gil_scoped_release release;
  kernels().codes.count_pairs(w.linear, 0, w.linear.panels(), x.data(), x_levels.data(), y.data());
}

// Writes the dense float32 weight [rows, columns] in the caller's thread: callers are among
// PyTorch's or NumPy's parallel code, where a second team would only compete for the cores.
void py_unpack(const PyLinear& w, Floats out) {
  require(out.ndim() == 2 && out.shape(0) == static_cast<size_t>(w.linear.rows) &&
              out.shape(1) == static_cast<size_t>(w.linear.columns),
          "out must be [" + std::to_string(w.linear.rows) + ", " +
              std::to_string(w.linear.columns) + "]");
  nb::gil_scoped_release release;
  kernels().products.unpack(w.linear, 0, w.linear.panels(), out.data(), w.linear.columns);
}

// Writes one of its rows, [columns].
void py_unpack_row(const PyLinear& w, int row, Floats out) {
  require(row >= 0 && row < w.linear.rows, "no row " + std::to_string(row));
  require(out.ndim() == 1 && out.size() == static_cast<size_t>(w.linear.columns),
          "out must be [" + std::to_string(w.linear.columns) + "]");
  kernels().products.unpack_row(w.linear, row, out.data());
}

// Fills found [2, k] with the indices of the k largest and the k smallest values.
void py_outliers(ConstFloats values, Ints found) {
  require(values.ndim() == 1 && values.size() > 0, "values must be [N]");
  require(found.ndim() == 2 && found.shape(0) == 2 && 2 * found.shape(1) <= values.size(),
          "found must be [2, k] with 2 k <= N");
  const int size = static_cast<int>(values.size()), count = static_cast<int>(found.shape(1));
  std::vector<float> scratch(outlier_scratch(size));
  require(kernels().pointwise.select_outliers(values.data(), size, count, found.data(),
                                              found.data() + count, scratch.data()),
          "a value is not finite");
}

}  // namespace

void bind_linear(nb::module_& m) {
  nb::class_<PyLinear>(m, "Linear")
      .def(
          "__init__",
          [](PyLinear* self, ConstBytes data, int rows, int columns, const std::string& type,
             std::optional<ConstFloats> scale, std::optional<ConstFloats> bias,
             std::optional<ConstBytes> levels, int group, const std::string& scales,
             const std::string& minima, const std::string& grid, std::optional<ConstWords> entries,
             std::optional<ConstInts> order, int rotation, int max_code) {
            new (self)
                PyLinear(data, rows, columns, type, scale, bias,
                         {levels, group, scales, minima, grid, entries, order, rotation, max_code});
          },
          "data"_a.noconvert(), "rows"_a, "columns"_a, "dtype"_a,
          "scale"_a.noconvert().none() = nb::none(), "bias"_a.noconvert().none() = nb::none(),
          "levels"_a.noconvert().none() = nb::none(), "group"_a = 0, "scales"_a = "float16",
          "minima"_a = "none", "grid"_a = "none", "entries"_a.noconvert().none() = nb::none(),
          "order"_a.noconvert().none() = nb::none(), "rotation"_a = 0, "max_code"_a = 0)
      .def_prop_ro("bytes", [](const PyLinear& self) { return self.linear.bytes(); })
      .def("__call__", &py_linear, "x"_a.noconvert(), "y"_a.noconvert())
      .def("unpack", &py_unpack, "out"_a.noconvert())
      .def("unpack_row", &py_unpack_row, "row"_a, "out"_a.noconvert())
      .def("set_inputs", &py_set_inputs, "levels"_a.noconvert(), "outliers"_a, "group"_a, "low"_a,
           "high"_a)
      .def("count_pairs", &py_count_pairs, "x"_a.noconvert(), "x_levels"_a.noconvert(),
           "y"_a.noconvert());
  m.def("outliers", &py_outliers, "values"_a.noconvert(), "found"_a.noconvert());
}

}  // namespace suffice::bind
