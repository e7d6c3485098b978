#include "sampling/rows.h"

#include <algorithm>
#include <cmath>

#include "runtime/parallel.h"
#include "sampling/chooser.h"
#include "sampling/logprobs.h"

namespace suffice {
namespace {

// Calls f(worker, row) for all rows; each thread keeps its worker, and so its buffers. What is
// `quick` takes less time than other threads need to wake up.
template <class Worker, class F>
void for_rows(int rows, F f, bool quick = false) {
  const auto each = [&](int row) {
    static thread_local Worker worker;
    f(worker, row);
  };
  if (rows == 1 || quick) {
    for (int row = 0; row < rows; row++) each(row);
    return;
  }
  const auto threads = team();
  WorkQueue queue;
  queue.begin(rows, threads->size());
  threads->run([&](int thread) { queue.take(thread, threads->size(), each); });
}

// Whether every token follows from the maxima of its row's blocks.
bool follow_from_maxima(const LogitRows& logits, const SampleState* const* states,
                        const MaskRows& masks) {
  return logits.maxima && !masks.data &&
         std::all_of(states, states + logits.rows, [](const SampleState* state) {
           return state->rules().greedy && !state->adjusts();
         });
}

}  // namespace

void sample_rows(const LogitRows& logits, const SampleState* const* states, const MaskRows& masks,
                 const double* numbers, int32_t* tokens, float* largest) {
  for_rows<Chooser>(
      logits.rows,
      [&](Chooser& chooser, int i) {
        largest[i] = chooser.read(logits.row(i), logits.vocabulary, *states[i], masks.row(i),
                                  logits.row_maxima(i));
        if (std::isfinite(largest[i])) tokens[i] = chooser.draw(numbers[i]);
      },
      follow_from_maxima(logits, states, masks));
}

void probability_rows(const LogitRows& logits, const SampleState* const* states,
                      const MaskRows& masks, float* probs, float* largest) {
  for_rows<Chooser>(logits.rows, [&](Chooser& chooser, int i) {
    largest[i] = chooser.read(logits.row(i), logits.vocabulary, *states[i], masks.row(i));
    if (std::isfinite(largest[i]))
      chooser.probabilities(probs + static_cast<int64_t>(i) * logits.vocabulary);
  });
}

void top_logprobs(const TopLogprobs& wanted) {
  for_rows<Logprobs>(wanted.rows, [&](Logprobs& row, int i) {
    wanted.ranks[i] = 0;
    if (!row.read(wanted.logits[i], wanted.vocabulary)) return;
    wanted.chosen[i] = row.of(wanted.tokens[i]);
    wanted.ranks[i] = row.rank(wanted.tokens[i]);
    const int64_t first = static_cast<int64_t>(i) * wanted.most;
    int place = 0;
    for (const int32_t token : row.top(wanted.counts[i])) {
      wanted.ids[first + place] = token;
      wanted.values[first + place++] = row.of(token);
    }
  });
}

}  // namespace suffice
