#include "dram.h"

#include <algorithm>
#include <functional>

namespace suffice::hw {

Place locate(const Shape& shape, int64_t address) {
  std::array<int64_t, kFields> part{};
  int64_t left = address / shape.burst_bytes;
  for (const int field : shape.lowest_first) {
    part[field] = left % shape.sizes[field];
    left /= shape.sizes[field];
  }
  const int bank = static_cast<int>(part[kGroup] * shape.sizes[kBank] + part[kBank]);
  return {static_cast<int>(part[kChannel]), static_cast<int>(part[kGroup]), bank,
          static_cast<int>(part[kRow]), part[kColumn] * shape.sizes[kColumnLow] + part[kColumnLow]};
}

void Counts::add(const Counts& other) {
  reads += other.reads;
  writes += other.writes;
  activates += other.activates;
  refreshes += other.refreshes;
  hits += other.hits;
  closed += other.closed;
  conflicts += other.conflicts;
  latency += other.latency;
  active += other.active;
  end = std::max(end, other.end);
}

Channel::Channel(const Shape& shape, const Timing& timing)
    : timing_(timing),
      window_size_(shape.window),
      departures_(shape.queue, 0),
      banks_(shape.sizes[kGroup] * shape.sizes[kBank]),
      activate_ok_(shape.sizes[kGroup], 0),
      next_refresh_(timing.refresh_interval) {
  column_ok_.fill(std::vector<Clock>(shape.sizes[kGroup], 0));
  last_activates_.fill(-timing.four_activates);
}

void Channel::add(const Place& place, bool write, Clock arrival, int64_t id) {
  waiting_.push_back({arrival, arrival, id, place.row, place.bank, place.group, write, false});
  if (window_.size() < window_size_ && arrival <= command_.time) known_ = false;
}

void Channel::admit(Clock until) {
  while (window_.size() < window_size_ && !waiting_.empty() && waiting_.front().arrival <= until) {
    window_.push_back(waiting_.front());
    waiting_.pop_front();
    // A request is accepted once at most `queue` - 1 requests before it have not departed.
    Request& request = window_.back();
    request.accepted = std::max(request.arrival, departures_[admitted_++ % departures_.size()]);
  }
}

Clock Channel::activate_time(const Request& request) const {
  const Clock bank = std::max(banks_[request.bank].activate, activate_ok_[request.group]);
  return std::max({bank, last_activates_[ring_] + timing_.four_activates, row_bus_});
}

// A row stays open while a request in the window needs it.
Channel::Command Channel::choose() const {
  uint64_t used = 0, seen = 0;
  for (const Request& request : window_)
    if (banks_[request.bank].open == request.row) used |= uint64_t{1} << request.bank;
  Command best;
  for (size_t i = 0; i < window_.size(); i++) {
    const Request& request = window_[i];
    const Bank& bank = banks_[request.bank];
    const uint64_t bit = uint64_t{1} << request.bank;
    const Clock least = std::max(now_, request.arrival);
    if (bank.open == request.row) {
      const Clock ready = std::max(bank.column, column_ok_[request.write][request.group]);
      const Clock time = std::max(least, ready);
      if (time < best.time || (time == best.time && best.kind != kColumnCommand))
        best = {kColumnCommand, time, static_cast<int>(i)};
    } else if (!((used | seen) & bit)) {
      seen |= bit;
      const bool open = bank.open >= 0;
      const Clock ready = open ? std::max(bank.precharge, row_bus_) : activate_time(request);
      const Clock time = std::max(least, ready);
      if (time < best.time) best = {open ? kPrecharge : kActivate, time, static_cast<int>(i)};
    }
  }
  return best;
}

Channel::Command Channel::earliest() const {
  const Command best = choose();
  return best.time < next_refresh_ || best.kind == kNone
             ? best
             : Command{kRefresh, std::max(now_, next_refresh_), 0};
}

Clock Channel::next() {
  if (known_) return command_.time;
  admit(now_);
  if (window_.empty() && !waiting_.empty()) admit(waiting_.front().arrival);
  command_ = earliest();
  // A request that arrives later may have an earlier command.
  while (window_.size() < window_size_ && !waiting_.empty() &&
         waiting_.front().arrival <= command_.time) {
    admit(waiting_.front().arrival);
    command_ = earliest();
  }
  known_ = true;
  return command_.time;
}

void Channel::open_changes(int by, Clock time) {
  if (open_banks_ == 0) open_since_ = time;
  open_banks_ += by;
  if (open_banks_ == 0) counts_.active += time - open_since_;
}

void Channel::issue_column(const Request& request, Clock time) {
  const Timing& t = timing_;
  Bank& bank = banks_[request.bank];
  // After a read: the next read, or a write after the turnaround of the bus.
  const int read_short[] = {t.ccd_short, t.read_latency + t.burst + t.turnaround - t.write_latency};
  const int write_short[] = {t.write_latency + t.burst + t.write_to_read_short, t.ccd_short};
  const int write_long[] = {t.write_latency + t.burst + t.write_to_read_long, t.ccd_long};
  for (int write = 0; write < 2; write++) {
    std::vector<Clock>& ok = column_ok_[write];
    const int wait = request.write ? write_short[write] : read_short[write];
    for (Clock& each : ok) each = std::max(each, time + wait);
    const int own = request.write ? write_long[write] : std::max(read_short[write], t.ccd_long);
    ok[request.group] = std::max(ok[request.group], time + own);
  }
  const int hold =
      request.write ? t.write_latency + t.burst + t.write_recovery : t.read_to_precharge;
  bank.precharge = std::max(bank.precharge, time + hold);
  if (!request.missed) counts_.hits++;
  (request.write ? counts_.writes : counts_.reads)++;
}

void Channel::issue_activate(Request& request, Clock time) {
  const Timing& t = timing_;
  Bank& bank = banks_[request.bank];
  bank.open = request.row;
  bank.column = time + t.ras_to_cas;
  bank.precharge = time + t.row_active;
  for (Clock& each : activate_ok_) each = std::max(each, time + t.rrd_short);
  activate_ok_[request.group] = std::max(activate_ok_[request.group], time + t.rrd_long);
  last_activates_[ring_] = time;
  ring_ = (ring_ + 1) % 4;
  if (!request.missed) counts_.closed++;
  request.missed = true;
  counts_.activates++;
  open_changes(+1, time);
}

void Channel::issue_refresh(Clock time) {
  Clock closed = time;
  for (const Bank& bank : banks_)
    closed = std::max(closed, bank.open >= 0 ? bank.precharge + timing_.precharge : bank.activate);
  if (open_banks_ > 0) closed = std::max(closed, time + timing_.precharge);
  for (Bank& bank : banks_) {
    if (bank.open >= 0) open_changes(-1, closed);
    bank.open = -1;
    bank.activate = closed + timing_.refresh;
  }
  counts_.refreshes++;
  next_refresh_ += timing_.refresh_interval;
}

bool Channel::step(Done* done) {
  next();
  const Command command = command_;
  known_ = false;
  now_ = command.time;
  if (command.kind == kRefresh) {
    issue_refresh(now_);
    return false;
  }
  Request& request = window_[command.index];
  Bank& bank = banks_[request.bank];
  if (command.kind == kColumnCommand) {
    issue_column(request, now_);
    const int latency = request.write ? timing_.write_latency : timing_.read_latency;
    *done = {now_ + latency + timing_.burst, request.accepted, request.id};
    if (!request.write) counts_.latency += done->time - request.accepted;
    departures_[departed_++ % departures_.size()] = now_;
    counts_.end = std::max(counts_.end, done->time);
    window_.erase(window_.begin() + command.index);
    return true;
  }
  row_bus_ = now_ + 1;
  if (command.kind == kActivate) {
    issue_activate(request, now_);
  } else {
    bank.open = -1;
    bank.activate = now_ + timing_.precharge;
    request.missed = true;
    counts_.conflicts++;
    open_changes(-1, now_);
  }
  return false;
}

void Channel::finish(Clock end) {
  while (next_refresh_ < end) issue_refresh(next_refresh_);
  if (open_banks_ > 0) counts_.active += end - open_since_;
  open_since_ = end;
}

Memory::Memory(const Shape& shape, const Timing& timing)
    : shape_(shape), channels_(shape.sizes[kChannel], Channel(shape, timing)) {}

void Memory::add(int64_t address, bool write, Clock arrival, int64_t id) {
  const Place place = locate(shape_, address);
  channels_[place.channel].add(place, write, arrival, id);
  in_flight_++;
}

bool Memory::next(Done* done) {
  if (in_flight_ == 0) return false;
  while (true) {
    Channel* first = nullptr;
    Clock time = kNever;
    for (Channel& channel : channels_)
      if (const Clock next = channel.next(); next < time) time = next, first = &channel;
    // A burst cannot end before its command is issued, so no later command ends earlier.
    if (!heap_.empty() && heap_.front().time <= time) break;
    Done ended;
    if (!first->step(&ended)) continue;
    heap_.push_back(ended);
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  }
  std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
  *done = heap_.back();
  heap_.pop_back();
  in_flight_--;
  return true;
}

Counts Memory::finish() {
  Counts total;
  for (const Channel& channel : channels_) total.end = std::max(total.end, channel.counts().end);
  for (Channel& channel : channels_) {
    channel.finish(total.end);
    total.add(channel.counts());
  }
  return total;
}

Counts run(const Shape& shape, const Timing& timing, const int64_t* arrivals,
           const int64_t* addresses, const uint8_t* writes, int64_t count, int32_t* latencies) {
  std::vector<Channel> channels(shape.sizes[kChannel], Channel(shape, timing));
  for (int64_t i = 0; i < count; i++) {
    const Place place = locate(shape, addresses[i]);
    channels[place.channel].add(place, writes && writes[i], arrivals[i], i);
  }
  Counts total;
  for (Channel& channel : channels) {
    while (channel.next() != kNever) {
      Done done;
      if (channel.step(&done) && latencies)
        latencies[done.id] = static_cast<int32_t>(done.time - done.accepted);
    }
    total.end = std::max(total.end, channel.counts().end);
  }
  for (Channel& channel : channels) {
    channel.finish(total.end);
    total.add(channel.counts());
  }
  return total;
}

}  // namespace suffice::hw
