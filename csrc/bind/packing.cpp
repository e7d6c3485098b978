#include <cmath>

#include "bind/bind.h"
#include "kernels/kernels.h"
#include "runtime/parallel.h"

namespace suffice::bind {

namespace {

constexpr int kMaxWide = 1 << 28;  // rows or columns, so that sizes fit their types

void check_dense(size_t bytes, Type type, int rows, int columns) {
  require(rows > 0 && columns > 0 && rows <= kMaxWide && columns <= kMaxWide,
          "a weight has from 1 to " + std::to_string(kMaxWide) + " rows and columns");
  require(type == Type::f32 || type == Type::f16 || type == Type::bf16,
          "dense weights are float32, float16 or bfloat16");
  const size_t expected = static_cast<size_t>(rows) * columns * size_of(type);
  require(bytes == expected, "the weight has " + std::to_string(bytes) + " bytes; " +
                                 std::to_string(expected) + " expected");
}

void check_size(const char* name, size_t size, size_t expected) {
  require(size == expected, std::string(name) + " has " + std::to_string(size) + " entries; " +
                                std::to_string(expected) + " expected");
}

// Calls f(thread, its panels) in all threads.
template <class F>
void by_threads(int panels, F f) {
  nb::gil_scoped_release release;
  const auto threads = team();
  threads->run([&](int thread) { f(thread, share(panels, thread, threads->size())); });
}

// Packs a dense weight [rows, columns] of one float type, as bytes, into `to`.
void py_pack(ConstBytes from, const std::string& from_type, int rows, int columns, Bytes to,
             const std::string& to_type) {
  const Type dense = type_of(from_type);
  check_dense(from.size(), dense, rows, columns);
  Linear packed;
  packed.rows = rows;
  packed.columns = columns;
  packed.type = type_of(to_type);
  require(packed.type == Type::f32 || packed.type == Type::bf16,
          "weights are packed as float32 or bfloat16");
  check_size("the packed weight", to.size(), packed.panels() * packed.panel_bytes());
  by_threads(packed.panels(), [&](int, Share mine) {
    kernels().products.pack(reinterpret_cast<const std::byte*>(from.data()), dense, rows, columns,
                            mine.first, mine.last, packed.type,
                            reinterpret_cast<std::byte*>(to.data()));
  });
}

// Rounds such a weight to int8, as panels, with scales that `shares` give, see linear/rounding.h.
// Returns whether all scales are finite.
bool py_round_int8(ConstBytes from, const std::string& from_type, int rows, int columns,
                   ConstFloats shares, Bytes to) {
  const Type dense = type_of(from_type);
  check_dense(from.size(), dense, rows, columns);
  const int panels = round_up(rows, kPanel) / kPanel;
  check_size("the packed weight", to.size(), panels * kInt8.panel_bytes(columns));
  require(shares.size() >= 1, "at least one share");
  std::vector<char> finite(team()->size(), true);
  by_threads(panels, [&](int thread, Share mine) {
    finite[thread] = kernels().products.round_int8(reinterpret_cast<const std::byte*>(from.data()),
                                                   dense, rows, columns, mine.first, mine.last,
                                                   shares.data(), static_cast<int>(shares.size()),
                                                   reinterpret_cast<std::byte*>(to.data()));
  });
  for (const char each : finite)
    if (!each) return false;
  return true;
}

Rounding rounding_of(int group, bool minima, const ConstFloats& levels, const ConstFloats& shares,
                     const std::optional<ConstFloats>& importance) {
  require(group == 16 || group == 32 || group == kMostGroup, "groups have 16, 32 or 64 columns");
  require(levels.size() >= 2 && levels.size() <= kMostLevels,
          "2 to " + std::to_string(kMostLevels) + " levels, not " + std::to_string(levels.size()));
  require(shares.size() >= 1, "at least one share");
  Rounding by;
  by.group = group;
  by.minima = minima;
  by.levels = levels.data();
  by.count = static_cast<int>(levels.size());
  by.shares = shares.data();
  by.tried = static_cast<int>(shares.size());
  by.importance = importance ? importance->data() : nullptr;
  by.lowest = by.levels[0];
  by.highest = by.levels[by.count - 1];
  by.even = true;
  for (int i = 1; i < by.count; i++) {
    require(by.levels[i] > by.levels[i - 1], "levels must ascend");
    by.even &= by.levels[i] == by.levels[i - 1] + 1;
  }
  require(!minima || (by.even && by.lowest == 0), "with minima, levels are 0, 1, ...");
  return by;
}

// Rounds values [rows, columns] to codes with nested scales; see linear/rounding.h. Returns the sum
// of the squared errors, which does not depend on the number of threads.
double py_round_groups(ConstFloats values, int group, ConstFloats levels, ConstFloats shares,
                       const std::optional<ConstFloats>& importance, Bytes codes, Bytes scales,
                       const std::optional<Bytes>& minima, Bytes outer) {
  require(values.ndim() == 2, "values must be [rows, columns]");
  const size_t rows = values.shape(0), columns = values.shape(1);
  require(rows > 0 && columns > 0 && rows <= kMaxWide && columns <= kMaxWide,
          "a weight has from 1 to " + std::to_string(kMaxWide) + " rows and columns");
  const Rounding by = rounding_of(group, minima.has_value(), levels, shares, importance);
  const size_t groups = rows * ((columns + group - 1) / group);
  check_size("importance", importance ? importance->size() : columns, columns);
  check_size("codes", codes.size(), rows * columns);
  check_size("scales", scales.size(), groups);
  check_size("minima", minima ? minima->size() : groups, groups);
  check_size("outer", outer.size(), 4 * rows * ((columns + kNested - 1) / kNested));
  const RoundedGroups to{codes.data(), reinterpret_cast<int8_t*>(scales.data()),
                         minima ? minima->data() : nullptr,
                         reinterpret_cast<uint16_t*>(outer.data())};
  const int panels = round_up(static_cast<int>(rows), kPanel) / kPanel;
  std::vector<double> lost(panels);
  by_threads(panels, [&](int, Share mine) {
    for (int panel = mine.first; panel < mine.last; panel++)
      lost[panel] =
          kernels().products.round_groups(by, values.data(), static_cast<int>(rows),
                                          static_cast<int>(columns), panel, panel + 1, to);
  });
  double all = 0.0;
  for (const double each : lost) all += each;
  return all;
}

}  // namespace

void bind_packing(nb::module_& m) {
  m.def("pack", &py_pack, "dense"_a.noconvert(), "type"_a, "rows"_a, "columns"_a,
        "packed"_a.noconvert(), "packed_type"_a);
  m.def("round_int8", &py_round_int8, "dense"_a.noconvert(), "type"_a, "rows"_a, "columns"_a,
        "shares"_a.noconvert(), "packed"_a.noconvert());
  m.def("round_groups", &py_round_groups, "values"_a.noconvert(), "group"_a, "levels"_a.noconvert(),
        "shares"_a.noconvert(), "importance"_a.noconvert().none(), "codes"_a.noconvert(),
        "scales"_a.noconvert(), "minima"_a.noconvert().none(), "outer"_a.noconvert());
}

}  // namespace suffice::bind
