// One decode step of a decoder for the rows of several requests.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "attention/reads.h"
#include "cache/cache.h"
#include "model/blocks.h"
#include "model/part_clock.h"
#include "runtime/parallel.h"

namespace suffice {

struct Rope {
  const float* cos = nullptr;  // [positions][pairs]
  const float* sin = nullptr;
  int positions = 0;
  int pairs = 0;  // rotated pairs of a head's entries; the entries after them stay as they are
};

// What tokens add in each layer (LayerEmbeddingBlock): the sum of a row of `table` and of what
// `project` makes of the token's embedding, normalised, times `scale`.
struct LayerEmbeddings {
  Linear table;             // [vocabulary, layers size]; data null: there are none
  Linear project;           // [layers size, width]
  Norm norm;                // of a layer's entries
  int size = 0;             // entries of a layer
  float table_scale = 1;    // of the table's rows
  float project_scale = 1;  // of products
  float scale = 1;
};

struct ModelSpec {
  int width = 0, heads = 0, vocabulary = 0;
  int kv_heads = 0;      // the most of a layer
  int head_size = 0;     // of keys, the largest of a layer
  int joint = 0;         // entries of the value of a joint row; 0: rows are not joint
  int inner_width = 0;   // of the widest MLP
  int latent_width = 0;  // of the widest queries, or outputs of heads, around joint rows
  // Of the widest block with states: what it makes of its input, its decays, and its outputs.
  int mixed_width = 0, decay_width = 0, value_width = 0;
  int gate_width = 0;  // of the widest outputs that are multiplied by gates
  int embedding_width = 0;
  bool layer_norm = false;  // else RMSNorm
  float norm_eps = 1e-5f;
  float attention_scale = 1;
  float embedding_scale = 1;
  float logit_scale = 1;
  float score_cap = 0;  // scores s of attention become cap * tanh(s / cap); 0: they stay
  float logit_cap = 0;  // likewise
  Linear embedding, project_in, project_out, head;
  LayerEmbeddings layer_embeddings;
  // Of a model that drafts for another: its rows begin with hidden states, of the other model or of
  // its own, and with embeddings. Both are normalised. `join` makes the stream of them; without it
  // the hidden states are the stream, and the first layer's attention reads both.
  // With `plain_pairs` both have the other's width and are joined as they are.
  int hidden_width = 0;  // of the other's hidden states; 0: it does not begin with any
  int embedded = 0;      // rows of the embedding
  bool plain_pairs = false;
  Linear fuse;  // makes `width` of the other's hidden states; data null: they have it
  Linear join;  // [width, 2 width], or of plain pairs [width, 2 hidden_width]
  Norm hidden_norm;
  bool normed_stream = false;  // the stream begins with hidden states as they are normalised
  // Hidden states are no rows' beginning: a step that is given them fuses and normalises them, and
  // each layer makes its keys and values of them, as they are. Other steps begin with embeddings.
  bool stores_hidden = false;
  // `rows` are those of another model's caches: layers read them, and nothing is stored.
  bool reads_only = false;
  // Of a head whose rows are sorted into equal groups: a row's scores of all groups. The logits of
  // others than the `kept_groups` best ones are minus infinity. Data null: all rows count.
  Linear groups;  // [groups, width]
  int kept_groups = 0;
  // Layers whose inputs steps hand out; the number of layers: what the last one gives, and one
  // more: that after the final norm.
  std::vector<int> taps;
  const float* positions = nullptr;  // learned [rows][width], offset applied; null: none
  int position_rows = 0;
  Norm embedding_norm, final_norm;
  std::vector<Layer> layers;
  std::vector<LayerRows> rows;     // of the layers with attention, as caches have them
  std::vector<StateShape> states;  // of the layers that keep one
  Adapters adapters;
  // Of each technique that requests may name: [rows][kv_heads], empty: everything is read.
  std::vector<std::vector<AttentionRule>> rules;
  std::vector<Rope> ropes;
  const float* query_scales = nullptr;  // of queries by their position; null: 1
  float unread_in_prompts = 0;          // the largest share of a tile's softmaxes, on average

  // Entries that the head reads: embeddings of a model that drafts may be wider than its stream.
  int head_width() const { return hidden_width ? width : embedding_width; }
  // Entries of an embedding and of the hidden states next to it.
  int pair_width() const { return 2 * (plain_pairs ? hidden_width : width); }
  int cached_layers() const { return static_cast<int>(rows.size()); }
  // Entries of the keys of the layer that has the most.
  int key_width() const {
    int most = 0;
    for (const LayerRows& each : rows) most = std::max(most, each.heads * each.size.key);
    return most;
  }

  // Whether some layer has blocks whose outputs are joined.
  bool joins() const {
    return std::any_of(layers.begin(), layers.end(), [](const Layer& layer) {
      return std::any_of(layer.blocks.begin(), layer.blocks.end(),
                         [](const Block& block) { return block.held; });
    });
  }

  // Whether some layer normalises all heads of its queries and keys together.
  bool has_whole_norms() const {
    return std::any_of(layers.begin(), layers.end(), [](const Layer& layer) {
      const auto* block =
          layer.blocks.empty() ? nullptr : std::get_if<AttentionBlock>(&layer.blocks.front().part);
      return block && block->whole_norms;
    });
  }

  // Whether a technique needs sketches of the keys.
  bool needs_sketch(int technique) const {
    const std::vector<AttentionRule>& own = rules[technique];
    return std::any_of(own.begin(), own.end(),
                       [](const AttentionRule& rule) { return rule.needs_sketch(); });
  }
  // Whether a technique needs bases of keys and values.
  bool needs_bases(int technique) const {
    const std::vector<AttentionRule>& own = rules[technique];
    return std::any_of(own.begin(), own.end(),
                       [](const AttentionRule& rule) { return rule.needs_bases(); });
  }
};

// Rows of one request in a step: rows [length, length + count) of its cache.
struct StepRequest {
  KVCache* cache = nullptr;
  int length = 0;
  int first_row = 0;
  int count = 0;
  int technique = 0;     // index into ModelSpec::rules
  int adapter = -1;      // an index of adapters; -1: none
  bool exact = false;    // attends to everything, as prompts do: the rules do not apply
  bool counted = true;   // its reads are counted, and audited if the step is
  bool watched = false;  // its queries are handed out
  bool tiled = false;    // it is a tile of a prompt, which may leave something unread
  bool outside = false;  // Outside::attend computes its attention; then it is not exact
  bool settled = false;  // its rows are a prompt's, in order, and all will be committed
};

// Attention that is computed outside of the core, for all rows of the requests that ask for it.
struct Outside {
  static constexpr int kSeen = 4, kCounts = 4;
  std::function<void(int cached)> attend;  // called by one thread; the layer's keys are stored
  float* queries = nullptr;                // [rows][heads][size]: filled before the call
  int32_t* visible = nullptr;              // [rows][kSeen], filled: the fields of `Visible`
  const float* outputs = nullptr;          // [rows][heads][size]: read after it
  const int64_t* reads = nullptr;          // [rows][kv_heads][kCounts]: the first fields of `Reads`
};

struct Step {
  std::vector<StepRequest> requests;
  std::vector<int> tokens;        // [rows]
  std::vector<int> positions;     // [rows]
  std::vector<uint32_t> visible;  // [rows] bit j: sees the request's row length + j
  std::vector<int> outputs;       // rows whose logits are wanted
  float* logits = nullptr;        // [outputs][vocabulary]
  float* maxima = nullptr;        // [outputs][blocks of logits], unless null; see sampling/rows.h
  std::vector<int> state_rows;    // rows whose last states are wanted
  float* states = nullptr;        // [state_rows][width]: after the final norm
  std::vector<int> tap_rows;      // rows whose streams are wanted
  float* taps = nullptr;          // [tap_rows][taps][width]
  const float* hidden = nullptr;  // [rows][hidden_width], or [rows][width] if `own_hidden`
  bool own_hidden = false;        // the model's own: what it handed out after its last layer
  Outside outside;                // if any request is
  float* audit = nullptr;         // [5][cached layers][rows][heads], unless null: see `Audit`
  // [cached layers][watched rows][heads * head_size], unless null: the queries of watched requests.
  // Those of a layer with smaller heads come first, and zeros after them.
  float* queries = nullptr;
  int watched_rows = 0;

  // Whether the rules apply to any request.
  bool selects() const {
    return std::any_of(requests.begin(), requests.end(),
                       [](const StepRequest& request) { return !request.exact; });
  }
};

// Whether a step makes keys and values of hidden states, and does nothing else.
inline bool only_stores(const ModelSpec& spec, const Step& step) {
  return spec.stores_hidden && step.hidden;
}

// Bytes of the weights that every step reads.
int64_t weight_bytes(const ModelSpec& spec);

class StepBuffers;
using PartSeconds = std::array<double, kParts>;

class Model {
 public:
  explicit Model(ModelSpec spec);
  ~Model();
  const ModelSpec& spec() const { return spec_; }
  void set_rules(std::vector<std::vector<AttentionRule>> rules) { spec_.rules = std::move(rules); }
  void set_taps(std::vector<int> layers) { spec_.taps = std::move(layers); }
  // From now on tokens see the last `recent` keys (0: all) and the first `sinks` of every layer,
  // unless the layer's own window is narrower. Skipped layers do nothing and store no keys.
  void leave_out(int recent, int sinks, const std::vector<int>& skipped);
  // From now on the lightest experts of a row are left out, up to a share of its weights.
  void leave_out_experts(float share);
  // From now on a tile of a prompt may leave this share of its softmaxes unread, on average.
  void leave_out_in_prompts(float share);
  // Whether the parts of later steps are timed.
  void time_parts(bool timed);
  // The seconds of the steps since the last call, summed over threads.
  PartSeconds take_part_seconds();
  // `counts` get the sums over all counted requests, `by_request` those of each.
  void step(Step& step, Team& team, Counts& counts, std::vector<RequestReads>& by_request);

 private:
  ModelSpec spec_;
  std::unique_ptr<StepBuffers> buffers_;
  bool timed_ = false;
  std::mutex stepping_;  // one step at a time: steps share the buffers
};

}  // namespace suffice
