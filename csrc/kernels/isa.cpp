// Every kernel, once per instruction set, in one translation unit: a namespace and a target pragma
// each, so that no inline function of one set can be linked into another.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <type_traits>

#include "bf16.h"
#include "kernels/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#define SUFFICE_X86 1
#else
#define SUFFICE_X86 0
#endif

#define SUFFICE_LEVEL 0
#define SUFFICE_VNNI 0
#define SUFFICE_NAME "base"
namespace suffice::base {
namespace {  // internal: nothing here is visible to the linker
#include "kernels/all.inl"
}  // namespace
}  // namespace suffice::base
#undef SUFFICE_LEVEL
#undef SUFFICE_VNNI
#undef SUFFICE_NAME

#if SUFFICE_X86
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,bmi,bmi2")
#define SUFFICE_LEVEL 3
#define SUFFICE_VNNI 0
#define SUFFICE_NAME "v3"
namespace suffice::v3 {
namespace {
#include "kernels/all.inl"
}  // namespace
}  // namespace suffice::v3
#undef SUFFICE_VNNI
#undef SUFFICE_NAME
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,bmi,bmi2,avxvnni")
#define SUFFICE_VNNI 1
#define SUFFICE_NAME "v3_vnni"
namespace suffice::v3_vnni {
namespace {
#include "kernels/all.inl"
}  // namespace
}  // namespace suffice::v3_vnni
#undef SUFFICE_LEVEL
#undef SUFFICE_NAME
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,bmi,bmi2,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")
#define SUFFICE_LEVEL 4
#define SUFFICE_NAME "v4"
namespace suffice::v4 {
namespace {
#include "kernels/all.inl"
}  // namespace
}  // namespace suffice::v4
#undef SUFFICE_LEVEL
#undef SUFFICE_VNNI
#undef SUFFICE_NAME
#pragma GCC pop_options
#endif

namespace suffice {
namespace {

// Best first.
constexpr const Kernels* kTables[] = {
#if SUFFICE_X86
    &v4::table,
    &v3_vnni::table,
    &v3::table,
#endif
    &base::table,
};
constexpr int kIsas = sizeof kTables / sizeof *kTables;

#if SUFFICE_X86
// Leaf 7.1, bit 4 of EAX: not every compiler has a name for it.
bool has_avx_vnni() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}
#endif

bool runs_here([[maybe_unused]] const char* name) {
#if SUFFICE_X86
  if (!std::strcmp(name, "v4"))
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("fma");
  if (!std::strncmp(name, "v3", 2))
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c") && (!std::strcmp(name, "v3") || has_avx_vnni());
#endif
  return true;
}

const Kernels*& chosen() {
  static const Kernels* current = [] {
    for (int i = 0; i < kIsas; i++)
      if (runs_here(kTables[i]->name)) return kTables[i];
    return kTables[kIsas - 1];
  }();
  return current;
}

}  // namespace

const Kernels& kernels() { return *chosen(); }

bool use_isa(const char* name) {
  for (int i = 0; i < kIsas; i++)
    if (!std::strcmp(name, kTables[i]->name) && runs_here(name)) {
      chosen() = kTables[i];
      return true;
    }
  return false;
}

const char* const* available_isas(int* count) {
  static const char* names[kIsas];
  *count = 0;
  for (int i = 0; i < kIsas; i++)
    if (runs_here(kTables[i]->name)) names[(*count)++] = kTables[i]->name;
  return names;
}

}  // namespace suffice
