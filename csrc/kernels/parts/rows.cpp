// Rows of keys and values, as they are stored in a cache.
#include "kernels/set.h"

namespace suffice::SUFFICE_ISA {

namespace {
// clang-format off: each file uses those before it
#include "kernels/kv_kmeans4.inl"
#include "kernels/zip_codes.inl"
#include "kernels/kv_planes.inl"
#include "kernels/rows.inl"
// clang-format on
}  // namespace

constexpr RowKernels rows{
    .fetch_place = fetch_place,
    .store_row = store_row,
    .load_rows = load_rows,
};

}  // namespace suffice::SUFFICE_ISA

SUFFICE_SET_END
