// The time that a thread spends in the parts of a step.
#pragma once

#include <chrono>

namespace suffice {

enum class Part : int {
  other,
  norms,
  inputs,
  products,
  activations,
  heads,
  attention,
  recurrences,
  waiting
};
constexpr const char* kPartNames[] = {"other",     "norms",       "inputs",
                                      "products",  "activations", "heads",
                                      "attention", "recurrences", "waiting"};
constexpr int kParts = sizeof(kPartNames) / sizeof(kPartNames[0]);

// Stands still unless `on`: a step that nobody times reads no clock.
struct PartClock {
  bool on = false;
  Part part = Part::other;
  std::chrono::steady_clock::time_point since;
  double seconds[kParts] = {};

  void begin(bool timed) {
    on = timed;
    part = Part::other;
    if (on) since = std::chrono::steady_clock::now();
  }
  // Returns the part that ends.
  Part enter(Part next) {
    const Part before = part;
    if (!on) return before;
    const auto now = std::chrono::steady_clock::now();
    seconds[static_cast<int>(before)] += std::chrono::duration<double>(now - since).count();
    since = now;
    part = next;
    return before;
  }
};

// Times a part until its end, without the parts within it.
class Timed {
 public:
  Timed(PartClock& clock, Part part) : clock_(clock), before_(clock.enter(part)) {}
  ~Timed() { clock_.enter(before_); }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  PartClock& clock_;
  const Part before_;
};

}  // namespace suffice
