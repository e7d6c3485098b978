// Storage types of weights, keys and values.
#pragma once

#include <cstddef>
#include <cstdint>

namespace suffice {

// `kmeans4`: keys and values, 4-bit codes of one codebook for all rows (cache/kv_head.h).
// `planes`: keys and values, those of kmeans4 in one plane and 4 more bits in another. `codebook`:
// weights, codes of 2 to 6 or 8 bits (linear/code_layout.h). `f8`: weights, a sign, 4 bits of
// exponent and 3 of mantissa (e4m3), with scales.
enum class Type : int {
  f32 = 0,
  bf16 = 1,
  f16 = 2,
  i8 = 3,
  kmeans4 = 4,
  planes = 5,
  codebook = 6,
  f8 = 7
};

constexpr bool is_four_bits(Type type) {  // an element of a row, or of a plane of it
  return type == Type::kmeans4 || type == Type::planes;
}
// Not for `codebook`: each layer chooses its bits. Those of one plane, for `planes`.
constexpr int bits_of(Type type) {
  return type == Type::f32                      ? 32
         : type == Type::i8 || type == Type::f8 ? 8
         : is_four_bits(type)                   ? 4
                                                : 16;
}
constexpr int size_of(Type type) { return bits_of(type) / 8; }  // not for 4 bits: half a byte

// Output rows of a weight panel, keys of a key panel: one block of a traversal.
constexpr int kPanel = 16;
constexpr int kLineBytes = 64;  // of a cache line
constexpr int kLevels = 16;     // of a codebook of 4 bits

constexpr int round_up(int value, int to) { return (value + to - 1) / to * to; }

}  // namespace suffice
