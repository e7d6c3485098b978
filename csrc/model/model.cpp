#include "model/model.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "cache/sketch.h"
#include "model/step_buffers.h"
#include "model/worker.h"
#include "sampling/passes.h"

namespace suffice {
namespace {

bool sketches(const ModelSpec& spec, const StepRequest& request) {
  return !request.exact && spec.needs_sketch(request.technique) && request.cache->extras().sketch;
}

// Completes the sketches of the committed keys, if the step needs them.
void sketch(Worker& worker) {
  const std::vector<StepRequest>& requests = worker.step.requests;
  if (std::none_of(requests.begin(), requests.end(),
                   [&](const StepRequest& request) { return sketches(worker.spec, request); }))
    return;
  for (const StepRequest& request : requests) {
    if (!sketches(worker.spec, request)) continue;
    const Share mine = share(request.cache->all_heads(), worker.thread, worker.team.size());
    for (int i = mine.first; i < mine.last; i++) {
      const auto [layer, h] = request.cache->place(i);
      if (!request.cache->owns(layer)) continue;
      const KVHead head = request.cache->head(layer, h);
      for (int c = request.cache->sketched(layer); c < request.length / kSketchRows; c++)
        encode_sketch(head, c);
    }
  }
  worker.wait();
  if (worker.thread > 0) return;
  for (const StepRequest& request : requests)
    for (int layer = 0; sketches(worker.spec, request) && layer < request.cache->layers(); layer++)
      request.cache->set_sketched(
          layer, std::max(request.cache->sketched(layer), request.length / kSketchRows));
}

// Completes the boxes around the committed keys.
void box(Worker& worker) {
  const std::vector<StepRequest>& requests = worker.step.requests;
  if (!worker.selects || !requests[0].cache->extras().boxes) return;
  for (const StepRequest& request : requests) {
    if (request.exact) continue;
    const Share mine = share(request.cache->all_heads(), worker.thread, worker.team.size());
    encode_boxes(*request.cache, mine.first, mine.last, request.length);
  }
  worker.wait();
  if (worker.thread == 0)
    for (const StepRequest& request : requests)
      for (int layer = 0; layer < request.cache->layers() && !request.exact; layer++)
        request.cache->set_boxed(layer,
                                 std::max(request.cache->boxed(layer), request.length / kPanel));
  worker.wait();
}

// Adds a block's shared output to the residual stream, with that of the block before if it is held.
void add(const Block& block, Worker& worker) {
  std::vector<float>& residual = worker.residual;
  float* output = worker.shared.output.data();
  if (block.after.weight) {
    worker.normalize(block.after, output, worker.normal.data());
    output = worker.normal.data();
  }
  const Share mine = worker.own(worker.rows);
  const size_t width = worker.shared.width;
  float* const held = worker.prepared.held.data();
  if (block.held) {
    std::copy(output + mine.first * width, output + mine.last * width, held + mine.first * width);
    return;
  }
  if (block.joined.weight) {
    for (size_t i = mine.first * width; i < mine.last * width; i++) held[i] += output[i];
    worker.normalize(block.joined, held, worker.normal.data());
    output = worker.normal.data();
  }
  const Timed timed = worker.time(Part::norms);
  const float scale = block.scale;
  for (size_t i = mine.first * width; i < mine.last * width; i++) residual[i] += scale * output[i];
  if (block.whole.weight) worker.normalize(block.whole, residual.data(), residual.data());
}

// Blocks follow each other; the input of a parallel one is taken before the last one's output
// is added.
void run_layer(int index, Worker& worker) {
  const Layer& layer = worker.spec.layers[index];
  const auto take_input = [&](const Block& block) {
    worker.normalize(block.before, worker.residual.data(), worker.normal.data());
  };
  take_input(layer.blocks[0]);
  for (size_t i = 0; i < layer.blocks.size(); i++) {
    const Block& block = layer.blocks[i];
    const Block* next = i + 1 < layer.blocks.size() ? &layer.blocks[i + 1] : nullptr;
    std::visit([&](const auto& part) { run(part, index, worker); }, block.part);
    if (next && next->parallel) take_input(*next);
    add(block, worker);
    if (next && !next->parallel) take_input(*next);
  }
  if (layer.scale == 1) return;
  const Share mine = worker.own(worker.rows);
  const size_t width = worker.shared.width;
  for (size_t i = mine.first * width; i < mine.last * width; i++) worker.residual[i] *= layer.scale;
}

// Whether a block stores keys and values or a state. Such blocks begin a layer, and if there are
// two, they are parallel.
bool stores(const Block& block) {
  if (const auto* attention = std::get_if<AttentionBlock>(&block.part)) return attention->k.data;
  return std::holds_alternative<LatentBlock>(block.part) ||
         std::holds_alternative<ConvolutionBlock>(block.part) ||
         std::holds_alternative<RecurrentBlock>(block.part);
}

bool stores(const Layer& layer) {
  const auto any = [](const Block& block) { return stores(block); };
  return !layer.skipped && std::any_of(layer.blocks.begin(), layer.blocks.end(), any);
}

// The last layer that a step needs to run, and whether it does no more there than to store.
std::pair<int, bool> last_layer(const ModelSpec& spec, const Step& step) {
  int last = static_cast<int>(spec.layers.size()) - 1;
  const bool shown =
      !step.outputs.empty() || !step.state_rows.empty() || !step.tap_rows.empty() || step.queries;
  const bool exact = std::all_of(step.requests.begin(), step.requests.end(),
                                 [](const StepRequest& each) { return each.exact; });
  if (shown || !exact) return {last, false};
  while (!stores(spec.layers[last])) last--;
  return {last, true};
}

// Runs what a layer needs to store its keys and values, or its state.
void store_layer(int index, Worker& worker) {
  const bool as_given = only_stores(worker.spec, worker.step);
  for (const Block& block : worker.spec.layers[index].blocks) {
    if (!stores(block)) continue;
    worker.normalize(as_given ? Norm{} : block.before, worker.residual.data(),
                     worker.normal.data());
    if (const auto* attention = std::get_if<AttentionBlock>(&block.part))
      store(*attention, index, worker);
    else
      std::visit([&](const auto& part) { run(part, index, worker); }, block.part);
  }
}

// Finds the maxima of the blocks of logits [first, last) of each row, while they are in a cache.
void note_maxima(Worker& worker, int count, int stride, int first, int last) {
  const Step& step = worker.step;
  const int vocabulary = worker.spec.vocabulary, blocks = logit_blocks(vocabulary);
  const int size = std::min(last, vocabulary) - first;
  if (!step.maxima || size <= 0) return;
  const Timed timed = worker.time(Part::other);
  const auto find = passes().block_maxima;
  for (int row = 0; row < count; row++) {
    float* to = step.maxima + static_cast<size_t>(row) * blocks + first / kLogitBlock;
    if (find(step.logits + static_cast<size_t>(row) * stride + first, size, to))
      *to = std::numeric_limits<float>::quiet_NaN();
  }
}

// Scales and caps the logits of some panels, as the model has it.
void adjust_logits(const ModelSpec& spec, float* logits, int count, int stride, int first,
                   int last) {
  if (spec.logit_scale == 1 && spec.logit_cap == 0) return;
  for (int row = 0; row < count; row++) {
    float* to = logits + static_cast<size_t>(row) * stride;
    for (int i = first * kPanel; i < last * kPanel; i++) to[i] *= spec.logit_scale;
    if (spec.logit_cap > 0)
      kernels().pointwise.soft_cap(to + first * kPanel, (last - first) * kPanel, spec.logit_cap);
  }
}

// Hands out the stream of some rows as it is before a layer, or after the last one.
void tap(int layer, Worker& worker) {
  const ModelSpec& spec = worker.spec;
  const Step& step = worker.step;
  const StepBuffers& shared = worker.shared;
  const int layers = static_cast<int>(spec.layers.size());
  const Share mine = worker.own(worker.rows);  // those of this thread's copy that are complete
  for (size_t at = 0; step.taps && at < spec.taps.size(); at++)
    for (size_t i = 0; std::min(spec.taps[at], layers) == layer && i < step.tap_rows.size(); i++) {
      const int row = step.tap_rows[i];
      if (row < mine.first || row >= mine.last) continue;
      if (!shared.split && static_cast<int>(i % worker.team.size()) != worker.thread) continue;
      const float* const from = worker.residual.data() + static_cast<size_t>(row) * shared.width;
      worker.normalize_row(spec.taps[at] > layers ? spec.final_norm : Norm{}, from,
                           step.taps + (i * spec.taps.size() + at) * spec.width);
    }
}

// Hands out the states of rows after the final norm.
void states(Worker& worker) {
  const Step& step = worker.step;
  const int width = worker.spec.width;
  if (worker.shared.split) worker.wait();  // all rows of the last layer are added
  const Timed timed = worker.time(Part::norms);
  const Share mine =
      share(static_cast<int>(step.state_rows.size()), worker.thread, worker.team.size());
  for (int i = mine.first; i < mine.last; i++)
    worker.normalize_row(
        worker.spec.final_norm,
        worker.residual.data() + static_cast<size_t>(step.state_rows[i]) * worker.shared.width,
        step.states + static_cast<size_t>(i) * width);
}

void logits(Worker& worker) {
  const ModelSpec& spec = worker.spec;
  const Step& step = worker.step;
  StepBuffers& shared = worker.shared;
  std::vector<float>& normal = worker.normal;
  const int count = static_cast<int>(step.outputs.size());
  if (shared.split) worker.wait();  // all rows of the last layer are added
  const Share mine = worker.own(count);
  for (int i = mine.first; i < mine.last; i++)
    worker.normalize_row(
        spec.final_norm,
        worker.residual.data() + static_cast<size_t>(step.outputs[i]) * shared.width,
        normal.data() + static_cast<size_t>(i) * shared.width);
  if (spec.project_out.data) {
    worker.wait();  // all threads have added the last layer's output
    worker.multiply(spec.project_out, normal.data(), shared.width, count, shared.output.data(),
                    shared.width);
    worker.wait();
    worker.take_output(normal, count);
  }
  const Linear& head = spec.head;
  if (spec.groups.data) return grouped_logits(worker, count);
  const int stride = round_up(spec.vocabulary, kPanel);
  constexpr int unit = kLogitBlock / kPanel;  // a block is one thread's
  const Inputs x = worker.inputs(normal.data(), shared.width, head, count,
                                 items_of(head, worker.team.size(), unit));
  worker.take_panels(
      head,
      [&](int first, int last) {
        kernels().products.linear(head, first, last, x, step.logits, stride);
        adjust_logits(spec, step.logits, count, stride, first, last);
        note_maxima(worker, count, stride, first * kPanel, last * kPanel);
      },
      unit);
}

}  // namespace

int64_t weight_bytes(const ModelSpec& spec) {
  int64_t bytes = 0;
  const auto add = [&](const Linear& w) { bytes += w.data ? w.bytes() : 0; };
  for (const Layer& layer : spec.layers)
    if (!layer.skipped) layer.each_matrix(add);
  for (const Linear* w : {&spec.project_in, &spec.project_out, &spec.head, &spec.fuse, &spec.join,
                          &spec.layer_embeddings.project})
    add(*w);
  return bytes;
}

void Model::leave_out(int recent, int sinks, const std::vector<int>& skipped) {
  for (Layer& layer : spec_.layers) {
    Sight* const block = layer.sight();
    if (block && recent && (!block->window || block->window > recent)) {
      // A layer's own window may not reach the sinks. Larger values would overflow.
      block->sinks = block->window ? 0 : std::min(sinks, 1 << 30);
      block->window = recent;
    }
  }
  for (const int index : skipped) spec_.layers[index].skipped = true;
}

void Model::leave_out_in_prompts(float share) {
  const std::lock_guard lock(stepping_);
  spec_.unread_in_prompts = share;
}

void Model::leave_out_experts(float share) {
  const std::lock_guard lock(stepping_);
  for (Layer& layer : spec_.layers)
    for (Block& block : layer.blocks)
      if (auto* part = std::get_if<ExpertMlp>(&block.part)) part->routing.left_out = share;
}

Model::Model(ModelSpec spec) : spec_(std::move(spec)), buffers_(std::make_unique<StepBuffers>()) {}

Model::~Model() = default;

void Model::time_parts(bool timed) {
  const std::lock_guard lock(stepping_);
  timed_ = timed;
}

PartSeconds Model::take_part_seconds() {
  const std::lock_guard lock(stepping_);
  PartSeconds sums = {};
  for (ThreadBuffers& each : buffers_->threads)
    for (int i = 0; i < kParts; i++) sums[i] += std::exchange(each.clock.seconds[i], 0.0);
  return sums;
}

void Model::step(Step& step, Team& team, Counts& counts, std::vector<RequestReads>& by_request) {
  const std::lock_guard lock(stepping_);
  StepBuffers& shared = *buffers_;
  shared.prepare(spec_, step, team.size());
  const auto [last_of, stops_at] = last_layer(spec_, step);
  const int last = last_of;
  const bool stops = stops_at, hidden_alone = only_stores(spec_, step);
  if (stops) shared.forget_drafts(spec_, step, hidden_alone ? 0 : last);
  team.run([&](int thread) {
    shared.threads[thread].clock.begin(timed_);
    Worker worker(spec_, step, shared, team, thread);
    const Timed whole = worker.time(Part::other);
    sketch(worker);
    box(worker);
    embed(worker);
    if (spec_.layer_embeddings.table.data) embed_layers(worker);
    for (int layer = 0; layer < last + !stops; layer++) {
      tap(layer, worker);
      if (hidden_alone)
        store_layer(layer, worker);
      else if (!spec_.layers[layer].skipped)
        run_layer(layer, worker);
    }
    if (stops)
      store_layer(last, worker);
    else
      tap(last + 1, worker);
    if (!step.state_rows.empty()) states(worker);
    if (!step.outputs.empty()) logits(worker);
  });
  by_request.assign(step.requests.size(), {});
  counts.add_reads(shared.reads, spec_.kv_heads, *step.requests[0].cache, by_request);
  counts.add_tiles(shared.tile_reads, by_request);
  const ExpertReads& experts = shared.routes.reads;
  counts.weight_bytes += weight_bytes(spec_) + experts.bytes_read;
  for (const AdapterRows& group : shared.adapted)
    counts.weight_bytes += spec_.adapters.bytes[group.adapter];
  counts.experts_read += experts.read;
  counts.experts_held += experts.held;
  counts.expert_bytes_read += experts.bytes_read;
  counts.expert_bytes_held += experts.bytes_held;
  counts.visits_left_out += experts.left_out;
  counts.share_left_out = std::max(counts.share_left_out, experts.share_left_out);
}

}  // namespace suffice
