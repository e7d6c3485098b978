// What a technique left out of a token's attention, found by computing that exactly as well.
#pragma once

#include "partial.h"
#include "traversal.h"

namespace suffice {

// Compares the output of token `row` with exact attention to what its layer holds. `parts`: what
// the technique read for the token's query rows, whose sums of weights are those of the softmax;
// none where weights are coded, so that no share of the softmax is missing. `bound`: the share that
// is missing at most, as the technique says; not a number if it says nothing.
void audit(const Traversal& traversal, int row, const std::vector<Partial>& parts, float bound,
           Scratch& scratch);

}  // namespace suffice
