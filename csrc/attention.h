// The traversal of one step's attention, split into chunks of keys that threads take in turn.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "cache.h"
#include "kernels.h"
#include "known.h"
#include "sketch.h"
#include "value_sum.h"

namespace suffice {

constexpr int kChunkBlocks = 16;  // a chunk: what one thread takes at a time

// The query rows of one request, of all query heads that share one key/value head.
struct Traversal {
  Head head;
  std::vector<const float*> queries;  // [count] -> [size], scaled by attention scale * log2 e
  std::vector<Visible> visible;       // [count]
  std::vector<float*> outputs;        // [count] -> [size]
  const int32_t* list = nullptr;      // ordered block indices, null: the identity
  int begin = 0, end = 0;             // positions in the list (or blocks, when null)
  int rows_end = 0;                   // rows of the cache that exist
  const Rule* rule = nullptr;         // null: everything is read
  HeadState* state = nullptr;         // what the rule keeps between tokens
  ValueSums* sums = nullptr;          // of the values, if the rule has levels
  int group = 1;                      // query heads: rows of `queries` that belong to one token
  Reads* reads = nullptr;             // where to count, unless null
  int first_item = 0;                 // of its chunks among all
  int chunks = 0;
};

// The last of a tentative row's ancestors, -1 for none.
inline int parent_of(const Visible& visible, int row) {
  const uint32_t before = visible.tentative & ((uint32_t{1} << row) - 1);
  return before ? 31 - __builtin_clz(before) : -1;
}

// A thread's buffers.
struct Scratch {
  std::vector<float> floats, masses;
  std::vector<int32_t> order;
  std::vector<uint8_t> taken;
  Estimates estimates;
};

// Work shared by the team: chunks are taken from an atomic counter; whoever finishes the last chunk
// of a traversal merges its partial results, in the order of the chunks.
class Attention {
 public:
  // Prepares for traversals that are complete but for their chunks; keeps its buffers.
  void plan(std::vector<Traversal>& traversals);
  // Called by every thread; returns when no chunk is left to take.
  void work(Scratch& scratch);

 private:
  struct Chunk {
    int traversal;
    int index;
  };
  void attend(const Traversal& traversal, int chunk, Scratch& scratch);
  void walk(const Traversal& traversal, Scratch& scratch);
  void walk_row(const Traversal& traversal, int row, Scratch& scratch);
  void merge(const Traversal& traversal);
  // Of a traversal by codes: the scores of all its chunks, tile by tile, and each chunk's peaks.
  struct Scores {
    float* tiles;
    float* peaks;  // [chunks][query rows]
  };
  Scores scores(const Traversal& traversal);
  void score(const Traversal& traversal, int chunk, Scratch& scratch);
  void weigh(const Traversal& traversal, Scratch& scratch);
  void weigh_row(const Traversal& traversal, int row, Scratch& scratch);
  // Counts the keys that one of its tokens may see as read, and so many values.
  static void count_row(const Traversal& traversal, int row, int64_t values);
  Partial partial(const Traversal& traversal, int chunk);

  std::vector<Traversal>* traversals_ = nullptr;
  std::vector<Chunk> chunks_;
  std::vector<size_t> offsets_;  // of each traversal's partial results
  std::vector<float> partials_;
  std::unique_ptr<std::atomic<int>[]> left_;
  size_t left_size_ = 0;
  std::atomic<int> next_{0};
};

}  // namespace suffice
