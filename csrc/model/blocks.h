// The blocks of a layer. Each reads the residual stream, owns the matrices that it multiplies with,
// and adds its output to the stream.
#pragma once

#include <variant>
#include <vector>

#include "kernels/kernels.h"
#include "model/low_rank.h"

namespace suffice {

struct Norm {
  const float* weight = nullptr;  // null: the identity, no normalisation
  const float* bias = nullptr;
};

// Which keys of the layer a token sees, and how they lie in the cache.
struct Sight {
  int kv_heads = 0, size = 0;  // of keys
  int window = 0;              // 0: all keys
  int sinks = 0;               // with a window: the first keys, visible as well
  bool mutual = false;         // tokens of a step see those after them in it, too
  // A logit of each query head that takes part in its softmax without a value; null: none.
  const float* spare = nullptr;
};

// Attention to the layer's own keys and values, or to those of an earlier layer: then there is
// neither k nor v. Without v alone, values are what k gives, before it is normalised and rotated.
struct AttentionBlock : Sight {
  Matrix q, k, v, o;
  Norm q_norm, k_norm;       // of each head, or of all heads together
  Norm v_norm;               // of each head
  bool whole_norms = false;  // the former two: of all heads together
  bool late_norms = false;   // after the rotation
  bool grows = true;         // its queries are multiplied by ModelSpec::query_scales
  Matrix gate;    // outputs are multiplied by the logistic of its products; data null: they stay
  int rope = -1;  // index into ModelSpec::ropes; -1: positions do not matter
  bool k_own = false, v_own = false;  // takes inputs otherwise than q
  bool paired = false;                // q, k and v read embeddings and hidden states: see ModelSpec

  template <class F>
  void each_matrix(F f) const {
    for (const Linear* w : {&q, &k, &v, &gate, &o})
      if (w->data) f(*w);
  }
};

// A causal convolution of each channel over its last `taps` inputs.
struct Convolution {
  const float* weights = nullptr;  // [taps][channels], those of the newest input last
  const float* bias = nullptr;     // null: none
  int channels = 0, taps = 0;
  int activation = -1;  // -1: none
};

// out(c * convolution(b * x)), where `mixed` gives b, c and x.
struct ConvolutionBlock {
  Matrix mixed, out;
  Convolution convolution;
  int state = 0;  // index into a request's states

  template <class F>
  void each_matrix(F f) const {
    for (const Linear* w : {&mixed, &out}) f(*w);
  }
};

// A linear recurrence (kernels/recurrence.h) for each head. `mixed` gives the inputs of a
// convolution, which gives queries, keys and values.
struct RecurrentBlock {
  // Of all channels, or apart of those of the queries, of the keys and of the values.
  Matrix mixed, queries, keys, values;
  Matrix gate, strength, decay, out;  // strength.data null: without the delta rule
  Matrix gate_low, decay_low;         // what gates and decays are made of; data null: the input
  Convolution convolution;
  int heads = 0, key_heads = 0, key_size = 0, value_size = 0;
  int queries_at = 0, keys_at = 0, values_at = 0;  // channels
  // With s = softplus(decay + step_bias), a decay is e^(-rate s). Without the delta rule values are
  // multiplied by s. [heads], or [heads][key_size] if `by_entry`.
  const float *rates = nullptr, *step_bias = nullptr;
  bool by_entry = false;
  float least_step = 0;                   // of s
  float most_strength = 1;                // of the delta rule
  const float* skips = nullptr;           // [heads]: of a value, added to its output; null: none
  float gate_scale = 1, decay_scale = 1;  // of what `gate` and `decay` give
  Norm norm;                              // of `norm_size` outputs at a time; without weight: none
  int norm_size = 0;
  float norm_eps = 0;
  bool shared_norm = false;  // one weight [norm_size] for all
  bool gates_first = false;  // before the norm
  int gate_activation = kSilu;
  int state = 0;  // index into a request's states

  int value_width() const { return heads * value_size; }
  template <class F>
  void each_matrix(F f) const {
    for (const Linear* w :
         {&mixed, &queries, &keys, &values, &gate, &strength, &decay, &out, &gate_low, &decay_low})
      if (w->data) f(*w);
  }
};

// Attention to joint rows that all query heads share: what `kv` makes of an input, its first `rank`
// entries normalised, the others rotated. A head's query has `plain` entries, which `key_up`
// multiplies into `rank`, and rotated ones; `value_up` makes the `value` entries of its output of
// the `rank` that it finds. The matrices of heads are stacked.
struct LatentBlock : Sight {
  Matrix q_low;  // `q` takes its output, normalised; data null: `q` takes the input
  Matrix q, kv, o;
  Linear key_up;         // [heads rank, plain]
  Linear value_up;       // [heads value, rank]
  Norm q_norm, kv_norm;  // of q_low's output, and of the first `rank` entries of kv's
  float norm_eps = 1e-6f;
  int plain = 0, rank = 0, value = 0;
  int rope = -1;          // index into ModelSpec::ropes
  bool adjacent = false;  // a rotation mixes neighbours, else entries half of the part apart
  bool kv_own = false;    // takes inputs otherwise than q_low, or q

  template <class F>
  void each_matrix(F f) const {
    for (const Linear* w :
         {static_cast<const Linear*>(&q_low), static_cast<const Linear*>(&q),
          static_cast<const Linear*>(&kv), &key_up, &value_up, static_cast<const Linear*>(&o)})
      if (w->data) f(*w);
  }
};

// down(act(gate_scale gate) * up), or down(act(up)).
struct DenseMlp {
  Matrix gate, up, down;  // gate.data null: without gate
  float gate_scale = 1;
  int activation = kSilu;
  Xielu curve;            // of kXielu
  bool gate_own = false;  // takes inputs otherwise than up

  template <class F>
  void each_matrix(F f) const {
    for (const Linear* w : {&gate, &up, &down})
      if (w->data) f(*w);
  }
};

// A step from a row's scores, at first its router's logits, to the weights of its experts.
enum RoutingStep : int {
  kSoftmax = 0,    // of the scores that are there
  kTop = 1,        // leaves the greatest ones; of equal scores, those of the first experts
  kNormalize = 2,  // to the sum 1
  kSigmoid = 3,    // of each score
  // Leaves the greatest ones as well, each by its softmax among itself and those after it that are
  // close to it.
  kInTurn = 4,
  kBestGroups = 5,  // leaves the groups with the greatest scores
  kBestPairs = 6,   // leaves the groups whose two greatest scores have the greatest sums
};

// Which experts a row goes to, and by what weights.
struct Routing {
  std::vector<int> steps;           // one of them is kTop or kInTurn
  int chosen = 0;                   // experts that it leaves
  int groups = 1, kept_groups = 1;  // equal shares of the experts, and how many of them are left
  float margin = 0;  // of kInTurn: how far below a score others are close, of its size
  // Added to scores for the choice alone, by expert; null: nothing.
  const float* bias = nullptr;
  float scale = 1;                 // of the weights at the end
  const float* factors = nullptr;  // likewise, by expert; null: 1
  bool before = false;             // the weights multiply what experts read, not what they give
  float left_out = 0;  // share of a row's weights whose experts, the lightest, may be left out
};

// The weighted outputs of the few experts of each row, and of an expert that all rows share. The
// matrices of all experts are stacked: expert e has rows [e inner, (e + 1) inner) of gate and up,
// and [e width, (e + 1) width) of down.
struct ExpertMlp {
  Linear router, gate, up, down;  // gate.data null: all experts are without gates
  Norm router_norm;  // of the stream, for the router; without weight: it reads the block's input
  // Make what experts read of rows, and rows of what they give; data null: these are whole rows.
  Linear narrow, widen;
  DenseMlp shared;       // up.data null: none
  Linear shared_router;  // data null: the shared expert's weight is 1, else the sigmoid of its row
  int experts = 0, inner = 0;
  int activation = kSilu;
  bool gate_own = false;  // takes inputs otherwise than up
  Routing routing;

  // Calls f for what every step reads.
  template <class F>
  void each_matrix(F f) const {
    for (const Linear* w : {&router, &shared_router, &narrow, &widen})
      if (w->data) f(*w);
    shared.each_matrix(f);
  }
  int64_t expert_bytes() const {  // of one expert
    const size_t gates = gate.data ? gate.bytes() : 0;
    return static_cast<int64_t>(gates + up.bytes() + down.bytes()) / experts;
  }
  int visits() const { return routing.chosen + (shared.up.data ? 1 : 0); }  // of a row
};

// What a token's own embedding for the layer adds: out(act(gate x) * embedding).
struct LayerEmbeddingBlock {
  Matrix gate, out;
  int activation = 0;
  int place = 0;  // of the layer's embedding among those of a token

  int size() const { return gate.rows; }
  template <class F>
  void each_matrix(F f) const {
    for (const Linear* w : {&gate, &out}) f(*w);
  }
};

struct Block {
  Norm before;            // of the block's input
  Norm after;             // of its output, before that is added
  Norm whole;             // of the stream, once it is added
  bool parallel = false;  // it reads what the block before it began with
  float scale = 1;        // of its output, before that is added
  bool held = false;      // its output is added to that of the next block, instead of the stream
  Norm joined;            // of the sum of both, before that is added
  std::variant<AttentionBlock, LatentBlock, ConvolutionBlock, RecurrentBlock, DenseMlp, ExpertMlp,
               LayerEmbeddingBlock>
      part;
};

struct Layer {
  std::vector<Block> blocks;
  int cached = -1;  // its place among layers with attention; -1: it has none
  bool skipped = false;
  float scale = 1;  // of the stream, once the layer has run

  // What its attention sees; null: it has none.
  Sight* sight() {
    if (blocks.empty()) return nullptr;
    auto& part = blocks.front().part;
    if (auto* latent = std::get_if<LatentBlock>(&part)) return latent;
    return std::get_if<AttentionBlock>(&part);
  }
  const Sight* sight() const { return const_cast<Layer*>(this)->sight(); }

  template <class F>
  void each_matrix(F f) const {
    for (const Block& block : blocks)
      std::visit([&](const auto& part) { part.each_matrix(f); }, block.part);
  }
};

}  // namespace suffice
