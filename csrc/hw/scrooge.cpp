#include "scrooge.h"

#include <algorithm>
#include <cmath>

namespace suffice::hw {
namespace {

// Fetches rows in order, with at most `window_rows` in flight. Rows still in flight when a fetch is
// abandoned arrive later and are ignored.
class Fetch {
 public:
  Fetch(Port* port, const Machine& machine, double now)
      : port_(port), machine_(machine), now_(now), first_(port->next_id) {}
  ~Fetch() { port_->next_id += static_cast<int64_t>(rows_.size()); }
  Fetch(const Fetch&) = delete;

  void row(int64_t address, int64_t bytes) { rows_.push_back({address, bytes, 0}); }
  int64_t asked() const { return asked_; }
  double now() const { return now_; }

  // Requests rows while the window has room, waits for a row, returns its index in the order or -1.
  int64_t next() {
    ask();
    Done done;
    while (in_flight_ > 0 && port_->memory.next(&done)) {
      const int64_t index = done.id - first_;
      if (index < 0 || --rows_[index].bursts > 0) continue;
      in_flight_--;
      now_ = std::max(now_, done.time * machine_.tck_ns + machine_.controller_ns);
      return index;
    }
    return -1;
  }

 private:
  struct Row {
    int64_t address, bytes, bursts;  // bursts in flight
  };

  void ask() {
    const Clock clock = static_cast<Clock>(std::ceil(now_ / machine_.tck_ns - 1e-9));
    const int64_t burst = port_->memory.shape().burst_bytes;
    for (; asked_ < static_cast<int64_t>(rows_.size()) && in_flight_ < machine_.window_rows;
         asked_++) {
      Row& row = rows_[asked_];
      for (int64_t at = 0; at < row.bytes; at += burst, row.bursts++)
        port_->memory.add(row.address + at, false, clock, first_ + asked_);
      in_flight_++;
    }
  }

  Port* port_;
  const Machine& machine_;
  double now_;
  int64_t first_, asked_ = 0;
  std::vector<Row> rows_;
  int in_flight_ = 0;
};

// Waves of rows; they enter the pipeline in order, each as soon as all its rows have arrived.
class Waves {
 public:
  Waves(const Decision& decision, int wave, int interval) : interval_(interval) {
    const int count = static_cast<int>(decision.keys.size());
    for (int end = 0; end < count;) {
      const int limit = end < decision.important ? decision.important : count;
      const int begin = end;
      end = std::min(end + wave, limit);
      left_.push_back(end - begin);
      of_.insert(of_.end(), end - begin, static_cast<int>(left_.size()) - 1);
    }
  }

  void came(int64_t row, double now) {
    if (row >= static_cast<int64_t>(of_.size())) return;
    left_[of_[row]]--;
    for (; entered_ < left_.size() && left_[entered_] == 0; entered_++)
      last_ = std::max(last_ + interval_, now);
  }
  bool all_entered() const { return entered_ == left_.size(); }
  double last() const { return last_; }

 private:
  int interval_;
  std::vector<int> left_, of_;  // missing rows of each wave; the wave of each row
  size_t entered_ = 0;
  double last_ = 0;
};

// The rows that a decision does not read, newest first: the prefetcher does not know the stop.
std::vector<int32_t> beyond(const Decision& decision, int length) {
  std::vector<bool> read(length, false);
  for (const int32_t row : decision.keys) read[row] = true;
  std::vector<int32_t> rows;
  for (int row = length - 1; row >= 0; row--)
    if (!read[row]) rows.push_back(row);
  return rows;
}

}  // namespace

HeadTime run_head(Port* port, const Machine& machine, const Decision& decision, int length,
                  const HeadPlace& place, double start) {
  HeadTime time{start, kUnknown, 0, 0, 0};
  const int64_t needed = static_cast<int64_t>(decision.keys.size());
  const int extras = machine.extra_bytes > 0;
  {
    Fetch keys(port, machine, start);
    Waves waves(decision, machine.wave, machine.replays);
    if (extras) keys.row(place.extra, machine.extra_bytes);
    const int64_t bytes = machine.row_bytes;
    for (const int32_t row : decision.keys) keys.row(place.keys + row * bytes, bytes);
    for (const int32_t row : beyond(decision, length)) keys.row(place.keys + row * bytes, bytes);
    bool extra_came = !extras;
    while (keys.now() < time.keys_end) {
      const int64_t index = keys.next();
      if (index < 0) break;
      if (index < extras) extra_came = true;
      if (index >= extras) waves.came(index - extras, keys.now());
      if (time.keys_end == kUnknown && waves.all_entered() && extra_came) {
        const double stop = decision.waves > 0 ? machine.stop_latency : 0;
        time.keys_end = std::max(waves.last(), keys.now()) + machine.pipe + stop;
      }
    }
    time.wasted_rows = keys.asked() - extras - needed;
  }
  const auto cycles = [&](size_t tokens, int width) {
    return static_cast<double>((tokens * machine.replays + width - 1) / width);
  };
  time.softmax_end =
      time.keys_end + cycles(decision.keys.size(), machine.softmax_width) + machine.softmax_latency;
  const size_t count = decision.values.size();
  time.end = time.softmax_end + cycles(count, machine.wave) + machine.sum_latency;
  Fetch values(port, machine, machine.early_values ? time.keys_end : time.softmax_end);
  for (const int32_t row : decision.values)
    values.row(place.values + int64_t{row} * machine.row_bytes, machine.row_bytes);
  while (values.next() >= 0) time.end = std::max(time.end, values.now() + machine.sum_latency);
  return time;
}

double run_stream(Port* port, const Machine& machine, const std::vector<const Decision*>& decisions,
                  const std::vector<HeadPlace>& places, double start) {
  Fetch rows(port, machine, start);
  for (size_t i = 0; i < decisions.size(); i++) {
    const int64_t bytes = machine.row_bytes;
    if (machine.extra_bytes > 0) rows.row(places[i].extra, machine.extra_bytes);
    for (const int32_t row : decisions[i]->keys) rows.row(places[i].keys + row * bytes, bytes);
    for (const int32_t row : decisions[i]->values) rows.row(places[i].values + row * bytes, bytes);
  }
  while (rows.next() >= 0) continue;
  return rows.now();
}

}  // namespace suffice::hw
