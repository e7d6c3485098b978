// One traversal by a technique that is chosen by its name, with kernels for any CPU. The test of
// the example in CONTRIBUTING.md compiles this with the example's files in place.
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <type_traits>
#include <vector>

#include "attention/attention_rule.cpp"
#include "attention/partial.h"
#include "attention/scores_ahead.cpp"
#include "bf16.h"
#include "bind/named_rule.cpp"
#include "kernels/kernels.h"

namespace suffice {
// There is one thread, so none helps another.
const Kernels& kernels() { std::abort(); }
void Waiting::pause() { std::abort(); }
}  // namespace suffice

namespace suffice {
// Defined by the kernels' parts, which are compiled for any CPU.
namespace base {
extern const AttentionKernels attention;
extern const RowKernels rows;
}  // namespace base

namespace {

// keys and values [rows][size] in the layout of the kernels
struct Filled {
  std::vector<float> keys, values;
  KVHead head;

  Filled(const float* k, const float* v, int rows, int size)
      : keys(round_up(rows, kTileRows) * static_cast<size_t>(size)), values(keys.size()) {
    head.keys = reinterpret_cast<std::byte*>(keys.data());
    head.values = reinterpret_cast<std::byte*>(values.data());
    head.size = head.value_size = size;
    for (int row = 0; row < rows; row++)
      base::rows.store_row(head, row, k + row * size, v + row * size);
  }
};

}  // namespace
}  // namespace suffice

using namespace suffice;

// Attends with q [heads][size], scaled by log2 e, to k and v [rows][size], newest blocks first.
// Writes `out` like q, and reads[3]: rows of keys and of values, and whether the rule is exact.
extern "C" void attend_once(const char* technique, int parameters, const char* const* names,
                            const double* numbers, const float* q, int heads, const float* k,
                            const float* v, int rows, int size, float* out, int64_t* reads) {
  bind::Parameters named;
  for (int i = 0; i < parameters; i++) named[names[i]] = numbers[i];
  const AttentionRule rule = bind::named_rule(technique, named, 0.0f);

  const Filled filled(k, v, rows, size);
  std::vector<const float*> queries;
  for (int head = 0; head < heads; head++) queries.push_back(q + head * size);
  const Queries prepared{.values = queries.data()};  // keys in float32 take no other form
  std::vector<int32_t> blocks;
  for (int block = (rows - 1) / kPanel; block >= 0; block--) blocks.push_back(block);
  const Order order{.blocks = blocks.data(), .count = static_cast<int>(blocks.size())};
  std::vector<float> result(partial_floats(heads, size)), scratch(traverse_scratch(heads, size));
  Partial state = partial_at(result.data(), heads, size);
  state.dropped = nullptr;  // nothing is audited
  ScoresAhead ahead;
  ahead.open({.head = &filled.head,
              .queries = prepared,
              .count = heads,
              .list = order.blocks,
              .blocks = order.count,
              .end_row = rows});
  const Reads found =
      base::attention.traverse(filled.head, prepared, Visible{.committed = rows}, heads, order,
                               rule, state, ahead, nullptr, scratch.data());
  for (int i = 0; i < heads * size; i++) out[i] = state.output[i] / state.sum[i / size];
  reads[0] = found.key_rows;
  reads[1] = found.value_rows;
  reads[2] = rule.exact();
}
