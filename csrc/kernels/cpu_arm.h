// What an ARM processor has beyond ARMv8.0. The one place that asks the system for it: Linux names
// it in the auxiliary vector; elsewhere (macOS: sysctlbyname, hw.optional.arm.FEAT_DotProd,
// FEAT_I8MM, FEAT_BF16) nothing is found yet, and `neon` runs.
#pragma once

#if defined(__linux__)
#include <sys/auxv.h>
#endif

namespace suffice {

// Bits of the words AT_HWCAP and AT_HWCAP2, which Linux keeps as they are.
constexpr int kArmDot = 20, kArmI8mm = 13, kArmBf16 = 14;

inline bool arm_has_dot() {
#if defined(__linux__)
  return getauxval(AT_HWCAP) >> kArmDot & 1;
#else
  return false;
#endif
}

// Products of matrices of bytes, and of bfloat16.
inline bool arm_has_matrices() {
#if defined(__linux__)
  const unsigned long features = getauxval(AT_HWCAP2);
  return (features >> kArmI8mm & 1) && (features >> kArmBf16 & 1);
#else
  return false;
#endif
}

}  // namespace suffice
