// Shared by the binding files. Only this folder knows Python: it checks every argument and does no
// arithmetic.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "attention/attention_rule.h"
#include "attention/reads.h"
#include "cache/cache.h"
#include "linear/linear.h"
#include "model/model.h"

namespace suffice::bind {

namespace nb = nanobind;
using namespace nb::literals;

using Floats = nb::ndarray<float, nb::c_contig, nb::device::cpu>;
using ConstFloats = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<uint8_t, nb::c_contig, nb::device::cpu>;
using ConstBytes = nb::ndarray<const uint8_t, nb::c_contig, nb::device::cpu>;
using ConstWords = nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ConstInts = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<int32_t, nb::c_contig, nb::device::cpu>;
using Longs = nb::ndarray<int64_t, nb::c_contig, nb::device::cpu>;

inline void require(bool holds, const std::string& message) {
  if (!holds) throw std::invalid_argument(message);
}

Type type_of(const std::string& name);
const char* name_of(Type type);
void check_tokens(const KVCache& cache, int first, int count);
void check_rows(const KVCache& cache, int layer, int first, int count);  // of a layer
// Each cache's rows in a layer, for a call for several requests.
std::vector<StepRequest> requests_of(const std::vector<KVCache*>& caches, int layer,
                                     const ConstInts& lengths, const ConstInts& counts,
                                     size_t rows);
// Counts that add to reads [5, layers, kv_heads], checked, from a layer on: see `Trace` in Python.
Counts counts_into(const Longs& reads, size_t layers, size_t kv_heads, size_t layer = 0);
std::vector<float> scaled(const ConstFloats& q, float scale);  // in the kernel's units
void check_rule(const AttentionRule& rule, int group);  // query heads that share keys and values
constexpr const char* kNeedsBases = "the cache has no bases of its keys and values";

// The forms of scales and minima by their names in Python.
constexpr const char* kScaleForms[] = {"float16", "bfloat16", "power",   "nested",
                                       "float32", "e4m3",     "nested32"};
constexpr const char* kMinimumForms[] = {"none", "float16", "zero", "nested"};
constexpr const char* kGrids[] = {"none", "iq2_xxs", "iq2_xs", "iq2_s", "iq1", "iq3_xxs", "iq3_s"};

// The description of codes by these names, checked.
CodeLayout layout_of(int bits, int group, const std::string& scales, const std::string& minima,
                     const std::string& grid = "none");

// What codes need beyond their data; see linear/linear.h.
struct CodeParts {
  std::optional<ConstBytes> levels;
  int group;
  std::string scales, minima, grid;
  std::optional<ConstWords> entries;
  std::optional<ConstInts> order;
  int rotation, max_code;
};

// Owns padded copies of scale and bias, the levels, the order, and the wave of a rotation; keeps
// the arrays of the weight and of its grid alive.
struct PyLinear {
  Linear linear;
  ConstBytes data;
  std::optional<ConstWords> entries;
  std::vector<float> scale, bias, wave;
  std::vector<uint8_t> levels;
  std::vector<int32_t> order;

  PyLinear(ConstBytes bytes, int rows, int columns, const std::string& type,
           const std::optional<ConstFloats>& scales, const std::optional<ConstFloats>& biases,
           const CodeParts& parts);
  PyLinear(const PyLinear&) = delete;

 private:
  void set_codes(const CodeParts& parts);
  void set_levels(const ConstBytes& from);
  void set_order(const ConstInts& from);
  void set_rotation(int block);
  const float* padded(const std::optional<ConstFloats>& from, std::vector<float>& to,
                      const char* name);
};

void bind_linear(nb::module_& module);
void bind_cache(nb::module_& module);
void bind_formats(nb::module_& module);
void bind_model(nb::module_& module);
void bind_packing(nb::module_& module);
void bind_rule(nb::module_& module);
void bind_sampling(nb::module_& module);
void bind_states(nb::module_& m, nb::class_<KVCache>& cache);
void bind_policy(nb::class_<KVCache>& cache);
void bind_attention(nb::module_& module, nb::class_<KVCache>& cache);
void bind_row_bytes(nb::module_& module, nb::class_<KVCache>& cache);

}  // namespace suffice::bind
