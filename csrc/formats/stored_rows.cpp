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
//
// Each thread begins with a range of its own and then helps with the others'. Neighbouring pieces
// in two threads would meet in a new huge page: both would zero one, and one of them in vain.
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
    const auto threads = team();
    const int ranges = threads->size();
    const std::unique_ptr<std::atomic<int64_t>[]> done(new std::atomic<int64_t>[ranges]());
    threads->run([&](int thread) {
      for (int k = 0; k < ranges; k++) {
        const int range = (thread + k) % ranges;
        const int64_t first = count * range / ranges, last = count * (range + 1) / ranges;
        for (int64_t i = first + done[range]++; i < last && end == Outcome::ok;
             i = first + done[range]++)
          handle(i);
      }
    });
  }
  errno = error;
  return end != Outcome::ok ? end.load() : finite ? Outcome::ok : Outcome::not_finite;
}

int64_t pieces_of(int64_t count, int64_t each) { return (count + each - 1) / each; }

// Where row `row` is stored.
int64_t stored_row(const StoredRows& stored, int64_t row) {
  if (stored.paired == 0) return row;
  const int64_t within = row % stored.paired, half = stored.rotated / 2;
  if (within >= stored.rotated) return row;
  return row - within + within % half * 2 + within / half;
}

// Adjacent rows as they are stored, in memory. Rows in pairs are picked from all rows between the
// outermost ones.
struct FewRows {
  const StoredRows& stored;
  int64_t first = 0;
  int64_t low = 0;
  std::unique_ptr<uint8_t[]> held = nullptr;

  Outcome read(int64_t from, int64_t count) {
    first = from;
    low = stored_row(stored, first);
    int64_t high = low;
    for (int64_t row = first; row < first + count; row++) {
      low = std::min(low, stored_row(stored, row));
      high = std::max(high, stored_row(stored, row));
    }
    const size_t bytes = (high - low + 1) * stored.row_bytes();
    held = std::make_unique_for_overwrite<uint8_t[]>(bytes);
    return read_piece(stored.file, stored.offset + low * stored.row_bytes(), bytes, held.get());
  }

  const uint8_t* row(int64_t i) const {
    return held.get() + (stored_row(stored, first + i) - low) * stored.row_bytes();
  }
};

// The panels from number `first` on, of a matrix of `rows` rows.
Outcome read_few_panels(const StoredRows& stored, int64_t rows, int64_t first, int64_t count,
                        uint8_t* to) {
  const int64_t begin = first * kPanel, own = std::min(count * kPanel, rows - begin);
  const size_t bytes = stored.type->layout.panel_bytes(static_cast<int>(stored.columns));
  FewRows few{stored};
  const Outcome outcome = few.read(begin, own);
  if (outcome != Outcome::ok) return outcome;
  bool finite = true;
  for (int64_t i = 0; i < count; i++) {
    const uint8_t* of[kPanel] = {};
    for (int64_t row = 0; row < kPanel && i * kPanel + row < own; row++)
      of[row] = few.row(i * kPanel + row);
    finite &= write_panel(*stored.type, of, stored.blocks(), to + i * bytes);
  }
  return finite ? Outcome::ok : Outcome::not_finite;
}

}  // namespace

Outcome read_few_rows(const StoredRows& stored, int64_t first, int64_t count, float* to) {
  FewRows few{stored};
  const Outcome outcome = few.read(first, count);
  if (outcome != Outcome::ok) return outcome;
  bool finite = true;
  if (stored.paired == 0)
    finite = decode_blocks(*stored.type, few.row(0), count * stored.blocks(), to);
  for (int64_t i = 0; stored.paired != 0 && i < count; i++)
    finite &= decode_blocks(*stored.type, few.row(i), stored.blocks(), to + i * stored.columns);
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

Outcome read_panels(const StoredRows& stored, int64_t count, uint8_t* to) {
  const int64_t panels = pieces_of(count, kPanel);
  const int64_t each = std::max<int64_t>(1, kPieceBytes / (kPanel * stored.row_bytes()));
  const size_t bytes = stored.type->layout.panel_bytes(static_cast<int>(stored.columns));
  return for_each_piece(pieces_of(panels, each), [&](int64_t i) {
    const int64_t done = i * each;
    return read_few_panels(stored, count, done, std::min(each, panels - done), to + done * bytes);
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
