// Compiles a part of a file for more instructions than the rest: what stands between
// SUFFICE_TARGET("avx2,fma") and SUFFICE_TARGET_END.
#pragma once

#define SUFFICE_PRAGMA(text) _Pragma(#text)

#if defined(__clang__)
#define SUFFICE_TARGET(features) \
  SUFFICE_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define SUFFICE_TARGET_END SUFFICE_PRAGMA(clang attribute pop)
#else
#define SUFFICE_TARGET(features)   \
  SUFFICE_PRAGMA(GCC push_options) \
  SUFFICE_PRAGMA(GCC target(features))
#define SUFFICE_TARGET_END SUFFICE_PRAGMA(GCC pop_options)
#endif
