// Attention that first looks where the weight is: by codes, sketches and tiers.
#include "kernels/set.h"

namespace suffice::SUFFICE_ISA {

namespace {
// clang-format off: each file uses those before it
#include "kernels/kv_kmeans4.inl"
#include "kernels/zip_codes.inl"
#include "kernels/kv_planes.inl"
#include "kernels/by_type.inl"
#include "kernels/tile.inl"
#include "kernels/pointwise.inl"
#include "kernels/visible.inl"
#include "kernels/soften.inl"
#include "kernels/pick_values.inl"
#include "kernels/running.inl"
#include "kernels/coded_attention.inl"
#include "kernels/packed_softmax.inl"
#include "kernels/sketch.inl"
#include "kernels/attend_selected.inl"
#include "kernels/tiers.inl"
#include "kernels/tier_bounds.inl"
#include "kernels/boxes.inl"
// clang-format on
}  // namespace

constexpr SearchKernels search{
    .score_tiles = score_tiles,
    .add_coded = add_coded,
    .add_coded_masses = add_coded_masses,
    .soften_tiles = soften_tiles,
    .soften_packed = soften_packed,
    .estimate = estimate,
    .combine = combine,
    .attend_selected = attend_selected,
    .sum_blocks = sum_blocks,
    .keep_rows = keep_rows,
    .add_light = add_light,
    .attend_kept = attend_kept,
    .measure_queries = measure_queries,
    .bound_blocks = bound_blocks,
    .bound_light = bound_light,
    .compare_blocks = compare_blocks,
    .add_masses = add_masses,
    .encode_box = encode_box,
    .bound = bound,
};

}  // namespace suffice::SUFFICE_ISA

SUFFICE_SET_END
