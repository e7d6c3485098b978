// What the parts of one instruction set hand to each other: a tile of keys and values, weights, and
// selected rows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "storage.h"

namespace suffice {

// Blocks handled together: one check of the running maximum, one pass over the output.
constexpr int kTileBlocks = 4;
constexpr int kTileRows = kTileBlocks * kPanel;

// Up to four blocks of a traversal.
struct Tile {
  int blocks = 0;
  int row[kTileBlocks];  // first row of the block
  const std::byte* keys[kTileBlocks];
  const std::byte* values[kTileBlocks];
  int rows = 0;  // rows of values to read: the last block may be partly filled
  // The next tile's blocks, prefetched meanwhile, one line for each line read, so that memory is
  // never idle during arithmetic.
  const std::byte* next_keys[kTileBlocks];
  const std::byte* next_values[kTileBlocks];
  ptrdiff_t key_rest = 0, value_rest = 0;  // from the first plane to the second
};

// Weights of a tile's keys: float32; for int8 values also times the values' scales in int16; for
// values in codes likewise in bytes; for values multiplied in pairs also in bfloat16.
struct Weights {
  float* values;   // [count][kTileRows]
  int16_t* codes;  // [count][kTileRows]; rows of bytes have the same spacing as those of 16 bits
  float* units;    // [count]: the value of one unit of the codes
};

// Selected rows of values; their keys' weights are packed in the same order.
struct Picked {
  const std::byte* rows[kTileRows + 3];
  int count = 0;
  ptrdiff_t rest = 0;  // from the first plane of a row to the second
};

}  // namespace suffice
