// Products of a few rows with weights of more than kNarrow bits.
#include "kernels/set.h"

namespace suffice::SUFFICE_ISA {

namespace {
// clang-format off: each file uses those before it
#include "kernels/linear_codes_grid.inl"
#include "kernels/linear_codes_layout.inl"
#include "kernels/linear_codes.inl"
#include "kernels/linear_codes_row.inl"
// clang-format on
}  // namespace

void few_rows_of_wide_codes(const Linear& w, int first, int last, const Inputs& x, float* y,
                            int y_stride) {
  few_rows<kNarrow + 1, 8>(w, first, last, x, y, y_stride);
}

}  // namespace suffice::SUFFICE_ISA

SUFFICE_SET_END
