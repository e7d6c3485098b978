// Reads weights from a file, decoded or as panels of codes, in parallel.
//
// The file is read, not mapped: if another program cuts a mapped file, reading it ends the process
// with SIGBUS, and its pages count as the process's memory. A read that comes back short is an
// error like any other, and what was read lies where it is needed and nowhere else.
#pragma once

#include <cstddef>
#include <cstdint>

#include "formats/block_types.h"

namespace suffice {

enum class Outcome { ok, not_finite, cut_short, failed };  // failed: errno says why

struct StoredRows {
  int file;        // a descriptor
  int64_t offset;  // of the first row, in bytes
  const BlockType* type;
  int64_t columns;  // whole blocks
  // Rows of a head. The first `rotated` are stored in pairs: row i of their first half, then row i
  // of their second. 0: rows are stored in order.
  int64_t paired, rotated;

  int64_t blocks() const { return columns / type->values; }  // of a row
  int64_t row_bytes() const { return blocks() * type->bytes; }
};

// Writes rows first .. first + count, float32 [count, columns], in the caller's thread. `count` is
// small: they are in memory as they are stored, too.
Outcome read_few_rows(const StoredRows& stored, int64_t first, int64_t count, float* to);

// The same on all threads, for any number of rows.
Outcome read_rows(const StoredRows& stored, int64_t first, int64_t count, float* to);

// Writes all `count` rows as panels of their type's layout, on all threads; the values stay the
// same.
Outcome read_panels(const StoredRows& stored, int64_t count, uint8_t* to);

// Reads bytes of a file.
Outcome read_bytes(int file, int64_t offset, size_t bytes, uint8_t* to);

// Whether `count` values of F32, F16 or BF16 are finite.
bool all_finite(const BlockType& type, const uint8_t* values, size_t count);

}  // namespace suffice
