// Included once per instruction set inside its namespace; SUFFICE_LEVEL is 0, 3 or 4, and
// SUFFICE_VNNI says whether there are products of bytes and of pairs that are added to sums.
// clang-format off: each file uses those before it
#include "simd.inl"
#include "products.inl"
#include "units.inl"
#include "rotate.inl"
#include "levels.inl"
#include "code_lines.inl"
#include "codes.inl"
#include "code_inputs.inl"
#include "bf16.inl"
#include "row_codes.inl"
#include "rows.inl"
#include "linear.inl"
#include "outliers.inl"
#include "pointwise.inl"
#include "tile.inl"
#include "scores.inl"
#include "values.inl"
#include "pick.inl"
#include "attention.inl"
#include "exaq.inl"
#include "traverse.inl"
#include "sketch.inl"
#include "visit.inl"
#include "boxes.inl"
#include "limits.inl"
// clang-format on

// Data, not a function: building it must not run an instruction that the CPU may lack.
constexpr Kernels table{SUFFICE_NAME,       linear,      unpack,          quantize_rows,
                        quantize_for_codes, rotate,      select_outliers, replace_by_levels,
                        count_pairs,        normalize,   activate,        attend,
                        traverse,           score_tiles, add_coded,       add_coded_masses,
                        soften_tiles,       estimate,    combine,         visit,
                        add_masses,         encode_box,  bound,           store_row,
                        load_rows,          read_memory, multiply_cached};
