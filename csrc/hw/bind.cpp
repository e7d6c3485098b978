// The module `suffice_hw._simulator`: checks the arguments of the simulators, no arithmetic.
#include "bind.h"

#include <algorithm>
#include <memory>

namespace suffice::hw::bind {
namespace {

using Longs = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Flags = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Latencies = nb::ndarray<int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

Part make_part(const std::vector<int64_t>& sizes, const std::vector<int>& lowest_first,
               int burst_bytes, int window, int queue, const std::vector<int>& timing) {
  require(sizes.size() == kFields && timing.size() == 18, "six field sizes and 18 times");
  require(burst_bytes >= 1 && window >= 1 && queue >= window, "a queue that holds a window");
  Part part{{{}, lowest_first, burst_bytes, window, queue}, {}};
  for (int i = 0; i < kFields; i++) {
    require(sizes[i] >= 1, "sizes of at least 1");
    part.shape.sizes[i] = sizes[i];
  }
  require(sizes[kGroup] * sizes[kBank] <= 64, "at most 64 banks in a channel");
  std::vector<int> sorted = lowest_first;
  std::sort(sorted.begin(), sorted.end());
  require(sorted == std::vector<int>({0, 1, 2, 3, 4, 5}), "each field once");
  for (const int each : timing) require(each >= 0, "no negative times");
  const int* t = timing.data();
  part.timing = {t[0], t[1],  t[2],  t[3],  t[4],  t[5],  t[6],  t[7],  t[8],
                 t[9], t[10], t[11], t[12], t[13], t[14], t[15], t[16], t[17]};
  const Timing& made = part.timing;
  require(made.refresh + made.row_active + made.precharge < made.refresh_interval,
          "a refresh must fit into its interval");
  return part;
}

Counts py_run(const Part& part, Longs arrivals, Longs addresses, std::optional<Flags> writes,
              std::optional<Latencies> latencies) {
  const size_t count = arrivals.size();
  require(addresses.size() == count && (!writes || writes->size() == count) &&
              (!latencies || latencies->size() == count),
          "arrivals, addresses, writes and latencies must be equally long");
  for (size_t i = 0; i < count; i++) {
    require(addresses.data()[i] >= 0, "no negative addresses");
    require(arrivals.data()[i] >= (i ? arrivals.data()[i - 1] : 0), "arrivals must ascend from 0");
  }
  nb::gil_scoped_release release;
  return run(part.shape, part.timing, arrivals.data(), addresses.data(),
             writes ? writes->data() : nullptr, static_cast<int64_t>(count),
             latencies ? latencies->data() : nullptr);
}

}  // namespace
}  // namespace suffice::hw::bind

NB_MODULE(_simulator, m) {
  using namespace suffice::hw;
  using namespace suffice::hw::bind;
  nb::class_<Part>(m, "Part");
  nb::class_<Counts>(m, "Counts")
      .def_ro("reads", &Counts::reads)
      .def_ro("writes", &Counts::writes)
      .def_ro("activates", &Counts::activates)
      .def_ro("refreshes", &Counts::refreshes)
      .def_ro("hits", &Counts::hits)
      .def_ro("closed", &Counts::closed)
      .def_ro("conflicts", &Counts::conflicts)
      .def_ro("latency", &Counts::latency)
      .def_ro("active", &Counts::active)
      .def_ro("end", &Counts::end);
  m.def("part", &make_part, "sizes"_a, "lowest_first"_a, "burst_bytes"_a, "window"_a, "queue"_a,
        "timing"_a);
  m.def("run", &py_run, "part"_a, "arrivals"_a.noconvert(), "addresses"_a.noconvert(),
        "writes"_a.noconvert().none() = nb::none(), "latencies"_a.noconvert().none() = nb::none());
  bind_scrooge(m);
  m.def(
      "locate",
      [](const Part& part, int64_t address) {
        require(address >= 0, "no negative addresses");
        const Place place = locate(part.shape, address);
        return nb::make_tuple(place.channel, place.group, place.bank, place.row, place.column);
      },
      "part"_a, "address"_a);
}
