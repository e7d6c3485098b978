// The block types of GGUF files that are decoded natively. A row of a stored matrix is a sequence
// of blocks, each with the codes of `values` entries and their scales in `bytes` bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>

namespace suffice {

struct BlockType {
  const char* name;
  int number;  // in GGUF files
  int values;
  int bytes;
};

// The layouts are those of ggml; csrc/formats/decode.inl says where in a block codes and scales
// are.
inline constexpr BlockType kBlockTypes[] = {
    {"F32", 0, 1, 4},       {"F16", 1, 1, 2},       {"BF16", 30, 1, 2},
    {"Q4_0", 2, 32, 18},    {"Q4_1", 3, 32, 20},    {"Q5_0", 6, 32, 22},
    {"Q5_1", 7, 32, 24},    {"Q8_0", 8, 32, 34},    {"Q2_K", 10, 256, 84},
    {"Q3_K", 11, 256, 110}, {"Q4_K", 12, 256, 144}, {"Q5_K", 13, 256, 176},
    {"Q6_K", 14, 256, 210}, {"IQ4_NL", 20, 32, 18}, {"IQ4_XS", 23, 256, 136},
    {"MXFP4", 39, 32, 17},
};
constexpr int kBlockTypeCount = std::size(kBlockTypes);

// Null: there is no such type.
inline const BlockType* block_type(const char* name) {
  for (const BlockType& type : kBlockTypes)
    if (!std::strcmp(type.name, name)) return &type;
  return nullptr;
}

// Decodes `count` adjacent blocks to float32, each operation rounded on its own, so that every
// instruction set gives the same bits. Returns whether all values are finite.
bool decode_blocks(const BlockType& type, const uint8_t* blocks, size_t count, float* to);

// Whether `count` stored values of F32, F16 or BF16 are finite.
bool stored_finite(const BlockType& type, const uint8_t* values, size_t count);

}  // namespace suffice
