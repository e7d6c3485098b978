// What layers keep of a request along with keys and values: states of a fixed size.
//
// A layer's state is the last inputs of its convolution and, of each head, a matrix. A state cannot
// be cut back to fewer tokens as rows can, so there are three things more: a log of what
// the last step's rows did to the matrices, whose committed rows are applied in the next step; the
// matrices after a part of a prompt, which take the others' place once it is committed; and copies
// at chosen lengths.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "kernels/recurrence.h"

namespace suffice {

class Arena;

// The sizes of one layer's state; without heads it has no matrices, without taps no inputs.
struct StateShape {
  int heads = 0, key_heads = 0, key_size = 0, value_size = 0;
  bool by_entry = false;  // each entry of a key has a decay of its own
  int channels = 0, taps = 0;
  bool tiled = false;  // heads take the groups of keys in turn, and not one group side by side

  bool operator==(const StateShape&) const = default;
  int past() const { return taps > 0 ? taps - 1 : 0; }  // inputs that are kept
  size_t matrix() const { return static_cast<size_t>(key_size) * value_size; }
  size_t matrices() const { return heads * matrix(); }
  size_t decays() const { return by_entry ? heads * static_cast<size_t>(key_size) : heads; }
  // The group of keys that a head has.
  int group(int head) const { return tiled ? head % key_heads : head / (heads / key_heads); }
  size_t keys() const { return static_cast<size_t>(key_heads) * key_size; }
  size_t changes() const { return static_cast<size_t>(heads) * value_size; }
  // Of what a row does to the state: its keys, decays and changes; and its inputs.
  size_t row() const { return keys() + decays() + changes() + channels; }
};

// Memory of floats that an arena counts.
class StateMemory {
 public:
  StateMemory() = default;
  // Zero. Throws OutOfMemory, of the arena's limit only if that is `checked`.
  StateMemory(std::shared_ptr<Arena> arena, size_t floats, bool checked);
  ~StateMemory();
  StateMemory(StateMemory&& other) noexcept { *this = std::move(other); }
  StateMemory& operator=(StateMemory&& other) noexcept;
  float* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<Arena> arena_;
  float* data_ = nullptr;
  size_t bytes_ = 0;
};

// What rows of a step did to a layer's state. Of each row: inputs [channels], after `past` earlier
// ones, keys [key_heads][key_size], decays, changes [heads][value_size].
struct StateLog {
  float* inputs = nullptr;
  float* keys = nullptr;
  float* decays = nullptr;
  float* changes = nullptr;
};

// A row of a log, to be applied to a head's matrix again.
StateRow logged(const StateShape& shape, const StateLog& log, int row, int head);

class LayerStates {
 public:
  LayerStates(std::vector<StateShape> shapes, std::shared_ptr<Arena> arena);

  const std::vector<StateShape>& shapes() const { return shapes_; }
  int length() const { return length_; }  // committed tokens that it has taken
  size_t bytes() const;                   // of all memory, copies at chosen lengths included
  size_t step_bytes() const;              // of what a step reads: matrices and inputs

  // Allocates the matrices. Throws OutOfMemory.
  void reserve();
  // Makes room for a step of `rows` rows, which one thread calls before it. `settled`: they are of
  // a prompt, and all will be committed. This may exceed the arena's limit.
  void begin(int rows, bool settled);
  // Of that step, by layer. The matrices before it [heads][value_size / kPanel][key_size][kPanel],
  // and those after a prompt's part.
  float* matrices(int layer) const { return now_.data() + starts_[layer]; }
  float* next_matrices(int layer) const { return next_.data() + starts_[layer]; }
  StateLog before(int layer) const { return log(layer, current_); }
  StateLog after(int layer) const { return log(layer, 1 - current_); }
  // Rows of the log before that are committed, in their order; none of them is in the matrices yet,
  // unless they were `applied` to a layer's.
  const std::vector<int>& committed() const { return committed_; }
  bool applied(int layer) const { return applied_[layer]; }
  void set_applied(int layer) { applied_[layer] = true; }

  // Keeps the step's rows of `path`; an empty one keeps none.
  void commit(const std::vector<int>& path);
  // Keeps a copy of the state as it is, to which `rewind` can return. Of more than `most` one goes:
  // the one without which the ways back are the least longer, compared to the tokens since then.
  void keep(int most);
  // Frees the copies; returns whether there were any.
  bool drop_copies();
  // The greatest length of at most `rows` tokens to which it can return.
  int reachable(int rows) const;
  // The copy that is kept after `length` tokens: matrices of all layers, then inputs; null if none.
  const float* kept_after(int length) const;
  // Takes such floats as the state after `length` tokens, more than it has taken, and keeps them as
  // a copy.
  void resume(int length, const float* from);
  // Returns to such a length, and forgets longer copies.
  void rewind(int rows);
  // A state as after the first `rows` tokens, to which this one could return.
  std::unique_ptr<LayerStates> copy(int rows) const;
  void release();  // frees all memory; the length is 0 then
  // Lengths of kept copies, ascending.
  std::vector<int> kept() const;

 private:
  struct Copy {
    int length;
    StateMemory memory;  // matrices of all layers, then inputs
  };
  struct Rows {  // of a step
    int capacity = 0;
    StateMemory memory;
  };
  StateLog log(int layer, int which) const;
  void make(Rows& rows, int capacity) const;
  void thin();
  // Writes matrices and inputs of all layers as they are after committed rows.
  void settle(float* matrices, float* inputs) const;
  // Becomes a state after `length` tokens, whose matrices and inputs are to be written.
  void restart(int length);
  void take(const Copy& copy);
  size_t floats() const { return total_ + past_total_; }

  std::vector<StateShape> shapes_;
  std::shared_ptr<Arena> arena_;
  // Of a layer: its matrices, its inputs before a step, and what is before it in a log's row.
  std::vector<size_t> starts_, past_starts_, row_starts_;
  size_t total_ = 0, past_total_ = 0, row_total_ = 0;
  StateMemory now_, next_;
  Rows logs_[2];
  int current_ = 0;
  std::vector<int> committed_;
  std::vector<char> applied_;
  int length_ = 0;
  bool settled_ = false;                             // the step's rows are a prompt's
  std::vector<std::shared_ptr<const Copy>> copies_;  // by length, ascending
};

}  // namespace suffice
