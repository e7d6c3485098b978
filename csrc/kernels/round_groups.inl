// Scales, minima and codes of groups of columns, for W rows at a time: a lane is a row.

struct RoundedValue {
  vf level, code;
};

// The level nearest to x, and its number.
SUFFICE_INLINE RoundedValue rounded_value(const Rounding& by, const vf* borders, vf x) {
  const vf lowest = splat(by.lowest);
  if (by.even) {
    const vf highest = splat(by.highest);
    const vf above = max(lowest, x);
    const vf level = round_even(above < highest ? above : highest);
    return {level, level - lowest};
  }
  RoundedValue found{lowest, vf{}};
  for (int i = 1; i < by.count; i++) {
    const auto beyond = x > borders[i - 1];
    found.level = beyond ? splat(by.levels[i]) : found.level;
    found.code = beyond ? splat(static_cast<float>(i)) : found.code;
  }
  return found;
}

// A group's columns of W rows, with the weights of their errors.
struct GroupValues {
  int count = 0;
  vf x[kMostGroup], weight[kMostGroup];
};

struct GroupScale {
  vf scale, minimum;
};

SUFFICE_INLINE vf above_zero(vf x) { return x > splat(1e-30f) ? x : splat(1e-30f); }

// Without minima: codes by scale s gain (sum w x l)^2 / (sum w l^2) over codes of zeros. A gain is
// more if it is so beyond its rounding: then values on the grid keep the scale of the first trial.
inline GroupScale signed_scale(const Rounding& by, const vf* borders, const GroupValues& of) {
  vf extreme = {}, size = {};
  for (int k = 0; k < of.count; k++) {
    const vf magnitude = max(of.x[k], -of.x[k]);
    extreme = magnitude > size ? of.x[k] : extreme;
    size = max(size, magnitude);
  }
  vf best = splat(-1.0f), scale = {};
  for (int t = 0; t < by.tried; t++) {
    const vf step = extreme * by.shares[t];
    const vf inverse = size > splat(1e-20f) ? 1.0f / step : vf{};
    vf product = {}, square = {};
    for (int k = 0; k < of.count; k++) {
      const vf level = rounded_value(by, borders, of.x[k] * inverse).level;
      const vf weighted = of.weight[k] * level;
      product += weighted * of.x[k];
      square += weighted * level;
    }
    const vf fitted = product / above_zero(square), gain = product * fitted;
    const auto better = gain > best * 1.0000005f;
    scale = better ? fitted : scale;
    best = better ? gain : best;
  }
  return {scale, vf{}};
}

// With minima: the scale and the minimum of least squares for the codes of each trial.
inline GroupScale scale_and_minimum(const Rounding& by, const GroupValues& of) {
  vf least = {}, greatest = of.x[0], mass = {}, sum = {};
  for (int k = 0; k < of.count; k++) {
    least = of.x[k] < least ? of.x[k] : least;
    greatest = max(greatest, of.x[k]);
    mass += of.weight[k];
    sum += of.weight[k] * of.x[k];
  }
  const vf range = max(greatest - least, splat(1e-20f));
  vf best = splat(__builtin_inff());
  GroupScale found{vf{}, vf{}};
  for (int t = 0; t < by.tried; t++) {
    const vf inverse = by.shares[t] / range;
    vf levels = {}, squares = {}, products = {};
    for (int k = 0; k < of.count; k++) {
      const vf level = rounded_value(by, nullptr, (of.x[k] - least) * inverse).level;
      const vf weighted = of.weight[k] * level;
      levels += weighted;
      squares += weighted * level;
      products += weighted * of.x[k];
    }
    const vf spread = mass * squares - levels * levels;
    const auto apart = spread > splat(1e-30f);  // else all codes are equal
    vf scale = apart ? (mass * products - sum * levels) / above_zero(spread) : vf{};
    vf minimum =
        apart ? (sum * squares - levels * products) / above_zero(spread) : sum / above_zero(mass);
    scale = minimum > vf{} ? products / above_zero(squares) : scale;
    minimum = minimum > vf{} ? vf{} : minimum;
    const vf loss = scale * (scale * squares + 2.0f * (minimum * levels - products)) +
                    minimum * (minimum * mass - 2.0f * sum);
    const auto better = loss < best;
    found.scale = better ? scale : found.scale;
    found.minimum = better ? minimum : found.minimum;
    best = better ? loss : best;
  }
  return found;
}

// The least float16 that is not below a value: numbers are at most `most` of it.
SUFFICE_INLINE uint16_t half_above(float value) {
  const uint16_t half = float_to_half(value);
  return half_to_float(half) < value ? static_cast<uint16_t>(half + 1) : half;
}

SUFFICE_INLINE float whole_of(float value, float unit) {
  return unit > 0.0f ? round_even(splat(value / unit))[0] : 0.0f;
}

// Stores the numbers of a span's groups in bytes, and replaces them by what the bytes stand for.
inline void nest(const Rounding& by, GroupScale* found, int groups, int row, int8_t* scales,
                 uint8_t* minima, uint16_t* outer) {
  float scale = 0.0f, minimum = 0.0f;
  for (int g = 0; g < groups; g++) {
    scale = std::max(scale, std::abs(found[g].scale[row]));
    minimum = std::max(minimum, -found[g].minimum[row]);
  }
  outer[0] = half_above(scale / 127.0f);
  outer[1] = half_above(minimum / 255.0f);
  const float of_scales = half_to_float(outer[0]), of_minima = half_to_float(outer[1]);
  for (int g = 0; g < groups; g++) {
    const float whole = whole_of(found[g].scale[row], of_scales);
    scales[g] = static_cast<int8_t>(whole);
    found[g].scale[row] = of_scales * whole;
    if (!by.minima) continue;
    const float below = whole_of(-found[g].minimum[row], of_minima);
    minima[g] = static_cast<uint8_t>(below);
    found[g].minimum[row] = -(of_minima * below);
  }
}

// W rows of `columns` columns, and the places of their results; only `rows` of them exist.
struct RowsToRound {
  const float* values;
  int rows, columns;
  RoundedGroups to;
};

inline void load_group(const Rounding& by, const RowsToRound& own, int first, GroupValues& to) {
  to.count = std::min(by.group, own.columns - first);
  for (int k = 0; k < to.count; k++) {
    vf x = {};
    for (int row = 0; row < own.rows; row++)
      x[row] = own.values[static_cast<size_t>(row) * own.columns + first + k];
    to.x[k] = x;
    to.weight[k] = splat(by.importance ? by.importance[first + k] : 1.0f);
  }
}

// The codes of a group; returns the squared errors of W rows.
inline vf round_group(const Rounding& by, const vf* borders, const RowsToRound& own, int first,
                      const GroupScale& with, GroupValues& of) {
  const vf inverse = with.scale != vf{} ? 1.0f / with.scale : vf{};
  vf lost = {};
  for (int k = 0; k < of.count; k++) {
    const RoundedValue found = rounded_value(by, borders, (of.x[k] - with.minimum) * inverse);
    const vf error = of.x[k] - (with.scale * found.level + with.minimum);
    lost += error * error;
    for (int row = 0; row < own.rows; row++)
      own.to.codes[static_cast<size_t>(row) * own.columns + first + k] =
          static_cast<uint8_t>(found.code[row]);
  }
  return lost;
}

// One span of W rows; returns the sum of the squared errors.
inline double round_span(const Rounding& by, const vf* borders, const RowsToRound& own, int span) {
  const int in_span = kNested / by.group;
  const int all = (own.columns + by.group - 1) / by.group, spans = (all + in_span - 1) / in_span;
  const int first = span * in_span, groups = std::min(in_span, all - first);
  static thread_local GroupValues of[kNested / 16];
  GroupScale found[kNested / 16];
  for (int g = 0; g < groups; g++) {
    load_group(by, own, (first + g) * by.group, of[g]);
    found[g] = by.minima ? scale_and_minimum(by, of[g]) : signed_scale(by, borders, of[g]);
  }
  for (int row = 0; row < own.rows; row++) {
    const size_t at = static_cast<size_t>(row) * all + first;
    nest(by, found, groups, row, own.to.scales + at, by.minima ? own.to.minima + at : nullptr,
         own.to.outer + 2 * (static_cast<size_t>(row) * spans + span));
  }
  double lost = 0.0;
  for (int g = 0; g < groups; g++) {
    const vf errors = round_group(by, borders, own, (first + g) * by.group, found[g], of[g]);
    for (int row = 0; row < own.rows; row++) lost += errors[row];
  }
  return lost;
}

inline double round_groups(const Rounding& by, const float* values, int rows, int columns,
                           int first, int last, const RoundedGroups& to) {
  vf borders[kMostLevels];
  for (int i = 1; i < by.count; i++)
    borders[i - 1] = splat((by.levels[i - 1] + by.levels[i]) / 2.0f);
  const int groups = (columns + by.group - 1) / by.group;
  const int spans = (columns + kNested - 1) / kNested;
  double lost = 0.0;
  for (int row = first * kPanel; row < std::min(last * kPanel, rows); row += W) {
    const size_t at = static_cast<size_t>(row);
    const RowsToRound own{
        values + at * columns,
        std::min(W, rows - row),
        columns,
        {to.codes + at * columns, to.scales + at * groups,
         by.minima ? to.minima + at * groups : nullptr, to.outer + at * spans * 2}};
    for (int span = 0; span < spans; span++) lost += round_span(by, borders, own, span);
  }
  return lost;
}
