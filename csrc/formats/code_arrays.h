// Codes that lie in plain arrays, brought to panels.
#pragma once

#include <cstdint>

#include "linear/code_layout.h"

namespace suffice {

// Codes [rows][columns], and numbers of the `groups` groups of each row:
//
//     scales     f16, bf16, f32: numbers of 16 or 32 bits [rows][groups]; power, nested: bytes
//     minima     f16: numbers of 16 bits [rows][groups]; zero, nested: bytes; null without minima
//     outer      nested: float16 [rows][spans][2], of scales and of minima; else null
struct CodeArrays {
  CodeLayout layout;
  int64_t rows;
  int64_t columns;
  const uint8_t* codes;
  const uint8_t* scales;
  const uint8_t* minima;
  const uint8_t* outer;

  int64_t groups() const { return (columns + layout.group - 1) / layout.group; }
  int64_t spans() const { return (columns + layout.span() - 1) / layout.span(); }
};

enum class Fault { none, not_finite, large_code };

// Writes one panel in the caller's thread. Says whether a scale, a minimum or a value that they can
// give is not finite, or a code has too many bits.
Fault write_panel(const CodeArrays& from, int64_t panel, uint8_t* to);

// Writes all panels in all threads.
Fault write_panels(const CodeArrays& from, uint8_t* to);

}  // namespace suffice
