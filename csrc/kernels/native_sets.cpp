// Prints the sets that this processor runs, for CMakeLists.txt.
#include <cstdio>

#include "kernels/cpu.h"

int main() {
  for (const char* name : suffice::kIsas)
    if (suffice::runs_here(name)) std::printf("%s;", name);
}
