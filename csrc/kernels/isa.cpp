// Chooses among the tables of kernels, one for each instruction set that was built.
#include <cstring>

#include "kernels/cpu.h"
#include "kernels/kernels.h"
#include "sets.h"  // SUFFICE_EACH_SET, made by CMake: the sets that are built, best first

namespace suffice {

#define SUFFICE_DECLARE(set)  \
  namespace set {             \
  extern const Kernels table; \
  }
SUFFICE_EACH_SET(SUFFICE_DECLARE)

namespace {

#define SUFFICE_TABLE(set) &set::table,
const Kernels* const kTables[] = {SUFFICE_EACH_SET(SUFFICE_TABLE)};
constexpr int kBuilt = sizeof kTables / sizeof *kTables;

#if SUFFICE_X86
bool is_amd() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(0, &a, &b, &c, &d) && b == signature_AMD_ebx && d == signature_AMD_edx &&
         c == signature_AMD_ecx;
}

#endif

// Whether a set may be asked for: where others are emulated, AVX2 runs all of them.
bool may_run(const char* name) {
#if SUFFICE_EMULATE
  if (runs_here("v3")) return true;
#endif
  return runs_here(name);
}

const Kernels*& chosen() {
  static const Kernels* current = [] {
    for (int i = 0; i < kBuilt; i++)
      if (runs_here(kTables[i]->name)) return kTables[i];
    return kTables[kBuilt - 1];
  }();
  return current;
}

bool& as_on_amd() {
#if SUFFICE_X86
  static bool on = is_amd();
#else
  static bool on = false;
#endif
  return on;
}

}  // namespace

bool on_amd() { return as_on_amd(); }
void choose_as_on_amd(bool on) { as_on_amd() = on; }

const Kernels& kernels() { return *chosen(); }

bool use_isa(const char* name) {
  for (int i = 0; i < kBuilt; i++)
    if (!std::strcmp(name, kTables[i]->name) && may_run(name)) {
      chosen() = kTables[i];
      return true;
    }
  return false;
}

std::vector<IsaState> isa_states() {
  std::vector<IsaState> states;
  for (const char* name : kIsas) {
    IsaState state{name, false, may_run(name)};
    for (const Kernels* table : kTables) state.built |= !std::strcmp(name, table->name);
    states.push_back(state);
  }
  return states;
}

}  // namespace suffice
