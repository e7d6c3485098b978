// Shared by the binding files of the simulators.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>

#include "dram.h"

namespace suffice::hw::bind {

namespace nb = nanobind;
using namespace nb::literals;

inline void require(bool holds, const std::string& message) {
  if (!holds) throw std::invalid_argument(message);
}

struct Part {
  Shape shape;
  Timing timing;
};

void bind_scrooge(nb::module_& module);

}  // namespace suffice::hw::bind
