// Attention to a layer of one cache or of several, without a model around it.
#include <numeric>
#include <optional>

#include "attention/attention.h"
#include "attention/reads.h"
#include "bind/bind.h"
#include "cache/boxes.h"
#include "cache/sketch.h"
#include "runtime/parallel.h"

namespace suffice::bind {
namespace {

void check_storage(const AttentionRule& rule, const KVCache& cache) {
  require(!rule.needs_bases() || cache.has_bases(), kNeedsBases);
}

void complete_sketch(const AttentionRule& rule, KVCache& cache, int layer, int length) {
  if (!rule.needs_sketch()) return;
  require(cache.extras().sketch, "the cache has no sketch of its keys");
  for (int c = cache.sketched(layer); c < length / kSketchRows; c++)
    for (int g = 0; g < cache.heads(layer); g++) encode_sketch(cache.head(layer, g), c);
  cache.set_sketched(layer, std::max(cache.sketched(layer), length / kSketchRows));
}

// Arguments of attention to one layer.
struct Call {
  int layer = 0, window = 0;
  int heads = 0;                            // of queries
  const float* queries;                     // [rows][heads][size]
  float* out;                               // like the queries
  const int32_t* visible;                   // [rows]
  std::vector<const AttentionRule*> rules;  // of each key/value head; empty: everything is read
  int rows = 0;
  float* audit = nullptr;  // [5][rows][heads], see partial.h; null: nothing is audited
};

// The call of q [rows, H, D], whose queries are `scaled`.
Call call_of(int layer, int window, const ConstFloats& q, const std::vector<float>& queries,
             const Floats& out, const ConstInts& visible, const std::optional<Floats>& audit) {
  const int rows = static_cast<int>(q.shape(0)), heads = static_cast<int>(q.shape(1));
  require(!audit || audit->size() == 5 * static_cast<size_t>(rows) * heads,
          "audit must be [5, T, H]");
  Call call{layer, window, heads, queries.data(), out.data(), visible.data(), {}, rows};
  if (audit) call.audit = audit->data();
  return call;
}

void check_call(const KVCache& cache, int layer, const ConstFloats& q, const ConstInts& visible,
                const Floats& out) {
  require(layer >= 0 && layer < cache.layers(), "there is no such layer");
  const int heads = cache.heads(layer), size = cache.size(layer);
  require(q.ndim() == 3 && q.shape(2) == static_cast<size_t>(size) && q.shape(1) % heads == 0,
          "q must be [T, H, " + std::to_string(size) + "] with H a multiple of " +
              std::to_string(heads));
  require(visible.size() == q.shape(0), "visible needs one entry per query row");
  require(out.ndim() == 3 && out.size() == q.size(), "out must have the shape of q");
}

void check_count(const KVCache& cache, int rows) {
  require(rows >= 1 && rows <= 32, "1 to 32 query rows, not " + std::to_string(rows));
  require(rows == 1 || !cache.extras().masses, "a cache that sums row masses takes one token");
}

// Adds the traversals of one request, which count into reads[kv_heads].
void lay_out(const Call& call, const StepRequest& request, ReadSums* reads,
             std::vector<Traversal>& all) {
  KVCache& cache = *request.cache;
  const int layer = call.layer, heads = cache.heads(layer), group = call.heads / heads;
  for (const AttentionRule* rule : call.rules) {
    check_storage(*rule, cache);
    complete_sketch(*rule, cache, layer, request.length);
  }
  if (cache.extras().boxes) {
    encode_boxes(cache, cache.index(layer, 0), cache.index(layer, 0) + heads, request.length);
    cache.set_boxed(layer, std::max(cache.boxed(layer), request.length / kPanel));
  }
  const Bounds bounds = bounds_of(cache, layer, call.window);
  std::vector<int> positions(request.count);
  std::iota(positions.begin(), positions.end(), request.length);
  const std::vector<uint32_t> masks(call.visible + request.first_row,
                                    call.visible + request.first_row + request.count);
  for (int g = 0; g < heads; g++) {
    Traversal t;
    t.head = cache.head(layer, g);
    if (!cache.eligible(layer).sinks) t.head.masses = nullptr;
    t.state = &cache.state(layer, g);
    t.sums = &cache.sums(layer, g);
    t.reads = reads + g;
    t.rule = call.rules.empty() ? nullptr : call.rules[g];
    t.group = group;
    t.place = cache.index(layer, g);
    if (call.audit) {
      const size_t own = static_cast<size_t>(request.first_row) * call.heads + g * group;
      t.audit = audit_at(call.audit + own, static_cast<size_t>(call.rows) * call.heads, call.heads);
    }
    t.max_blocks = cache.eligible(layer).blocks;
    t.boxed = request.length / kPanel;
    set_visibility(t, bounds, request.length, request.count, positions.data(), masks.data());
    for (int row = request.first_row; row < request.first_row + request.count; row++)
      for (int h = g * group; h < (g + 1) * group; h++) {
        const size_t start = (static_cast<size_t>(row) * call.heads + h) * cache.size(layer);
        t.queries.push_back(call.queries + start);
        t.outputs.push_back(call.out + start);
      }
    all.push_back(std::move(t));
  }
}

void run(std::vector<Traversal>& traversals) {
  nb::gil_scoped_release release;
  const auto threads = team();
  static thread_local Attention attention;  // keeps its buffers between calls
  attention.plan(traversals, threads->size());
  Attention& shared = attention;  // the other threads must use this thread's
  threads->run([&](int thread) {
    Scratch scratch;
    shared.work(scratch, *threads, thread);
  });
}

// q [T, H, D] over rows 0..length+T of a layer, the last T tentative; out [T, H, D]. Returns the
// rows read, [kv_heads] each. `rule` null: everything, but for the share `unread` if they are a
// tile of a prompt. `audit` [5, T, H]: see partial.h.
std::vector<Reads> py_attend(KVCache& cache, int layer, int length, ConstFloats q,
                             ConstInts visible, float scale, int window,
                             std::optional<ConstInts> blocks, Floats out,
                             std::optional<AttentionRule> rule, std::optional<Floats> audit,
                             float unread) {
  check_call(cache, layer, q, visible, out);
  const int rows = static_cast<int>(q.shape(0)), heads = static_cast<int>(q.shape(1));
  check_count(cache, rows);
  check_rows(cache, layer, length - cache.removed(layer), rows);
  const int last_block = (length - cache.removed(layer) + rows + kPanel - 1) / kPanel;
  if (blocks)
    for (size_t i = 0; i < blocks->size(); i++)
      require(blocks->data()[i] >= 0 && blocks->data()[i] < last_block,
              "a block index is out of range");
  if (rule) check_rule(*rule, heads / cache.heads(layer));
  require(!rule || rule->exact() || !blocks, "a rule orders the blocks itself");
  const std::vector<float> queries = scaled(q, scale);
  Call call = call_of(layer, window, q, queries, out, visible, audit);
  if (rule) call.rules.assign(cache.heads(layer), &*rule);
  std::vector<ReadSums> reads(cache.heads(layer));
  std::vector<Traversal> traversals;
  lay_out(call, {&cache, length, 0, rows}, reads.data(), traversals);
  require(unread >= 0 && unread < 1 && (unread == 0 || !(rule || blocks || audit)),
          "a tile of a prompt leaves a share from 0 to less than 1 unread, by no other rule");
  for (Traversal& t : traversals) t.unread = unread;
  if (blocks)
    for (Traversal& t : traversals) {
      t.max_blocks = 0;
      t.list = blocks->data();
      t.begin = 0;
      t.end = static_cast<int>(blocks->size());
    }
  run(traversals);
  return {reads.begin(), reads.end()};
}

// The same for several requests at once: q [rows, H, D] has counts[i] rows over cache i. `rules`:
// one per key/value head; empty: everything is read. Adds to reads [5, layers, kv_heads]: see
// py_step. `audit`: see py_attend.
Counts py_attend_rows(std::vector<KVCache*> caches, int layer, ConstInts lengths, ConstInts counts,
                      ConstFloats q, ConstInts visible, float scale, int window, Floats out,
                      std::vector<const AttentionRule*> rules, Longs reads,
                      std::optional<Floats> audit) {
  require(q.ndim() == 3, "q must have three dimensions");
  const std::vector<StepRequest> requests = requests_of(caches, layer, lengths, counts, q.shape(0));
  KVCache& first = *caches[0];
  check_call(first, layer, q, visible, out);
  for (const StepRequest& request : requests) check_count(*request.cache, request.count);
  const int heads = static_cast<int>(q.shape(1)), kv_heads = first.heads(layer);
  require(rules.empty() || rules.size() == static_cast<size_t>(kv_heads),
          "one rule for each key/value head");
  for (const AttentionRule* rule : rules) check_rule(*rule, heads / kv_heads);
  Counts result = counts_into(reads, first.layers(), kv_heads, layer);
  const std::vector<float> queries = scaled(q, scale);
  Call call = call_of(layer, window, q, queries, out, visible, audit);
  call.rules = rules;
  std::vector<ReadSums> found(requests.size() * kv_heads);
  std::vector<Traversal> traversals;
  for (size_t i = 0; i < requests.size(); i++)
    lay_out(call, requests[i], found.data() + i * kv_heads, traversals);
  run(traversals);
  std::vector<RequestReads> by_request(requests.size());
  result.add_reads(found, kv_heads, first, by_request, layer);
  return result;
}

}  // namespace

std::vector<float> scaled(const ConstFloats& q, float scale) {
  std::vector<float> result(q.size());
  for (size_t i = 0; i < q.size(); i++) result[i] = q.data()[i] * scale * 1.4426950408889634f;
  return result;
}

Counts counts_into(const Longs& reads, size_t layers, size_t kv_heads, size_t layer) {
  const size_t heads = layers * kv_heads;
  require(reads.ndim() == 3 && reads.shape(0) == 5 && reads.shape(1) == layers &&
              reads.size() == 5 * heads,
          "reads must be [5, layers, kv_heads]");
  int64_t* const start = reads.data() + layer * kv_heads;
  Counts counts;
  counts.key_rows = start;
  counts.value_rows = start + heads;
  counts.dense_rows = start + 2 * heads;
  counts.per_head_rows = start + 3 * heads;
  counts.sketch_bytes_by_head = start + 4 * heads;
  return counts;
}

void bind_attention(nb::module_& m, nb::class_<KVCache>& cache) {
  cache.def("attend", &py_attend, "layer"_a, "length"_a, "q"_a.noconvert(), "visible"_a.noconvert(),
            "scale"_a, "window"_a, "blocks"_a.noconvert().none(), "out"_a.noconvert(),
            "rule"_a.none() = nb::none(), "audit"_a.noconvert().none() = nb::none(),
            "unread"_a = 0.0f);
  m.def("attend_rows", &py_attend_rows, "caches"_a, "layer"_a, "lengths"_a.noconvert(),
        "counts"_a.noconvert(), "q"_a.noconvert(), "visible"_a.noconvert(), "scale"_a, "window"_a,
        "out"_a.noconvert(), "rules"_a, "reads"_a.noconvert(),
        "audit"_a.noconvert().none() = nb::none());
}

}  // namespace suffice::bind
