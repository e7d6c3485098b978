// A sketch of keys: see cache/kv_head.h for its layout.
#pragma once

#include "kernels/kernels.h"

namespace suffice {

// Writes the sketch of one chunk of a head from its keys.
void encode_sketch(const KVHead& head, int chunk);

// Number of sketched chunks that a token of `length` keys uses. It lags behind by the most rows a
// step may have: a token then uses the same chunks alone or in a chain.
inline int sketched_chunks(int length) {
  return length < 32 + kSketchRows ? 0 : (length - 32) / kSketchRows;
}

}  // namespace suffice
