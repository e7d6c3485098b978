// The Scrooge accelerator: the rows that Algorithm 1 reads (functional pass), and their timing.
#pragma once

#include <cstdint>
#include <vector>

#include "dram.h"

namespace suffice::hw {

enum GroupStop { kAll, kAny, kMasked };

// Parameters of Algorithm 1, and the choices that the paper leaves open.
struct AetRule {
  double key_share, value_share;  // thr_k, thr_v
  int sinks, globals, locals;
  int wave;               // tokens between two checks of the condition
  bool filter_important;  // the value test applies to important tokens too
  bool running_max;       // Max includes tokens that are read later
  bool raw_masses;        // global tokens are ranked by weights, not by softmax scores
  int group_stop;         // GroupStop, for heads that share keys
};

struct Decision {
  std::vector<int32_t> keys;    // rows read: important ones, then others from the newest on
  std::vector<int32_t> values;  // rows read
  int important = 0;            // number of important keys
  int waves = 0;                // of keys that are not important
};

// State of the heads that share keys, from token to token.
class Aet {
 public:
  Aet(const AetRule& rule, int heads) : rule_(rule), heads_(heads) {}

  // Decides one step; `logits` [heads][length] are scaled and include the new token.
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
  int next_ = 0;  // first token that is not admitted yet
  std::vector<Token> globals_, locals_;
  std::vector<Head> state_;
};

// Synthetic attention logits: a sink, tokens of constant weight, recent tokens, and noise.
struct Synthetic {
  double sink, spread, noise, recency, reach;  // logits; `reach` is in tokens
  uint64_t seed;
};
void make_logits(const Synthetic& source, int head, int length, float* logits);

// Times in cycles of 1 ns.
struct Machine {
  int row_bytes;
  int wave;           // tokens per wave
  int replays;        // waves that use a key: one per head that shares it
  int window_rows;    // limit on requested rows in flight
  int softmax_width;  // tokens per cycle
  double pipe, stop_latency, softmax_latency, sum_latency;
  bool early_values;  // request values at the end of the keys, not of the softmax
  double tck_ns, controller_ns;
  int64_t extra_bytes;  // query and indices, read before the keys
};

// A memory, and the id of the next request.
struct Port {
  Memory memory;
  int64_t next_id = 0;
};

// Addresses of token 0's key and value, and of the query and indices.
struct HeadPlace {
  int64_t keys, values, extra;
};

constexpr double kUnknown = 1e300;
struct HeadTime {
  double start, keys_end, softmax_end, end;
  int64_t wasted_rows;  // keys that arrived after the stop
};

// Times of one step of the heads that share keys, starting at `start`.
HeadTime run_head(Port* port, const Machine& machine, const Decision& decision, int length,
                  const HeadPlace& place, double start);

// Returns when the last of the same rows arrives if only the window limits requests.
double run_stream(Port* port, const Machine& machine, const std::vector<const Decision*>& decisions,
                  const std::vector<HeadPlace>& places, double start);

}  // namespace suffice::hw
