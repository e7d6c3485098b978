// Lets threads of a team fail within the timed parts of a step. Prints what is wrong and exits with
// the number of it.
#include "model/part_clock.h"

#include <cstdio>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "runtime/parallel.h"

namespace {

using suffice::kParts;
using suffice::Part;
using suffice::PartClock;
using suffice::Team;
using suffice::Timed;

constexpr int kThreads = 3;
int failures = 0;

void expect(bool holds, const char* what) {
  if (holds) return;
  std::printf("%s\n", what);
  failures++;
}

double whole(const PartClock& clock) {
  return std::accumulate(clock.seconds, clock.seconds + kParts, 0.0);
}

double of(const PartClock& clock, Part part) { return clock.seconds[static_cast<int>(part)]; }

// A step of two parts, one within the other; thread `failing` throws in the inner one, for which
// the others wait.
void step(Team& team, std::vector<PartClock>& clocks, int failing) {
  team.run([&](int thread) {
    PartClock& clock = clocks[thread];
    clock.begin(true);
    const Timed outer(clock, Part::products);
    if (thread == failing) {
      const Timed inner(clock, Part::inputs);
      throw std::runtime_error("expected");
    }
    const Timed waiting(clock, Part::waiting);
    team.barrier();
  });
}

void fail(Team& team, std::vector<PartClock>& clocks, int failing) {
  try {
    step(team, clocks, failing);
    expect(false, "the step did not fail");
  } catch (const std::runtime_error&) {
  }
  for (int i = 0; i < kThreads; i++) {
    PartClock& clock = clocks[i];
    expect(clock.part == Part::other, "a part did not end with the step");
    expect(of(clock, i == failing ? Part::inputs : Part::waiting) > 0, "a part was not timed");
    const double before = whole(clock);
    clock.begin(true);
    expect(whole(clock) == before, "time between steps counts");
  }
}

}  // namespace

int main() {
  Team team(kThreads);
  for (int failing = 0; failing < kThreads; failing++) {
    std::vector<PartClock> clocks(kThreads);
    fail(team, clocks, failing);
    for (PartClock& clock : clocks) clock = {};
    step(team, clocks, kThreads);  // none fails
    for (const PartClock& clock : clocks) {
      expect(of(clock, Part::products) > 0 && of(clock, Part::waiting) > 0, "the next step");
      expect(of(clock, Part::inputs) == 0, "a part that the next step does not have");
    }
  }
  return failures;
}
