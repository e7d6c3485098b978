// Compiled so that nothing is fused (see CMakeLists.txt): base has no fused multiply-adds. Sets
// that have them name them here, so that tests notice if the compiler fuses after all.
#include "sampling/passes.h"

#include <bit>
#include <cstring>

#include "kernels/kernels.h"
#include "target.h"

#define SUFFICE_LANES 4
namespace suffice::base {
namespace {
#include "sampling/passes.inl"
}  // namespace
}  // namespace suffice::base
#undef SUFFICE_LANES

#if defined(__x86_64__)
SUFFICE_TARGET("avx2,fma")
#define SUFFICE_LANES 8
namespace suffice::v3 {
namespace {
#include "sampling/passes.inl"
}  // namespace
}  // namespace suffice::v3
#undef SUFFICE_LANES
SUFFICE_TARGET_END

#if SUFFICE_EMULATE
SUFFICE_TARGET("avx2,fma")
#else
SUFFICE_TARGET("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")
#endif
#define SUFFICE_LANES 16
namespace suffice::v4 {
namespace {
#include "sampling/passes.inl"
}  // namespace
}  // namespace suffice::v4
#undef SUFFICE_LANES
SUFFICE_TARGET_END
#endif

namespace suffice {

const Passes& passes() {
#if defined(__x86_64__)
  if (!std::strncmp(kernels().name, "v4", 2)) return v4::table;
  if (!std::strncmp(kernels().name, "v3", 2)) return v3::table;
#endif
  return base::table;
}

}  // namespace suffice
