// What early termination always reads (Scrooge, Algorithm 1: sink, global and local tokens), in
// units of a block or a row: state of one key/value head of a request.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/attention_rule.h"
#include "storage.h"

namespace suffice {

class AetState {
 public:
  // Extends the state to `length` tokens. A unit that leaves the local ones replaces the lightest
  // global one.
  void advance(const Aet& rule, int length);
  // Appends the units that are always read, from row `begin` on: sinks, global and local ones.
  void list(const Aet& rule, int begin, std::vector<int32_t>& to) const;
  void add_mass(int32_t unit, float mass);
  void truncate(int length);
  void lose(int first, int end);    // rows, by whole units, that no token sees any more
  void drop(int first, int count);  // rows that leave the cache; those behind move up

 private:
  struct Unit {
    int32_t index;
    float mass;
  };
  void promote(const Aet& rule, Unit unit);

  int rows_ = kPanel;  // of a unit
  int next_ = 0;       // the first unit that has not been local yet
  std::vector<Unit> globals_, locals_;
};

// State that a head keeps between steps: after the committed rows, and after each tentative one.
struct HeadState {
  AetState committed;
  std::vector<AetState> drafts;
  std::vector<int32_t> order;  // the first blocks of the cache, most important first
  std::vector<float> weights;  // of each row, in the current step of one token
};

}  // namespace suffice
