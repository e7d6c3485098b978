// The table of one instruction set: data alone, so that no instruction of the set is run to make
// it.
#include "kernels/kernels.h"

#define SUFFICE_TEXT(name) #name
#define SUFFICE_NAME_OF(isa) SUFFICE_TEXT(isa)

#pragma GCC visibility push(hidden)

namespace suffice::SUFFICE_CODES_OF {
extern const CodeKernels codes;
}

namespace suffice::SUFFICE_ISA {

extern const ProductKernels products;
extern const AttentionKernels attention;
extern const SearchKernels search;
extern const RowKernels rows;
extern const PointwiseKernels pointwise;
extern const StateKernels states;

#pragma GCC visibility pop

extern const Kernels table;
constexpr Kernels table{SUFFICE_NAME_OF(SUFFICE_ISA),
                        products,
                        SUFFICE_CODES_OF::codes,
                        attention,
                        search,
                        rows,
                        pointwise,
                        states};

}  // namespace suffice::SUFFICE_ISA
