// What every part of the kernels begins with. A part is one subject for one instruction set,
// compiled alone: SUFFICE_ISA is the set's name and namespace, SUFFICE_ISA_LEVEL 0, 1 for NEON, 3
// or 4, SUFFICE_ISA_VNNI 1 if it adds products of bytes to sums, SUFFICE_ISA_BF16 1 if it also adds
// products of pairs of bfloat16 to sums; with NEON, matrices of bytes and of bfloat16 as well.
//
// SUFFICE_EMULATE 1: for AVX2, which emulates what else the set has; see emulated.inl.
//
// The instruction set is chosen below the library's headers, not by a compiler option: so no inline
// function of the library is compiled for it, which the linker could give to other code.
// SUFFICE_SET_END ends it, and the part.
#pragma once

#include "kernels/set_headers.h"
#include "target.h"

// From here on files have their half of kernels; see attention/techniques/all.inl.
#define SUFFICE_LEVEL SUFFICE_ISA_LEVEL
#define SUFFICE_VNNI SUFFICE_ISA_VNNI
#define SUFFICE_BF16 SUFFICE_ISA_BF16
#define SUFFICE_NEON (SUFFICE_LEVEL == 1)

#if SUFFICE_LEVEL == 0 || (SUFFICE_NEON && !SUFFICE_VNNI)  // all processors have it
#define SUFFICE_SET_END
#else
#define SUFFICE_SET_END SUFFICE_TARGET_END
#if SUFFICE_NEON && SUFFICE_BF16
SUFFICE_TARGET("arch=armv8.2-a+dotprod+i8mm+bf16")
#elif SUFFICE_NEON
SUFFICE_TARGET("arch=armv8.2-a+dotprod")
#elif SUFFICE_EMULATE
SUFFICE_TARGET("avx2,fma,f16c,bmi,bmi2")
#elif SUFFICE_LEVEL == 4 && SUFFICE_BF16
SUFFICE_TARGET("avx2,fma,f16c,bmi,bmi2,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16")
#elif SUFFICE_LEVEL == 4
SUFFICE_TARGET("avx2,fma,f16c,bmi,bmi2,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")
#elif SUFFICE_VNNI
SUFFICE_TARGET("avx2,fma,f16c,bmi,bmi2,avxvnni")
#else
SUFFICE_TARGET("avx2,fma,f16c,bmi,bmi2")
#endif
#endif

// Hidden, so that what a part takes and none defines is the linker's error, not the importer's.
#pragma GCC visibility push(hidden)

namespace suffice::SUFFICE_CODES_OF {
extern const CodeKernels codes;
}

namespace suffice::SUFFICE_ISA {

// Each part defines its table, and these functions, which other parts call. All else is internal:
// the linker sees nothing of it.
extern const ProductKernels products;
extern const AttentionKernels attention;
extern const SearchKernels search;
extern const RowKernels rows;
extern const PointwiseKernels pointwise;
extern const StateKernels states;

// codes_few_narrow.cpp, codes_few_wide.cpp: products of fewer rows than linear_codes_found.inl
// takes, with codes of at most kNarrow bits, and of more.
constexpr int kNarrow = 4;
void few_rows_of_narrow_codes(const Linear&, int first, int last, const Inputs&, float* y,
                              int y_stride);
void few_rows_of_wide_codes(const Linear&, int first, int last, const Inputs&, float* y,
                            int y_stride);
// keys.cpp: scores [count][kTileRows] of a tile. `lines`: memory for a tile that many rows need
// unpacked; null: it is not.
void score_keys(const KVHead&, const Tile&, const Queries&, int count, float* scores,
                std::byte* lines);
// values.cpp: adds a tile's values, or selected ones, then none are left; restores the element
// order of complete outputs [count][size], and undoes the rotation of values.
void add_values(const KVHead&, const Tile&, const Weights&, int count, float* output,
                std::byte* lines);
void add_picked(const KVHead&, Type, Picked&, int count, const Weights& packed, float* output);
void restore_values(Type, float* output, int count, int size);

#pragma GCC visibility pop

namespace {
#if SUFFICE_EMULATE && SUFFICE_VNNI
#include "kernels/emulated.inl"
#endif
// clang-format off: each file uses those before it
#include "kernels/simd.inl"
#include "kernels/simd_narrow.inl"
#include "kernels/dot.inl"
#include "kernels/register_blocking.inl"
#include "kernels/rotate.inl"
#include "kernels/lookup.inl"
// clang-format on
}  // namespace

}  // namespace suffice::SUFFICE_ISA
