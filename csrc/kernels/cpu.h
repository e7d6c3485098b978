// Which instruction sets this processor runs. Also compiled alone when a build is configured, to
// find the sets that are worth building.
#pragma once

#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#define SUFFICE_X86 1
#else
#define SUFFICE_X86 0
#endif

#if defined(__aarch64__)
#include "kernels/cpu_arm.h"
#endif

namespace suffice {

// All sets, best first.
constexpr const char* kIsas[] = {
#if SUFFICE_X86
    "v4_bf16", "v4", "v3_vnni", "v3",
#elif defined(__aarch64__)
    "neon_i8mm",
    "neon_dot",
    "neon",
#endif
    "base",
};

#if SUFFICE_X86
// Not every compiler has a name for these two.
inline bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

inline bool has_avx_vnni() {  // leaf 7.1, bit 4 of EAX
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}
#endif

inline bool runs_here([[maybe_unused]] const char* name) {
#if SUFFICE_X86
  if (!std::strncmp(name, "v4", 2))
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("fma") &&
           (!std::strcmp(name, "v4") || __builtin_cpu_supports("avx512bf16"));
  if (!std::strncmp(name, "v3", 2))
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c() &&
           (!std::strcmp(name, "v3") || has_avx_vnni());
#elif defined(__aarch64__)
  if (!std::strcmp(name, "neon_i8mm")) return arm_has_dot() && arm_has_matrices();
  if (!std::strcmp(name, "neon_dot")) return arm_has_dot();
#endif
  return true;
}

}  // namespace suffice
