// Included once per instruction set inside its namespace. SUFFICE_LEVEL is 0, 3 or 4; SUFFICE_VNNI
// is 1 if there are instructions that add products of bytes, or of pairs, to sums.
// clang-format off: each file uses those before it
#include "simd.inl"
#include "dot.inl"
#include "register_blocking.inl"
#include "rotate.inl"
#include "lookup.inl"
#include "linear_codes_layout.inl"
#include "linear_codes.inl"
#include "linear_codes_inputs.inl"
#include "kv_kmeans4.inl"
#include "rows.inl"
#include "linear.inl"
#include "pack.inl"
#include "outliers.inl"
#include "pointwise.inl"
#include "tile.inl"
#include "scores.inl"
#include "values.inl"
#include "gather_values.inl"
#include "attention.inl"
#include "exaq.inl"
#include "traverse.inl"
#include "sketch.inl"
#include "attend_selected.inl"
#include "boxes.inl"
#include "roofline.inl"
// clang-format on

// Data, not a function: building it must not run an instruction that the CPU may lack.
constexpr Kernels table{
    .name = SUFFICE_NAME,
    .linear = linear,
    .unpack = unpack,
    .pack = pack,
    .quantize_rows = quantize_rows,
    .quantize_for_codes = quantize_for_codes,
    .rotate = rotate,
    .select_outliers = select_outliers,
    .replace_by_levels = replace_by_levels,
    .count_pairs = count_pairs,
    .normalize = normalize,
    .activate = activate,
    .attend = attend,
    .traverse = traverse,
    .score_tiles = score_tiles,
    .add_coded = add_coded,
    .add_coded_masses = add_coded_masses,
    .soften_tiles = soften_tiles,
    .estimate = estimate,
    .combine = combine,
    .attend_selected = attend_selected,
    .add_masses = add_masses,
    .encode_box = encode_box,
    .bound = bound,
    .store_row = store_row,
    .load_rows = load_rows,
    .read_memory = read_memory,
    .multiply_cached = multiply_cached,
};
