// One token's traversal by the sketches of its keys: which blocks must be read so that little is
// missing. First the newest keys are read and all sketches looked at, then blocks are chosen and
// visited, heaviest first, and then it is known whether that was enough; if not, more are.
#pragma once

#include <atomic>
#include <vector>

#include "partial.h"
#include "traversal.h"

namespace suffice {

constexpr int kVisitBlocks = 16;  // visited together: they share the allowance for values

class Search {
 public:
  // Prepares for token `row` of the traversal. Its items, looks and visits, may be done in any
  // order and by any thread; `choose` comes between, when all looks are done, `finish` at the end.
  void begin(const Traversal& traversal, int row);
  int looks() const { return looks_; }
  void look(int item, Scratch& scratch);
  void choose();
  int visits() const { return visits_; }
  void visit(int item, Scratch& scratch);
  void finish(Scratch& scratch);

  std::atomic<int> left{0};  // items that are not done yet

 private:
  void list_newest();
  void size_buffers();
  void choose_until_enough(bool grows);
  void list_chosen(size_t from);
  double sum_parts(int parts);
  void read_chosen(int part, int item, Scratch& scratch);
  void read(int part, const int32_t* list, int begin, int end, const Filter& filter,
            Scratch& scratch);
  double in_units(float peak, int q) const;

  const Traversal* traversal_ = nullptr;
  const Certified* rule_ = nullptr;
  float value_share_ = 0;
  const float* const* queries_ = nullptr;  // [count] -> [size]
  Visible visible_;
  Estimates estimates_;
  int row_ = 0, at_ = 0, count_ = 0, length_ = 0, looks_ = 0, visits_ = 0;
  std::vector<float> estimated_;       // masses, bounds, peaks
  std::vector<float> found_;           // [looks][count]: largest estimated scores
  std::vector<float> peaks_, totals_;  // [count], of the estimates
  std::vector<float> floors_, shares_;
  std::vector<int32_t> newest_, sorted_, chosen_;
  std::vector<int> buckets_;
  std::vector<uint8_t> taken_;
  size_t next_ = 0;            // position in `sorted_` of the first block that is not chosen
  std::vector<double> known_;  // [count]: weights of what has been read
  std::vector<double> rest_;   // [count]: how much those from `next_` on weigh, as bounded
  std::vector<float> results_;
  std::vector<Partial> parts_;
  std::vector<Visited> visited_;
};

}  // namespace suffice
