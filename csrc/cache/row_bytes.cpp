#include "cache/row_bytes.h"

#include <sys/uio.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <vector>

namespace suffice {
namespace {

typedef uint64_t Two __attribute__((vector_size(16)));  // every instruction set has such

constexpr uint64_t kFactor = 0x9E3779B185EBCA87;  // odd, so that a product loses nothing
constexpr int kTwos = 8;                          // pairs of words that are taken in at a time
constexpr int kTurn = 29;
constexpr size_t kTogether = size_t{64} << 10;  // bytes that a call reads: they stay in a cache
constexpr size_t kMostPieces = 512;             // of a call; the system takes up to 1024

uint64_t mixed(uint64_t sum, uint64_t word) { return std::rotl(sum ^ word, kTurn) * kFactor; }

// The same with shifts and sums alone: few sets have products of 64 bits in vectors.
Two mixed(Two sum, Two words) {
  sum ^= words;
  sum += sum << 21;
  return sum ^ sum >> kTurn;
}

// Reads all of `parts`, which it changes.
bool read_parts(int file, iovec* parts, int count, int64_t offset) {
  while (count > 0) {
    const ssize_t got = preadv(file, parts, count, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    offset += got;
    size_t left = static_cast<size_t>(got);
    while (count > 0 && left >= parts->iov_len) {
      left -= parts->iov_len;
      parts++;
      count--;
    }
    if (left == 0) continue;
    parts->iov_base = static_cast<std::byte*>(parts->iov_base) + left;
    parts->iov_len -= left;
  }
  return true;
}

}  // namespace

uint64_t checksum(const std::byte* data, size_t bytes, uint64_t before) {
  Two lanes[kTwos], words;
  for (int i = 0; i < kTwos; i++) lanes[i] = before + Two{2 * i + 1u, 2 * i + 2u} * kFactor;
  size_t at = 0;
  for (; at + sizeof lanes <= bytes; at += sizeof lanes)
    for (int i = 0; i < kTwos; i++) {
      std::memcpy(&words, data + at + i * sizeof words, sizeof words);
      lanes[i] = mixed(lanes[i], words);
    }
  uint64_t sum = mixed(before, bytes), word;
  for (; at < bytes; at += sizeof word) {
    word = 0;
    std::memcpy(&word, data + at, std::min(sizeof word, bytes - at));
    sum = mixed(sum, word);
  }
  for (const Two lane : lanes) sum = mixed(mixed(sum, lane[0]), lane[1]);
  return sum ^ sum >> 32;
}

std::vector<KVCache::Piece> KVCache::pieces(int first, int count) const {
  std::vector<Piece> found;
  for (const int layer : owners_) {
    const Sizes before = bytes_of(layer, first), after = bytes_of(layer, first + count);
    const Layout places = layout(layer);
    for (int i = kKeys; i < kSketch; i++)
      for (int h = 0; h < heads(layer) && after[i] > before[i]; h++)
        found.push_back({places.arrays[i].of(memory_[layer], h) + before[i], after[i] - before[i]});
  }
  return found;
}

size_t bytes_of_rows(const KVCache& cache, int first, int count) {
  size_t sum = 0;
  for (const KVCache::Piece& piece : cache.pieces(first, count)) sum += piece.bytes;
  return sum;
}

uint64_t export_rows(const KVCache& cache, int first, int count, std::byte* to) {
  uint64_t sum = 0;
  for (const KVCache::Piece& piece : cache.pieces(first, count)) {
    std::memcpy(to, piece.data, piece.bytes);
    sum = checksum(to, piece.bytes, sum);
    to += piece.bytes;
  }
  return sum;
}

std::optional<uint64_t> read_rows(KVCache& cache, int first, int count, int file, int64_t offset) {
  const std::vector<KVCache::Piece> pieces = cache.pieces(first, count);
  std::vector<iovec> parts;
  uint64_t sum = 0;
  for (size_t at = 0; at < pieces.size();) {
    size_t end = at, bytes = 0;
    parts.clear();
    while (end < pieces.size() && bytes < kTogether && end - at < kMostPieces) {
      parts.push_back({pieces[end].data, pieces[end].bytes});
      bytes += pieces[end++].bytes;
    }
    if (!read_parts(file, parts.data(), static_cast<int>(parts.size()), offset)) return {};
    for (; at < end; at++) sum = checksum(pieces[at].data, pieces[at].bytes, sum);
    offset += static_cast<int64_t>(bytes);
  }
  return sum;
}

void clear_rows(KVCache& cache, int first, int count) {
  for (const KVCache::Piece& piece : cache.pieces(first, count))
    std::memset(piece.data, 0, piece.bytes);
}

}  // namespace suffice
