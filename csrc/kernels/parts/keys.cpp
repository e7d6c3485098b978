// Scores of a tile's keys, for each type that they are stored in.
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
#include "kernels/joint_scores.inl"
// clang-format on
}  // namespace

void score_keys(const KVHead& head, const Tile& tile, const Queries& queries, int count,
                float* scores, std::byte* lines) {
  for_type(head.key_type, [&]<Type T>() {
    if constexpr (!is_four_bits(T))
      if (head.joint) return score_joint<T>(head, tile, queries, count, scores);
    if constexpr (kUnpacks<T>)
      if (lines && count > kManyRows)
        return score_unpacked<T>(head, tile, queries, count, scores, lines);
    score<T>(head, tile, queries, count, scores);
  });
}

}  // namespace suffice::SUFFICE_ISA

SUFFICE_SET_END
