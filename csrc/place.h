// Where a request's rows lie in a layer, and what of them its tokens see.
#pragma once

#include "attention.h"

namespace suffice {

// What a layer with its window and the policy's choice lets tokens see; 0: `window` is unlimited.
Bounds bounds_of(const KVCache& cache, int layer, int window, int sinks = 0);

// Sets what a traversal needs to know of its `count` tentative rows behind `length` tokens, whose
// positions and ancestors (see Step::visible) are given: who sees what, and the blocks that hold
// it.
void place(Traversal& traversal, const Bounds& bounds, int length, int count, const int* positions,
           const uint32_t* visible);

}  // namespace suffice
