// A model that Python builds part by part.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bind/bind.h"

namespace suffice::bind {

using Parts = nb::typed<nb::dict, nb::str, nb::object>;  // matrices and vectors, by name

// Keeps alive every array that it points into.
struct PyModel {
  ModelSpec spec;
  std::vector<nb::object> keep;
  std::unique_ptr<Model> model;

  const Linear* linear(nb::handle object) {
    if (object.is_none()) return nullptr;
    keep.push_back(nb::borrow(object));
    return &nb::cast<const PyLinear&>(object).linear;
  }
  // Sets a matrix to the one of that name, [rows, columns], if it is there.
  void set(Linear& to, const nb::dict& parts, const char* name, int rows, int columns,
           bool required = true) {
    const Linear* from = parts.contains(name) ? linear(parts[name]) : nullptr;
    require(from || !required, std::string("the model lacks its ") + name + " weight");
    if (!from) return;
    to = *from;
    require(to.rows == rows && to.columns == columns,
            std::string(name) + " is [" + std::to_string(to.rows) + ", " +
                std::to_string(to.columns) + "]; [" + std::to_string(rows) + ", " +
                std::to_string(columns) + "] expected");
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

// Adds the methods that add layers and their blocks.
void bind_blocks(nb::class_<PyModel>& model);

}  // namespace suffice::bind
