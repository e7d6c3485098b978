// Attention to all keys, and by rules that read them block by block.
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
#include "kernels/pointwise.inl"
#include "kernels/visible.inl"
#include "kernels/soften.inl"
#include "kernels/pick_values.inl"
#include "kernels/running.inl"
#include "kernels/attention.inl"
#include "kernels/seen.inl"
#include "attention/techniques/all.inl"
#include "kernels/coming_scores.inl"
#include "kernels/traverse.inl"
// clang-format on
}  // namespace

constexpr AttentionKernels attention{
    .prepare_queries = prepare_queries,
    .attend = attend,
    .score_piece = score_piece,
    .traverse = traverse,
};

}  // namespace suffice::SUFFICE_ISA

SUFFICE_SET_END
