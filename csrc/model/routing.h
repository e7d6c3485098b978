// From the router's logits to groups of rows that go to the same expert.
#pragma once

#include <cstdint>
#include <vector>

#include "model/blocks.h"

namespace suffice {

// An expert, and its score for a row.
struct Scored {
  int expert;  // -1: left out
  float score;
};

// A row that goes to an expert, the weight of the expert's output in that of the row, and what the
// row is multiplied by before.
struct Visit {
  int row;
  float weight;
  float factor;
};

// An expert and its visits [first, first + count), in the order of rows.
struct Group {
  int expert;  // -1: the one that all rows share
  int first, count;
};

// Experts of layers that a step reads, and those that there are.
struct ExpertReads {
  int64_t read = 0, held = 0;
  int64_t bytes_read = 0, bytes_held = 0;
  int64_t left_out = 0;      // experts of rows
  float share_left_out = 0;  // the largest share of a row's weights
};

// The routes of a layer's rows, and what its experts compute. Threads share it.
class Routes {
 public:
  std::vector<float> logits, shared_logits;  // [rows][logit_stride], [rows][kPanel]
  std::vector<Visit> visits;                 // by expert
  std::vector<int> visits_of;   // [rows][visits of a row], in the order of their sum; -1: none
  std::vector<Group> groups;    // experts that are visited, ascending
  std::vector<float> gate, up;  // [visits][inner_stride]
  std::vector<float> output;    // [visits][width]
  // [rows][narrow_stride]: what experts read, and the sums of what they give, if not whole rows.
  std::vector<float> narrow, narrow_sums;
  ExpertReads reads;  // of the step so far

  static int logit_stride(const ExpertMlp& block);
  static int inner_stride(const ExpertMlp& block);
  static int narrow_stride(const ExpertMlp& block) { return round_up(block.narrow.rows, kPanel); }

  // Makes room for the rows of a step in a block; `width` is the stride of outputs.
  void reserve(const ExpertMlp& block, int rows, int width);
  // Finds the experts of a row from its logits, and their weights.
  void route(const ExpertMlp& block, int row, std::vector<Scored>& scores);
  // Groups all rows by expert, once they are routed, and counts what will be read.
  void group(const ExpertMlp& block, int rows);

 private:
  void count_left_out(const ExpertMlp& block, int rows);
  void group_shared(const ExpertMlp& block, int rows, int routed);  // after `routed` visits

  std::vector<Scored> chosen_;  // [rows][chosen], by expert
  std::vector<int> ends_;       // [experts] of their visits so far
};

}  // namespace suffice
