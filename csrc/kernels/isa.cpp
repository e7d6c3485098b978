// Chooses among the tables of kernels that isa_table.cpp makes, one for each instruction set.
#include <cstring>

#include "kernels/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#define SUFFICE_X86 1
#else
#define SUFFICE_X86 0
#endif

namespace suffice {

#if SUFFICE_X86
namespace v4_bf16 {
extern const Kernels table;
}
namespace v4 {
extern const Kernels table;
}
namespace v3_vnni {
extern const Kernels table;
}
namespace v3 {
extern const Kernels table;
}
#endif
namespace base {
extern const Kernels table;
}

namespace {

// Best first.
const Kernels* const kTables[] = {
#if SUFFICE_X86
    &v4_bf16::table, &v4::table, &v3_vnni::table, &v3::table,
#endif
    &base::table,
};
constexpr int kIsas = sizeof kTables / sizeof *kTables;

#if SUFFICE_X86
bool is_amd() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(0, &a, &b, &c, &d) && b == signature_AMD_ebx && d == signature_AMD_edx &&
         c == signature_AMD_ecx;
}

// Leaf 7.1, bit 4 of EAX: not every compiler has a name for it.
bool has_avx_vnni() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}
#endif

bool runs_here([[maybe_unused]] const char* name) {
#if SUFFICE_X86
  if (!std::strncmp(name, "v4", 2))
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("fma") &&
           (!std::strcmp(name, "v4") || __builtin_cpu_supports("avx512bf16"));
  if (!std::strncmp(name, "v3", 2))
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c") && (!std::strcmp(name, "v3") || has_avx_vnni());
#endif
  return true;
}

// Whether a set may be asked for: where others are emulated, AVX2 runs all of them.
bool may_run(const char* name) {
#if SUFFICE_EMULATE
  if (runs_here("v3")) return true;
#endif
  return runs_here(name);
}

const Kernels*& chosen() {
  static const Kernels* current = [] {
    for (int i = 0; i < kIsas; i++)
      if (runs_here(kTables[i]->name)) return kTables[i];
    return kTables[kIsas - 1];
  }();
  return current;
}

bool& crossing() {
#if SUFFICE_X86
  static bool on = is_amd();
#else
  static bool on = false;
#endif
  return on;
}

}  // namespace

bool crosses_inputs() { return crossing(); }
void cross_inputs(bool on) { crossing() = on; }

const Kernels& kernels() { return *chosen(); }

bool use_isa(const char* name) {
  for (int i = 0; i < kIsas; i++)
    if (!std::strcmp(name, kTables[i]->name) && may_run(name)) {
      chosen() = kTables[i];
      return true;
    }
  return false;
}

const char* const* available_isas(int* count) {
  static const char* names[kIsas];
  *count = 0;
  for (int i = 0; i < kIsas; i++)
    if (may_run(kTables[i]->name)) names[(*count)++] = kTables[i]->name;
  return names;
}

}  // namespace suffice
