// Storage types of weights, keys and values.
#pragma once

#include <cstddef>
#include <cstdint>

namespace suffice {

// `kmeans4`: keys and values, 4-bit codes of one codebook for all rows (cache/kv_head.h).
// `codebook`: weights, codes of 2 to 6 or 8 bits (linear/code_layout.h).
// `f8`: weights, a sign, 4 bits of exponent and 3 of mantissa (e4m3), with scales.
enum class Type : int { f32 = 0, bf16 = 1, f16 = 2, i8 = 3, kmeans4 = 4, codebook = 5, f8 = 6 };

// Not for `codebook`: each layer chooses its bits.
constexpr int bits_of(Type type) {
  return type == Type::f32                      ? 32
         : type == Type::i8 || type == Type::f8 ? 8
         : type == Type::kmeans4                ? 4
                                                : 16;
}
constexpr int size_of(Type type) { return bits_of(type) / 8; }  // not for kmeans4: half a byte

// Output rows of a weight panel, keys of a key panel: one block of a traversal.
constexpr int kPanel = 16;
constexpr int kLineBytes = 64;  // of a cache line
constexpr int kLevels = 16;     // of a codebook of 4 bits

constexpr int round_up(int value, int to) { return (value + to - 1) / to * to; }

}  // namespace suffice
