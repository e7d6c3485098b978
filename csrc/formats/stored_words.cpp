#include "formats/stored_words.h"

#include <algorithm>
#include <cstring>

#include "runtime/parallel.h"

namespace suffice {
namespace {

constexpr int kTogether = 16;  // rows whose words share lines of memory if rows are adjacent
constexpr int kEight = 8;      // codes that are brought to bytes at once

// Eight codes, from the lowest bits on, as bytes.
template <int bits>
uint64_t as_bytes(uint64_t codes) {
  uint64_t bytes = 0;
  for (int i = 0; i < kEight; i++) bytes |= (codes >> bits * i & ((1u << bits) - 1)) << 8 * i;
  return bytes;
}

// The eight codes from code `first` on; those beyond the last word are 0.
template <int bits>
uint64_t eight_codes(const StoredWords& from, int64_t row, int64_t first) {
  const int64_t i = first * bits / 32;
  uint64_t words = from.word(row, i);
  if (i + 1 < from.count) words |= static_cast<uint64_t>(from.word(row, i + 1)) << 32;
  return words >> first * bits % 32;
}

template <int bits>
void streams_of(const StoredWords& from, int64_t first, int64_t last, uint8_t* to) {
  const int64_t codes = from.codes();
  for (int64_t code = 0; code < codes; code += kEight)
    for (int64_t row = first; row < last; row++) {
      const uint64_t bytes = as_bytes<bits>(eight_codes<bits>(from, row, code));
      std::memcpy(to + row * codes + code, &bytes, std::min<int64_t>(kEight, codes - code));
    }
}

// Calls task(first, last) for ranges of rows in all threads.
template <class Task>
void in_ranges(int64_t rows, Task task) {
  const auto threads = team();
  const int ranges = static_cast<int>((rows + kTogether - 1) / kTogether);
  threads->run([&](int thread) {
    const Share mine = share(ranges, thread, threads->size());
    for (int64_t range = mine.first; range < mine.last; range++)
      task(range * kTogether, std::min(rows, (range + 1) * kTogether));
  });
}

}  // namespace

void unpack_streams(const StoredWords& from, uint8_t* to) {
  in_ranges(from.rows, [&](int64_t first, int64_t last) {
    switch (from.bits) {
      case 2: return streams_of<2>(from, first, last, to);
      case 3: return streams_of<3>(from, first, last, to);
      case 4: return streams_of<4>(from, first, last, to);
      default: return streams_of<8>(from, first, last, to);
    }
  });
}

void unpack_across(const StoredWords& from, const int* places, uint8_t* to) {
  constexpr int together = 64;  // words of a row, read once
  const int each = 32 / from.bits;
  const uint32_t mask = (1u << from.bits) - 1;
  in_ranges(from.rows, [&](int64_t first, int64_t last) {
    uint32_t words[together];
    for (int64_t begin = 0; begin < from.count; begin += together) {
      const int count = static_cast<int>(std::min<int64_t>(together, from.count - begin));
      for (int64_t row = first; row < last; row++) {
        for (int k = 0; k < count; k++) words[k] = from.word(row, begin + k);
        for (int i = 0; i < each; i++) {
          uint8_t* out = to + (row * each + i) * from.count + begin;
          const int shift = from.bits * places[i];
          for (int k = 0; k < count; k++) out[k] = static_cast<uint8_t>(words[k] >> shift & mask);
        }
      }
    }
  });
}

}  // namespace suffice
