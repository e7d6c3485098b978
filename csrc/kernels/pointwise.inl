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
  if (activation == kRelu) return max(x, vf{});
  if (activation == kGeluTanh) {  // 0.5 x (1 + tanh u) = x sigmoid(2 u)
    const vf u = 0.7978845608028654f * (x + 0.044715f * x * x * x);
    return x * sigmoid(2.0f * u);
  }
  vf y;
  for (int i = 0; i < W; i++) y[i] = 0.5f * x[i] * (1.0f + std::erf(x[i] * 0.7071067811865476f));
  return y;
}

inline void activate(int activation, float* gate, const float* up, int size) {
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
