#include "model/worker.h"

namespace suffice {
namespace {

// Panels of a matrix that are multiplied together, and what reading them costs, in rows.
constexpr int kTogether = 2;
constexpr int kReadCost = 4;

// A group's matrices. Of those in stacks, panels from `inner_start` and `output_start` on are its
// own.
struct Matrices {
  const Linear &gate, &up, &down;
  bool gate_own;
  int activation;
  int inner_panels, inner_start, output_start;
};

// A pass over the matrices of all groups: gate and up, or down.
enum class Pass { in, out };

// Panels of a group in a pass, and the cost of `kTogether` of them.
struct Work {
  int panels;
  int64_t cost;
  int64_t total() const { return steps() * cost; }
  int64_t steps() const { return (panels + kTogether - 1) / kTogether; }
  // The first panel whose work starts at a cost or after it.
  int from(int64_t at) const {
    const int64_t step = at <= 0 ? 0 : std::min(steps(), (at + cost - 1) / cost);
    return std::min(panels, static_cast<int>(step) * kTogether);
  }
};

// The part of one thread in a layer's experts.
struct ExpertWork {
  const ExpertMlp& block;
  Worker& worker;
  StepBuffers& shared;
  Routes& routes;
  ExpertBuffers& own;
  const int rows, width, inner_stride;  // of the step; strides of the stream and within experts

  ExpertWork(const ExpertMlp& block, Worker& worker)
      : block(block),
        worker(worker),
        shared(worker.shared),
        routes(worker.shared.routes),
        own(worker.buffers.experts),
        rows(worker.rows),
        width(worker.shared.width),
        inner_stride(Routes::inner_stride(block)) {
    own.prepare(rows, width, inner_stride);
  }

  // What the router reads.
  const float* scored() const {
    if (!block.router_norm.weight) return worker.normal.data();
    worker.normalize(block.router_norm, worker.residual.data(), worker.prepared.routed.data());
    return worker.prepared.routed.data();
  }

  // The logits of all rows.
  void score() const {
    const float* from = scored();
    const Linear& other = block.shared_router;
    InputBuffers& second = worker.prepared.second_inputs;
    if (other.data) worker.fill(second, from, width, other, rows);
    const Inputs x =
        worker.inputs(from, width, block.router, rows, items_of(block.router, worker.team.size()));
    worker.take_panels(block.router, [&](int first, int last) {
      kernels().products.linear(block.router, first, last, x, routes.logits.data(),
                                Routes::logit_stride(block));
      if (other.data && first == 0 && last > 0)
        kernels().products.linear(other, 0, 1, second.of(from, width, other, rows),
                                  routes.shared_logits.data(), kPanel);
    });
    worker.wait();
  }

  // The groups of all rows. Few of them are routed by one thread, because another barrier would
  // cost more.
  void route() const {
    const bool groups = worker.thread == 0;
    const Share mine = shared.split || groups ? worker.own(rows) : Share{0, 0};
    for (int row = mine.first; row < mine.last; row++) routes.route(block, row, own.scores);
    if (shared.split) worker.wait();
    if (groups) {
      routes.group(block, rows);
      shared.queue.begin(items(), worker.team.size());
      shared.second_queue.begin(items(), worker.team.size());
    }
    worker.wait();
  }

  bool reads_narrow(const Group& group) const { return group.expert >= 0 && block.narrow.data; }

  // Entries of what a group's experts read and give.
  int entries(const Group& group) const {
    return reads_narrow(group) ? block.narrow.rows : worker.spec.width;
  }

  void narrow() const {
    if (!block.narrow.data) return;
    worker.multiply(block.narrow, worker.normal.data(), width, rows, routes.narrow.data(),
                    Routes::narrow_stride(block));
    worker.wait();
  }

  Matrices matrices(const Group& group) const {
    const DenseMlp& common = block.shared;
    if (group.expert < 0)
      return {common.gate,       common.up,          common.down, common.gate_own,
              common.activation, common.up.panels(), 0,           0};
    const int inner = block.inner / kPanel, output = entries(group) / kPanel;
    return {block.gate,       block.up, block.down,           block.gate_own,
            block.activation, inner,    group.expert * inner, group.expert * output};
  }

  Work work(const Group& group, Pass pass) const {
    const int inner = matrices(group).inner_panels, outer = entries(group) / kPanel;
    const int columns = pass == Pass::in ? outer : inner;
    return {pass == Pass::in ? inner : outer,
            static_cast<int64_t>(columns) * (kReadCost + group.count)};
  }

  int items() const { return worker.team.size() * (shared.split ? kItems : 1); }

  // Calls f(group, first, last) for this thread's panels of the groups. They are cut into items of
  // equal cost. With few rows each thread has one, else it also takes what others are late with.
  template <class F>
  void take(Pass pass, WorkQueue& queue, F f) const {
    int64_t total = 0;
    for (const Group& group : routes.groups) total += work(group, pass).total();
    const auto take_item = [&](int item) {
      int64_t begin = total * item / items(), end = total * (item + 1) / items();
      for (const Group& group : routes.groups) {
        const Work part = work(group, pass);
        const int first = part.from(begin), last = part.from(end);
        if (first < last) f(group, first, last);
        begin -= part.total();
        end -= part.total();
      }
    };
    if (shared.split) return queue.take(worker.thread, worker.team.size(), take_item);
    take_item(worker.thread);
  }

  // act(gate x) * up x of all visits, or act(up x).
  void multiply_in() const {
    const Group* ready = nullptr;
    const Timed timed = worker.time(Part::products);
    take(Pass::in, shared.queue, [&](const Group& group, int first, int last) {
      const Matrices of = matrices(group);
      if (!ready || !same_inputs_of(*ready, group)) gather(group, of);
      ready = &group;
      const Inputs x = own.inputs.of(own.rows.data(), width, of.up, group.count);
      const Inputs of_gate =
          of.gate_own ? own.gate_inputs.of(own.rows.data(), width, of.gate, group.count) : x;
      const size_t start = static_cast<size_t>(group.first) * inner_stride;
      const bool gated = of.gate.data;
      float* const gate = routes.gate.data() + start;
      float* const up = gated ? routes.up.data() + start : gate;
      const int from = of.inner_start + first, to = of.inner_start + last;
      kernels().products.linear(of.up, from, to, x, up - of.inner_start * kPanel, inner_stride);
      if (gated)
        kernels().products.linear(of.gate, from, to, of_gate, gate - of.inner_start * kPanel,
                                  inner_stride);
      const Timed activating = worker.time(Part::activations);
      for (int i = 0; i < group.count; i++) {
        const size_t at = static_cast<size_t>(i) * inner_stride + first * kPanel;
        kernels().pointwise.activate(of.activation, gate + at, gated ? up + at : nullptr,
                                     (last - first) * kPanel);
      }
    });
    worker.wait();
  }

  // Whether two groups multiply the same rows in the same form: those of a single row do.
  bool same_inputs_of(const Group& one, const Group& other) const {
    if (one.count != other.count || (one.expert < 0) != (other.expert < 0)) return false;
    for (int i = 0; i < one.count; i++) {
      const Visit &mine = routes.visits[one.first + i], &its = routes.visits[other.first + i];
      if (mine.row != its.row || mine.factor != its.factor) return false;
    }
    return true;
  }

  // Prepares the rows of a group as inputs of its matrices.
  void gather(const Group& group, const Matrices& of) const {
    const bool narrow = reads_narrow(group);
    const int stride = narrow ? Routes::narrow_stride(block) : width;
    for (int i = 0; i < group.count; i++) {
      const Visit& visit = routes.visits[group.first + i];
      const float* from = (narrow ? routes.narrow : worker.normal).data();
      from += static_cast<size_t>(visit.row) * stride;
      float* to = own.rows.data() + static_cast<size_t>(i) * width;
      for (int c = 0; c < stride; c++) to[c] = visit.factor * from[c];
    }
    fill(own.inputs, own.rows.data(), width, of.up, group.count);
    if (of.gate_own) fill(own.gate_inputs, own.rows.data(), width, of.gate, group.count);
  }

  void fill(InputBuffers& to, const float* values, int stride, const Linear& w, int count) const {
    const Timed timed = worker.time(Part::inputs);
    to.reserve(w);
    to.fill(values, stride, w, 0, count, count, worker.buffers.input_scratch);
  }

  // The outputs of all visits.
  void multiply_out() const {
    const Group* ready = nullptr;
    const Timed timed = worker.time(Part::products);
    take(Pass::out, shared.second_queue, [&](const Group& group, int first, int last) {
      const Matrices of = matrices(group);
      const float* values = routes.gate.data() + static_cast<size_t>(group.first) * inner_stride;
      if (ready != &group) fill(own.inputs, values, inner_stride, of.down, group.count);
      ready = &group;
      float* output = routes.output.data() + static_cast<size_t>(group.first) * width;
      kernels().products.linear(of.down, of.output_start + first, of.output_start + last,
                                own.inputs.of(values, inner_stride, of.down, group.count),
                                output - of.output_start * kPanel, width);
    });
    worker.wait();
  }

  // The weighted sums of the outputs, in the order of experts, whatever other rows there are.
  void sum() const {
    const int last = block.visits(), chosen = block.routing.chosen;
    float* const output = shared.output.data();
    if (!block.narrow.data) return sum(0, last, output, width);
    const int stride = Routes::narrow_stride(block);
    sum(0, chosen, routes.narrow_sums.data(), stride);
    worker.multiply(block.widen, routes.narrow_sums.data(), stride, rows, output, width);
    worker.wait();
    if (chosen < last) sum(chosen, last, output, width);
  }

  // Sums the visits [from, to) of each row; what is there stays if they are not the first.
  void sum(int from, int to, float* sums, int stride) const {
    const Timed timed = worker.time(Part::norms);
    const int panels = stride / kPanel;
    const Share mine = share(rows * panels, worker.thread, worker.team.size());
    for (int at = mine.first; at < mine.last;) {
      const int row = at / panels, first = at % panels;
      const int last = std::min(panels, first + mine.last - at);
      float* const out = sums + static_cast<size_t>(row) * stride;
      if (from == 0) std::fill(out + first * kPanel, out + last * kPanel, 0.0f);
      for (int i = from; i < to; i++) add_visit(row, i, first * kPanel, last * kPanel, out);
      at += last - first;
    }
    worker.wait();
  }

  void add_visit(int row, int index, int first, int last, float* to) const {
    const int visit = routes.visits_of[row * block.visits() + index];
    if (visit < 0) return;
    const float weight = routes.visits[visit].weight;
    const float* from = routes.output.data() + static_cast<size_t>(visit) * width;
    for (int c = first; c < last; c++) to[c] += weight * from[c];
  }
};

}  // namespace

void ExpertBuffers::prepare(int count, int width, int inner_stride) {
  const size_t size = static_cast<size_t>(count) * width;
  if (rows.size() < size) rows.resize(size);
  for (InputBuffers* each : {&inputs, &gate_inputs})
    each->prepare(count, std::max(width, inner_stride));
}

void reserve_inputs(const ExpertMlp& block, RowBuffers& to) {
  to.inputs.reserve(block.router);
  to.second_inputs.reserve(block.shared_router);
  for (const Linear* w : {&block.narrow, &block.widen})
    if (w->data) to.inputs.reserve(*w);
}

void run(const ExpertMlp& block, int, Worker& worker) {
  const ExpertWork work(block, worker);
  work.narrow();
  work.score();
  work.route();
  work.multiply_in();
  work.multiply_out();
  work.sum();
}

}  // namespace suffice
