// The rows of a step by the states that they change, and what a thread needs to change them.
#pragma once

#include <vector>

#include "cache/layer_states.h"

namespace suffice {

struct Step;

// The rows of one request: rows of a prompt that the step takes in pieces are together here.
struct StateRows {
  LayerStates* states = nullptr;
  int first_row = 0, count = 0;
  bool settled = false;
  std::vector<int> parents;  // of each row, the one that it continues; -1: the committed tokens
};

std::vector<StateRows> rows_of_states(const Step& step);

// The inputs of a convolution: of a layer's channels, those before the step, oldest first.
std::vector<const float*> past_inputs(const StateRows& rows, int layer);
// Those of a row, its own last; `mixed` are the inputs of the step's rows.
void inputs_of(const StateRows& rows, int row, const std::vector<const float*>& past,
               const float* mixed, int stride, std::vector<const float*>& to);
// Leaves the inputs of channels [first, last) in the log after the step.
void log_inputs(const StateRows& rows, int layer, const std::vector<const float*>& past,
                const float* mixed, int stride, int first, int last);

struct RecurrenceBuffers {
  std::vector<float> mixed, decays, values, outputs;  // of the heads of one thread
  std::vector<float> scales;                          // of queries and of keys
  std::vector<StateRow> rows, again;
  std::vector<float> scratch;
  std::vector<const float*> inputs;
};

}  // namespace suffice
