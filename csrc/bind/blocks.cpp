#include "model/blocks.h"

#include <algorithm>

#include "bind/py_model.h"
#include "linear/inputs.h"

namespace suffice::bind {
namespace {

void add_layer(PyModel& self, float scale) {
  require(self.spec.layers.empty() || !self.spec.layers.back().blocks.empty(),
          "the layer before this one has no block");
  self.spec.layers.emplace_back().scale = scale;
}

// Returns a block's place in caches; `shares`: the earlier layer with attention whose keys and
// values it reads, or that of another model's; -1: it has its own.
int set_rows(PyModel& self, Sight& block, int kv_heads, HeadSize size, int shares) {
  ModelSpec& spec = self.spec;
  require(kv_heads > 0 && kv_heads <= spec.kv_heads && spec.heads % kv_heads == 0,
          "heads are a multiple of a layer's kv_heads");
  require(size.key > 0 && size.key % kPanel == 0 && size.key <= spec.head_size,
          "a layer's head size is a multiple of 16, up to the model's");
  require(!spec.reads_only || shares >= 0, "a layer reads the keys and values of another model");
  require(shares == -1 || (shares >= 0 && shares < spec.cached_layers() &&
                           spec.rows[shares] == LayerRows{kv_heads, size, -1}),
          "a layer reads the keys and values of an earlier one of its heads and size");
  block.kv_heads = kv_heads;
  block.size = size.key;
  if (spec.reads_only) return shares;
  spec.rows.push_back({kv_heads, size, shares});
  return spec.cached_layers() - 1;
}

// The matrices and norms of keys and values; neither, if the layer reads those of another.
void set_keys(PyModel& self, AttentionBlock& block, const Parts& parts, int inputs, bool shares) {
  const int keys = block.kv_heads * block.size;
  self.set(block.k, parts, "k", keys, inputs, !shares);
  self.set(block.v, parts, "v", keys, inputs, false);
  require(!shares || !(block.k.data || block.v.data), "the layer reads another's keys and values");
  self.set(block.k_norm, parts, "k_norm", block.whole_norms ? keys : block.size);
  self.set(block.v_norm, parts, "v_norm", block.size);
  block.k_own = block.k.data && !same_inputs(block.q, block.k);
  block.v_own = block.v.data && !same_inputs(block.q, block.v);
}

void add_attention(PyModel& self, const Parts& parts, int kv_heads, int head_size, int shares,
                   int window, int rope, bool whole_norms, bool late_norms, bool grows, bool paired,
                   bool mutual) {
  ModelSpec& spec = self.spec;
  AttentionBlock block;
  const int place = set_rows(self, block, kv_heads, {head_size, 0}, shares);
  block.whole_norms = whole_norms;
  const int queries = spec.heads * head_size, inputs = paired ? 2 * spec.width : spec.width;
  self.set(block.q, parts, "q", queries, inputs);
  set_keys(self, block, parts, inputs, shares >= 0);
  self.set(block.o, parts, "o", spec.width, queries);
  self.set(block.gate, parts, "attn_gate", queries, spec.width, false);
  if (block.gate.data) spec.gate_width = std::max(spec.gate_width, queries);
  self.set(block.q_norm, parts, "q_norm", whole_norms ? queries : head_size);
  require(!whole_norms || (block.q_norm.weight && block.k_norm.weight && block.v.data),
          "norms of all heads need weights, and values a matrix");
  if (parts.contains("spare")) block.spare = self.vector(parts["spare"], spec.heads);
  require(window >= 0, "a negative window");
  require(rope >= -1 && rope < static_cast<int>(spec.ropes.size()) &&
              (rope < 0 || 2 * spec.ropes[rope].pairs <= head_size),
          "no such rope table for this size of heads");
  require(!whole_norms || !late_norms, "norms of all heads come before the rotation");
  block.late_norms = late_norms;
  block.grows = grows;
  block.paired = paired;
  require(!paired || (spec.hidden_width && spec.layers.size() == 1 && !block.gate.data),
          "only the first layer of a model that drafts reads pairs, and has no gate");
  block.window = window;
  block.mutual = mutual;
  block.rope = rope;
  add_block(self, parts, block);
  spec.layers.back().cached = place;
}

// `plain`, `rank` and `value`: see LatentBlock; all layers have the same.
void add_latent(PyModel& self, const Parts& parts, int plain, int rank, int value, int rope,
                bool adjacent, float norm_eps) {
  ModelSpec& spec = self.spec;
  require(spec.joint == rank && spec.kv_heads == 1, "the model's rows are joint, with this rank");
  const int rotated = spec.head_size - rank, queries = spec.heads * (plain + rotated);
  for (const int size : {plain, rank, value, rotated})
    require(size > 0 && size % kPanel == 0, "parts of heads are multiples of 16");
  require(rope == -1 || (rope >= 0 && rope < static_cast<int>(spec.ropes.size()) &&
                         2 * spec.ropes[rope].pairs == rotated),
          "the rotation is that of the rotated part");
  LatentBlock block;
  const int place = set_rows(self, block, 1, {spec.head_size, rank}, -1);
  block.plain = plain;
  block.rank = rank;
  block.value = value;
  block.rope = rope;
  block.adjacent = adjacent;
  block.norm_eps = norm_eps;
  int inputs = spec.width;
  if (parts.contains("q_low")) {
    inputs = self.rows_of(parts, "q_low");
    self.set(block.q_low, parts, "q_low", inputs, spec.width);
    self.set(block.q_norm, parts, "q_norm", inputs);
    require(block.q_norm.weight, "the model lacks its q_norm weight");
  }
  self.set(block.q, parts, "q", queries, inputs);
  self.set(block.kv, parts, "kv", spec.head_size, spec.width);
  self.set(block.kv_norm, parts, "kv_norm", rank);
  require(block.kv_norm.weight, "the model lacks its kv_norm weight");
  self.set(block.key_up, parts, "key_up", spec.heads * rank, plain);
  self.set(block.value_up, parts, "value_up", spec.heads * value, rank);
  self.set(block.o, parts, "o", spec.width, spec.heads * value);
  block.kv_own = !same_inputs(block.q_low.data ? block.q_low : block.q, block.kv);
  spec.latent_width = std::max({spec.latent_width, queries, spec.heads * value, block.q_low.rows});
  add_block(self, parts, block);
  spec.layers.back().cached = place;
}

// The model drafts for another, whose hidden states have `hidden` entries, and whose tokens are
// `embedded` many; its own vocabulary is of the tokens that it drafts. `stores`: see
// ModelSpec::stores_hidden.
void begin_with_hidden(PyModel& self, int hidden, int embedded, bool normed_stream,
                       bool plain_pairs, bool stores) {
  ModelSpec& spec = self.spec;
  require(spec.layers.empty(), "what a model begins with comes before its layers");
  require(hidden > 0 && hidden % kPanel == 0 && spec.width % kPanel == 0,
          "hidden states have a multiple of 16 entries");
  require(spec.embedding_width == (plain_pairs ? hidden : spec.width) && embedded > 0,
          "the embedding has the width of the stream, or of hidden states as they are, and a row");
  spec.hidden_width = hidden;
  spec.embedded = embedded;
  spec.normed_stream = normed_stream;
  spec.plain_pairs = plain_pairs;
  spec.stores_hidden = stores;
}

// The model's layers read caches of another one, whose layers have these rows; see LayerRows.
void read_caches(PyModel& self, const std::vector<int>& heads, const std::vector<int>& sizes,
                 const std::vector<int>& shares) {
  ModelSpec& spec = self.spec;
  require(spec.layers.empty() && !heads.empty(), "what layers read comes before them");
  require(heads.size() == sizes.size() && heads.size() == shares.size(),
          "one number of heads, one size and one layer that is shared for each layer");
  for (size_t i = 0; i < heads.size(); i++) {
    require(heads[i] > 0 && heads[i] <= spec.kv_heads, "kv_heads are the most of a layer");
    spec.rows.push_back({heads[i], {sizes[i], 0}, shares[i]});
  }
  spec.reads_only = true;
}

void check_activation(int activation) {
  require(activation >= kSilu && activation <= kXielu, "no such activation");
}

// The matrices gate, up and down of names with a prefix.
DenseMlp mlp(PyModel& self, const Parts& parts, const std::string& prefix, int width,
             int activation, bool gated) {
  DenseMlp block;
  self.set(block.gate, parts, (prefix + "gate").c_str(), width, self.spec.width, gated);
  self.set(block.up, parts, (prefix + "up").c_str(), width, self.spec.width);
  self.set(block.down, parts, (prefix + "down").c_str(), self.spec.width, width);
  block.activation = activation;
  require(activation != kClampedSwish || block.gate.data, "this activation has a gate");
  const bool curved = parts.contains("curve");
  require((activation == kXielu) == curved, "xielu has parameters, and no other activation has");
  require(!curved || !block.gate.data, "xielu has no gate");
  if (curved) {
    const float* by = self.vector(parts["curve"], 4);
    block.curve = {by[0], by[1], by[2], by[3]};
  }
  block.gate_own = block.gate.data && !same_inputs(block.up, block.gate);
  return block;
}

void add_mlp(PyModel& self, const Parts& parts, int width, int activation, float gate_scale) {
  ModelSpec& spec = self.spec;
  require(width > 0, "every size of a model is positive");
  check_activation(activation);
  DenseMlp block = mlp(self, parts, "", width, activation, false);
  require(gate_scale == 1 || block.gate.data, "a scale of a gate, and there is none");
  block.gate_scale = gate_scale;
  add_block(self, parts, std::move(block));
  spec.inner_width = std::max(spec.inner_width, width);
}

// `place`: of the layer's embedding among those of a token.
void add_layer_embedding(PyModel& self, const Parts& parts, int place, int activation) {
  ModelSpec& spec = self.spec;
  const int size = spec.layer_embeddings.size;
  require(size > 0 && place >= 0, "the model has embeddings of layers");
  check_activation(activation);
  LayerEmbeddingBlock block;
  self.set(block.gate, parts, "layer_gate", size, spec.width);
  self.set(block.out, parts, "layer_out", spec.width, size);
  block.activation = activation;
  block.place = place;
  spec.inner_width = std::max(spec.inner_width, size);
  add_block(self, parts, block);
}

void set_layer_embeddings(PyModel& self, int size, float table_scale, float project_scale,
                          float scale) {
  require(size > 0 && size % kPanel == 0, "a layer's embedding is a multiple of 16 entries");
  LayerEmbeddings& own = self.spec.layer_embeddings;
  own.size = size;
  own.table_scale = table_scale;
  own.project_scale = project_scale;
  own.scale = scale;
}

void set_routing(ExpertMlp& block, const std::vector<int>& steps, int chosen, float scale,
                 float margin, bool before, int groups, int kept_groups) {
  require(chosen >= 1 && chosen <= block.experts, "from 1 to all experts can be chosen");
  require(groups >= 1 && block.experts % groups == 0, "groups are equal shares of the experts");
  require(kept_groups <= groups && kept_groups * (block.experts / groups) >= chosen,
          "the groups that are left have the experts that are chosen");
  require(std::all_of(steps.begin(), steps.end(),
                      [](int step) { return step >= kSoftmax && step <= kBestPairs; }),
          "no such step of a routing");
  const auto chooses = [](int step) { return step == kTop || step == kInTurn; };
  require(std::count_if(steps.begin(), steps.end(), chooses) == 1, "a routing chooses once");
  require(margin >= 0, "a negative margin");
  block.routing = {.steps = steps,
                   .chosen = chosen,
                   .groups = groups,
                   .kept_groups = kept_groups,
                   .margin = margin,
                   .scale = scale,
                   .before = before};
}

// Matrices of experts are stacked; `shared` is the size of the expert that all rows share, 0: none.
void add_experts(PyModel& self, const Parts& parts, int experts, int inner, int shared,
                 int activation, const std::vector<int>& steps, int chosen, float scale,
                 float margin, bool before, int groups, int kept_groups) {
  const ModelSpec& spec = self.spec;
  require(experts > 0 && inner > 0 && shared >= 0, "every size of a model is positive");
  require(inner % kPanel == 0 && spec.width % kPanel == 0,
          "experts have whole panels of 16 inputs and outputs");
  const int read = parts.contains("narrow") ? self.rows_of(parts, "narrow") : spec.width;
  require(read % kPanel == 0 && read <= spec.width, "what experts read is no wider than a row");
  require(static_cast<int64_t>(experts) * std::max(inner, read) <= INT32_MAX,
          "more rows of experts than can be numbered");
  check_activation(activation);
  require(activation != kXielu, "experts have an activation without parameters");
  ExpertMlp block;
  block.experts = experts;
  block.inner = inner;
  block.activation = activation;
  set_routing(block, steps, chosen, scale, margin, before, groups, kept_groups);
  if (parts.contains("choice")) block.routing.bias = self.vector(parts["choice"], experts);
  if (parts.contains("factors")) block.routing.factors = self.vector(parts["factors"], experts);
  self.set(block.router_norm, parts, "router_norm", spec.width);
  self.set(block.router, parts, "router", experts, spec.width);
  self.set(block.narrow, parts, "narrow", read, spec.width, false);
  self.set(block.widen, parts, "widen", spec.width, read, parts.contains("narrow"));
  self.set(block.gate, parts, "expert_gate", experts * inner, read, false);
  self.set(block.up, parts, "expert_up", experts * inner, read);
  self.set(block.down, parts, "expert_down", experts * read, inner);
  block.gate_own = block.gate.data && !same_inputs(block.up, block.gate);
  require(activation != kClampedSwish || block.gate.data, "this activation has a gate");
  if (shared) {
    block.shared = mlp(self, parts, "shared_", shared, activation, block.gate.data != nullptr);
    self.set(block.shared_router, parts, "shared_router", 1, spec.width, false);
  }
  add_block(self, parts, block);
}

// The groups of the head's rows; `kept_groups` of them count.
void set_groups(PyModel& self, const Parts& parts) {
  ModelSpec& spec = self.spec;
  if (!parts.contains("groups")) return;
  const int groups = self.rows_of(parts, "groups");
  self.set(spec.groups, parts, "groups", groups, spec.width);
  spec.kept_groups = nb::cast<int>(parts["kept_groups"]);
  require(spec.kept_groups >= 1 && spec.kept_groups <= groups, "from 1 to all groups are kept");
  require(spec.vocabulary % groups == 0 && spec.vocabulary / groups % kPanel == 0,
          "the head's rows are in equal groups of whole panels");
  require(spec.logit_scale == 1 && spec.logit_cap == 0 && !spec.project_out.data,
          "logits of groups are those of the stream, as they are");
}

void finish(PyModel& self, const Parts& parts) {
  ModelSpec& spec = self.spec;
  const bool projected = !spec.hidden_width && spec.width != spec.embedding_width;
  self.set(spec.embedding, parts, "embed", spec.embedded, spec.embedding_width);
  self.set(spec.project_in, parts, "project_in", spec.width, spec.embedding_width, projected);
  self.set(spec.project_out, parts, "project_out", spec.embedding_width, spec.width, projected);
  self.set(spec.head, parts, "head", spec.vocabulary, spec.head_width());
  require(!spec.embedding.order && !spec.embedding.rotation.block && !spec.embedding.inputs.count,
          "the embedding's columns are those of the model, neither reordered nor rotated");
  self.set(spec.embedding_norm, parts, "embed_norm", spec.width);
  self.set(spec.final_norm, parts, "final_norm", spec.width);
  self.set(spec.fuse, parts, "fuse", spec.width, spec.hidden_width, spec.stores_hidden);
  self.set(spec.join, parts, "join", spec.width, spec.pair_width(), spec.plain_pairs);
  self.set(spec.hidden_norm, parts, "hidden_norm", spec.width);
  set_groups(self, parts);
  LayerEmbeddings& own = spec.layer_embeddings;
  const int width = own.size * static_cast<int>(spec.layers.size());
  self.set(own.table, parts, "layer_embed", spec.vocabulary, width, own.size > 0);
  self.set(own.project, parts, "layer_embed_project", width, spec.width, own.size > 0);
  self.set(own.norm, parts, "layer_embed_norm", own.size);
  require(!own.size || own.norm.weight, "the model lacks its layer_embed_norm weight");
  if (parts.contains("positions"))
    spec.positions =
        self.vector(parts["positions"], static_cast<size_t>(spec.position_rows) * spec.width);
  require(spec.cached_layers() > 0 && !spec.layers.back().blocks.empty(),
          "a model needs at least one layer with attention, and a layer a block");
  self.model = std::make_unique<Model>(spec);
}

void add_rope(PyModel& self, nb::object cos, nb::object sin, int positions, int pairs) {
  require(pairs >= 1 && 2 * pairs <= self.spec.head_size, "more rotated pairs than a head has");
  const size_t size = static_cast<size_t>(positions) * pairs;
  self.spec.ropes.push_back({self.vector(cos, size), self.vector(sin, size), positions, pairs});
}

void set_query_scales(PyModel& self, nb::object scales, int positions) {
  for (const Rope& rope : self.spec.ropes)
    require(rope.positions == positions, "rotations are for other positions");
  require(!self.spec.ropes.empty(), "positions are those of rotations");
  self.spec.query_scales = self.vector(scales, positions);
}

}  // namespace

void bind_blocks(nb::class_<PyModel>& model) {
  model
      .def("begin_with_hidden", &begin_with_hidden, "hidden"_a, "embedded"_a,
           "normed_stream"_a = false, "plain_pairs"_a = false, "stores"_a = false)
      .def("read_caches", &read_caches, "heads"_a, "sizes"_a, "shares"_a)
      .def("add_layer", &add_layer, "scale"_a = 1.0f)
      .def("add_attention", &add_attention, "parts"_a, "kv_heads"_a, "head_size"_a, "shares"_a,
           "window"_a, "rope"_a, "whole_norms"_a, "late_norms"_a = false, "grows"_a = true,
           "paired"_a = false, "mutual"_a = false)
      .def("set_layer_embeddings", &set_layer_embeddings, "size"_a, "table_scale"_a,
           "project_scale"_a, "scale"_a)
      .def("add_layer_embedding", &add_layer_embedding, "parts"_a, "place"_a, "activation"_a)
      .def("add_latent", &add_latent, "parts"_a, "plain"_a, "rank"_a, "value"_a, "rope"_a,
           "adjacent"_a, "norm_eps"_a)
      .def("add_mlp", &add_mlp, "parts"_a, "width"_a, "activation"_a, "gate_scale"_a = 1.0f)
      .def("add_experts", &add_experts, "parts"_a, "experts"_a, "inner"_a, "shared"_a,
           "activation"_a, "steps"_a, "chosen"_a, "scale"_a, "margin"_a = 0.0f, "before"_a = false,
           "groups"_a = 1, "kept_groups"_a = 1);
  model.def("add_rope", &add_rope, "cos"_a, "sin"_a, "positions"_a, "pairs"_a)
      .def("set_query_scales", &set_query_scales, "scales"_a, "positions"_a)
      .def("finish", &finish, "parts"_a);
  bind_states(model);
}

}  // namespace suffice::bind
