#include <nanobind/stl/tuple.h>

#include <new>
#include <tuple>

#include "bind/bind.h"
#include "kernels/kernels.h"
#include "runtime/machine.h"
#include "runtime/parallel.h"

namespace suffice::bind {

Type type_of(const std::string& name) {
  if (name == "float32") return Type::f32;
  if (name == "bfloat16") return Type::bf16;
  if (name == "float16") return Type::f16;
  if (name == "int8") return Type::i8;
  if (name == "kmeans4") return Type::kmeans4;
  if (name == "planes") return Type::planes;
  throw std::invalid_argument("unknown storage type '" + name +
                              "'. Known types: float32, bfloat16, float16, int8, kmeans4, planes");
}

const char* name_of(Type type) {
  constexpr const char* names[] = {"float32", "bfloat16", "float16", "int8", "kmeans4", "planes"};
  return names[static_cast<int>(type)];
}

namespace {

void bind_machine(nb::module_& m) {
  m.def("isas", [] {
    std::vector<std::tuple<std::string, bool, bool>> states;
    for (const IsaState& each : isa_states()) states.emplace_back(each.name, each.built, each.runs);
    return states;
  });
  m.def("isa", [] { return std::string(kernels().name); });
  m.def("use_isa", [](const std::string& name) { return use_isa(name.c_str()); }, "name"_a);
  m.def("on_amd", &on_amd);
  m.def("choose_as_on_amd", &choose_as_on_amd, "on"_a);
  m.def("cores", &usable_cores);
  m.def("threads", [] { return team()->size(); });
  m.def(
      "set_threads",
      [](int threads) {
        require(threads >= 1, "at least one thread");
        set_threads(threads);
      },
      "threads"_a);
  m.def(
      "fail_in_thread",
      [](int thread) {
        nb::gil_scoped_release release;
        const auto threads = team();
        threads->run([&](int each) {
          if (each == thread) throw std::bad_alloc();
          threads->barrier();
        });
      },
      "thread"_a, "Raises MemoryError in a thread of the team, to test how it is passed on.");
  m.def("read_bandwidth", &read_bandwidth, "bytes"_a, "threads"_a, "repeats"_a,
        nb::call_guard<nb::gil_scoped_release>());
  nb::enum_<Products>(m, "Products", "What is multiplied.")
      .value("float32", Products::f32)
      .value("bfloat16", Products::bf16)
      .value("int16", Products::i16)
      .value("int8", Products::i8);
  m.def("product_rate", &product_rate, "of"_a, "threads"_a, "repeats"_a,
        nb::call_guard<nb::gil_scoped_release>());
  m.def("copy_bandwidth", &copy_bandwidth, "bytes"_a, "threads"_a, "repeats"_a,
        nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace

NB_MODULE(_native, m) {
  m.attr("PANEL") = kPanel;
  m.attr("ROW_LEVELS") = std::vector<int>(kRowCodebook.levels, kRowCodebook.levels + kLevels);
  m.attr("ROW_LEVEL_UNIT") = kLevelUnit;
  m.attr("TRIED_FACTORS") = std::vector<float>(kTriedFactors, kTriedFactors + kTried);
  nb::exception<OutOfMemory>(m, "OutOfMemory", PyExc_MemoryError);
  bind_machine(m);
  bind_formats(m);
  bind_linear(m);
  bind_cache(m);
  bind_model(m);
  bind_packing(m);
  bind_rule(m);
  bind_sampling(m);
}

}  // namespace suffice::bind
