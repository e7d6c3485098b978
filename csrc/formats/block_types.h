// The block types of GGUF files that are read natively. A row of a stored matrix is a sequence of
// blocks, each with the codes of `values` entries and their scales in `bytes` bytes.
//
// The layouts of blocks are those of ggml: blocks_of_32.inl and blocks_of_256.inl describe each
// type in a struct.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "linear/code_layout.h"

namespace suffice {

struct BlockType {
  const char* name;
  int number;  // in GGUF files
  int values;
  int bytes;
  CodeLayout layout{};  // of its panels; 0 bits: values are floats

  constexpr bool coded() const { return layout.bits != 0; }
  constexpr bool decoded() const { return layout.grid == Grid::none; }  // else Python has the grid
};

std::span<const BlockType> block_types();
const BlockType* block_type(const char* name);  // null: there is no such type

// The levels of the codes plus kLevelOffset: `to` [2^bits].
void levels_of(const BlockType& type, uint8_t* to);

// Decodes `count` adjacent blocks to float32, each operation rounded on its own, so that every
// instruction set gives the same bits. Returns whether all values are finite.
bool decode_blocks(const BlockType& type, const uint8_t* blocks, size_t count, float* to);

// Brings `blocks` blocks of each of 16 rows, null for rows that do not exist, to a panel, without
// changing a value. Returns whether all scales and minima are finite, and the values that they
// can give.
bool write_panel(const BlockType& type, const uint8_t* const* rows, int64_t blocks, uint8_t* panel);

// Whether `count` stored values of F32, F16 or BF16 are finite.
bool stored_finite(const BlockType& type, const uint8_t* values, size_t count);

}  // namespace suffice
