// Tokens, distributions and log probabilities from logits.
#include <nanobind/stl/pair.h>

#include <algorithm>

#include "bind/bind.h"
#include "sampling/passes.h"
#include "sampling/rows.h"

namespace suffice::bind {
namespace {

using Logits = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;  // rows may have a stride
using BlockMaxima = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Row = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Masks = nb::ndarray<const uint32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Doubles = nb::ndarray<double, nb::c_contig, nb::device::cpu>;
using ConstDoubles = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using States = std::vector<const SampleState*>;

void check_ids(const std::vector<int32_t>& ids) {
  require(
      std::all_of(ids.begin(), ids.end(), [](int32_t id) { return id >= 0 && id < kMostTokens; }),
      "token ids must be in [0, " + std::to_string(kMostTokens) + ")");
}

std::shared_ptr<const SamplingRules> rules_of(bool greedy, float temperature, int top_k,
                                              double top_p, float log_min_p, float repetition,
                                              float frequency, float presence, int min_tokens,
                                              std::vector<int32_t> stop_ids,
                                              std::vector<std::vector<int32_t>> bad_words,
                                              std::vector<int32_t> allowed,
                                              std::vector<std::pair<int32_t, float>> bias) {
  require(greedy || temperature > 0, "temperature must be above 0");
  require(top_k >= 0 && min_tokens >= 0, "top_k and min_tokens cannot be negative");
  require(top_p >= 0, "top_p must be at least 0");
  require(log_min_p <= 0, "log_min_p cannot be above 0");
  require(repetition > 0, "repetition must be above 0");
  check_ids(stop_ids);
  check_ids(allowed);
  for (const auto& word : bad_words) {
    require(!word.empty(), "a bad word has no tokens");
    check_ids(word);
  }
  for (const auto& entry : bias) check_ids({entry.first});
  return std::make_shared<SamplingRules>(SamplingRules{.greedy = greedy,
                                                       .temperature = temperature,
                                                       .top_k = top_k,
                                                       .top_p = top_p,
                                                       .log_min_p = log_min_p,
                                                       .repetition = repetition,
                                                       .frequency = frequency,
                                                       .presence = presence,
                                                       .min_tokens = min_tokens,
                                                       .stop_ids = std::move(stop_ids),
                                                       .bad_words = std::move(bad_words),
                                                       .allowed = std::move(allowed),
                                                       .bias = std::move(bias)});
}

SampleState* new_state(std::shared_ptr<const SamplingRules> rules,
                       const std::vector<int32_t>& prompt) {
  check_ids(prompt);
  return new SampleState(std::move(rules), prompt);
}

void append(SampleState& self, const std::vector<int32_t>& tokens) {
  check_ids(tokens);
  for (const int32_t token : tokens) self.append(token);
}

SampleState ahead(const SampleState& self, const std::vector<int32_t>& tokens) {
  SampleState copy = self;
  append(copy, tokens);
  return copy;
}

int vocabulary_of(size_t tokens) {
  require(tokens >= 1 && tokens <= kMostTokens,
          "logits must be of 1 to " + std::to_string(kMostTokens) + " tokens");
  return static_cast<int>(tokens);
}

LogitRows rows_of(const Logits& logits) {
  const int vocabulary = vocabulary_of(logits.shape(1));
  require(vocabulary == 1 || logits.stride(1) == 1, "a row of logits must be contiguous");
  return {logits.data(), logits.stride(0), static_cast<int>(logits.shape(0)), vocabulary};
}

void check_states(const LogitRows& logits, const States& states) {
  require(static_cast<int>(states.size()) == logits.rows, "one state for each row of logits");
  for (const SampleState* state : states)
    require(state && state->id_limit() <= logits.vocabulary,
            "a state has a token outside the vocabulary of " + std::to_string(logits.vocabulary));
}

MaskRows masks_of(const std::optional<Masks>& masks, const LogitRows& logits) {
  if (!masks) return {};
  const size_t words = (static_cast<size_t>(logits.vocabulary) + 31) / 32;
  require(masks->shape(0) == static_cast<size_t>(logits.rows) && masks->shape(1) >= words,
          "masks must be [rows, at least " + std::to_string(words) + "]");
  return {masks->data(), static_cast<int64_t>(masks->shape(1))};
}

template <class Array>
void check_size(const Array& array, size_t size, const char* name) {
  require(array.size() == size, std::string(name) + " must have " + std::to_string(size) +
                                    " entries, not " + std::to_string(array.size()));
}

void py_sample_rows(const Logits& logits, const States& states, const std::optional<Masks>& masks,
                    const ConstDoubles& numbers, const Ints& tokens, const Floats& largest,
                    const std::optional<BlockMaxima>& maxima) {
  LogitRows rows = rows_of(logits);
  if (maxima) {
    const int blocks = logit_blocks(rows.vocabulary);
    require(maxima->shape(0) == states.size() && maxima->shape(1) == static_cast<size_t>(blocks),
            "maxima must be [rows, " + std::to_string(blocks) + "]");
    rows.maxima = maxima->data();
  }
  check_states(rows, states);
  const MaskRows bits = masks_of(masks, rows);
  check_size(numbers, states.size(), "numbers");
  check_size(tokens, states.size(), "tokens");
  check_size(largest, states.size(), "largest");
  for (size_t i = 0; i < numbers.size(); i++)
    require(numbers.data()[i] >= 0 && numbers.data()[i] < 1, "numbers must be in [0, 1)");
  nb::gil_scoped_release release;
  sample_rows(rows, states.data(), bits, numbers.data(), tokens.data(), largest.data());
}

void py_probability_rows(const Logits& logits, const States& states,
                         const std::optional<Masks>& masks, const Floats& probs,
                         const Floats& largest) {
  const LogitRows rows = rows_of(logits);
  check_states(rows, states);
  const MaskRows bits = masks_of(masks, rows);
  check_size(probs, states.size() * rows.vocabulary, "probs");
  check_size(largest, states.size(), "largest");
  nb::gil_scoped_release release;
  probability_rows(rows, states.data(), bits, probs.data(), largest.data());
}

void py_top_logprobs(const std::vector<Row>& logits, const ConstInts& tokens,
                     const ConstInts& counts, const Doubles& chosen, const Ints& ranks,
                     const Ints& ids, const Doubles& values) {
  const size_t rows = logits.size();
  require(rows > 0, "no rows of logits");
  check_size(tokens, rows, "tokens");
  check_size(counts, rows, "counts");
  check_size(chosen, rows, "chosen");
  check_size(ranks, rows, "ranks");
  require(ids.ndim() == 2 && ids.shape(0) == rows, "ids must be [rows, most]");
  check_size(values, ids.size(), "values");
  const int vocabulary = vocabulary_of(logits[0].size()), most = static_cast<int>(ids.shape(1));
  std::vector<const float*> from;
  for (size_t i = 0; i < rows; i++) {
    check_size(logits[i], vocabulary, "a row of logits");
    require(tokens.data()[i] >= 0 && tokens.data()[i] < vocabulary, "no such token");
    require(counts.data()[i] >= 0 && counts.data()[i] <= std::min(most, vocabulary),
            "counts must be in [0, " + std::to_string(std::min(most, vocabulary)) + "]");
    from.push_back(logits[i].data());
  }
  nb::gil_scoped_release release;
  top_logprobs({static_cast<int>(rows), vocabulary, most, from.data(), tokens.data(), counts.data(),
                chosen.data(), ranks.data(), ids.data(), values.data()});
}

}  // namespace

void bind_sampling(nb::module_& m) {
  nb::class_<SamplingRules>(m, "SamplingRules")
      .def(nb::new_(&rules_of), nb::kw_only(), "greedy"_a, "temperature"_a, "top_k"_a, "top_p"_a,
           "log_min_p"_a, "repetition"_a, "frequency"_a, "presence"_a, "min_tokens"_a, "stop_ids"_a,
           "bad_words"_a, "allowed"_a, "bias"_a);
  nb::class_<SampleState>(m, "SampleState")
      .def(nb::new_(&new_state), "rules"_a, "prompt"_a)
      .def("append", &append, "tokens"_a)
      .def("ahead", &ahead, "tokens"_a);
  m.def("sample_rows", &py_sample_rows, "logits"_a.noconvert(), "states"_a, "masks"_a.none(),
        "numbers"_a.noconvert(), "tokens"_a.noconvert(), "largest"_a.noconvert(),
        "maxima"_a.noconvert().none() = nb::none());
  m.attr("LOGIT_BLOCK") = kLogitBlock;
  m.def("probability_rows", &py_probability_rows, "logits"_a.noconvert(), "states"_a,
        "masks"_a.none(), "probs"_a.noconvert(), "largest"_a.noconvert());
  m.def("top_logprobs", &py_top_logprobs, "logits"_a, "tokens"_a.noconvert(),
        "counts"_a.noconvert(), "chosen"_a.noconvert(), "ranks"_a.noconvert(), "ids"_a.noconvert(),
        "values"_a.noconvert());
}

}  // namespace suffice::bind
