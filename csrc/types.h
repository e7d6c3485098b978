// Storage types and the two panel layouts. Includes nothing of Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "attention_rule.h"

namespace suffice {

// `codes` choose among levels: of weights those of a layer, of rows, by 4 bits, those of all (see
// below).
enum class Type : int { f32 = 0, bf16 = 1, f16 = 2, i8 = 3, codes = 4 };

constexpr int bits_of(Type type) {
  return type == Type::f32 ? 32 : type == Type::i8 ? 8 : type == Type::codes ? 4 : 16;
}
constexpr int size_of(Type type) { return bits_of(type) / 8; }  // not of codes: half a byte

// Output rows of a weight panel, keys of a key panel: one block of the traversal.
constexpr int kPanel = 16;

constexpr int kMostSize = 512;  // of a head

constexpr int round_up(int value, int to) { return (value + to - 1) / to * to; }

// Weights: packed[N/16][K/p][16][p] with p = 4 bytes' worth of K, so that one step is one cache
// line.
constexpr int weight_pair(Type type) { return 32 / bits_of(type); }
constexpr int kLineBytes = 64;

// Weights in codes of 2 to 6 bits: each panel has, for two groups of columns after the other, a
// line of scales, float16 scale[2][16], and then the codes of these groups in units of 8 columns,
// one line, where there are 4 bits, or else of 32 columns and as many lines as bits. A unit
// consists of fours of columns, 4 bytes for each row. Of a code the low bits, 2 or 4, come first,
// beside those of the next fours in the same byte; each further bit has a line where bit i of a
// byte is of four i. Byte j is of column kCodeOrder[j] of the four: neighbouring columns end up in
// the two halves of a 32-bit lane, as pairs of int16.
constexpr int kCodeOrder[4] = {0, 2, 1, 3};
constexpr int kLeastBits = 2, kMostBits = 6;
constexpr int low_bits(int bits) { return bits < 4 ? 2 : 4; }
constexpr int kMostUnit = 32;
constexpr int unit_columns(int bits) { return bits == 4 ? 8 : kMostUnit; }
constexpr size_t code_bytes(int bits, int columns) {  // of a panel's columns, whole units
  return static_cast<size_t>(columns) * bits * kPanel / 8;
}
constexpr int kLevels = 16;
constexpr int kLevelOffset = 128;  // of the levels, which are stored as bytes
constexpr int kNarrowOffset = 64;  // of those that are multiplied with int8 inputs

// Keys: panel[D/p][16][p]: pairs of int8, which are multiplied in pairs, eights of codes, and
// single values of the others. Values: [rows][D].
constexpr int key_pair(Type type) { return type == Type::i8 ? 2 : type == Type::codes ? 8 : 1; }
constexpr size_t elements_bytes(Type type, int size) {  // of a key or a value
  return static_cast<size_t>(size) * bits_of(type) / 8;
}
// Bytes of a key's elements that lie together; 16 keys' are what one step of a product takes.
constexpr int key_run(Type type) { return key_pair(type) * bits_of(type) / 8; }
constexpr bool has_scales(Type type) { return type == Type::i8 || type == Type::codes; }

// Rows in codes: D/2 bytes and 4 more each. A row is multiplied by Hadamard matrices, as large as
// its size allows: then its elements are as good as normally distributed, whatever they were, and
// one codebook fits all rows. An element is its level times the row's scale. Byte j of a key's 4
// has element j in its low half and element 4 + j in its high half; byte j of each 8 of a value
// elements j and 8 + j. Every row stands alone: it is written, moved and forgotten like any other.
//
// The scale of a value is float32. A key has two bfloat16 there: its scale, in the low half, and
// how often the mean key of its head is in it, which is taken out before the rest is coded.
//
// The levels, these and their opposites, are the K-means of a normal variable among the odd whole
// numbers, in units of 1 / kLevelUnit of its deviation. Products with keys take them without a
// sign, as (level + kGreatestLevel) / 2: four of those times int8 fit in int16.
constexpr int kUpperLevels[kLevels / 2] = {3, 9, 15, 21, 27, 35, 45, 59};
constexpr int kGreatestLevel = 59;
constexpr float kLevelUnit = 21.73f;
// Scales that are tried for a row: these times the one that a normal variable of the row's
// deviation would have. Errors that are passed on want greater ones.
constexpr int kTried = 8;
constexpr float kTriedFactors[kTried] = {0.80f, 0.87f, 0.94f, 1.01f, 1.08f, 1.15f, 1.22f, 1.30f};
constexpr int rotation_of(int size) { return size & -size; }  // the size of the matrices

// How the keys of a layer's head are rounded to codes. Their channels are multiplied by scales,
// those of queries by the inverses, which leaves scores as they are; all else is rotated after
// that. With e the errors of a key's elements, codes are chosen so that the sum over i of
// weights[i] times the square of e[i] + sum_{j < i} passed[j][i] e[j] is small: so much do they
// change scores, in the mean over queries.
struct KeyRounding {
  const float* scales;  // [D]
  const float* inverses;
  const float* mean;     // [D]
  const float* passed;   // [D][D]: what j's error adds to the aim of a later i
  const float* weights;  // [D]
};

struct LevelTable {
  alignas(64) int8_t at[4 * kLevels];  // four times, as vectors take them
};
constexpr LevelTable level_table(bool with_sign) {
  LevelTable table{};
  for (int i = 0; i < 4 * kLevels; i++) {
    const int place = i % kLevels - kLevels / 2;
    const int level = place < 0 ? -kUpperLevels[-1 - place] : kUpperLevels[place];
    table.at[i] = static_cast<int8_t>(with_sign ? level : (level + kGreatestLevel) / 2);
  }
  return table;
}
constexpr LevelTable kRowLevels = level_table(true), kKeyLevels = level_table(false);

// Activations by codebook: each of a row's values is replaced by the nearest of so many ascending
// levels, times the greatest magnitude of its group, but for the `outliers` greatest and least
// values of the row, and those outside of [low, high].
struct InputLevels {
  float levels[kLevels] = {};
  int count = 0;  // 0: nothing is replaced
  int outliers = 0;
  int group = 0;  // values that share a scale, a multiple of kPanel; 0: all of a row
  float low = -__builtin_inff(), high = __builtin_inff();

  bool operator==(const InputLevels&) const = default;
};

// Inputs in codes may be rotated in blocks, each by the Hadamard matrix of `hadamard_size` on every
// such part of it, and then across its parts by the Hartley matrix: (cos t + sin t) / sqrt(parts)
// for part i of part j, t = 2 pi i j / parts, whose values `wave` [parts] are those of i j mod
// parts.
constexpr int kMostHadamard = 1024;
constexpr int kMostParts = 64;
constexpr int hadamard_size(int block) {
  return (block & -block) < kMostHadamard ? (block & -block) : kMostHadamard;
}
struct Rotation {
  int block = 0;  // 0: not rotated
  const float* wave = nullptr;
};

// A weight matrix y = W x: `rows` outputs, `columns` inputs; scale (int8 only) and bias are padded
// to a multiple of 16, or null. Of weights in codes of so many `bits`: `levels` [2^bits], offset;
// so many columns share a scale; the inputs are rotated, replaced by levels and have codes up to
// `most`, int8 if `narrow`.
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
  int most = 0;
  bool narrow = false;
  InputLevels inputs;

  int panels() const { return round_up(rows, kPanel) / kPanel; }
  int steps() const { return round_up(columns, 4) / weight_pair(type); }  // lines; not of codes
  int whole_columns() const { return round_up(columns, unit_columns(bits)); }  // of codes
  size_t panel_bytes() const {
    if (type != Type::codes) return static_cast<size_t>(steps()) * kLineBytes;
    return round_up((columns + group - 1) / group, 2) / 2 * kLineBytes +
           code_bytes(bits, whole_columns());
  }
  size_t bytes() const {
    return panels() * (panel_bytes() + (scale ? kPanel * 4 : 0) + (bias ? kPanel * 4 : 0));
  }
};

// Inputs of a linear layer for `count` rows: float32, rows `stride` elements apart and zero from
// `columns` to the next multiple of 8, and for quantised weights a quantised copy: of each row so
// many bytes, then of each row the next ones, so that a product of several rows reads one stream.
constexpr int kQuad = 4;

struct Inputs {
  const float* values = nullptr;
  const int8_t* codes = nullptr;       // [columns / 4][count][4]: int8 and narrow codes
  const float* scales = nullptr;       // [count]
  const int32_t* code_sums = nullptr;  // [count]
  const int16_t* wide = nullptr;       // [columns / 2][count][2]: other weights in codes
  const int32_t* starts = nullptr;     // [count][stride / 8]: what sums over codes start with
  int stride = 0;
  int count = 0;
};

// A sketch of 64 keys: 4 bits per element with a scale and a lowest value per channel, and for each
// block of 16 keys the greatest length of what that leaves out of a key:
//     bfloat16 scale[D], low[D]; float residual[4]; uint8 codes[4][D/8][16][4], 32 bytes aligned
// where byte (j, i, b) of a block has, for key i, element 8j + b in its low half and 8j + 4 + b in
// its high half.
constexpr int kSketchRows = 64;
constexpr int kSketchBlocks = kSketchRows / kPanel;
constexpr size_t sketch_codes_at(int size) { return round_up(4 * size + 4 * kSketchBlocks, 32); }
constexpr size_t sketch_bytes(int size) {
  return sketch_codes_at(size) + static_cast<size_t>(kSketchRows) * size / 2;
}

constexpr float kSquareSlack = 1.0f + 1e-5f;  // float32 sums of squares may come out too small

// A box around a block of keys: float least[D], greatest[D].
constexpr size_t box_bytes(int size) { return 2 * static_cast<size_t>(size) * sizeof(float); }

// One key/value head of one layer of one cache.
struct Head {
  std::byte* keys = nullptr;    // panels of 16 keys
  std::byte* values = nullptr;  // [capacity][size]
  float* key_scales = nullptr;  // [capacity], of int8 and codes
  float* value_scales = nullptr;
  const KeyRounding* rounding = nullptr;  // of keys in codes; null: elements are, each for itself
  std::byte* sketch = nullptr;            // chunks of kSketchRows keys, or null
  float* boxes = nullptr;   // [blocks][2][size]: a block's least and greatest keys, or null
  float* masses = nullptr;  // [capacity]: what each row has weighed so far, or null
  int size = 0;             // D
  Type key_type = Type::f32;
  Type value_type = Type::f32;
};

// Which keys a query row may see: those of the committed rows in [0, sinks) and [first, committed),
// and of the tentative rows committed + j those whose bit j is set in `tentative`.
struct Visible {
  int first = 0;
  int committed = 0;
  uint32_t tentative = 0;
  int sinks = 0;  // at most `first`

  bool sees(int row) const {
    const int draft = row - committed;
    return draft < 0 ? row >= first || row < sinks : draft < 32 && (tentative >> draft & 1);
  }
  // Whether all rows of the block at `row` are committed and seen.
  bool sees_block(int row) const {
    return (row >= first || row + kPanel <= sinks) && row + kPanel <= committed;
  }
  int rows() const { return sinks + committed - first + __builtin_popcount(tentative); }
};

// What one traversal read.
struct Reads {
  int64_t key_rows = 0;
  int64_t value_rows = 0;
  int64_t alone_rows = 0;  // of values, that each query head alone would have read, added up
  int64_t held_rows = 0;   // that attention to everything would have read
  int64_t sketch_bytes = 0;
  float missing = 0;  // the largest share of a sum of weights that was left out, as bounded
};

// The blocks of a traversal in their order. The first `always` are read whatever the rule says.
struct Order {
  const int32_t* blocks = nullptr;
  int count = 0;
  int always = 0;
  bool ranked = false;  // not newest first: looks come after so many blocks of the list
  const SoftmaxTable* levels = nullptr;  // [query rows], or null: weights are 2^x
};

// What the sketches of some chunks say of `count` query rows. Their blocks are padded to a multiple
// of 16, those beyond weigh nothing.
struct Estimates {
  int first = 0;  // the first chunk
  int chunks = 0;
  int count = 0;
  float* masses;  // [count][blocks()]: sums of 2^(score - peak) of a block
  float* peaks;   // [count][blocks()]
  // How large a mass may be in truth (first log2 of how many times larger); or null.
  float* bounds;
  size_t blocks() const { return round_up(chunks * kSketchBlocks, kPanel); }
};

// Which values a visit leaves out.
struct Filter {
  const float* floors = nullptr;  // [count]: values of lower scores, in every head; null: none
  float share = 0;                // of its sum of weights that a visit leaves out at most
};

// The rows that a visit read.
struct Visited {
  int64_t key_rows = 0;
  int64_t value_rows = 0;
  int64_t alone_rows = 0;
};

// Rows of values that were read, and how many each query head alone would have read, added up.
struct ValueReads {
  int64_t rows = 0;
  int64_t alone = 0;
};

// The scores of one token's query rows for the blocks list[begin..end) (list null: the identity).
struct CodedTiles {
  const float* scores = nullptr;  // [tile][query rows][kTileRows]
  int stride = 0;                 // floats from tile to tile
  const int32_t* list = nullptr;
  int begin = 0, end = 0;
  int64_t keys = 0;     // that the token sees
  bool summed = false;  // the sum of their values is known: what they weigh at least is left to it
};

// Running softmax state of `count` query rows: `peak` in base 2 (scores are pre-multiplied by
// log2 e), sum of exp2(score - peak), and the unnormalised output.
struct Partial {
  float* peak;      // [count]
  float* sum;       // [count]
  float* output;    // [count][size]
  float* dropped;   // [count]: of the sum, the keys whose values were left out; or null
  float* greatest;  // [count]: the largest score (`visit` only)
};

// Where an audit of some tokens' query heads goes, rows `stride` apart; see audit.h.
struct Audit {
  float* missing = nullptr;  // null: nothing is audited
  float* error = nullptr;
  float* bound = nullptr;
  int stride = 0;
};

// Where the scores of a traversal are kept, unless `rows` is null: [query rows][stride].
struct Scores {
  float* rows = nullptr;
  int stride = 0;
};

}  // namespace suffice
