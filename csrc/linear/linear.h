// A weight matrix, its layout in memory, and its inputs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "linear/code_layout.h"
#include "storage.h"

namespace suffice {

// A panel is 16 output rows. It consists of lines of 64 bytes, with 4 bytes of each row: `pair`
// columns, so that one step of a matmul reads one line.
//
//     panel of bfloat16 (pair = 2), a line for two columns:
//     line k/2:  | row 0: w[k] w[k+1] | row 1: w[k] w[k+1] | ...  | row 15: w[k] w[k+1] |
//                 4 bytes              4 bytes                      4 bytes
constexpr int weight_pair(Type type) { return 32 / bits_of(type); }

// A panel of 8-bit floats: for every 128 columns a line of scales, float32 [16] times 256, then
// their lines of 4 columns:
//
//     line  | row 0: w[k] w[k+1] | ... | row 15: w[k] w[k+1] | row 0: w[k+2] w[k+3] | ... |
//            2 bytes                    2 bytes               2 bytes
constexpr int kFloat8Span = 128;

// A panel of codebook weights with codes of 2 to 6 bits: for each two groups of columns, which
// share a scale, a line of float16 scales [2][16], then the units of the first group, then those of
// the second.
//
//     | scales of groups 0, 1 | units of group 0 | units of group 1 | scales of groups 2, 3 | ...
//
// A unit of 4 bits is one line with 8 columns; of other widths it has 32 columns in as many lines
// as bits. Four columns of a row are 4 bytes of a line. A byte holds the low bits of several such
// fours (4 bits: two fours; 2 or 3 bits: four fours, 2 bits each). Each further bit has a plane: a
// line in which bit i of a byte belongs to four i:
//
//     unit of 5 bits: 32 columns x 16 rows        the 4 bytes of a row
//       line 0  [16 rows][4 bytes]                each: | low 4 bits of four 1 | of four 0 |
//       line 1                                          | of four 3            | of four 2 |
//       line 2                                          | of four 5            | of four 4 |
//       line 3                                          | of four 7            | of four 6 |
//       line 4  [16 rows][4 bytes], a plane       bit i: bit 4 of the code in four i
//
//     unit of 3 bits:
//       line 0  [16 rows][4 bytes]                each: | low 2 bits of four 3 | 2 | 1 | 0 |
//       line 1                                          | of four 7            | 6 | 5 | 4 |
//       line 2  a plane                           bit i: bit 2 of the code in four i
//
// Byte j of the four bytes belongs to column kCodeOrder[j] of the four: neighbouring columns end up
// in the two halves of a 32-bit lane, as pairs of int16.
constexpr int kMinBits = 2, kMaxBits = 6;
constexpr int kMaxUnit = 32;
constexpr int unit_columns(int bits) { return bits == 4 ? 8 : kMaxUnit; }
constexpr size_t code_bytes(int bits, int columns) {  // of a panel's columns, whole units
  return static_cast<size_t>(columns) * bits * kPanel / 8;
}
constexpr int kNarrowOffset = 64;  // added to those multiplied with int8 inputs

// The codebook of activations. Each value of a row is replaced by the nearest of `count` ascending
// centroids times the greatest magnitude of its group. The `outliers` greatest and least values of
// the row, and values outside of [low, high], stay exact.
struct InputCodebook {
  float levels[kLevels] = {};
  int count = 0;  // 0: nothing is replaced
  int outliers = 0;
  int group = 0;  // values that share a scale, a multiple of kPanel; 0: all of a row
  float low = -__builtin_inff(), high = __builtin_inff();

  bool operator==(const InputCodebook&) const = default;
};

// Inputs of codebook weights may be rotated in blocks. Each block is multiplied by the Hadamard
// matrix of `hadamard_size` in every part of that size, then across its parts by the Hartley
// matrix: (cos t + sin t) / sqrt(parts) for part i of part j, t = 2 pi i j / parts. `wave` [parts]
// has its values by i j mod parts.
constexpr int kMaxHadamard = 1024;
constexpr int kMaxParts = 64;
constexpr int hadamard_size(int block) {
  return (block & -block) < kMaxHadamard ? (block & -block) : kMaxHadamard;
}
struct Rotation {
  int block = 0;  // 0: not rotated
  const float* wave = nullptr;
};

// A weight matrix y = W x: `rows` outputs, `columns` inputs; scale (int8 only) and bias are padded
// to a multiple of 16, or null. For codebook weights of `bits` bits: `levels` [2^bits] are the
// centroids plus an offset, and `group` columns share a scale. Their inputs are rotated, replaced
// by a codebook and quantized to integers of at most `max_code`, int8 if `narrow`.
struct Linear {
  const std::byte* data = nullptr;
  const float* scale = nullptr;
  const float* bias = nullptr;
  int rows = 0;
  int columns = 0;
  Type type = Type::f32;
  const uint8_t* levels = nullptr;
  int bits = 0;
  int group = 0;
  Rotation rotation;
  int max_code = 0;
  bool narrow = false;
  InputCodebook inputs;

  int panels() const { return round_up(rows, kPanel) / kPanel; }
  int steps() const { return round_up(columns, 4) / weight_pair(type); }  // lines; not for codes
  int whole_columns() const { return round_up(columns, unit_columns(bits)); }  // for codes
  size_t panel_bytes() const {
    const int spans = type == Type::f8 ? (columns + kFloat8Span - 1) / kFloat8Span : 0;
    if (type != Type::codebook) return static_cast<size_t>(steps() + spans) * kLineBytes;
    return round_up((columns + group - 1) / group, 2) / 2 * kLineBytes +
           code_bytes(bits, whole_columns());
  }
  size_t bytes() const {
    return panels() * (panel_bytes() + (scale ? kPanel * 4 : 0) + (bias ? kPanel * 4 : 0));
  }
};

// Inputs of a linear layer for `count` rows: float32, rows `stride` elements apart, zero from
// `columns` to the next multiple of 8. Quantized weights take a quantized copy: 4 bytes of each
// row, then the next 4 of each, so that a matmul of several rows reads one stream.
constexpr int kQuad = 4;

struct Inputs {
  const float* values = nullptr;
  const int8_t* codes = nullptr;       // [columns / 4][count][4]: int8 and narrow codes
  const float* scales = nullptr;       // [count]
  const int32_t* code_sums = nullptr;  // [count]
  const int16_t* wide = nullptr;       // [columns / 2][count][2]: other codebook weights
  const int32_t* starts = nullptr;     // [count][stride / 8]: start values of sums over codes
  int stride = 0;
  int count = 0;
};

}  // namespace suffice
