// A sketch of keys: see cache/kv_head.h for its layout.
#pragma once

#include "kernels/kernels.h"

namespace suffice {

// Writes the sketch of one chunk of a head from its keys.
void encode_sketch(const KVHead& head, int chunk);

// Sketched chunks that a token of `length` keys uses. It lags behind by as many rows as a step may
// have: so a token uses the same ones whether it comes alone or in a chain.
inline int sketched_chunks(int length) {
  return length < 32 + kSketchRows ? 0 : (length - 32) / kSketchRows;
}

}  // namespace suffice
