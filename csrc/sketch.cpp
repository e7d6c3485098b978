#include "sketch.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace suffice {
namespace {

constexpr float kSlack = 1.0f + 1e-5f;  // float32 sums of squares may come out too small
constexpr float kRounding = 1e-4f;      // of scores, in base 2

struct Chunk {
  float *scale, *low, *residual;
  uint8_t* codes;

  Chunk(const Head& head, int chunk) {
    std::byte* from = head.sketch + chunk * sketch_bytes(head.size);
    scale = reinterpret_cast<float*>(from);
    low = scale + head.size;
    residual = low + head.size;
    codes = reinterpret_cast<uint8_t*>(residual + kSketchRows);
  }
};

}  // namespace

void encode_sketch(const Head& head, int chunk) {
  const int size = head.size;
  const Chunk to(head, chunk);
  std::vector<float> keys(static_cast<size_t>(kSketchRows) * size);
  kernels().load_rows(head, chunk * kSketchRows, kSketchRows, keys.data(), nullptr);
  std::fill_n(to.residual, kSketchRows, 0.0f);
  std::memset(to.codes, 0, static_cast<size_t>(kSketchRows) * size / 2);
  for (int d = 0; d < size; d++) {
    float low = keys[d], high = keys[d];
    for (int row = 1; row < kSketchRows; row++) {
      low = std::min(low, keys[row * size + d]);
      high = std::max(high, keys[row * size + d]);
    }
    to.low[d] = low;
    to.scale[d] = (high - low) / 15.0f;
    const float inverse = to.scale[d] > 0 ? 1.0f / to.scale[d] : 0.0f;
    for (int row = 0; row < kSketchRows; row++) {
      const float key = keys[row * size + d];
      const int code = std::clamp(static_cast<int>(std::lrintf((key - low) * inverse)), 0, 15);
      const float left = key - (to.scale[d] * static_cast<float>(code) + low);
      to.residual[row] += left * left;
      const size_t at = static_cast<size_t>(row / kPanel) * kPanel * size / 2 +
                        static_cast<size_t>(d / 8) * kLineBytes + row % kPanel * 4 + d % 4;
      to.codes[at] |= static_cast<uint8_t>(code << (d % 8 / 4 * 4));
    }
  }
  for (int row = 0; row < kSketchRows; row++)
    to.residual[row] = std::sqrt(to.residual[row]) * kSlack;
}

void Estimates::sort(const Head& head, const float* const* queries, int count, int begin, int end,
                     bool bounded, std::vector<int32_t>& order) {
  const int chunks = end - begin, blocks = chunks * kSketchBlocks;
  const size_t always = order.size();
  const int run = count * kSketchRows;
  scores_.resize(static_cast<size_t>(chunks) * run);
  slopes_.resize(static_cast<size_t>(chunks) * count);
  offsets_.resize(slopes_.size());
  peaks_.assign(count, -1e30f);
  for (int c = 0; c < chunks; c++) {
    float* scores = scores_.data() + static_cast<size_t>(c) * run;
    kernels().estimate(head, begin + c, queries, count, scores, peaks_.data(), &slopes_[c * count],
                       &offsets_[c * count]);
  }
  masses_.resize(static_cast<size_t>(blocks) * count);  // [blocks][count]
  bounds_.resize(masses_.size());
  std::vector<float> totals(count, 0.0f);
  for (int c = 0; c < chunks; c++) {
    const Chunk chunk(head, begin + c);
    for (int q = 0; q < count; q++) {
      float masses[kSketchBlocks];
      kernels().sum_blocks(scores_.data() + static_cast<size_t>(c) * run + q * kSketchRows,
                           peaks_[q], masses);
      for (int b = 0; b < kSketchBlocks; b++) {
        const float* residual = chunk.residual + b * kPanel;
        const float widest = *std::max_element(residual, residual + kPanel);
        const size_t at = static_cast<size_t>(c * kSketchBlocks + b) * count + q;
        const float error =
            widest * slopes_[c * count + q] * kSlack + offsets_[c * count + q] + kRounding;
        masses_[at] = masses[b];
        bounds_[at] = bounded ? masses[b] * std::exp2(error) * kSlack : masses[b];
        totals[q] += masses[b];
      }
    }
  }
  shares_.assign(blocks, 0.0f);
  for (int b = 0; b < blocks; b++)
    for (int q = 0; q < count; q++) shares_[b] += masses_[b * count + q] / totals[q];
  sorted_.resize(blocks);
  for (int b = 0; b < blocks; b++) sorted_[b] = b;
  std::sort(sorted_.begin(), sorted_.end(), [this](int a, int b) {
    return shares_[a] != shares_[b] ? shares_[a] > shares_[b] : a < b;
  });
  for (const int b : sorted_) order.push_back(begin * kSketchBlocks + b);
  rest_.assign((order.size() + 1) * count, 0.0f);
  for (size_t i = order.size(); i-- > 0;)
    for (int q = 0; q < count; q++) {
      const float own = i < always ? 0.0f : bounds_[sorted_[i - always] * count + q];
      rest_[i * count + q] = rest_[(i + 1) * count + q] * (1.0f + 1e-7f) + own;
    }
}

}  // namespace suffice
