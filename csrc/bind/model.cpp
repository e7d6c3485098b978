#include "model/model.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "bind/py_model.h"
#include "runtime/parallel.h"
#include "sampling/passes.h"

namespace suffice::bind {
namespace {

void check_request(const ModelSpec& spec, const KVCache& cache, int length, int count, bool exact,
                   int technique) {
  require(technique >= 0 && technique < static_cast<int>(spec.rules.size()),
          "there is no technique " + std::to_string(technique));
  require(count >= 1 && count <= 32, "1 to 32 rows per request, not " + std::to_string(count));
  const LayerStates* const states = cache.layer_states();
  require(cache.shapes() == spec.rows &&
              (states ? states->shapes() == spec.states : spec.states.empty()),
          "the cache was made for another model");
  check_tokens(cache, length, count);
  require(exact || !spec.needs_sketch(technique) || cache.extras().sketch,
          "the cache has no sketch of its keys");
  require(exact || !spec.needs_bases(technique) || cache.has_bases(), kNeedsBases);
  require(exact || count == 1 || !cache.extras().masses,
          "a cache that sums row masses takes one token at a time, not " + std::to_string(count));
}

void check_tokens(const ModelSpec& spec, const ConstInts& tokens, const ConstInts& positions) {
  int limit = spec.positions ? spec.position_rows : INT32_MAX;
  for (const Rope& rope : spec.ropes) limit = std::min(limit, rope.positions);
  const size_t rows = tokens.size();
  for (size_t i = 0; i < rows; i++) {
    const int token = tokens.data()[i], position = positions.data()[i];
    require(token >= 0 && token < spec.embedded, "token " + std::to_string(token) +
                                                     " is outside the vocabulary of " +
                                                     std::to_string(spec.embedded));
    require(position >= 0 && position < limit, "position " + std::to_string(position) +
                                                   " exceeds the model's " + std::to_string(limit));
  }
}

std::vector<int> rows_of(const ConstInts& given, size_t rows, const char* name) {
  for (size_t i = 0; i < given.size(); i++)
    require(given.data()[i] >= 0 && given.data()[i] < static_cast<int>(rows) &&
                (i == 0 || given.data()[i] > given.data()[i - 1]),
            std::string(name) + " must be rows of the step in ascending order");
  return {given.data(), given.data() + given.size()};
}

// How a request takes part in a step; bits of `kinds`.
enum Kind : int {
  kExact = 1,
  kCounted = 2,
  kWatched = 4,
  kTiled = 8,
  kOutside = 16,
  kSettled = 32
};

StepRequest request_of(const ModelSpec& spec, KVCache* cache, int length, int first_row, int count,
                       int kind, int technique, int adapter) {
  const bool exact = kind & kExact;
  check_request(spec, *cache, length, count, exact, technique);
  require(adapter >= -1 && adapter < static_cast<int>(spec.adapters.bytes.size()),
          "there is no adapter " + std::to_string(adapter));
  return {.cache = cache,
          .length = length,
          .first_row = first_row,
          .count = count,
          .technique = technique,
          .adapter = adapter,
          .exact = exact,
          .counted = (kind & kCounted) != 0,
          .watched = (kind & kWatched) != 0,
          .tiled = (kind & kTiled) != 0,
          .outside = (kind & kOutside) != 0,
          .settled = (kind & kSettled) != 0};
}

// Softmaxes, and sums over them of `missing` and `shift`.
using PlainBounds = std::tuple<int64_t, double, double>;

PlainBounds plain(const BoundSums& bounds) {
  return {bounds.softmaxes, bounds.missing * BoundSums::kUnit, bounds.shift * BoundSums::kUnit};
}

// Key rows, value rows, rows held, bytes read, bytes held, missing, shift, rows that tiles of the
// prompt read, rows that they see, bounds.
using PlainReads = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, float, float, int64_t,
                              int64_t, PlainBounds>;

PlainReads plain(const RequestReads& reads) {
  return {reads.key_rows,       reads.value_rows,   reads.dense_rows, reads.bytes_read,
          reads.bytes_held,     reads.missing,      reads.shift,      reads.tile_rows_read,
          reads.tile_rows_held, plain(reads.bounds)};
}

// Where an array of this size begins; null if there is none.
float* data_of(const std::optional<Floats>& array, size_t size, const char* otherwise) {
  require(!array || array->size() == size, otherwise);
  return array ? array->data() : nullptr;
}

// Sets the rows whose logits are wanted, and where these go; the step has its tokens.
void set_outputs(Step& step, const ModelSpec& spec, const ConstInts& outputs, const Floats& logits,
                 const std::optional<Floats>& maxima) {
  const int padded = round_up(spec.vocabulary, kPanel);
  require(logits.ndim() == 2 && logits.shape(0) == outputs.size() &&
              logits.shape(1) == static_cast<size_t>(padded),
          "logits must be [outputs, " + std::to_string(padded) + "]");
  step.outputs = rows_of(outputs, step.tokens.size(), "outputs");
  step.logits = logits.data();
  step.maxima = data_of(maxima, outputs.size() * logit_blocks(spec.vocabulary),
                        "maxima must be [outputs, blocks of logits]");
}

// Rows of the step, and what they get.
using PyRows = std::tuple<ConstInts, Floats>;

// Sets the rows whose last states, or streams, are wanted, and the hidden states that rows begin
// with; the step has its tokens.
void set_states(Step& step, const ModelSpec& spec, const std::optional<PyRows>& states,
                const std::optional<PyRows>& streams, const std::optional<ConstFloats>& hidden) {
  const size_t rows = step.tokens.size();
  if (states) {
    step.state_rows = rows_of(std::get<0>(*states), rows, "state_rows");
    step.states = data_of(std::get<1>(*states), step.state_rows.size() * spec.width,
                          "states must be [state_rows, width]");
  }
  if (streams) {
    step.tap_rows = rows_of(std::get<0>(*streams), rows, "tap_rows");
    step.taps = data_of(std::get<1>(*streams), step.tap_rows.size() * spec.taps.size() * spec.width,
                        "streams must be [tap_rows, taps, width]");
  }
  require(spec.stores_hidden || hidden.has_value() == (spec.hidden_width > 0),
          "hidden states are given to models that draft, and to no others");
  if (!hidden) return;
  step.hidden = hidden->data();
  require(!spec.stores_hidden || (step.outputs.empty() && step.state_rows.empty() &&
                                  step.tap_rows.empty() && !step.selects()),
          "a step that stores hidden states gives nothing and attends to nothing");
  step.own_hidden = hidden->size() != rows * spec.hidden_width;
  require(!step.own_hidden ||
              (!spec.plain_pairs && !spec.stores_hidden && hidden->size() == rows * spec.width),
          "hidden must be [rows, hidden_width], or [rows, width] of a model that normalises pairs");
}

// Of attention that Python computes: a function of the layer, and the arrays of `Outside`.
using PyOutside = std::tuple<nb::object, Floats, Ints, ConstFloats, Longs>;

Outside outside_of(const PyOutside& given, const ModelSpec& spec, size_t rows) {
  const auto& [attend, queries, visible, outputs, reads] = given;
  const size_t size = rows * spec.heads * spec.head_size;
  require(queries.size() == size && outputs.size() == size &&
              visible.size() == rows * Outside::kSeen &&
              reads.size() == rows * spec.kv_heads * Outside::kCounts,
          "queries and outputs must be [rows, heads, head_size], visible [rows, 4], and reads "
          "[rows, kv_heads, 4]");
  return {.attend =
              [attend = attend.ptr()](int layer) {
                const nb::gil_scoped_acquire python;
                const nb::handle function{attend};
                function(layer);
              },
          .queries = queries.data(),
          .visible = visible.data(),
          .outputs = outputs.data(),
          .reads = reads.data()};
}

// Of functions that wait for a step's end: the step may wait for Python.
constexpr auto kWithoutPython = nb::call_guard<nb::gil_scoped_release>();

// tokens, positions [rows]; counts [requests] rows each; kinds [requests]; techniques [requests]
// indices of the sets of rules; adapters [requests] indices, -1: none; visible [rows] bit masks
// over the request's own rows; outputs: rows whose logits [outputs, padded vocabulary] are wanted;
// reads [5, layers, kv_heads], to which those of counted requests are added: see `Trace`; queries
// [layers, watched rows, heads, size], filled; audit [5, layers, rows, heads]: see partial.h;
// maxima [outputs, blocks of logits], filled; outside: see PyOutside, if any kind asks for it;
// states: rows whose states are wanted and these [state_rows, width], filled; streams: rows whose
// streams are wanted and these [tap_rows, taps, width], filled; hidden: what rows of a model that
// drafts begin with. Returns the sums, and the reads of each request.
std::pair<Counts, std::vector<PlainReads>> py_step(
    PyModel& self, std::vector<KVCache*> caches, ConstInts lengths, ConstInts counts,
    ConstInts kinds, ConstInts techniques, ConstInts adapters, ConstInts tokens,
    ConstInts positions, ConstInts visible, ConstInts outputs, Floats logits, Longs reads,
    std::optional<Floats> queries, std::optional<Floats> audit, std::optional<Floats> maxima,
    std::optional<PyOutside> outside, std::optional<PyRows> states, std::optional<PyRows> streams,
    std::optional<ConstFloats> hidden) {
  require(self.model != nullptr, "the model is not complete");
  const ModelSpec& spec = self.model->spec();
  const size_t rows = tokens.size();
  require(rows > 0 && positions.size() == rows && visible.size() == rows,
          "tokens, positions and visible need the same, positive, length");
  require(lengths.size() == caches.size() && counts.size() == caches.size() &&
              kinds.size() == caches.size() && techniques.size() == caches.size() &&
              adapters.size() == caches.size(),
          "one length, one count, one kind, one technique and one adapter per cache");
  Step step;
  size_t first_row = 0;
  for (size_t i = 0; i < caches.size(); i++) {
    const int count = counts.data()[i];
    step.requests.push_back(request_of(spec, caches[i], lengths.data()[i],
                                       static_cast<int>(first_row), count, kinds.data()[i],
                                       techniques.data()[i], adapters.data()[i]));
    const LayerStates* const states = caches[i]->layer_states();
    require(
        !states || (i > 0 && caches[i] == caches[i - 1]) || states->length() == lengths.data()[i],
        "a cache's states are of other tokens than its rows");
    first_row += count;
    if (step.requests.back().watched) step.watched_rows += count;
  }
  require(first_row == rows, "the counts add up to " + std::to_string(first_row) + ", not to the " +
                                 std::to_string(rows) + " tokens given");
  check_tokens(spec, tokens, positions);
  require(!spec.reads_only || outputs.size() > 0, "a model that stores nothing has outputs");
  step.tokens.assign(tokens.data(), tokens.data() + rows);
  step.positions.assign(positions.data(), positions.data() + rows);
  step.visible.assign(visible.data(), visible.data() + rows);
  set_outputs(step, spec, outputs, logits, maxima);
  set_states(step, spec, states, streams, hidden);
  const size_t layers = spec.rows.size();
  step.queries = data_of(queries, layers * step.watched_rows * spec.heads * spec.head_size,
                         "queries must be [layers, watched rows, heads, head_size]");
  step.audit =
      data_of(audit, 5 * layers * rows * spec.heads, "audit must be [5, layers, rows, heads]");
  const bool asked = std::any_of(step.requests.begin(), step.requests.end(),
                                 [](const StepRequest& request) { return request.outside; });
  require(!asked || outside, "a request's attention is outside, and there is none");
  if (asked) step.outside = outside_of(*outside, spec, rows);
  Counts found = counts_into(reads, spec.rows.size(), spec.kv_heads);
  std::vector<RequestReads> by_request;
  {
    nb::gil_scoped_release release;
    self.model->step(step, *team(), found, by_request);
  }
  std::vector<PlainReads> each;
  for (const RequestReads& own : by_request) each.push_back(plain(own));
  return {found, each};
}

void leave_out(PyModel& self, int recent, int sinks, const std::vector<int>& skipped) {
  require(self.model != nullptr, "the model is not complete");
  require(recent >= 0 && sinks >= 0, "recent and sinks cannot be negative");
  for (const int layer : skipped) {
    require(layer >= 0 && layer < static_cast<int>(self.spec.layers.size()),
            "there is no layer " + std::to_string(layer));
    const int cached = self.spec.layers[layer].cached;
    require(cached < 0 || std::none_of(
                              self.spec.rows.begin(), self.spec.rows.end(),
                              [=](const LayerRows& rows) { return rows.shares == cached; }),
            "layer " + std::to_string(layer) + " stores what others read, and cannot be left out");
  }
  self.model->leave_out(recent, sinks, skipped);
}

void leave_out_experts(PyModel& self, float share) {
  require(self.model != nullptr, "the model is not complete");
  require(share >= 0 && share < 1, "a share from 0 to less than 1");
  self.model->leave_out_experts(share);
}

void leave_out_in_prompts(PyModel& self, float share) {
  require(self.model != nullptr, "the model is not complete");
  require(share >= 0 && share < 1, "a share from 0 to less than 1");
  self.model->leave_out_in_prompts(share);
}

void time_parts(PyModel& self, bool timed) {
  require(self.model != nullptr, "the model is not complete");
  self.model->time_parts(timed);
}

std::map<std::string, double> take_part_seconds(PyModel& self) {
  require(self.model != nullptr, "the model is not complete");
  const PartSeconds seconds = self.model->take_part_seconds();
  std::map<std::string, double> found;
  for (int i = 0; i < kParts; i++) found[kPartNames[i]] = seconds[i];
  return found;
}

void set_rules(PyModel& self, std::vector<std::vector<AttentionRule>> rules) {
  require(self.model != nullptr, "the model is not complete");
  for (const std::vector<AttentionRule>& own : rules) {
    const ModelSpec& spec = self.spec;
    require(own.size() == spec.rows.size() * spec.kv_heads,
            "one rule for each layer with attention and key/value head");
    for (size_t i = 0; i < own.size(); i++) {
      const int heads = spec.rows[i / spec.kv_heads].heads;
      if (static_cast<int>(i) % spec.kv_heads < heads) check_rule(own[i], spec.heads / heads);
    }
  }
  require(!rules.empty(), "at least one technique");
  self.model->set_rules(std::move(rules));
}

void set_taps(PyModel& self, const std::vector<int>& layers) {
  require(self.model != nullptr, "the model is not complete");
  for (const int layer : layers)
    require(layer >= 0 && layer <= static_cast<int>(self.spec.layers.size()) + 1,
            "there is no layer " + std::to_string(layer));
  self.model->set_taps(layers);
}

void bind_counts(nb::module_& m) {
  nb::class_<Counts>(m, "Counts")
      .def_ro("kv_bytes", &Counts::kv_bytes)
      .def_ro("sketch_bytes", &Counts::sketch_bytes)
      .def_ro("missing", &Counts::missing)
      .def_ro("shift", &Counts::shift)
      .def_prop_ro("bounds", [](const Counts& counts) { return plain(counts.bounds); })
      .def_ro("dense_bytes", &Counts::dense_bytes)
      .def_ro("weight_bytes", &Counts::weight_bytes)
      .def_ro("experts_read", &Counts::experts_read)
      .def_ro("experts_held", &Counts::experts_held)
      .def_ro("expert_bytes_read", &Counts::expert_bytes_read)
      .def_ro("expert_bytes_held", &Counts::expert_bytes_held)
      .def_ro("visits_left_out", &Counts::visits_left_out)
      .def_ro("share_left_out", &Counts::share_left_out)
      .def_ro("tile_rows_read", &Counts::tile_rows_read)
      .def_ro("tile_rows_held", &Counts::tile_rows_held);
}

void make_model(PyModel* self, int width, int heads, int kv_heads, int head_size, int vocabulary,
                int embedding_width, bool layer_norm, float norm_eps, float attention_scale,
                float embedding_scale, float logit_scale, float score_cap, float logit_cap,
                int position_rows, int adapters, int joint) {
  require(width > 0 && heads > 0 && kv_heads > 0 && vocabulary > 0 && embedding_width > 0,
          "every size of a model is positive");
  require(score_cap >= 0 && logit_cap >= 0, "caps are positive, or 0 for none");
  require(adapters >= 0, "a negative number of adapters");
  require(head_size > 0 && head_size % kPanel == 0, "head_size must be a multiple of 16");
  require(joint >= 0 && joint % kPanel == 0 && joint < head_size,
          "a joint row's value is its first multiple of 16 entries, or 0 for none");
  new (self) PyModel();
  ModelSpec& spec = self->spec;
  spec.width = width;
  spec.heads = heads;
  spec.kv_heads = kv_heads;
  spec.head_size = head_size;
  spec.joint = joint;
  spec.vocabulary = spec.embedded = vocabulary;
  spec.embedding_width = embedding_width;
  spec.layer_norm = layer_norm;
  spec.norm_eps = norm_eps;
  spec.attention_scale = attention_scale;
  spec.embedding_scale = embedding_scale;
  spec.logit_scale = logit_scale;
  spec.score_cap = score_cap;
  spec.logit_cap = logit_cap;
  spec.adapters.bytes.assign(adapters, 0);
  spec.position_rows = position_rows;
}

}  // namespace

void bind_model(nb::module_& m) {
  bind_counts(m);
  nb::class_<PyModel> model(m, "Model");
  bind_blocks(model);
  model
      .def("__init__", &make_model, "width"_a, "heads"_a, "kv_heads"_a, "head_size"_a,
           "vocabulary"_a, "embedding_width"_a, "layer_norm"_a, "norm_eps"_a, "attention_scale"_a,
           "embedding_scale"_a, "logit_scale"_a, "score_cap"_a, "logit_cap"_a, "position_rows"_a,
           "adapters"_a, "joint"_a = 0)
      .def("step", &py_step, "caches"_a, "lengths"_a.noconvert(), "counts"_a.noconvert(),
           "kinds"_a.noconvert(), "techniques"_a.noconvert(), "adapters"_a.noconvert(),
           "tokens"_a.noconvert(), "positions"_a.noconvert(), "visible"_a.noconvert(),
           "outputs"_a.noconvert(), "logits"_a.noconvert(), "reads"_a.noconvert(),
           "queries"_a.noconvert().none() = nb::none(), "audit"_a.noconvert().none() = nb::none(),
           "maxima"_a.noconvert().none() = nb::none(), "outside"_a.noconvert().none() = nb::none(),
           "states"_a.noconvert().none() = nb::none(), "streams"_a.noconvert().none() = nb::none(),
           "hidden"_a.noconvert().none() = nb::none())
      .def("leave_out", &leave_out, "recent"_a, "sinks"_a, "skipped"_a)
      .def("leave_out_experts", &leave_out_experts, "share"_a, kWithoutPython)
      .def("leave_out_in_prompts", &leave_out_in_prompts, "share"_a, kWithoutPython)
      .def("set_rules", &set_rules, "rules"_a)
      .def("set_taps", &set_taps, "layers"_a)
      .def("time_parts", &time_parts, "timed"_a, kWithoutPython,
           "Whether the parts of later steps are timed.")
      .def("take_part_seconds", &take_part_seconds, kWithoutPython,
           "Seconds of the timed steps since the last call by part, summed over threads.");
}

}  // namespace suffice::bind
