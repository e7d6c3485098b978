// Products of many rows with weights of few bits; their inputs, and what unpacks them.
#include "kernels/set.h"

namespace suffice::SUFFICE_ISA {

namespace {
// clang-format off: each file uses those before it
#include "kernels/linear_codes_grid.inl"
#include "kernels/linear_codes_layout.inl"
#include "kernels/linear_codes.inl"
#include "kernels/linear_codes_crossed.inl"
#include "kernels/linear_codes_neon.inl"
#include "kernels/linear_codes_found.inl"
#include "kernels/linear_codes_unpack.inl"
#include "kernels/linear_codes_inputs.inl"
// clang-format on
}  // namespace

constexpr CodeKernels codes{
    .linear = linear_of_codes,
    .unpack = unpack_codes,
    .unpack_row = unpack_codes_row,
    .quantize_inputs = quantize_for_codes,
    .takes_bytes = kTakesBytes,
    .takes_pairs = kTakesPairs,
    .byte_range = kByteRange,
    .crossing = kCrossing,
    .crossed_rows = kCrossedRows,
    .count_pairs = count_pairs,
};

}  // namespace suffice::SUFFICE_ISA

SUFFICE_SET_END
