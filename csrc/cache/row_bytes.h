// Rows of a cache as bytes, to be kept in a file and read into another cache's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "cache/cache.h"

namespace suffice {

// A number that differs if any byte does, or their order: certainly if the difference lies in one
// aligned word of 8 bytes, else but for one case in 2^64. It protects from damage, not from
// forgery. `before` is what it continues.
uint64_t checksum(const std::byte* data, size_t bytes, uint64_t before);

// The bytes that `count` rows take. Rows are whole panels here, and none may have been removed.
size_t bytes_of_rows(const KVCache& cache, int first, int count);

// Copies rows to `to`; returns their checksum, piece by piece.
uint64_t export_rows(const KVCache& cache, int first, int count, std::byte* to);

// Reads rows from a file, from `offset` on, into the cache's memory; returns their checksum. None
// if the file ends before, or cannot be read: then the rows hold anything.
std::optional<uint64_t> read_rows(KVCache& cache, int first, int count, int file, int64_t offset);

// Zeroes rows: what a damaged file left there might not be numbers.
void clear_rows(KVCache& cache, int first, int count);

}  // namespace suffice
