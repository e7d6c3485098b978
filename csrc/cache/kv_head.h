// One key/value head of a cache: how its keys, values, sketches and boxes lie in memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "storage.h"

namespace suffice {

constexpr int kMaxSize = 576;   // of a head
constexpr int kMaxApart = 512;  // where keys and values are apart: sums of int8 keys fit 32 bits

// Keys lie in panels of 16, so that one load has an element, or a run of elements, of 16 keys.
// Values lie row by row, [rows][D].
//
//     panel of keys, a run of `pair` elements of each:
//     | key 0: k[0..p) | key 1: k[0..p) | ... | key 15: k[0..p) |
//     | key 0: k[p..2p)| key 1: ...                             |
//
// A run is two int8 (multiplied in pairs), 8 codes of 4 bits, or one element of the other types.
constexpr int key_pair(Type type) { return type == Type::i8 ? 2 : is_four_bits(type) ? 8 : 1; }
constexpr size_t elements_bytes(Type type, int size) {  // of a key or a value, or a plane of one
  return static_cast<size_t>(size) * bits_of(type) / 8;
}
constexpr int key_run(Type type) { return key_pair(type) * bits_of(type) / 8; }  // bytes
constexpr bool has_scales(Type type) { return type == Type::i8 || is_four_bits(type); }
constexpr int planes_of(Type type) { return type == Type::planes ? 2 : 1; }
constexpr int64_t stored_bytes(Type type, int size) {  // of a key or a value, its scale included
  return static_cast<int64_t>(planes_of(type) * elements_bytes(type, size)) +
         (has_scales(type) ? 4 : 0);
}

// A joint row is key and value at once: the key is all of it, the value its first `value_size`
// entries. Such rows lie one after the other, and are stored once. In int8 each has two scales,
// that of the value's entries, and that of the rest, which is the key's alone.
//
//     | value_size entries: key and value | size - value_size entries: key |

// A row in kmeans4 takes D/2 bytes for a key or a value, and 4 bytes more. Rows are multiplied by
// Hadamard matrices, as large as their size allows. This makes elements nearly normally
// distributed, so one codebook fits all rows. An element is its centroid times the row's scale. A
// row does not depend on others: it is written, moved and removed alone.
//
//     key:    4 bytes for 8 elements     byte j: | element 4 + j | element j |    j < 4
//             4 bytes of scale           | mean: bfloat16 | scale: bfloat16 |
//     value:  8 bytes for 16 elements    byte j: | element 8 + j | element j |    j < 8
//             4 bytes of scale           | scale: float32                   |
//                                          high half        low half
//
// `mean`: the multiple of the head's mean key that is subtracted from a key before coding.
//
// The centroids, these and their negatives, are the k-means of a normal variable, restricted to odd
// integers, in units of 1 / kLevelUnit of its deviation. Products with keys take them unsigned, as
// (level + kGreatestLevel) / 2: four of those times int8 fit in int16.
constexpr int kUpperLevels[kLevels / 2] = {3, 9, 15, 21, 27, 35, 45, 59};
constexpr int kGreatestLevel = 59;
constexpr float kLevelUnit = 21.73f;
// Scales tried for a row: these factors times the scale of a normal variable with the row's
// deviation. Rows that absorb errors of earlier elements need larger ones.
constexpr int kTried = 8;
constexpr float kTriedFactors[kTried] = {0.80f, 0.87f, 0.94f, 1.01f, 1.08f, 1.15f, 1.22f, 1.30f};
constexpr int rotation_of(int size) { return size & -size; }  // the size of the matrices

struct Codebook {
  alignas(64) int8_t levels[4 * kLevels];  // four copies, as vectors take them
};
constexpr Codebook codebook(bool with_sign) {
  Codebook book{};
  for (int i = 0; i < 4 * kLevels; i++) {
    const int place = i % kLevels - kLevels / 2;
    const int level = place < 0 ? -kUpperLevels[-1 - place] : kUpperLevels[place];
    book.levels[i] = static_cast<int8_t>(with_sign ? level : (level + kGreatestLevel) / 2);
  }
  return book;
}
constexpr Codebook kRowCodebook = codebook(true), kKeyCodebook = codebook(false);

// How keys of one layer's head are rounded to codes. Channels of keys are multiplied by `scales`,
// those of queries by the inverses, which leaves scores unchanged; both are rotated afterwards.
// With e the errors of a key's elements, codes minimize the sum over i of weights[i] times the
// square of e[i] + sum_{j < i} passed[j][i] e[j]: the mean squared change of scores over queries.
struct KeyRounding {
  const float* scales;  // [D]
  const float* inverses;
  const float* mean;     // [D]
  const float* passed;   // [D][D]: share of j's error added to the target of a later i
  const float* weights;  // [D]
};

// A row in planes is, by its first plane and its scale alone, the row in kmeans4, bit for bit. The
// second plane corrects it: an element is scale * c, and a code of the second plane, from -8 to 7,
// is stored as 0 to 15:
//
//     c = level + rest    |c| < 128: both planes make a row of int8
//
// It has the layout of the first plane and memory of its own. Errors of keys are passed on within
// the second plane too.
//
// How far first planes are from a key is known without the second: a byte has the length of the
// second plane's codes, as `KeyRounding` measures it, never too short. It is the upper part of a
// float32 from kLeastLength on.
constexpr int kGreatestRest = kLevels / 2 - 1;
constexpr int kGreatestPlaneCode = 127 << 8;  // of queries that are multiplied with such keys
constexpr float kLeastLength = 0.125f;
constexpr int kLengthShift = 19;  // of the byte within the float32
// The same of values: how long what first planes lack of a value is, over the value's own length,
// in steps of 1 / kErrorUnit.
constexpr float kErrorUnit = 64;
constexpr Codebook whole_codebook() {  // for the stored codes of second planes to be added
  Codebook book = kRowCodebook;
  for (int8_t& level : book.levels) level = static_cast<int8_t>(level - kLevels / 2);
  return book;
}
constexpr Codebook kWholeCodebook = whole_codebook();

// Rows of other types may have a base: the row in kmeans4 next to the exact one, made from it as it
// is stored. An element of a key is then scale * (level + rest), like one in planes, where the rest
// is any number and is not stored; its length is, in the same way.

// A sketch of a chunk of 64 keys: 4 bits per element with a scale and a lowest value per channel,
// and for each block of 16 keys the largest norm of a key's residual (key minus sketch).
//
//     | bfloat16 scale[D] | bfloat16 low[D] | float residual[4] | codes, from a multiple of 32 on |
//     codes: uint8 [4 blocks][D/8][16 keys][4]    byte b: | element 8j + 4 + b | element 8j + b |
constexpr int kSketchRows = 64;
constexpr int kSketchBlocks = kSketchRows / kPanel;
constexpr size_t sketch_codes_at(int size) { return round_up(4 * size + 4 * kSketchBlocks, 32); }
constexpr size_t sketch_bytes(int size) {
  return sketch_codes_at(size) + static_cast<size_t>(kSketchRows) * size / 2;
}

constexpr float kSquareSlack = 1.0f + 1e-5f;  // float32 sums of squares may come out too small

// A box around a block of keys: float least[D], greatest[D], per channel.
constexpr size_t box_bytes(int size) { return 2 * static_cast<size_t>(size) * sizeof(float); }

// One key/value head of one layer of one cache.
struct KVHead {
  std::byte* keys = nullptr;      // panels of 16 keys; [capacity][size] if rows are joint
  std::byte* values = nullptr;    // [capacity][size]; of joint rows the same memory
  std::byte* key_rest = nullptr;  // second planes, in the layout of the first, or null
  std::byte* value_rest = nullptr;
  float* key_scales = nullptr;  // [capacity], of int8 and 4-bit types
  float* value_scales = nullptr;
  std::byte* base_keys = nullptr;  // bases in kmeans4, of rows of other types, or null
  std::byte* base_values = nullptr;
  float* base_key_scales = nullptr;  // [capacity]
  float* base_value_scales = nullptr;
  uint8_t* key_errors = nullptr;          // [capacity], of keys with a base: lengths, see above
  uint8_t* value_errors = nullptr;        // [capacity], of values with a base
  const KeyRounding* rounding = nullptr;  // of keys in 4-bit types; null: plain rounding
  std::byte* sketch = nullptr;            // chunks of kSketchRows keys, or null
  float* boxes = nullptr;                 // [blocks][2][size]: boxes of the keys, or null
  float* masses = nullptr;                // [capacity]: attention mass of each row so far, or null
  float cap = 0;       // scores s, in base 2, become cap * tanh(s / cap); 0: they stay
  int size = 0;        // D
  int value_size = 0;  // entries of a value that are not zero, a multiple of 16
  bool joint = false;  // rows are keys and values at once
  Type key_type = Type::f32;
  Type value_type = Type::f32;
};

// A head as its bases alone show it: first planes, or the rows next to the exact ones.
inline KVHead base_of(KVHead head) {
  if (head.base_keys) {
    head.keys = head.base_keys;
    head.key_scales = head.base_key_scales;
  }
  if (head.base_values) {
    head.values = head.base_values;
    head.value_scales = head.base_value_scales;
  }
  if (head.base_keys || head.key_type == Type::planes) head.key_type = Type::kmeans4;
  if (head.base_values || head.value_type == Type::planes) head.value_type = Type::kmeans4;
  return head;
}

}  // namespace suffice
