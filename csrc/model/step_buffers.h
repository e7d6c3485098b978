// Buffers of a step. The model keeps them from step to step, so decoding allocates nothing after
// its largest step.
#pragma once

#include <vector>

#include "attention/attention.h"
#include "linear/inputs.h"
#include "model/model.h"
#include "model/part_clock.h"
#include "model/routing.h"
#include "model/state_rows.h"

namespace suffice {

// The residual stream, and the inputs of matrices.
struct RowBuffers {
  std::vector<float> residual, normal;  // [rows][width]
  std::vector<float> routed, held;      // likewise, where routers have norms and blocks are held
  InputBuffers inputs, second_inputs, third_inputs;
  LowRankInputs low_rank, second_low_rank, third_low_rank;  // of the step's adapters
  std::vector<float> gated;  // [rows][value_width], outputs of recurrences
  std::vector<float> pairs;  // [rows][pair_width], of a model that drafts

  // `stride`: that of the widest inputs of a matrix.
  // `value_width`: that of the outputs of recurrences. `joins`: some blocks are held.
  void prepare(int rows, int width, int stride, int value_width, int pair_width, bool joins);
  void prepare(const std::vector<AdapterRows>& adapted, const Adapters& adapters);
  // Allocates the inputs of all matrices.
  void reserve(const ModelSpec& spec);
};

// Allocate the inputs of a block's matrices.
void reserve_inputs(const AttentionBlock& block, RowBuffers& to);
void reserve_inputs(const ConvolutionBlock& block, RowBuffers& to);
void reserve_inputs(const RecurrentBlock& block, RowBuffers& to);
void reserve_inputs(const LatentBlock& block, RowBuffers& to);
void reserve_inputs(const DenseMlp& block, RowBuffers& to);
void reserve_inputs(const ExpertMlp& block, RowBuffers& to);
void reserve_inputs(const LayerEmbeddingBlock& block, RowBuffers& to);

// What a thread needs for the rows of one expert.
struct ExpertBuffers {
  std::vector<float> rows;  // [rows][width]
  InputBuffers inputs, gate_inputs;
  std::vector<Scored> scores;  // of one row

  void prepare(int count, int width, int inner_stride);
};

// What a thread needs for the matrices of one head: their inputs, [rows][columns].
struct HeadInputs {
  std::vector<float> rows;
  InputBuffers inputs;
};

// Buffers of one thread, aligned so that threads share no cache line.
struct alignas(64) ThreadBuffers {
  RowBuffers rows;
  std::vector<float> key, value;  // [rows][head size]
  Scratch scratch;
  InputScratch input_scratch;
  LowRankScratch low_rank_scratch;
  PartClock clock;
  ExpertBuffers experts;
  RecurrenceBuffers recurrence;
  HeadInputs of_head;
};

// From this number of rows on, each thread normalises and quantizes some of them for all, at the
// price of four barriers in a layer. Below that each does it for itself.
constexpr int kSharedRows = 16;
// So does this number of adapters: each reads matrices of its own to prepare its rows.
constexpr size_t kSharedAdapters = 4;

// Panels of a matrix that a thread takes together where threads take what others are late with:
// pairs, or whole units, but several such items for each thread.
constexpr int kItems = 8;
inline int panels_at_once(const Linear& w, int threads, int unit = 1) {
  const int each = w.panels() / (kItems * threads), least = unit > 1 ? unit : 2;
  return each >= least ? each / least * least : unit;
}
inline int items_of(const Linear& w, int threads, int unit = 1) {
  const int each = panels_at_once(w, threads, unit);
  return (w.panels() + each - 1) / each;
}

// Buffers that all threads share.
class StepBuffers {
 public:
  int rows = 0;
  // Strides, whole panels; the last four are of blocks with states and around joint rows.
  int width = 0, query_width = 0, key_width = 0, inner_width = 0;
  bool joins = false;  // some blocks are held
  int mixed_width = 0, decay_width = 0, value_width = 0, latent_width = 0;
  int pair_width = 0;                    // of an embedding and hidden states, one after the other
  int hidden_width = 0;                  // of hidden states of another model
  std::vector<float> queries, attended;  // [rows][query_width]
  std::vector<float> gates;  // [rows][query_width or value_width], where outputs have gates
  std::vector<float> mixed, recurred;    // [rows][mixed_width], [rows][value_width]
  std::vector<float> strengths, decays;  // [rows][decay_width]
  std::vector<StateRows> state_rows;     // of each request
  // [rows][key_width], where norms are over all heads, or rows are joint.
  std::vector<float> keys;
  std::vector<float> low, latent;  // [rows][latent_width], around joint rows
  // [rows][layers size], of tokens; their stride
  std::vector<float> layer_embeddings;
  int layer_embedding_width = 0;
  std::vector<float> group_scores;         // [outputs][groups], of a head in groups
  std::vector<int> kept_groups;            // [outputs][kept groups]
  std::vector<float> output;               // [rows][width], of a block
  std::vector<float> inner, second_inner;  // [rows][inner_width], within a block
  std::vector<ReadSums> reads;             // [cached layers][requests][kv_heads]
  std::vector<ReadSums> tile_reads;        // [requests]: of tiles of prompts
  std::vector<ThreadBuffers> threads;
  std::vector<AdapterRows> adapted;  // of the adapters that the step's requests name
  bool split = false;                // the threads share the row buffers of the first
  WorkQueue queue;                   // of products of many rows
  WorkQueue second_queue;
  Routes routes;  // of a block of experts
  Attention attention;

  // Called by one thread, before the others start.
  void prepare(const ModelSpec& spec, const Step& step, int threads);
  int input_stride() const;  // that of the widest inputs of a matrix
  // Plans the attention of a block, that of the layer `cached` of caches, by one thread.
  void plan(const ModelSpec& spec, const Step& step, const Sight& block, int cached, int threads);
  // Clears what caches keep of tentative rows from a layer on, whose attention is not planned.
  void forget_drafts(const ModelSpec& spec, const Step& step, int layer);
  // Has the attention of requests that are `outside` computed, by one thread.
  void attend_outside(const ModelSpec& spec, const Step& step, const Sight& block, int cached);

 private:
  // One traversal per request and key/value head. Layers of the same window and shape share it
  // except for the head's memory, until a policy removes rows.
  struct Window {
    int window = 0, kv_heads = 0, size = 0;
    std::vector<Traversal> traversals;
  };
  void group_by_adapter(const Step& step);
  void prepare_states(const ModelSpec& spec, const Step& step);
  Window& window_of(const Sight& block);
  void lay_out(const ModelSpec& spec, const Step& step, Window& window);
  Audit audit_of(const ModelSpec& spec, const Step& step, int layer, int row, int head) const;

  std::vector<Window> windows_;  // of the model's layers
};

}  // namespace suffice
