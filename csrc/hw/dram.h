// A memory of independent DRAM channels: banks, rows, refresh, and the timings of the standard.
//
// Event-driven: each channel finds and issues its earliest legal command, so idle clocks cost
// nothing. Among the requests in a window, the command with the earliest time wins. At equal times
// column commands go before row commands, then older requests before newer ones (FR-FCFS). Row and
// column commands have separate buses, as in HBM. Times are clocks of the memory.
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
  int burst;  // clocks of the data bus per burst
  int read_latency, write_latency, ras_to_cas, precharge, row_active;
  int ccd_short, ccd_long, rrd_short, rrd_long, four_activates;
  int read_to_precharge, write_recovery, write_to_read_short, write_to_read_long, turnaround;
  int refresh, refresh_interval;
};

enum Field { kRow, kBank, kGroup, kColumn, kChannel, kColumnLow, kFields };

struct Shape {
  std::array<int64_t, kFields> sizes;  // per field; columns are counted in bursts
  std::vector<int> lowest_first;       // fields of an address
  int burst_bytes;
  int window;  // requests per channel from which commands are chosen
  int queue;   // requests that a channel accepts, at least `window`; later ones wait outside
};

struct Place {
  int channel, group, bank, row;  // bank: among all banks of the channel
  int64_t column;
};

Place locate(const Shape& shape, int64_t address);

struct Counts {
  int64_t reads = 0, writes = 0, activates = 0, refreshes = 0;
  int64_t hits = 0, closed = 0, conflicts = 0;  // state of the bank at a request's first command
  Clock latency = 0;                            // sum over reads, from their acceptance
  Clock active = 0;                             // clocks with an open bank
  Clock end = 0;                                // end of the last burst

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
  Clock next();           // time of the next command, or kNever
  bool step(Done* done);  // issues it; returns whether it is a column command, which ends a request
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
    Clock activate = 0, column = 0, precharge = 0;  // earliest time of each command
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
  std::vector<Clock> departures_;  // ring: departures of the last `queue` requests
  size_t admitted_ = 0, departed_ = 0;
  std::vector<Request> window_;
  std::deque<Request> waiting_;
  std::vector<Bank> banks_;
  std::array<std::vector<Clock>, 2> column_ok_;  // [write][group]
  std::vector<Clock> activate_ok_;               // [group]
  std::array<Clock, 4> last_activates_;          // ring
  int ring_ = 0;
  Clock now_ = 0, row_bus_ = 0, next_refresh_, open_since_ = 0;
  int open_banks_ = 0;
  Command command_;
  bool known_ = false;
  Counts counts_;
};

// All channels in one order of time, for callers whose requests depend on earlier results.
class Memory {
 public:
  Memory(const Shape& shape, const Timing& timing);

  void add(int64_t address, bool write, Clock arrival, int64_t id);
  bool next(Done* done);  // the burst that ends next; false if no request is in flight
  Counts finish();        // counts of all channels, up to the last burst's end

  const Shape& shape() const { return shape_; }

 private:
  Shape shape_;
  std::vector<Channel> channels_;
  std::vector<Done> heap_;
  int64_t in_flight_ = 0;
};

// Runs requests that arrive at given times; writes the latency of each unless `latencies` is null.
Counts run(const Shape& shape, const Timing& timing, const int64_t* arrivals,
           const int64_t* addresses, const uint8_t* writes, int64_t count, int32_t* latencies);

}  // namespace suffice::hw
