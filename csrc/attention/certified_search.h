// One token's traversal by the sketches of its keys (`certified`): selects blocks until the unread
// mass is small enough.
//
// How it works. Blocks fall into three parts:
//
//   | sinks, oldest of the window | sketched chunks: masses m, bounds M | newest, without a sketch
//   |
//     read at once                  estimated, then some are read     read at once
//
//   plan               lists the blocks without a sketch
//   estimate(item)     item 0 reads these; the others estimate m (and M) of some chunks
//   choose             selects the heaviest blocks until R / (A + R) <= eps: A is the mass of the
//                      blocks read or selected, by m; R that of the rest, by M
//   attend_selected    attends to 16 selected blocks, which share the allowance for skipped values
//   finish             A is now known; if R / (A + R) is still above eps, reads further blocks
//
// Items of `estimate` and of `attend_selected` run in any order and on any thread.
#pragma once

#include <atomic>
#include <deque>
#include <mutex>
#include <vector>

#include "attention/partial.h"
#include "attention/sketch_order.h"
#include "attention/traversal.h"
#include "runtime/parallel.h"

namespace suffice {

constexpr int kSelectedBlocks = 16;  // attended to together: they share the allowance for values

class CertifiedSearch {
 public:
  // Prepares for token `row` of the traversal.
  void plan(const Traversal& traversal, int row);
  int estimates() const { return 1 + masses_.pieces(); }
  void estimate(int item, Scratch& scratch);
  void choose();
  int selections() const { return selections_; }
  void attend_selected(int item, Scratch& scratch);
  void finish(Scratch& scratch);

  std::atomic<int> left{0};  // unfinished items of the phase

 private:
  void list_unsketched();
  void size_buffers();
  void choose_until_enough(bool grows);
  void list_chosen(size_t from);
  double sum_parts(int parts);
  void read_chosen(int part, int item, Scratch& scratch);
  void read(int part, const int32_t* list, int begin, int end, const Filter& filter,
            Scratch& scratch);
  double in_units(float peak, int q) const;
  // What is known of the mass of a block that is not read: a bound, or the estimate.
  float most(int q, int32_t block) const;

  const Traversal* traversal_ = nullptr;
  const Certified* rule_ = nullptr;
  float value_share_ = 0;
  const float* const* queries_ = nullptr;  // [count] -> [size]
  Visible visible_;
  SketchMasses masses_;
  SketchOrder order_;
  Estimates estimates_{};  // of all pieces
  int row_ = 0, first_ = 0, count_ = 0, length_ = 0, selections_ = 0;
  std::vector<float> estimated_;  // memory of `masses_`
  std::vector<float> floors_;     // [count]: scores below which values are skipped
  std::vector<int32_t> unsketched_, chosen_;
  std::vector<uint8_t> is_chosen_;
  size_t next_ = 0;            // position in the order of the first unselected block
  std::vector<double> known_;  // [count]: weights of what has been read
  std::vector<double> rest_;   // [count]: bound on the weights of blocks from `next_` on
  std::vector<float> results_;
  std::vector<Partial> parts_;
  std::vector<SelectedReads> reads_;  // of each part
};

// The searches of all tokens of a step in a layer. They keep their buffers.
//
// The other three traversals have plan, work(chunk) and finish, because their chunks are known
// before the step. Here the estimates decide what there is to attend to, so work comes in two
// phases, with a barrier of all threads between them.
class CertifiedSearches {
 public:
  void clear();
  void plan(const Traversal& traversal);  // a search for each of its tokens
  void begin(int threads);
  // Called by every thread of the team; returns when no work is left.
  void work(Scratch& scratch, Team& team, int thread);

 private:
  struct Item {
    CertifiedSearch* search;
    int index;
  };
  void estimate(Scratch& scratch, int thread, int threads);
  void attend_selected(Scratch& scratch);

  std::deque<CertifiedSearch> searches_;
  size_t used_ = 0;  // searches of this step
  std::vector<Item> estimates_, selections_;
  std::mutex choosing_;
  WorkQueue estimate_queue_;
  std::atomic<int> next_selection_{0};
};

}  // namespace suffice
