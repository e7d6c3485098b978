// Every kernel for one instruction set. Compiled once for each: SUFFICE_ISA is its name,
// SUFFICE_ISA_LEVEL 0, 3 or 4, SUFFICE_ISA_VNNI 1 if it adds products of bytes, or of pairs, to
// sums, SUFFICE_ISA_BF16 1 if it also adds products of pairs of bfloat16 to sums.
//
// SUFFICE_EMULATE 1: for AVX2, which emulates what else the set has; see emulated.inl.
//
// A pragma below the library's headers chooses the instruction set, not a compiler option: so no
// inline function of the library is compiled for it, which the linker could give to other code.
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <type_traits>
#include <utility>

#include "bf16.h"
#include "kernels/kernels.h"

#if SUFFICE_ISA_LEVEL > 0
#include <immintrin.h>
#endif

// From here on files have their half of kernels; see attention/techniques/all.inl.
#define SUFFICE_LEVEL SUFFICE_ISA_LEVEL
#define SUFFICE_VNNI SUFFICE_ISA_VNNI
#define SUFFICE_BF16 SUFFICE_ISA_BF16

#if SUFFICE_EMULATE && SUFFICE_LEVEL >= 3
#pragma GCC target("avx2,fma,f16c,bmi,bmi2")
#elif SUFFICE_LEVEL == 4 && SUFFICE_BF16
#pragma GCC target( \
    "avx2,fma,f16c,bmi,bmi2,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16")
#elif SUFFICE_LEVEL == 4
#pragma GCC target("avx2,fma,f16c,bmi,bmi2,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")
#elif SUFFICE_LEVEL == 3 && SUFFICE_VNNI
#pragma GCC target("avx2,fma,f16c,bmi,bmi2,avxvnni")
#elif SUFFICE_LEVEL == 3
#pragma GCC target("avx2,fma,f16c,bmi,bmi2")
#endif

#define SUFFICE_TEXT(name) #name
#define SUFFICE_NAME_OF(isa) SUFFICE_TEXT(isa)

namespace suffice::SUFFICE_ISA {

extern const Kernels table;

namespace {  // internal: nothing here is visible to the linker
#if SUFFICE_EMULATE && SUFFICE_VNNI
#include "kernels/emulated.inl"
#endif
#include "kernels/all.inl"
}  // namespace

// Data, not a function: building it must not run an instruction that the CPU may lack.
constexpr Kernels table{
    .name = SUFFICE_NAME_OF(SUFFICE_ISA),
    .linear = linear,
    .unpack = unpack,
    .unpack_row = unpack_row,
    .pack = pack,
    .round_int8 = round_int8,
    .round_groups = round_groups,
    .quantize_rows = quantize_rows,
    .quantize_for_codes = quantize_for_codes,
    .takes_bytes = kTakesBytes,
    .takes_pairs = kTakesPairs,
    .crossed_rows = kCrossedRows,
    .round_rows = round_rows,
    .rounds_inputs = kRoundsInputs,
    .rotate = rotate,
    .select_outliers = select_outliers,
    .replace_by_levels = replace_by_levels,
    .count_pairs = count_pairs,
    .normalize = normalize,
    .activate = activate,
    .soft_cap = soft_cap,
    .prepare_queries = prepare_queries,
    .attend = attend,
    .traverse = traverse,
    .score_tiles = score_tiles,
    .score_piece = score_piece,
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
    .fetch_place = fetch_place,
    .store_row = store_row,
    .load_rows = load_rows,
    .read_memory = read_memory,
    .multiply_cached = multiply_cached,
};

}  // namespace suffice::SUFFICE_ISA
