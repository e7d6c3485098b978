// The table of kernels, one instance per instruction set. Kernels trust their arguments.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/attention_parts.h"
#include "attention/scores_ahead.h"
#include "kernels/recurrence.h"
#include "kernels/tile.h"
#include "linear/linear.h"
#include "linear/rounding.h"

namespace suffice {

enum class Products { f32, bf16, i16, i8 };  // what is multiplied, in pairs or fours if narrow

// Products with weights, which hand those of few bits to `CodeKernels`, and their storage.
struct ProductKernels {
  // y[r][n] = scale[n] sum_k W[n][k] x[r][k] + bias[n] for the panels [first, last).
  // Each (r, n) is accumulated in the same order whatever the other rows: a batch equals its rows.
  void (*linear)(const Linear&, int first, int last, const Inputs&, float* y, int y_stride);

  // The dense float32 rows of the panels [first, last), scales applied, `stride` elements apart;
  // columns in the order of the codes, for inputs that are rotated if the weight's are.
  void (*unpack)(const Linear&, int first, int last, float* to, int stride);
  void (*unpack_row)(const Linear&, int row, float* to);  // one of these rows

  // codes = round(values / scale), scale = max |values| / 127, for the rows [first, last) of
  // `count`, in the layout of `Inputs`. `scratch` [stride].
  void (*quantize_rows)(const float* values, int stride, int first, int last, int count,
                        int columns, int8_t* codes, float* scales, int32_t* code_sums,
                        int8_t* scratch);

  // For bfloat16 weights, if `rounds_inputs`: the rows [first, last) of `count` as bfloat16, in the
  // layout of `Inputs`.
  void (*round_rows)(const float* values, int stride, int first, int last, int count, int columns,
                     uint32_t* rounded);
  bool rounds_inputs;

  // The panels [first, last) of dense rows [rows][columns] of float32, float16 or bfloat16, stored
  // as float32 or bfloat16.
  void (*pack)(const std::byte* from, Type from_type, int rows, int columns, int first, int last,
               Type type, std::byte* to);

  // The same in the layout kInt8: for 32 columns, the scale of the best of `tried` shares, see
  // linear/rounding.h, as float16; codes = round(w / scale), halves to even, at most 127. Returns
  // whether all scales are finite.
  bool (*round_int8)(const std::byte* from, Type from_type, int rows, int columns, int first,
                     int last, const float* shares, int tried, std::byte* to);

  // The numbers and codes of the panels [first, last) of rows, see linear/rounding.h. Returns the
  // sum of the squared errors.
  double (*round_groups)(const Rounding& by, const float* values, int rows, int columns, int first,
                         int last, const RoundedGroups& to);
};

// Where many rows are crossed (linear_codes_crossed.inl). AMD's processors with AVX-512 add vectors
// while they multiply others, Intel's do not.
enum class Crossing : uint8_t { never, on_amd, always };

// Products with weights of few bits.
struct CodeKernels {
  // As in ProductKernels.
  void (*linear)(const Linear&, int first, int last, const Inputs&, float* y, int y_stride);
  void (*unpack)(const Linear&, int first, int last, float* to, int stride);
  void (*unpack_row)(const Linear&, int row, float* to);

  // For weights in few bits: integers round(values / scale), scale = max |values| / most for each
  // 32 columns of a row, for the rows [first, last) of `count`, in the layout of `Inputs`; as bytes
  // if `takes_bytes`, as pairs if `takes_pairs`. Only as pairs if `crossed`, which from
  // `crossed_rows` rows on they may be, unless as bytes they are multiplied with levels of a range
  // of at most `byte_range`.
  void (*quantize_inputs)(const float* values, int stride, int first, int last, int count,
                          int columns, int most, bool crossed, int8_t* bytes, int16_t* pairs,
                          InputStretch* stretches);
  bool takes_bytes, takes_pairs;
  int byte_range;
  Crossing crossing;
  int crossed_rows;

  // y[n] = scale[n] sum_ij counts[n][i][j] x_levels[i] levels[j], for codes of 4 bits with one
  // float16 scale a row, by counting pairs of codes as a circuit would; x [columns] are codes
  // below 16.
  void (*count_pairs)(const Linear&, int first, int last, const uint8_t* x, const float* x_levels,
                      float* y);
};

// Attention to all keys, and by rules that read them block by block.
struct AttentionKernels {
  // Sets all but the `values` of `count` query rows, for products with the keys of a head.
  void (*prepare_queries)(const KVHead&, const Queries&, int count);

  // Scores, softmax and values of `count` query rows over the blocks list[begin..end) (list null:
  // the identity); overwrites `state`. `kept` receives the scores of these rows, -infinity where
  // hidden.
  void (*attend)(const KVHead&, const Queries& queries, const Visible* visible, int count,
                 const int32_t* list, int begin, int end, const Partial& state, float* scratch,
                 const Scores& kept);

  // Scores as `traverse` needs them for the blocks list[begin..end), [tile][count][kTileRows]: none
  // is hidden. Row `end_row` - 1 is the last that exists.
  void (*score_piece)(const KVHead&, const Queries& queries, int count, const int32_t* list,
                      int begin, int end, int end_row, float* scores, float* scratch);

  // The same for the `count` query rows of one token, which share `visible`, by a rule that may
  // leave out blocks and values. An order of blocks has to be open in `ahead`, which others may be
  // working on. `masses` [order.always][count], unless null: the sum of weights of
  // each block that is always read, in units of the final 2^peak.
  Reads (*traverse)(const KVHead&, const Queries& queries, const Visible& visible, int count,
                    const Order& order, const AttentionRule& rule, const Partial& state,
                    ScoresAhead& ahead, float* masses, float* scratch);
};

// Attention that first looks where the weight is: by codes, sketches and tiers.
struct SearchKernels {
  // Scores of `count` query rows for the blocks list[begin..end) (list null: the identity), in
  // whole tiles except for the last: [tile][count][kTileRows], -infinity for keys that a row may
  // not see; `peaks`: the largest scores.
  void (*score_tiles)(const KVHead&, const Queries& queries, const Visible* visible, int count,
                      const int32_t* list, int begin, int end, float* scores, float* peaks);

  // Sums of weights and output of one token's `count` query rows, from such scores and the peaks in
  // `state`. If the sum of all values is known, keys add only the excess of their weight over the
  // lowest one, so the values of most keys are not read.
  ValueReads (*add_coded)(const KVHead&, const Visible& visible, const SoftmaxTable* tables,
                          int count, const CodedTiles& tiles, const Partial& state, float* scratch);

  // masses[row] += its weight over the sum of weights, summed over the query rows.
  void (*add_coded_masses)(const KVHead&, const SoftmaxTable* tables, int count,
                           const CodedTiles& tiles, const Partial& state, float* masses);

  // The softmax alone of `count` query rows with given scores for whole tiles,
  // [tile][count][kTileRows]: peaks, weights and the total of all sums. By codes if `tables` is not
  // null. May overwrite the scores.
  float (*soften_tiles)(float* scores, int tiles, int count, const SoftmaxTable* tables,
                        float* scratch);

  // The same by packed codes of 2 bits, for comparison: weights take the place of the scores,
  // `sums` [count] are theirs. `byte_sums` [count][256]: of the weights of the four codes of a
  // byte.
  void (*soften_packed)(float* scores, int tiles, int count, const SoftmaxTable* tables,
                        const float* byte_sums, float* sums);

  // Estimates scores from the sketches of the chunks first + [begin, end), first being that of
  // `to`. `greatest` [count]: the largest score.
  void (*estimate)(const KVHead&, const float* const* queries, int begin, int end,
                   const Estimates& to, float* greatest);

  // Brings the estimates to the common `peaks` [count]: `masses`, and `bounds` unless null, are
  // then in units of 2^peak. Sums them: `totals` [count], and `shares` [blocks], each block's share
  // of a query row's total, summed over query rows.
  void (*combine)(const Estimates&, const float* peaks, float* totals, float* shares);

  // As `attend` for one token's query rows, but `filter` selects values to leave out.
  SelectedReads (*attend_selected)(const KVHead&, const Queries& queries, const Visible& visible,
                                   int count, const int32_t* list, int begin, int end,
                                   const Filter& filter, const Partial& state, float* scratch);

  // Of scores by bases: masses [count][stride], the sum of 2^(score - peak) of each block,
  // from the first of `tiles` on.
  void (*sum_blocks)(const CodedTiles& tiles, int count, const float* peaks, float* masses,
                     int stride);
  // kept[tile], bit i: row i has, in some head, a score of at least the floor. Returns the number
  // of such rows among those in `heavy` [tile], summed over heads.
  int64_t (*keep_rows)(const CodedTiles& tiles, int count, const float* floors,
                       const uint64_t* heavy, uint64_t* kept);
  // Sums of weights and output of the rows in `kept` [tile], relative to the peaks in `state`, from
  // such scores and the bases of values. Returns the number of rows.
  int64_t (*add_light)(const KVHead&, const CodedTiles& tiles, const uint64_t* kept, int count,
                       const Partial& state, float* scratch);
  // As `attend` for one token's query rows and `blocks` blocks of a list, but only for the rows in
  // `kept` [blocks]. Row `end_row` - 1 is the last that exists.
  void (*attend_kept)(const KVHead&, const Queries& queries, int end_row, int count,
                      const int32_t* list, const uint16_t* kept, int blocks, const Partial& state,
                      float* scratch);
  // What bounds the errors of such scores, for each of `count` queries; of the exact head.
  void (*measure_queries)(const KVHead&, const float* const* queries, int count, ErrorUnits* to);
  // Sums of each block, in units of 2^peak: of the rows in `kept` [tile], which count by their
  // scores, and of the others, which do not count. Those in `exact` [tile] have no errors.
  void (*bound_blocks)(const KVHead&, const CodedTiles& tiles, int count, const float* peaks,
                       const ErrorUnits* units, const uint64_t* kept, const uint64_t* exact,
                       const BlockErrors& to);
  // The same for a sample: only what is light counts, and of a block without rows in `kept` or
  // `exact` all rows are as far off as any of such blocks of its tile may be. `masses`
  // [count][to.stride]: the sums of weights of the blocks.
  void (*bound_light)(const KVHead&, const CodedTiles& tiles, int count, const float* peaks,
                      const ErrorUnits* units, const uint64_t* kept, const uint64_t* exact,
                      const float* masses, const LightBounds& to);
  // Of each of the blocks `chosen`, counted from the first of `tiles` on, by how much true weights
  // exceed those used and fall short of them, in all: [count][blocks], in units of 2^peak. `scores`
  // are the exact ones of these blocks, [tile][count][kTileRows].
  void (*compare_blocks)(const CodedTiles& tiles, const int32_t* chosen, int blocks, int count,
                         const float* peaks, const uint64_t* kept, const uint64_t* exact,
                         const float* scores, float* more, float* less);

  // masses[i] += 2^(scores[i] - peak) * factor for the rows of a block.
  void (*add_masses)(const float* scores, float peak, float factor, float* masses);

  // The least and the greatest value of each element of a block's keys: box [2][size].
  void (*encode_box)(const KVHead&, int block, float* box);
  // The greatest score that any key within a box can have with one of `count` queries.
  float (*bound)(const float* box, const float* const* queries, int count, int size);
};

// Rows of keys and values.
struct RowKernels {
  void (*fetch_place)(const KVHead&, int row);  // that store_row will write to
  // Of joint rows `key` is all, and `value` is not read.
  void (*store_row)(const KVHead&, int row, const float* key, const float* value);
  // Values [count][size]: of joint rows zero where they have no value.
  void (*load_rows)(const KVHead&, int first, int count, float* keys, float* values);
};

// An activation: positive x^2 + beta x above 0; negative (e^min(x, eps) - 1 - x) + beta x below.
struct Xielu {
  float positive = 0, negative = 0, beta = 0, eps = 0;
};

// Plain rows of floats, and the machine's limits.
struct PointwiseKernels {
  // Rotates blocks of values in place.
  void (*rotate)(float* values, int stride, int count, int columns, const Rotation& by);

  // y = x / sqrt(mean(x^2) + eps) * weight, or with `bias` or `centre` the LayerNorm of x.
  void (*normalize)(const float* x, int size, const float* weight, const float* bias, bool centre,
                    float eps, float* y);

  // gate[i] = act(gate[i]) * up[i]; with up null gate[i] = act(gate[i]).
  void (*activate)(int activation, float* gate, const float* up, int size);

  // values[i] = xielu(values[i]).
  void (*xielu)(float* values, int size, const Xielu& by);

  // values[i] = cap * tanh(values[i] / cap).
  void (*soft_cap)(float* values, int size, float cap);

  // The `outliers` greatest and least of `size` values, in order; of equal values, the lower index
  // counts as greater. False if a value is not finite. `scratch` [outlier_scratch(size)].
  bool (*select_outliers)(const float* values, int size, int outliers, int32_t* greatest,
                          int32_t* least, float* scratch);

  // Replaces the first `columns` of each row by centroids, see `InputCodebook`; a row with a value
  // that is not finite stays as it is. `places` [2 outliers], `scratch` [outlier_scratch(columns) +
  // 2 outliers].
  void (*replace_by_levels)(float* values, int stride, int count, int columns,
                            const InputCodebook& by, int32_t* places, float* scratch);

  // Reads memory in 1, 2 or 4 parallel streams with almost no arithmetic: the memory roof.
  int32_t (*read_memory)(const std::byte* from, size_t bytes, int streams);
  // Multiplies inputs from the L1 cache at the highest rate; mixes the products into `sum` and
  // returns their number.
  size_t (*multiply_cached)(const std::byte* inputs, size_t bytes, Products of, int32_t* sum);
};

// States that layers keep along with keys and values.
struct StateKernels {
  // Applies rows to the panels of a head's matrix.
  void (*advance)(const StatePart&);

  // to[c] = activation(bias[c] + sum_t weights[t][c] inputs[t][c]) of the channels [first, last) of
  // `channels`; below 0 there is no activation. bias null: none.
  void (*convolve)(const float* const* inputs, int taps, const float* weights, const float* bias,
                   int channels, int first, int last, int activation, float* to);
};

// The kernels of one instruction set.
struct Kernels {
  const char* name;
  const ProductKernels& products;
  const CodeKernels& codes;
  const AttentionKernels& attention;
  const SearchKernels& search;
  const RowKernels& rows;
  const PointwiseKernels& pointwise;
  const StateKernels& states;
};

// kClampedSwish has a gate: (up + 1) * gate * sigmoid(1.702 gate), gate at most 7, up in [-7, 7].
// kXielu has none, and parameters.
enum Activation : int {
  kSilu = 0,
  kGeluTanh = 1,
  kGelu = 2,
  kRelu = 3,
  kClampedSwish = 4,
  kSquaredRelu = 5,
  kLogistic = 6,
  kXielu = 7,
};

// What one thread scores at a time for another: see attention/scores_ahead.h.
constexpr int kPieceTiles = 4;
constexpr int kPieceBlocks = kPieceTiles * kTileBlocks;

// Floats of scratch that `attend` needs. Per query row: scores, packed weights, their int16 codes
// and scale, and running sums. Then the unpacked keys or values of a tile, from a whole line on.
constexpr size_t attend_scratch(int count, int size) {
  return static_cast<size_t>(count) * (2 * kTileRows + kTileRows / 2 + kPanel) +
         round_up(count, 16) + static_cast<size_t>(kTileRows) * size + kPanel;
}

// What stop tests may keep: integers, and for each query row outputs with their sums of weights.
constexpr int kKeptNumbers = 16, kKeptOutputs = 9;
constexpr int kept_floats(int size) { return kKeptOutputs * (size + kPanel); }

// Floats of scratch that `traverse` and `attend_selected` need: those of `attend`, largest scores,
// the memory of stop tests, and a tile's scores, or sums after each of its blocks.
constexpr size_t traverse_scratch(int count, int size) {
  return attend_scratch(count, size) + kKeptNumbers +
         static_cast<size_t>(count) * (1 + kept_floats(size) + kTileRows);
}

// Floats of scratch that `add_coded` and `soften_tiles` need: weights, their int16 codes and
// scales, counts, and the peaks lane by lane.
constexpr size_t coded_scratch(int count) {
  return static_cast<size_t>(count) * (kTileRows + kTileRows / 2 + (kMaxCodes + 1) * kPanel) +
         2 * round_up(count, 16);
}

// Floats of scratch that `select_outliers` needs: a copy, and the greatest of each of its groups.
constexpr int kOutlierGroup = 256;
constexpr size_t outlier_scratch(int size) {
  return round_up(size, kOutlierGroup) / kOutlierGroup * (kOutlierGroup + kPanel);
}

const Kernels& kernels();        // the chosen table
bool use_isa(const char* name);  // false: unknown name, not built, or the CPU lacks it
struct IsaState {
  const char* name;
  bool built, runs;
};
std::vector<IsaState> isa_states();  // all sets for this kind of processor, best first
// Whether kernels of AVX-512 make the choices that pay on AMD's processors: many rows of inputs are
// crossed, and the core's own prefetchers read the weights of one row. Results are the same bits.
bool on_amd();
void choose_as_on_amd(bool on);

}  // namespace suffice
