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

// Inputs of codes may be rotated in blocks. Each block is multiplied by the Hadamard
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
// to a multiple of 16, or null. Codes lie as `layout` says; `levels` [2^bits] are the levels plus
// kLevelOffset, from `lowest` to `lowest` + `range`, and `even` if each is that before it plus 1.
// Column k of the codes multiplies input order[k], or input k. Inputs are put in order, rotated,
// replaced by a codebook and quantized to integers of at most `max_code`.
struct Linear {
  const std::byte* data = nullptr;
  const float* scale = nullptr;
  const float* bias = nullptr;
  int rows = 0;
  int columns = 0;
  Type type = Type::f32;
  CodeLayout layout;
  const uint8_t* levels = nullptr;
  const uint32_t* entries = nullptr;  // of the grid: four bits in each byte, see expand_places
  int lowest = 0;
  int range = 0;
  bool even = false;
  const int32_t* order = nullptr;
  Rotation rotation;
  int max_code = 0;
  InputCodebook inputs;

  int panels() const { return round_up(rows, kPanel) / kPanel; }
  int steps() const { return round_up(columns, 4) / weight_pair(type); }  // lines; not for codes
  size_t panel_bytes() const {
    if (type == Type::codebook) return layout.panel_bytes(columns);
    const int spans = type == Type::f8 ? (columns + kFloat8Span - 1) / kFloat8Span : 0;
    return static_cast<size_t>(steps() + spans) * kLineBytes;
  }
  size_t bytes() const {
    return panels() * (panel_bytes() + (scale ? kPanel * 4 : 0) + (bias ? kPanel * 4 : 0));
  }
};

// Inputs of codes are integers times a scale for every 32 columns of a row. Their greatest integer,
// kMaxByte or kMaxPair, can be split into one or two signed bytes: 256 * 127 + 127.
constexpr int kMaxByte = 127, kMaxPair = 32639;

// What a row of inputs has for 32 columns: its scale, and sums over all of them, over the first 16
// and over the last 16.
struct StretchSum {
  int32_t codes;  // of the integers; of crossed ones see cross_sums
  float values;   // times their scale
};
struct alignas(32) InputStretch {
  float scale;
  StretchSum sums[3];
};

// Inputs of a linear layer for `count` rows: float32, rows `stride` elements apart, zero from
// `columns` to the next multiple of 8. Quantized weights take a quantized copy: 4 columns of each
// row (32 for codes), then the next of each, so that a matmul of several rows reads one stream; of
// codes for one part of the rows after the other (kPartRows).
constexpr int kQuad = 4;
constexpr int kRoundedRows = 8;  // of bfloat16 inputs, in registers together

struct Inputs {
  const float* values = nullptr;
  const int8_t* codes = nullptr;       // [columns / 4][count][4] of int8 weights
  const float* scales = nullptr;       // [count] of int8 weights
  const int32_t* code_sums = nullptr;  // [count] of int8 weights
  const int8_t* bytes = nullptr;       // [columns / 32][count][8][1 or 2][4]: low bytes, high bytes
  const int16_t* pairs = nullptr;      // [columns / 32][count][32]
  const InputStretch* stretches = nullptr;  // [columns / 32][count]
  // [blocks of 8 rows][columns / 2][rows of the block] of bfloat16 weights: pairs of bfloat16; with
  // NEON as linear_bf16_neon.inl has them.
  const uint32_t* rounded = nullptr;
  int stride = 0;
  int count = 0;
  bool crossed =
      false;  // only pairs are there, and their stretches are for linear_codes_crossed.inl
};

}  // namespace suffice
