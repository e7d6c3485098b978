// The Scrooge accelerator: what Algorithm 1 reads (the functional pass), and how long that takes.
#pragma once

#include <cstdint>
#include <vector>

#include "dram.h"

namespace suffice::hw {

enum GroupStop { kAll, kAny, kMasked };

// Algorithm 1, with what the paper leaves open.
struct AetRule {
  double key_share, value_share;  // thr_k, thr_v
  int sinks, globals, locals;
  int wave;               // tokens between two looks at the condition
  bool filter_important;  // the value test applies to important tokens too
  bool running_max;       // Max follows the tokens that are read later
  bool raw_masses;        // what global tokens are ranked by: weights, or scores of the softmax
  int group_stop;         // for heads that share keys
};

struct Decision {
  std::vector<int32_t> keys;    // rows read: important ones, then the newest first
  std::vector<int32_t> values;  // rows read
  int important = 0;            // of the keys
  int waves = 0;                // of keys that are not important
};

// The heads that share keys, from token to token.
class Aet {
 public:
  Aet(const AetRule& rule, int heads) : rule_(rule), heads_(heads) {}

  // A step: logits [heads][length], scaled, of all tokens and the new one.
  void decide(const float* logits, int length, Decision* out);

 private:
  struct Token {
    int32_t row;
    double mass;
  };
  struct Head {
    double offset, known, greatest;
    bool stopped;
  };

  void admit(int length);
  void start(const float* logits, int length, const Decision& out);
  void read_wave(const float* logits, int length, Decision* out);
  bool enough(int length, int known);
  void learn(const float* logits, int length);

  AetRule rule_;
  int heads_;
  int next_ = 0;  // the first token that has not come yet
  std::vector<Token> globals_, locals_;
  std::vector<Head> state_;
};

// Logits that look like attention's: a sink, tokens of lasting weight, recent ones, and noise.
struct Synthetic {
  double sink, spread, noise, recency, reach;  // logits; `reach` is in tokens
  uint64_t seed;
};
void make_logits(const Synthetic& source, int head, int length, float* logits);

// Times in cycles of 1 ns.
struct Machine {
  int row_bytes;
  int wave;           // tokens a wave
  int replays;        // waves that a key is used for: heads that share it
  int window_rows;    // rows asked for and not come yet
  int softmax_width;  // tokens a cycle
  double pipe, stop_latency, softmax_latency, sum_latency;
  bool early_values;  // ask for values as soon as keys have ended
  double tck_ns, controller_ns;
  int64_t extra_bytes;  // query and indices, read before the keys
};

// A memory and the next request's number.
struct Port {
  Memory memory;
  int64_t next_id = 0;
};

// Where rows lie: token 0's key and value, and what is read before them.
struct HeadPlace {
  int64_t keys, values, extra;
};

constexpr double kUnknown = 1e300;
struct HeadTime {
  double start, keys_end, softmax_end, end;
  int64_t wasted_rows;  // keys that came after the stop
};

// One step of the heads that share keys, from `start` on.
HeadTime run_head(Port* port, const Machine& machine, const Decision& decision, int length,
                  const HeadPlace& place, double start);

// The same rows with nothing waiting for anything but room in the window: when the last one came.
double run_stream(Port* port, const Machine& machine, const std::vector<const Decision*>& decisions,
                  const std::vector<HeadPlace>& places, double start);

}  // namespace suffice::hw
