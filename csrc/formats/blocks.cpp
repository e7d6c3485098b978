// Loops over blocks and codes, once for every CPU and once for those with AVX2, where a thread
// decodes blocks faster than it reads them; wider vectors would gain nothing.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "formats/block_types.h"
#include "formats/code_arrays.h"
#include "kernels/kernels.h"
#include "runtime/parallel.h"
#include "target.h"

namespace suffice {
namespace {

struct Loops {  // of one type
  BlockType type;
  bool (*decode)(const uint8_t*, size_t, float*) = nullptr;
  bool (*write_panel)(const uint8_t* const*, int64_t, uint8_t*) = nullptr;
  uint8_t levels[256] = {};
};

namespace base {
#include "formats/all.inl"
}

#if defined(__x86_64__)
SUFFICE_TARGET("avx2")
namespace avx2 {
#include "formats/all.inl"
}
SUFFICE_TARGET_END
#endif

bool wide() {
#if defined(__x86_64__)
  return std::strcmp(kernels().name, "base") != 0;
#else
  return false;
#endif
}

#if defined(__x86_64__)
#define SUFFICE_CHOSEN(name) (wide() ? avx2::name : base::name)
#else
#define SUFFICE_CHOSEN(name) base::name
#endif

constexpr auto kBlockTypes = [] {
  std::array<BlockType, base::loops.size()> found{};
  for (size_t i = 0; i < found.size(); i++) found[i] = base::loops[i].type;
  return found;
}();

const Loops& loops_of(const BlockType& type) {
  return SUFFICE_CHOSEN(loops)[&type - kBlockTypes.data()];
}

}  // namespace

std::span<const BlockType> block_types() { return kBlockTypes; }

const BlockType* block_type(const char* name) {
  for (const BlockType& type : kBlockTypes)
    if (!std::strcmp(type.name, name)) return &type;
  return nullptr;
}

void levels_of(const BlockType& type, uint8_t* to) {
  std::memcpy(to, loops_of(type).levels, size_t{1} << type.layout.bits);
}

bool decode_blocks(const BlockType& type, const uint8_t* blocks, size_t count, float* to) {
  return loops_of(type).decode(blocks, count, to);
}

bool write_panel(const BlockType& type, const uint8_t* const* rows, int64_t blocks,
                 uint8_t* panel) {
  return loops_of(type).write_panel(rows, blocks, panel);
}

bool stored_finite(const BlockType& type, const uint8_t* values, size_t count) {
  if (type.bytes == 4) return SUFFICE_CHOSEN(floats_finite)(values, count);
  const bool half = !std::strcmp(type.name, "F16");
  return SUFFICE_CHOSEN(words_finite)(values, count,
                                      half ? base::kInfiniteF16 : base::kInfiniteBF16);
}

Fault write_panel(const CodeArrays& from, int64_t panel, uint8_t* to) {
  return SUFFICE_CHOSEN(panel_of_arrays)(from, panel, to);
}

Fault write_panels(const CodeArrays& from, uint8_t* to) {
  const int panels = static_cast<int>((from.rows + kPanel - 1) / kPanel);
  const size_t bytes = from.layout.panel_bytes(static_cast<int>(from.columns));
  std::atomic<Fault> fault{Fault::none};
  const auto threads = team();
  threads->run([&](int thread) {
    const Share mine = share(panels, thread, threads->size());
    for (int panel = mine.first; panel < mine.last; panel++) {
      const Fault found = write_panel(from, panel, to + panel * bytes);
      if (found != Fault::none) fault = found;
    }
  });
  return fault;
}

}  // namespace suffice
