// The decoders, once for every CPU and once for those with AVX2, where a thread decodes blocks
// faster than it reads them; wider vectors would gain nothing.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "formats/block_types.h"
#include "kernels/kernels.h"

namespace suffice {
namespace {

constexpr int kFewValues = 2048;  // decoded at a time: their codes and values stay in the L1 cache

struct Decoders {
  bool (*decode[kBlockTypeCount])(const uint8_t*, size_t, float*) = {};
  bool (*floats_finite)(const uint8_t*, size_t) = nullptr;
  bool (*words_finite)(const uint8_t*, size_t, int infinity) = nullptr;
  bool fits = true;  // the decoders' sizes are those of kBlockTypes
};

namespace base {
#include "formats/decode.inl"
}

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx2")
namespace avx2 {
#include "formats/decode.inl"
}
#pragma GCC pop_options
#endif

const Decoders& chosen() {
#if defined(__x86_64__)
  if (std::strcmp(kernels().name, "base") != 0) return avx2::decoders;
#endif
  return base::decoders;
}

}  // namespace

bool decode_blocks(const BlockType& type, const uint8_t* blocks, size_t count, float* to) {
  return chosen().decode[&type - kBlockTypes](blocks, count, to);
}

bool stored_finite(const BlockType& type, const uint8_t* values, size_t count) {
  if (type.bytes == 4) return chosen().floats_finite(values, count);
  return chosen().words_finite(values, count, std::strcmp(type.name, "F16") ? 0x7f80 : 0x7c00);
}

}  // namespace suffice
