// Codes packed into words of 32 bits, brought to bytes in all threads.
#pragma once

#include <cstdint>

namespace suffice {

// Words [rows][count], which lie `row_step` and `word_step` words apart.
struct StoredWords {
  const uint32_t* words;
  int64_t rows;
  int64_t count;
  int64_t row_step;
  int64_t word_step;
  int bits;  // of a code: 2, 3, 4 or 8

  uint32_t word(int64_t row, int64_t i) const { return words[row * row_step + i * word_step]; }
  int64_t codes() const { return 32 * count / bits; }  // of a row
};

// Codes along rows, from the lowest bit of the first word on and across words, as [rows][codes()].
void unpack_streams(const StoredWords& from, uint8_t* to);

// Codes across rows: a word has one code for each of 32 / bits rows, row i at place `places[i]`
// from its lowest bits on. As [rows * 32 / bits][count].
void unpack_across(const StoredWords& from, const int* places, uint8_t* to);

}  // namespace suffice
