// Input of a step's attention for each request and key/value head.
#pragma once

#include <vector>

#include "attention/aet_state.h"
#include "attention/draft_paths.h"
#include "attention/sketch_order.h"
#include "attention/value_sum.h"
#include "cache/boxes.h"
#include "kernels/kernels.h"

namespace suffice {

constexpr int kChunkBlocks = 32;  // one thread's piece of work

// The rows of a layer that a traversal may read: each token sees the last `window` (0: all) and the
// first `sinks`. The first `removed` tokens have no rows. `mutual`: it sees all rows of its step,
// whatever the masks say, but for the window.
struct Bounds {
  int window = 0, removed = 0, sinks = 0;
  bool mutual = false;
  bool operator==(const Bounds&) const = default;
};

// Rows that a layer's window and the policy let tokens see; `window` 0: unlimited.
Bounds bounds_of(const KVCache& cache, int layer, int window, int sinks = 0);

struct Range {
  int begin, end;
};

struct ReadSums;  // in reads.h

// Of a token in a tree of drafts: its row in the step of its request, where this row is among those
// that it sees, and the row before it, -1 for none.
struct DraftPlace {
  int row, place, parent;
};

// Query rows of one request: all query heads that share one key/value head.
struct Traversal {
  KVHead head;
  std::vector<const float*> queries;    // [count] -> [size], scaled by attention scale * log2 e
  std::vector<Visible> visible;         // [count]
  std::vector<int> positions;           // of the tokens
  std::vector<float*> outputs;          // [count] -> [size]
  const int32_t* list = nullptr;        // ordered block indices, null: the identity
  int begin = 0, end = 0;               // positions in the list (or blocks, when null)
  int rows_end = 0;                     // rows of the cache that exist
  Bounds bounds;                        // the fields above follow from it: see set_visibility
  std::vector<int32_t> blocks;          // memory of `list`, if the traversal owns it
  int max_blocks = 0;                   // blocks that boxes select for each token (0: all)
  int boxed = 0;                        // blocks that have a box
  const AttentionRule* rule = nullptr;  // null: everything is read, but for `unread`
  float unread = 0;  // share of the softmax that a tile of a prompt may leave unread, on average
  HeadState* state = nullptr;  // state that the rule keeps between tokens
  ValueSums* sums = nullptr;   // of the values, if the rule has softmax tables
  // [group] logits that take part in each query head's softmax without a value; or null.
  const float* spare = nullptr;
  int group = 1;              // query heads: rows of `queries` of one token
  bool outside = false;       // another computes it: only its reads are counted
  int place = 0;              // of the layer's key/value head among those of all layers
  ReadSums* reads = nullptr;  // where to count, unless null
  Audit audit;                // of the first row's first query head
  int chunks = 0;
  int step_rows = 0;  // of the request
  // Of a tree of drafts: the paths that tokens attend by. In what `along` makes of it: the place of
  // each token, what moves the rows, and whether it is of the first round. Empty for a chain.
  std::vector<DraftPath> paths;
  std::vector<DraftPlace> places;
  DraftRows* moved = nullptr;
  bool first_round = true;

  int tokens() const { return static_cast<int>(queries.size()) / group; }
  int row_of(int token) const { return places.empty() ? token : places[token].row; }
  int parent_of(int token) const;  // the row before a token's, -1 for none
  // The row of the cache that a token's keys and values have.
  int own_row(int token) const {
    return visible[static_cast<size_t>(token) * group].committed +
           (places.empty() ? token : places[token].place);
  }
  // Chunks start at multiples of kChunkBlocks of the list, wherever the traversal starts: the
  // split, and with it the rounding, depends on the keys alone.
  int whole_chunks() const;  // at least one
  Range chunk(int index) const;
  int64_t rows_before(int end_row) const;  // rows of its blocks before row `end_row`
  int length(int token) const { return own_row(token) + 1; }  // rows that exist for it
  bool holds_drafts(int chunk) const;                         // tentative rows are in the chunk
};

// Sets which rows each token sees, and the blocks that hold them, for `count` tentative rows after
// `length` tokens. Positions and ancestors (see Step::visible) are given.
void set_visibility(Traversal& traversal, const Bounds& bounds, int length, int count,
                    const int* positions, const uint32_t* visible);

// Of a tree of drafts, the tokens of paths [first, last) as if the rows of each path were together.
Traversal along(const Traversal& tree, size_t first, size_t last);

// The query rows that a thread works on, in the form that keys take. The parts of a traversal that
// a thread takes one after the other share it.
class PreparedQueries {
 public:
  // Valid until the next call. Until `forget`, the rows at an address have to stay as they are.
  const Queries& of(const KVHead& head, const float* const* queries, int count);
  void forget() { queries_.values = nullptr; }

 private:
  Queries queries_{};
  int count_ = 0;
  Type type_{};
  std::vector<float> memory_;
};

// A thread's buffers.
struct Scratch {
  PreparedQueries queries;
  std::vector<float> floats, masses, scores;
  std::vector<int32_t> order, rows;  // blocks, or rows, in reading order
  std::vector<uint8_t> block_state;  // of each block or row: whether and how it is in the order
  std::vector<Partial> parts;
  Ranking ranking;
  SketchOrder by_sketch;

  float* at_least(size_t count) {
    if (floats.size() < count) floats.resize(count);
    return floats.data();
  }
};

}  // namespace suffice
