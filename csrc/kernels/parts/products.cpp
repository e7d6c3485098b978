// Products with dense weights, and their storage.
#include "kernels/set.h"

namespace suffice::SUFFICE_ISA {

namespace {
// clang-format off: each file uses those before it
#include "kernels/linear_ahead.inl"
#include "kernels/linear_f8.inl"
#include "kernels/linear_bf16.inl"
#include "kernels/linear_bf16_neon.inl"
#include "kernels/linear.inl"
#include "kernels/pack.inl"
#include "kernels/round_groups.inl"
#include "kernels/round_int8.inl"
// clang-format on
}  // namespace

constexpr ProductKernels products{
    .linear = linear,
    .unpack = unpack,
    .unpack_row = unpack_row,
    .quantize_rows = quantize_rows,
    .round_rows = round_rows,
    .rounds_inputs = kRoundsInputs,
    .pack = pack,
    .round_int8 = round_int8,
    .round_groups = round_groups,
};

}  // namespace suffice::SUFFICE_ISA

SUFFICE_SET_END
