// A model that Python builds part by part.
#pragma once

#include <algorithm>
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
  static int rows_of(const nb::dict& parts, const char* name) {
    return nb::cast<const PyLinear&>(parts[name]).linear.rows;
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
  // The same, with what adapters add: a list of None or of (down, up) under its name and
  // `.adapters`.
  void set(Matrix& to, const nb::dict& parts, const char* name, int rows, int columns,
           bool required = true) {
    set(static_cast<Linear&>(to), parts, name, rows, columns, required);
    const std::string key = std::string(name) + ".adapters";
    if (!parts.contains(key.c_str())) return;
    require(to.data, "an adapter of a matrix that is not there");
    const auto given = nb::cast<nb::list>(parts[key.c_str()]);
    Adapters& all = spec.adapters;
    require(given.size() == all.bytes.size(), "one entry for each adapter");
    for (size_t i = 0; i < given.size(); i++)
      to.adapters.push_back(given[i].is_none() ? LowRank{} : low_rank(given[i], i, rows, columns));
  }
  LowRank low_rank(nb::handle given, size_t adapter, int rows, int columns) {
    const auto both = nb::cast<nb::tuple>(given);
    const LowRank own{*linear(both[0]), *linear(both[1])};
    const int rank = own.down.rows;
    require(own.down.columns == columns && own.up.rows == rows && own.up.columns == rank,
            "an adapter is [rank, columns] and [rows, rank]");
    Adapters& all = spec.adapters;
    for (const Linear* each : {&own.down, &own.up}) {
      require(each->type == Type::f32 || each->type == Type::bf16, "adapters are floats");
      require(!all.like.data || each->type == all.like.type, "adapters have one type");
      if (!all.like.data) all.like = *each;
      all.bytes[adapter] += static_cast<int64_t>(each->bytes());
    }
    all.most_rank = std::max(all.most_rank, rank);
    return own;
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

// Appends a block to the last layer, with the norms around it, whether it is parallel to the block
// before it, and the scale of its output.
template <class Part>
void add_block(PyModel& self, const Parts& parts, Part part) {
  require(!self.spec.layers.empty(), "a block belongs to a layer");
  Layer& layer = self.spec.layers.back();
  constexpr bool attends = std::is_base_of_v<Sight, Part>;
  require(!attends || layer.blocks.empty(), "attention is a layer's first block");
  Block block{.before = {}, .after = {}, .whole = {}, .part = std::move(part)};
  const size_t width = self.spec.width;
  self.set(block.before, parts, "before", width);
  self.set(block.after, parts, "after", width);
  self.set(block.whole, parts, "whole", width);
  self.set(block.joined, parts, "joined", width);
  block.parallel = nb::cast<bool>(parts["parallel"]);
  block.scale = nb::cast<float>(parts["output_scale"]);
  if (block.parallel) {
    require(!layer.blocks.empty(), "the first block of a layer is parallel to none");
    for (const Block* each : {&block, &layer.blocks.back()})
      require(!each->after.weight && !each->whole.weight,
              "parallel blocks have norms before them only");
  }
  if (block.joined.weight) {
    require(!layer.blocks.empty() && !block.parallel, "a block is joined to the one before it");
    layer.blocks.back().held = true;
  }
  layer.blocks.push_back(std::move(block));
}

// Adds the methods that add layers, their blocks and what is around them.
void bind_blocks(nb::class_<PyModel>& model);
void bind_states(nb::class_<PyModel>& model);

}  // namespace suffice::bind
