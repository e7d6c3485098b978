// Included once per instruction set inside its namespace; SUFFICE_LEVEL is 0, 3 or 4.
#include "simd.inl"
#include "rows.inl"
#include "linear.inl"
#include "pointwise.inl"
#include "attention.inl"

inline Kernels table(const char* name) {
  return Kernels{name,     linear, quantize_rows, normalize,
                 activate, attend, store_row,     load_rows};
}
