// The blocks of a layer. Each reads the residual stream, owns the matrices that it multiplies with,
// and adds its output to the stream.
#pragma once

#include <variant>
#include <vector>

#include "kernels/kernels.h"

namespace suffice {

struct Norm {
  const float* weight = nullptr;  // null: the identity, no normalisation
  const float* bias = nullptr;
};

// Attention to the layer's own keys and values.
struct AttentionBlock {
  Linear q, k, v, o;
  Norm q_norm, k_norm;                // of each head, or of all heads together
  bool whole_norms = false;           // the latter
  int window = 0;                     // 0: all keys
  int sinks = 0;                      // with a window: the first keys, visible as well
  int rope = -1;                      // index into ModelSpec::ropes; -1: positions do not matter
  bool k_own = false, v_own = false;  // takes inputs otherwise than q

  template <class F>
  void each_matrix(F f) const {
    for (const Linear* w : {&q, &k, &v, &o}) f(*w);
  }
};

// down(act(gate) * up), or down(act(up)).
struct DenseMlp {
  Linear gate, up, down;  // gate.data null: without gate
  int activation = kSilu;
  bool gate_own = false;  // takes inputs otherwise than up

  template <class F>
  void each_matrix(F f) const {
    for (const Linear* w : {&gate, &up, &down})
      if (w->data) f(*w);
  }
};

struct Block {
  Norm before;  // of the block's input
  Norm after;   // of its output, before that is added
  Norm whole;   // of the stream, once it is added
  std::variant<AttentionBlock, DenseMlp> part;
};

struct Layer {
  std::vector<Block> blocks;  // the first is its attention
  bool parallel = false;      // all blocks read what the layer began with
  bool skipped = false;

  AttentionBlock& attention() { return std::get<AttentionBlock>(blocks.front().part); }
  const AttentionBlock& attention() const { return std::get<AttentionBlock>(blocks.front().part); }

  template <class F>
  void each_matrix(F f) const {
    for (const Block& block : blocks)
      std::visit([&](const auto& part) { part.each_matrix(f); }, block.part);
  }
};

}  // namespace suffice
