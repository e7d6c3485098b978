// How weights of few bits lie in memory: codes, and the scales and minima of groups of columns.
#pragma once

#include <cstddef>
#include <cstdint>

#include "storage.h"

namespace suffice {

// A weight is scale * level[code] + minimum. Its group, `group` adjacent columns of a row, has one
// scale and one minimum, stored in one of these forms:
//
//     f16, bf16   a number of 16 bits
//     power       a byte e: 2^(e - 128)
//     nested      a signed byte, times a float16 for all groups of 256 columns
//     f32         a number of 32 bits
//     e4m3        a byte 0eeeemmm: (8 + m) 2^(e - 11), if e = 0 m 2^-10; half of what it means
//                 as a float of 8 bits
//     nested32    a signed byte, times a float32 for all groups of 256 columns; of grids
enum class ScaleForm : uint8_t { f16, bf16, power, nested, f32, e4m3, nested32 };

//     none        0
//     f16         a float16
//     zero        an unsigned byte z: scale * (level - z), or (level - (z - 128)) of 8 bits
//     nested      an unsigned byte m: -m times a float16 for all groups of 256 columns
enum class MinimumForm : uint8_t { none, f16, zero, nested };

// A grid is a list of some of all combinations of the codes of 8 or 4 adjacent columns, its
// entries; a place in the list takes fewer bits than the codes. The highest bit of a code is not of
// the entry: it is a sign, of each column or (iq1) of all columns of an entry.
enum class Grid : uint8_t { none, iq2_xxs, iq2_xs, iq2_s, iq1, iq3_xxs, iq3_s };

struct GridShape {
  int place_bits = 0;  // 8 or more
  int columns = 0;     // of an entry
  bool signs = false;  // of each column

  constexpr int entries() const { return columns ? 32 / columns : 0; }  // of a unit
  // Bits of a place beyond a byte, and the sign of an entry.
  constexpr int further_bits() const { return place_bits - 8 + (signs ? 0 : 1); }
  constexpr int further_lines() const { return 8 * entries() * further_bits() / 32; }  // of a span
  constexpr int unit_lines() const { return entries() / 4 + (signs ? 1 : 0); }
};

inline constexpr GridShape kGridShapes[] = {
    {}, {8, 8, true}, {9, 8, true}, {10, 8, true}, {11, 8, false}, {8, 4, true}, {9, 4, true}};
constexpr GridShape shape_of(Grid grid) { return kGridShapes[static_cast<int>(grid)]; }

// A panel is 16 output rows. It is a sequence of spans: a header with the scales and minima of some
// groups, then units, each with the codes of 32 columns. The last span has a whole header, and the
// units that there are. In a header, numbers stand group by group, those of 16 rows together:
//
//     scales f16, bf16         [groups][16] in lines; minima f16 [groups][16] behind them, or
//                              bytes z [groups][16]
//     scales f32               [groups][16] in lines; bytes z [groups][16] behind them
//     scales power, e4m3       bytes [4][16]
//     scales nested            float16 [16] of scales, float16 [16] of minima (0 without minima),
//                              bytes [groups][16] of scales, bytes m [groups][16] if there are
//                              minima
//     scales nested32          float32 [16], bytes [groups][16] of scales, then lines of the grid
//
//     forms                    groups in a span     header, bytes
//     f16 or bf16              2                    64
//       with minima f16        2                    128
//       with zeros             4                    192
//     f32                      2                    128
//       with zeros             4                    320
//     power, e4m3              4                    64
//     nested                   256 / group          64 + 16 groups
//       with minima nested     256 / group          64 + 32 groups
//     nested32                 256 / group          64 + 16 groups + 64 lines
//
// A unit has as many lines of 64 bytes as a code has bits. Four columns of a row are 4 bytes of a
// line, a "four": unit columns 4 i to 4 i + 3 are four i. A byte holds the low bits of several
// fours: of 4 bits two, of 2 bits four (codes of 2 and 3 bits), of 8 bits one. Each further bit has
// a plane: a line in which bit i of a byte belongs to four i.
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
//     unit of 8 bits: line i has four i.
//
// With a grid, a unit has the low bytes of the places of its entries, in lines [16 rows][4
// entries], then a plane of the columns' signs if there is one. Further bits of places, and above
// them signs of entries, lie entry by entry in the lines of the span's header, for each row 32 bits
// of a line.
//
// Byte j of the four bytes belongs to column kCodeOrder[j] of the four: neighbouring columns end up
// in the two halves of a 32-bit lane, as pairs of int16. Codes beyond the last column, of rows that
// do not exist and of groups that do not exist are 0, and so are their scales.
constexpr int kCodeOrder[4] = {0, 2, 1, 3};
constexpr int kUnit = 32;
constexpr int kNested = 256;       // columns that share the outer scale of nested ones
constexpr int kLevelOffset = 128;  // added to levels, which are stored as bytes

constexpr bool code_bits_allowed(int bits) { return (bits >= 2 && bits <= 6) || bits == 8; }
constexpr int low_bits(int bits) { return bits == 8 ? 8 : bits < 4 ? 2 : 4; }
constexpr size_t unit_bytes(int bits) { return static_cast<size_t>(bits) * kLineBytes; }

struct CodeLayout {
  int bits = 0;   // 2 to 6, or 8; with a grid 3 or 4, the sign among them
  int group = 0;  // a multiple of 32; 16 for scales e4m3, and allowed for nested ones
  ScaleForm scales = ScaleForm::f16;
  MinimumForm minima = MinimumForm::none;
  Grid grid = Grid::none;

  bool operator==(const CodeLayout&) const = default;

  constexpr bool nested() const {
    return scales == ScaleForm::nested || scales == ScaleForm::nested32;
  }
  constexpr bool in_bytes() const {  // scales, without outer ones
    return scales == ScaleForm::power || scales == ScaleForm::e4m3;
  }
  constexpr int groups_in_span() const {
    if (nested()) return kNested / group;
    return in_bytes() || minima == MinimumForm::zero ? 4 : 2;
  }
  constexpr int span() const { return groups_in_span() * group; }  // columns
  // Kernels ask for sizes panel by panel: without a grid nothing of its shape is computed.
  constexpr int grid_bytes() const {  // of a header
    return grid == Grid::none ? 0 : shape_of(grid).further_lines() * kLineBytes;
  }
  constexpr int header_bytes() const {
    const int each = kPanel * groups_in_span();
    if (nested()) return kLineBytes + each * (minima == MinimumForm::nested ? 2 : 1) + grid_bytes();
    if (in_bytes()) return each;
    if (scales == ScaleForm::f32) return each * (minima == MinimumForm::zero ? 5 : 4);
    return each * (minima == MinimumForm::f16 ? 4 : minima == MinimumForm::zero ? 3 : 2);
  }
  constexpr size_t stored_unit_bytes() const {
    return grid == Grid::none ? unit_bytes(bits) : shape_of(grid).unit_lines() * kLineBytes;
  }
  constexpr size_t panel_bytes(int columns) const {
    const int units = (columns + kUnit - 1) / kUnit, spans = (columns + span() - 1) / span();
    return static_cast<size_t>(spans) * header_bytes() + units * stored_unit_bytes();
  }
};

// `--quant int8`.
constexpr CodeLayout kInt8{8, 32};

}  // namespace suffice
