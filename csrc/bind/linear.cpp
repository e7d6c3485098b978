#include <cstring>
#include <optional>

#include "../kernels.h"
#include "../parallel.h"
#include "bind.h"

namespace suffice::bind {

PyLinear::PyLinear(ConstBytes bytes, int rows, int columns, const std::string& type,
                   const std::optional<ConstFloats>& scales,
                   const std::optional<ConstFloats>& biases)
    : data(bytes) {
  require(rows > 0 && columns > 0, "a linear layer needs at least one row and one column");
  linear.rows = rows;
  linear.columns = columns;
  linear.type = type_of(type);
  require(linear.type != Type::f16, "weights are float32, bfloat16 or int8");
  const size_t expected = linear.panels() * linear.panel_bytes();
  require(bytes.size() == expected, "packed weight has " + std::to_string(bytes.size()) +
                                        " bytes; " + std::to_string(expected) + " expected");
  require((linear.type == Type::i8) == scales.has_value(),
          "int8 weights, and only these, need a scale");
  linear.data = reinterpret_cast<const std::byte*>(bytes.data());
  linear.scale = padded(scales, scale, "scale");
  linear.bias = padded(biases, bias, "bias");
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

}  // namespace

void bind_linear(nb::module_& m) {
  nb::class_<PyLinear>(m, "Linear")
      .def(nb::init<ConstBytes, int, int, const std::string&, std::optional<ConstFloats>,
                    std::optional<ConstFloats>>(),
           "data"_a.noconvert(), "rows"_a, "columns"_a, "dtype"_a,
           "scale"_a.noconvert().none() = nb::none(), "bias"_a.noconvert().none() = nb::none())
      .def_prop_ro("bytes", [](const PyLinear& self) { return self.linear.bytes(); })
      .def("__call__", &py_linear, "x"_a.noconvert(), "y"_a.noconvert())
      .def("unpack", &py_unpack, "out"_a.noconvert());
}

}  // namespace suffice::bind
