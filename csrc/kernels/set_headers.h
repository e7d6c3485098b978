// What the kernels of a set include before their instruction set is chosen; see set.h.
#pragma once

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
#include "kernels/tile.h"

#if SUFFICE_ISA_LEVEL == 1
#include <arm_neon.h>
#elif SUFFICE_ISA_LEVEL > 0
#include <immintrin.h>
#endif
