// Blocks with states: linear recurrences and short convolutions.
//
// A thread takes some heads through the whole block, the convolution of their channels included, so
// that threads meet only before and after. Channels of keys and queries that heads share are
// convolved by each thread that has one of these heads.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "model/worker.h"

namespace suffice {
namespace {

float softplus(float x) { return x > 20 ? x : std::log1p(std::exp(x)); }

float logistic(float x) { return 1 / (1 + std::exp(-x)); }

// Channels of a block, and their place in a row of a thread's buffer.
struct Stretch {
  int from, size, at;
};

struct RecurrentWork {
  const RecurrentBlock& block;
  Worker& worker;
  StepBuffers& shared;
  RecurrenceBuffers& own;
  const StateShape& shape;
  Share heads, key_heads;  // of this thread
  int stride;              // of a row of `own.mixed`: queries, keys, values

  RecurrentWork(const RecurrentBlock& block, Worker& worker)
      : block(block),
        worker(worker),
        shared(worker.shared),
        own(worker.buffers.recurrence),
        shape(worker.spec.states[block.state]),
        heads(share(block.heads, worker.thread, worker.team.size())) {
    key_heads = {0, block.key_heads};
    if (!shape.tiled) key_heads = {shape.group(heads.first), shape.group(heads.last - 1) + 1};
    if (heads.first == heads.last) key_heads = {0, 0};
    stride = 2 * keys() + (heads.last - heads.first) * block.value_size;
  }

  int keys() const { return (key_heads.last - key_heads.first) * block.key_size; }
  float* row_of(int row) const { return own.mixed.data() + static_cast<size_t>(row) * stride; }
  float* query(int row, int head) const { return row_of(row) + key_at(head); }
  float* key(int row, int head) const { return row_of(row) + keys() + key_at(head); }
  float* value(int row, int head) const {
    return row_of(row) + 2 * keys() + (head - heads.first) * block.value_size;
  }
  int key_at(int head) const { return (shape.group(head) - key_heads.first) * block.key_size; }
  size_t decays_of(int row, int head) const {  // [rows][heads of this thread][each]
    const int each = block.by_entry ? block.key_size : 1;
    return (static_cast<size_t>(row) * (heads.last - heads.first) + head - heads.first) * each;
  }

  void convolve(const StateRows& rows) const {
    const int first_key = key_heads.first * block.key_size;
    const Stretch stretches[] = {{block.queries_at + first_key, keys(), 0},
                                 {block.keys_at + first_key, keys(), keys()},
                                 {block.values_at + heads.first * block.value_size,
                                  (heads.last - heads.first) * block.value_size, 2 * keys()}};
    const std::vector<const float*> past = past_inputs(rows, block.state);
    const Convolution& by = block.convolution;
    own.mixed.resize(static_cast<size_t>(rows.count) * stride);
    for (int row = 0; row < rows.count; row++) {
      inputs_of(rows, row, past, shared.mixed.data(), shared.mixed_width, own.inputs);
      for (const Stretch& part : stretches)
        kernels().states.convolve(own.inputs.data(), by.taps, by.weights, by.bias, by.channels,
                                  part.from, part.from + part.size, by.activation,
                                  row_of(row) + part.at - part.from);
    }
    const Share channels = share(by.channels / kPanel, worker.thread, worker.team.size());
    log_inputs(rows, block.state, past, shared.mixed.data(), shared.mixed_width,
               channels.first * kPanel, channels.last * kPanel);
  }

  // Keys and queries of length 1, queries also divided by the root of their size.
  void normalize_keys(int count) const {
    const int size = block.key_size;
    const float eps = 1e-6f / size;
    own.scales.assign(2 * size, 1.0f / size);
    std::fill_n(own.scales.begin() + size, size, 1 / std::sqrt(static_cast<float>(size)));
    for (int row = 0; row < count; row++)
      for (int at = 0; at < 2 * keys(); at += size) {
        const float* const scales = own.scales.data() + (at < keys() ? 0 : size);
        kernels().pointwise.normalize(row_of(row) + at, size, scales, nullptr, false, eps,
                                      row_of(row) + at);
      }
  }

  void find_decays(const StateRows& rows) const {
    const int each = block.by_entry ? block.key_size : 1;
    own.decays.resize(decays_of(rows.count, heads.first));
    for (int row = 0; row < rows.count; row++) {
      const float* from =
          shared.decays.data() + static_cast<size_t>(rows.first_row + row) * shared.decay_width;
      for (int head = heads.first; head < heads.last; head++) {
        float* const to = own.decays.data() + decays_of(row, head);
        float steps = 0;
        for (int i = 0; i < each; i++) {
          const int at = head * each + i;
          const float given = block.decay_scale * from[at] + block.step_bias[at];
          steps = std::max(softplus(given), block.least_step);
          to[i] = std::exp(-block.rates[at] * steps);
        }
        if (block.strength.data) continue;
        float* const values = value(row, head);
        float* const skipped = output(rows, row, head);
        const float skip = block.skips ? block.skips[head] : 0.0f;
        for (int i = 0; i < block.value_size; i++) {
          skipped[i] = skip * values[i];
          values[i] *= steps;
        }
      }
    }
  }

  float* output(const StateRows& rows, int row, int head) const {
    return shared.recurred.data() + static_cast<size_t>(rows.first_row + row) * shared.value_width +
           head * block.value_size;
  }

  // Copies keys and decays of tentative rows to the log after the step.
  void log(const StateRows& rows) const {
    const StateLog log = rows.states->after(block.state);
    const size_t size = block.key_size, each = block.by_entry ? size : 1;
    const auto leads = [&](int head) {  // no head before it has its keys
      return head == 0 ||
             (shape.tiled ? head < block.key_heads : shape.group(head) != shape.group(head - 1));
    };
    for (int row = 0; row < rows.count; row++)
      for (int head = heads.first; head < heads.last; head++) {
        std::copy_n(own.decays.data() + decays_of(row, head), each,
                    log.decays + row * shape.decays() + head * each);
        if (leads(head))
          std::copy_n(key(row, head), size,
                      log.keys + row * shape.keys() + shape.group(head) * size);
      }
  }

  void advance(const StateRows& rows) const {
    LayerStates& states = *rows.states;
    const StateLog before = states.before(block.state), after = states.after(block.state);
    const int panels = block.value_size / kPanel;
    const bool again = !states.applied(block.state);
    own.rows.resize(rows.count);
    own.outputs.resize(static_cast<size_t>(rows.count) * block.value_size);
    own.scratch.resize(recurrence_scratch(block.key_size));
    for (int head = heads.first; head < heads.last; head++) {
      own.again.clear();
      for (const int row : states.committed())
        if (again) own.again.push_back(logged(shape, before, row, head));
      for (int row = 0; row < rows.count; row++) own.rows[row] = row_at(rows, after, row, head);
      StatePart part;
      const size_t start = head * shape.matrix();
      part.from = states.matrices(block.state) + start;
      if (rows.settled) part.to = states.next_matrices(block.state) + start;
      if (!rows.settled && !own.again.empty()) part.back = states.matrices(block.state) + start;
      part.again = own.again.data();
      part.agains = static_cast<int>(own.again.size());
      part.rows = own.rows.data();
      part.count = rows.count;
      part.key_size = block.key_size;
      part.last = panels;
      part.by_entry = block.by_entry;
      part.corrects = block.strength.data != nullptr;
      part.scratch = own.scratch.data();
      kernels().states.advance(part);
      if (part.corrects) continue;  // its outputs are where they belong
      for (int row = 0; row < rows.count; row++) {
        float* const to = output(rows, row, head);
        for (int i = 0; i < block.value_size; i++) to[i] += own.rows[row].output[i];
      }
    }
  }

  StateRow row_at(const StateRows& rows, const StateLog& after, int row, int head) const {
    const size_t size = block.value_size;
    StateRow found;
    found.key = key(row, head);
    found.query = query(row, head);
    found.decays = own.decays.data() + decays_of(row, head);
    found.value = value(row, head);
    if (!rows.settled) found.change = after.changes + row * shape.changes() + head * size;
    found.output = own.outputs.data() + row * size;  // to be added to skipped values
    found.parent = rows.parents[row];
    if (block.strength.data) {
      found.output = output(rows, row, head);
      const size_t at = static_cast<size_t>(rows.first_row + row) * shared.decay_width + head;
      found.strength = block.most_strength * logistic(shared.strengths[at]);
    }
    return found;
  }

  void run() const {
    for (const StateRows& rows : shared.state_rows) {
      convolve(rows);
      if (block.strength.data) normalize_keys(rows.count);
      find_decays(rows);
      if (!rows.settled) log(rows);
      advance(rows);
    }
  }
};

// The outputs of rows with their norms and gates.
void gate_outputs(const RecurrentBlock& block, Worker& worker) {
  StepBuffers& shared = worker.shared;
  const Timed timed = worker.time(Part::activations);
  const int width = block.value_width();
  const size_t stride = shared.value_width;
  std::vector<float>& normal = worker.buffers.recurrence.values;
  normal.resize(width);
  const auto normalize = [&](const float* from, float* to) {
    for (int at = 0; at < width; at += block.norm_size)
      kernels().pointwise.normalize(from + at, block.norm_size,
                                    block.norm.weight + (block.shared_norm ? 0 : at), nullptr,
                                    false, block.norm_eps, to + at);
  };
  const Share mine = worker.own(worker.rows);
  for (int row = mine.first; row < mine.last; row++) {
    float* const to = worker.prepared.gated.data() + row * stride;
    const float* from = shared.recurred.data() + row * stride;
    const float* const gates = shared.gates.data() + row * stride;
    for (int i = 0; i < width; i++) to[i] = block.gate_scale * gates[i];
    if (block.norm.weight && !block.gates_first) {
      normalize(from, normal.data());
      from = normal.data();
    }
    kernels().pointwise.activate(block.gate_activation, to, from, width);
    if (block.norm.weight && block.gates_first) normalize(to, to);
  }
}

// Rows of values, `stride` apart.
struct Values {
  float* data;
  int stride;
};

void note_applied(Worker& worker, int state) {
  if (worker.thread > 0) return;
  for (const StateRows& rows : worker.shared.state_rows)
    if (!rows.settled) rows.states->set_applied(state);
}

}  // namespace

void reserve_inputs(const RecurrentBlock& block, RowBuffers& to) {
  block.each_matrix([&](const Linear& w) { to.inputs.reserve(w); });
}

void reserve_inputs(const ConvolutionBlock& block, RowBuffers& to) {
  block.each_matrix([&](const Linear& w) { to.inputs.reserve(w); });
}

void run(const RecurrentBlock& block, int, Worker& worker) {
  StepBuffers& shared = worker.shared;
  const auto multiply = [&](const Matrix& w, const Values& from, const Values& to) {
    if (!w.data) return;
    worker.multiply_all(w, from.data, from.stride, to.data, to.stride);
    if (shared.split) worker.wait();  // the inputs of the next are prepared in the same memory
  };
  const Values x{worker.normal.data(), shared.width};
  float* const mixed = shared.mixed.data();
  multiply(block.mixed, x, {mixed, shared.mixed_width});
  multiply(block.queries, x, {mixed + block.queries_at, shared.mixed_width});
  multiply(block.keys, x, {mixed + block.keys_at, shared.mixed_width});
  multiply(block.values, x, {mixed + block.values_at, shared.mixed_width});
  multiply(block.strength, x, {shared.strengths.data(), shared.decay_width});
  Values of_decay = x, of_gate = x;
  if (block.decay_low.data) {  // in memory whose time comes later
    of_decay = {shared.recurred.data(), shared.value_width};
    of_gate = of_decay;
    of_gate.data += round_up(block.decay_low.rows, kPanel);
    multiply(block.decay_low, x, of_decay);
    multiply(block.gate_low, x, of_gate);
    worker.wait();
  }
  multiply(block.decay, of_decay, {shared.decays.data(), shared.decay_width});
  multiply(block.gate, of_gate, {shared.gates.data(), shared.value_width});
  worker.wait();
  {
    const Timed timed = worker.time(Part::recurrences);
    RecurrentWork(block, worker).run();
  }
  worker.wait();
  note_applied(worker, block.state);
  gate_outputs(block, worker);
  worker.multiply_all(block.out, worker.prepared.gated.data(), shared.value_width,
                      shared.output.data(), shared.width);
  worker.wait();
}

void run(const ConvolutionBlock& block, int, Worker& worker) {
  StepBuffers& shared = worker.shared;
  const Convolution& by = block.convolution;
  const int stride = shared.mixed_width, channels = by.channels;
  worker.multiply_all(block.mixed, worker.normal.data(), shared.width, shared.mixed.data(), stride);
  worker.wait();
  {
    const Timed timed = worker.time(Part::recurrences);
    const Share mine = share(channels / kPanel, worker.thread, worker.team.size());
    const int first = mine.first * kPanel, last = mine.last * kPanel;
    const auto row_of = [&](int row) {
      return shared.mixed.data() + static_cast<size_t>(row) * stride;
    };
    for (int row = 0; row < worker.rows; row++)
      for (int i = first; i < last; i++) row_of(row)[2 * channels + i] *= row_of(row)[i];
    const float* const inputs = shared.mixed.data() + 2 * channels;
    std::vector<const float*>& taps = worker.buffers.recurrence.inputs;
    for (const StateRows& rows : shared.state_rows) {
      const std::vector<const float*> past = past_inputs(rows, block.state);
      for (int i = 0; i < rows.count; i++) {
        const int row = rows.first_row + i;
        inputs_of(rows, i, past, inputs, stride, taps);
        float* const to = shared.recurred.data() + static_cast<size_t>(row) * shared.value_width;
        kernels().states.convolve(taps.data(), by.taps, by.weights, by.bias, channels, first, last,
                                  by.activation, to);
        for (int c = first; c < last; c++) to[c] *= row_of(row)[channels + c];
      }
      log_inputs(rows, block.state, past, inputs, stride, first, last);
    }
  }
  worker.wait();
  worker.multiply_all(block.out, shared.recurred.data(), shared.value_width, shared.output.data(),
                      shared.width);
  worker.wait();
}

}  // namespace suffice
