// Normalisation and activation functions.

// Sums run in W lanes, so their order does not depend on the compiler.
template <class F>
SUFFICE_INLINE float lane_sum(int size, F term) {
  vf total = {};
  int i = 0;
  for (; i + W <= size; i += W) total += term(i);
  return sum_of(total);
}

inline void normalize(const float* x, int size, const float* weight, const float* bias, bool centre,
                      float eps, float* y) {
  const int whole = size / W * W;
  float mean = 0;
  if (centre) {
    mean = lane_sum(size, [=](int i) { return load(x + i); });
    for (int i = whole; i < size; i++) mean += x[i];
    mean /= size;
  }
  float squares = lane_sum(size, [=](int i) {
    const vf d = load(x + i) - mean;
    return d * d;
  });
  for (int i = whole; i < size; i++) squares += (x[i] - mean) * (x[i] - mean);
  const float scale = 1.0f / std::sqrt(squares / size + eps);
  for (int i = 0; i < size; i++) {
    const float normal = (x[i] - mean) * scale;
    y[i] = (weight ? normal * weight[i] : normal) + (bias ? bias[i] : 0.0f);
  }
}

constexpr float kLog2e = 1.4426950408889634f;

SUFFICE_INLINE vf sigmoid(vf x) {
  const vf limited = max(x, splat(-87.0f));
  return 1.0f / (1.0f + exp2(limited * -kLog2e));
}

SUFFICE_INLINE vf activation_of(int activation, vf x) {
  if (activation == kSilu) return x * sigmoid(x);
  if (activation == kLogistic) return sigmoid(x);
  if (activation == kRelu) return max(x, vf{});
  if (activation == kSquaredRelu) return max(x, vf{}) * max(x, vf{});
  if (activation == kGeluTanh) {  // 0.5 x (1 + tanh u) = x sigmoid(2 u)
    const vf u = 0.7978845608028654f * (x + 0.044715f * x * x * x);
    return x * sigmoid(2.0f * u);
  }
  vf y;
  for (int i = 0; i < W; i++) y[i] = 0.5f * x[i] * (1.0f + std::erf(x[i] * 0.7071067811865476f));
  return y;
}

// cap * tanh(x / cap), as 2 cap sigmoid(2 x / cap) - cap.
SUFFICE_INLINE vf capped(vf x, float cap) {
  return 2.0f * cap * sigmoid(x * (2.0f / cap)) - splat(cap);
}

inline void soft_cap(float* values, int size, float cap) {
  int i = 0;
  for (; i + W <= size; i += W) store(values + i, capped(load(values + i), cap));
  for (; i < size; i++) values[i] = capped(splat(values[i]), cap)[0];
}

// e^x - 1 - x of x <= 0; near 0, where the difference cancels, by its series.
SUFFICE_INLINE vf above_tangent(vf x) {
  vf y = x * 2.7557319e-6f + 2.4801587e-5f;
  y = y * x + 1.9841270e-4f;
  y = y * x + 1.3888889e-3f;
  y = y * x + 8.3333333e-3f;
  y = y * x + 4.1666667e-2f;
  y = y * x + 1.6666667e-1f;
  y = y * x + 0.5f;
  return x > -0.5f ? x * x * y : exp2(x * kLog2e) - 1.0f - x;
}

SUFFICE_INLINE vf xielu_of(vf x, const Xielu& by) {
  const vf least = min(x, splat(by.eps));
  const vf below = by.negative * (above_tangent(least) + (least - x)) + by.beta * x;
  return x > 0.0f ? by.positive * x * x + by.beta * x : below;
}

inline void xielu(float* values, int size, const Xielu& by) {
  int i = 0;
  for (; i + W <= size; i += W) store(values + i, xielu_of(load(values + i), by));
  for (; i < size; i++) values[i] = xielu_of(splat(values[i]), by)[0];
}

// (clamp(up) + 1) * gate * sigmoid(1.702 gate) of a gate of at most kClamp.
constexpr float kClamp = 7.0f;
SUFFICE_INLINE vf clamped_swish(vf gate, vf up) {
  const vf limited = min(gate, splat(kClamp)), other = max(min(up, splat(kClamp)), splat(-kClamp));
  return (other + 1.0f) * (limited * sigmoid(limited * 1.702f));
}

inline void activate_clamped(float* gate, const float* up, int size) {
  int i = 0;
  for (; i + W <= size; i += W) store(gate + i, clamped_swish(load(gate + i), load(up + i)));
  for (; i < size; i++) gate[i] = clamped_swish(splat(gate[i]), splat(up[i]))[0];
}

inline void activate(int activation, float* gate, const float* up, int size) {
  if (activation == kClampedSwish) return activate_clamped(gate, up, size);
  int i = 0;
  for (; i + W <= size; i += W) {
    const vf y = activation_of(activation, load(gate + i));
    store(gate + i, up ? y * load(up + i) : y);
  }
  for (; i < size; i++) {
    const float y = activation_of(activation, splat(gate[i]))[0];
    gate[i] = up ? y * up[i] : y;
  }
}
