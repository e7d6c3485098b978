#include "formats/stored_rows.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>

#include "runtime/parallel.h"

namespace suffice {
namespace {

// Bytes of a file that a thread reads at a time: few enough to stay in its caches.
constexpr size_t kPieceBytes = 128 << 10;

Outcome read_piece(int file, int64_t offset, size_t bytes, uint8_t* to) {
  while (bytes > 0) {
    const ssize_t got = pread(file, to, bytes, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Outcome::failed;
    if (got == 0) return Outcome::cut_short;
    to += got;
    offset += got;
    bytes -= got;
  }
  return Outcome::ok;
}

// Calls piece(i) for i < count on all threads. Returns the first outcome that ended the reading,
// else not_finite if one was.
template <class Piece>
Outcome for_each_piece(int64_t count, Piece piece) {
  std::atomic<bool> finite{true};
  std::atomic<Outcome> end{Outcome::ok};
  std::atomic<int> error{0};
  const auto handle = [&](int64_t i) {
    const Outcome outcome = piece(i);
    if (outcome == Outcome::ok) return;
    const int reason = errno;  // of this thread
    Outcome none = Outcome::ok;
    if (outcome == Outcome::not_finite) {
      finite = false;
    } else if (end.compare_exchange_strong(none, outcome)) {
      error = reason;
    }
  };
  if (count == 1) {
    handle(0);
  } else if (count > 1) {
    std::atomic<int64_t> next{0};
    team()->run([&](int) {
      for (int64_t i = next++; i < count && end == Outcome::ok; i = next++) handle(i);
    });
  }
  errno = error;
  return end != Outcome::ok ? end.load() : finite ? Outcome::ok : Outcome::not_finite;
}

int64_t pieces_of(int64_t count, int64_t each) { return (count + each - 1) / each; }

// Where row `row` is stored.
int64_t stored_row(const StoredRows& stored, int64_t row) {
  if (stored.paired == 0) return row;
  const int64_t within = row % stored.paired, half = stored.paired / 2;
  return row - within + within % half * 2 + within / half;
}

}  // namespace

// Rows in pairs are picked from all rows between the outermost ones.
Outcome read_few_rows(const StoredRows& stored, int64_t first, int64_t count, float* to) {
  int64_t low = stored_row(stored, first), high = low;
  for (int64_t row = first; row < first + count; row++) {
    low = std::min(low, stored_row(stored, row));
    high = std::max(high, stored_row(stored, row));
  }
  const int64_t size = stored.row_bytes(), blocks = stored.columns / stored.type->values;
  const size_t bytes = (high - low + 1) * size;
  const auto held = std::make_unique_for_overwrite<uint8_t[]>(bytes);
  const Outcome outcome = read_piece(stored.file, stored.offset + low * size, bytes, held.get());
  if (outcome != Outcome::ok) return outcome;
  bool finite = true;
  if (stored.paired == 0) finite = decode_blocks(*stored.type, held.get(), count * blocks, to);
  for (int64_t i = 0; stored.paired != 0 && i < count; i++)
    finite &= decode_blocks(*stored.type, held.get() + (stored_row(stored, first + i) - low) * size,
                            blocks, to + i * stored.columns);
  return finite ? Outcome::ok : Outcome::not_finite;
}

Outcome read_rows(const StoredRows& stored, int64_t first, int64_t count, float* to) {
  const int64_t each = std::max<int64_t>(1, kPieceBytes / stored.row_bytes());
  return for_each_piece(pieces_of(count, each), [&](int64_t i) {
    const int64_t done = i * each;
    return read_few_rows(stored, first + done, std::min(each, count - done),
                         to + done * stored.columns);
  });
}

Outcome read_bytes(int file, int64_t offset, size_t bytes, uint8_t* to) {
  return for_each_piece(pieces_of(bytes, 8 * kPieceBytes), [&](int64_t i) {
    const size_t done = i * 8 * kPieceBytes;
    return read_piece(file, offset + done, std::min(8 * kPieceBytes, bytes - done), to + done);
  });
}

bool all_finite(const BlockType& type, const uint8_t* values, size_t count) {
  return for_each_piece(pieces_of(count, kPieceBytes), [&](int64_t i) {
           const size_t done = i * kPieceBytes;
           const size_t now = std::min(kPieceBytes, count - done);
           const bool finite = stored_finite(type, values + done * type.bytes, now);
           return finite ? Outcome::ok : Outcome::not_finite;
         }) == Outcome::ok;
}

}  // namespace suffice
