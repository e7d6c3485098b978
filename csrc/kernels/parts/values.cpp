// Sums of a tile's weighted values, for each type that they are stored in.
#include "kernels/set.h"

namespace suffice::SUFFICE_ISA {

namespace {
// clang-format off: each file uses those before it
#include "kernels/kv_kmeans4.inl"
#include "kernels/zip_codes.inl"
#include "kernels/kv_planes.inl"
#include "kernels/by_type.inl"
#include "kernels/tile.inl"
#include "kernels/joint_queries.inl"
#include "kernels/scores.inl"
#include "kernels/values.inl"
#include "kernels/many_rows.inl"
#include "kernels/gather_values.inl"
// clang-format on
}  // namespace

void add_values(const KVHead& head, const Tile& tile, const Weights& weights, int count,
                float* output, std::byte* lines) {
  for_type(head.value_type, [&]<Type T>() {
    if constexpr (kUnpacks<T>)
      if (count > kManyRows) return add_unpacked<T>(head, tile, weights, count, output, lines);
    add<T>(head, tile, weights, count, output);
  });
}

void add_picked(const KVHead& head, Type type, Picked& picked, int count, const Weights& packed,
                float* output) {
  for_type(type, [&]<Type T>() { add_all_picked<T>(head, picked, count, packed, output); });
}

void restore_values(Type type, float* output, int count, int size) {
  for_type(type, [&]<Type T>() { restore<T>(output, count, size); });
}

}  // namespace suffice::SUFFICE_ISA

SUFFICE_SET_END
