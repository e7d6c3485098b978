// Kernels on plain rows of floats and on layers' states, and the machine's limits.
#include "kernels/set.h"

namespace suffice::SUFFICE_ISA {

namespace {
// clang-format off: each file uses those before it
#include "kernels/outliers.inl"
#include "kernels/pointwise.inl"
#include "kernels/recurrence.inl"
#include "kernels/roofline.inl"
// clang-format on
}  // namespace

constexpr PointwiseKernels pointwise{
    .rotate = rotate,
    .normalize = normalize,
    .activate = activate,
    .xielu = xielu,
    .soft_cap = soft_cap,
    .select_outliers = select_outliers,
    .replace_by_levels = replace_by_levels,
    .read_memory = read_memory,
    .multiply_cached = multiply_cached,
};

constexpr StateKernels states{
    .advance = advance,
    .convolve = convolve,
};

}  // namespace suffice::SUFFICE_ISA

SUFFICE_SET_END
