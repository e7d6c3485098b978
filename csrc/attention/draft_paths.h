// Trees of drafts: how tokens on several branches attend with the bits of a chain.
//
// A token sees the rows of its own branch alone, but rows of other branches stand between them.
// Sums are grouped by the places of rows (tiles of 64, blocks of 16, vectors within them), so a gap
// would change how they round. Therefore the rows of each branch are moved together while its
// tokens attend, and moved back afterwards: few rows, of one head and layer at a time.
//
//     rows of a step   0  1  2  3  4      tokens 0, 1 and 3 see rows 0, 1, 3; 2 and 4 see 0, 2, 4
//     its paths        0  1               the rows as they are stored: tokens 0 and 1
//                      0  1  3            token 3
//                      0  2  4            tokens 2 and 4
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cache/kv_head.h"

namespace suffice {

constexpr int kMostDrafts = 32;  // rows of a request in a step

// Rows of a request's step that tokens see one after the other.
struct DraftPath {
  std::vector<int> rows;
  std::vector<int> tokens;  // those of the rows whose tokens attend by it

  // Of the rows in `mask`, where they are in the path.
  uint32_t places(uint32_t mask) const;
};

// The paths of a step's rows, given what each sees: bit j of visible[i], row j. The first is of
// rows that are in their places. None if all are.
std::vector<DraftPath> draft_paths(const uint32_t* visible, int count);

// The tentative rows of a head, as they are stored, while the head has them in another order.
class DraftRows {
 public:
  // Makes room for `count` rows like those of `head`, which begin at row `first`.
  void prepare(const KVHead& head, int first, int count);
  void save();
  // From now on the head has these of the rows, from the first place on; the others stay somewhere.
  void arrange(const std::vector<int>& rows);
  void restore();  // all rows are in their places

 private:
  void put(int place, int row);

  KVHead head_, saved_;
  int first_ = 0;
  std::vector<int> rows_;  // by place
  std::vector<std::byte> memory_;
};

}  // namespace suffice
