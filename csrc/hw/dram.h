// A memory of independent DRAM channels: banks, rows, refresh, and what the standard's timings
// allow.
//
// Driven by events: per channel the command that may come first is found and issued, so that idle
// clocks cost nothing. Among the requests in a window the first legal command wins; of those that
// could come in the same clock a column command before a row command, and the older one (FR-FCFS).
// Row and column commands have a bus each, as in HBM. Times are clocks of the memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace suffice::hw {

using Clock = int64_t;
constexpr Clock kNever = INT64_MAX;

struct Timing {
  int burst;  // clocks that the data bus is busy for a burst
  int read_latency, write_latency, ras_to_cas, precharge, row_active;
  int ccd_short, ccd_long, rrd_short, rrd_long, four_activates;
  int read_to_precharge, write_recovery, write_to_read_short, write_to_read_long, turnaround;
  int refresh, refresh_interval;
};

enum Field { kRow, kBank, kGroup, kColumn, kChannel, kColumnLow, kFields };

struct Shape {
  std::array<int64_t, kFields> sizes;  // of each field; columns are counted in bursts
  std::vector<int> lowest_first;       // the address's fields
  int burst_bytes;
  int window;  // requests of a channel that are looked at
  int queue;   // that it accepts, at least a window; those that come later wait outside
};

struct Place {
  int channel, group, bank, row;  // bank: of all banks of the channel
  int64_t column;
};

Place locate(const Shape& shape, int64_t address);

struct Counts {
  int64_t reads = 0, writes = 0, activates = 0, refreshes = 0;
  int64_t hits = 0, closed = 0, conflicts = 0;  // what a request met at its first command
  Clock latency = 0;                            // of reads, summed, from their acceptance
  Clock active = 0;                             // clocks with an open bank
  Clock end = 0;                                // when the last burst was over

  void add(const Counts& other);
};

struct Done {
  Clock time, accepted;
  int64_t id;
  bool operator>(const Done& other) const { return time > other.time; }
};

class Channel {
 public:
  Channel(const Shape& shape, const Timing& timing);

  void add(const Place& place, bool write, Clock arrival, int64_t id);
  Clock next();           // when the next command comes, or kNever
  bool step(Done* done);  // issues it; whether it was a column command, which ends a request
  const Counts& counts() const { return counts_; }
  void finish(Clock end);  // accounts for the time up to `end`

 private:
  struct Request {
    Clock arrival, accepted;
    int64_t id;
    int row, bank, group;
    bool write, missed;
  };
  struct Bank {
    int open = -1;
    Clock activate = 0, column = 0, precharge = 0;  // when each may come
  };
  enum Kind { kNone, kColumnCommand, kActivate, kPrecharge, kRefresh };
  struct Command {
    Kind kind = kNone;
    Clock time = kNever;
    int index = 0;  // in the window
  };

  void admit(Clock until);
  Command choose() const;
  Command earliest() const;
  Clock activate_time(const Request& request) const;
  void issue_column(const Request& request, Clock time);
  void issue_activate(Request& request, Clock time);
  void issue_refresh(Clock time);
  void open_changes(int by, Clock time);

  Timing timing_;
  size_t window_size_;
  std::vector<Clock> departures_;  // a ring: of the last requests, as many as the queue holds
  size_t admitted_ = 0, departed_ = 0;
  std::vector<Request> window_;
  std::deque<Request> waiting_;
  std::vector<Bank> banks_;
  std::array<std::vector<Clock>, 2> column_ok_;  // [write][group]
  std::vector<Clock> activate_ok_;               // [group]
  std::array<Clock, 4> last_activates_;          // a ring
  int ring_ = 0;
  Clock now_ = 0, row_bus_ = 0, next_refresh_, open_since_ = 0;
  int open_banks_ = 0;
  Command command_;
  bool known_ = false;
  Counts counts_;
};

// All channels, in one order of time, for a user whose requests follow from what came back.
class Memory {
 public:
  Memory(const Shape& shape, const Timing& timing);

  void add(int64_t address, bool write, Clock arrival, int64_t id);
  bool next(Done* done);  // the burst that ends next; false: nothing is under way
  Counts finish();        // counts of all channels, up to the last burst's end

  const Shape& shape() const { return shape_; }

 private:
  Shape shape_;
  std::vector<Channel> channels_;
  std::vector<Done> heap_;
  int64_t under_way_ = 0;
};

// Runs requests that come at given times, and writes each one's latency if asked.
Counts run(const Shape& shape, const Timing& timing, const int64_t* arrivals,
           const int64_t* addresses, const uint8_t* writes, int64_t count, int32_t* latencies);

}  // namespace suffice::hw
